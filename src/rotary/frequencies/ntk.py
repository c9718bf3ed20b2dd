"""NTK-aware scaling: a larger base, chosen so that the slowest plane is interpolated."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rotary.frequencies.base import Frequencies, make_recipe, one_axis
from rotary.frequencies.checks import number


def ntk(frequencies: Frequencies, factor: float) -> Frequencies:
    """Stretch slow planes by the factor and leave fast ones: ``base' = base * f ** (d / (d - 2))``.

    In terms of the frequencies, ``theta'_p = theta_p * factor ** (-p / (planes - 1))``: the first
    plane keeps its frequency, the last is divided by the factor (bloc97, 2023).

    Args:
        frequencies: Of one axis, (1, planes).
        factor: How much longer the context is to be, greater than 0.

    Returns:
        Frequencies of the same shape and amplitude. A single plane keeps its frequency.

    Raises:
        ConfigError: If the factor is not a positive, finite number.
        ShapeError: If the frequencies have heads or more than one axis.

    Example:
        >>> from rotary import inverse_power
        >>> ntk(inverse_power(4), factor=8).matrix
        array([[1.     , 0.00125]])
    """
    values = one_axis("ntk", frequencies)
    factor = number("ntk", "factor", factor)
    return Frequencies(
        values * factor ** -ntk_exponents(values.size),
        frequencies.amplitude,
        recipe=make_recipe("ntk", frequencies=frequencies, factor=factor),
    )


def ntk_exponents(num_planes: int) -> npt.NDArray[np.float64]:
    """``p / (planes - 1)``: how much of the factor each plane takes; zero for a single plane."""
    return np.arange(num_planes, dtype=np.float64) / max(num_planes - 1, 1)
