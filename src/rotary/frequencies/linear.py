"""Position interpolation: all frequencies divided by one factor."""

from __future__ import annotations

from rotary.errors import ConfigError
from rotary.frequencies.base import Frequencies, make_recipe
from rotary.frequencies.checks import number


def linear(frequencies: Frequencies, factor: float) -> Frequencies:
    """Squeeze ``factor`` times as many positions into the trained range (PI, arXiv 2306.15595).

    ``theta'_p = theta_p / factor``, the same as dividing every position by the factor.

    Args:
        frequencies: Any, of one axis or more, with or without heads.
        factor: New length over trained length, greater than 0 (usually 1 or more).

    Returns:
        Frequencies of the same shape and amplitude.

    Raises:
        ConfigError: If the factor is not a positive, finite number.

    Example:
        >>> from rotary import inverse_power
        >>> linear(inverse_power(4), factor=2).matrix
        array([[0.5  , 0.005]])
    """
    if not isinstance(frequencies, Frequencies):
        raise ConfigError(f"linear: frequencies are {frequencies!r}; give Frequencies.")
    factor = number("linear", "factor", factor)
    return Frequencies(
        frequencies.matrix / factor,
        frequencies.amplitude,
        recipe=make_recipe("linear", frequencies=frequencies, factor=factor),
    )
