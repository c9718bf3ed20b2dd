"""The scaling of Llama 3.1: by wavelength, with a smooth middle."""

from __future__ import annotations

import numpy as np

from rotary.errors import ConfigError
from rotary.frequencies.base import Frequencies, make_recipe, one_axis
from rotary.frequencies.checks import integer, number


def llama3(
    frequencies: Frequencies,
    factor: float = 8.0,
    original_length: int = 8192,
    *,
    low_freq_factor: float = 1.0,
    high_freq_factor: float = 4.0,
) -> Frequencies:
    """Divide long wavelengths by the factor, keep short ones, blend between (Llama 3.1, Meta).

    With ``turns = original_length * theta / (2 pi)``: below ``low_freq_factor`` turns a plane is
    divided by the factor, above ``high_freq_factor`` turns it is kept, and between the two the
    share that is kept grows linearly with the turns.

    Args:
        frequencies: Of one axis, (1, planes).
        factor: New length over original length, greater than 0; 8 in Llama 3.1.
        original_length: Number of positions of the first training; 8192 in Llama 3.1.
        low_freq_factor: Turns below which a plane is interpolated.
        high_freq_factor: Turns above which a plane is kept; greater than the low one.

    Returns:
        Frequencies of the same shape and amplitude.

    Raises:
        ConfigError: If a number is out of range.
        ShapeError: If the frequencies have heads or more than one axis.

    Example:
        >>> from rotary import inverse_power
        >>> llama3(inverse_power(128, base=500000.0))
        Frequencies(1x64, 1 to 3.069e-07 rad)
    """
    values = one_axis("llama3", frequencies)
    factor = number("llama3", "factor", factor)
    original_length = integer("llama3", "original_length", original_length)
    low = number("llama3", "low_freq_factor", low_freq_factor)
    high = number("llama3", "high_freq_factor", high_freq_factor)
    if high <= low:
        raise ConfigError(
            f"llama3: high_freq_factor is {high:g} and low_freq_factor is {low:g}; the high one "
            "must be the greater."
        )
    turns = original_length * np.abs(values) / (2 * np.pi)
    kept = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return Frequencies(
        (1 - kept) * values / factor + kept * values,
        frequencies.amplitude,
        recipe=make_recipe(
            "llama3",
            frequencies=frequencies,
            factor=factor,
            original_length=original_length,
            low_freq_factor=low,
            high_freq_factor=high,
        ),
    )
