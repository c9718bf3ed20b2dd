"""YaRN: keep fast planes, interpolate slow ones, and raise the amplitude."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from rotary.errors import ConfigError
from rotary.frequencies.base import Frequencies, make_recipe, one_axis
from rotary.frequencies.checks import integer, number


def yarn(
    frequencies: Frequencies,
    factor: float,
    original_length: int,
    *,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
    truncate: bool = True,
    amplitude: float | None = None,
    mscale: float | None = None,
    mscale_all_dim: float | None = None,
) -> Frequencies:
    """Blend each plane between itself and its interpolation (YaRN, arXiv 2309.00071, 3.2 to 3.4).

    A plane that turns more than ``beta_fast`` times within the original length is kept, one that
    turns less than ``beta_slow`` times is divided by the factor, and a linear ramp over the index
    of the plane lies between: ``theta'_p = theta_p (1 - ramp_p) + theta_p / factor * ramp_p``.

    Args:
        frequencies: Of one axis, falling as a power, at least two planes: ``inverse_power(...)``.
        factor: New length over original length, greater than 0.
        original_length: Number of positions the model was trained on.
        beta_fast: Turns within the original length from which a plane is kept.
        beta_slow: Turns within the original length up to which a plane is interpolated.
        truncate: Round the ends of the ramp outwards to whole planes, as the first code did.
        amplitude: The factor on the turned vector (Hugging Face's ``attention_factor``). Left out,
            it is ``0.1 ln(factor) + 1``, or from the two mscale values where both are given.
        mscale: Numerator of the ratio of amplitudes that DeepSeek uses, ``0.1 mscale ln f + 1``.
        mscale_all_dim: Denominator of that ratio. Equal values give amplitude 1: such models put
            the factor into the scale of their softmax instead; see :func:`yarn_mscale`.

    Returns:
        Frequencies of the same shape, with the amplitude.

    Raises:
        ConfigError: If a number is out of range, or the frequencies do not fall as a power.
        ShapeError: If the frequencies have heads or more than one axis.

    Example:
        >>> from rotary import inverse_power
        >>> yarn(inverse_power(64), factor=4, original_length=4096)
        Frequencies(1x32, 1 to 3.334e-05 rad, amplitude=1.13863)
    """
    values = one_axis("yarn", frequencies)
    factor = number("yarn", "factor", factor)
    original_length = integer("yarn", "original_length", original_length)
    beta_fast = number("yarn", "beta_fast", beta_fast)
    beta_slow = number("yarn", "beta_slow", beta_slow)
    if beta_fast < beta_slow:
        raise ConfigError(
            f"yarn: beta_fast is {beta_fast:g} and beta_slow is {beta_slow:g}; planes that turn "
            "fast are kept, so beta_fast must not be the smaller one."
        )
    if amplitude is None:
        if mscale and mscale_all_dim:
            amplitude = yarn_mscale(factor, mscale) / yarn_mscale(factor, mscale_all_dim)
        else:
            amplitude = yarn_mscale(factor)
        given = None
    else:
        given = amplitude = number("yarn", "amplitude", amplitude)
    slope = _slope(values)

    def plane_that_turns(times: float) -> float:
        return math.log(original_length * values[0] / (2 * math.pi * times)) / slope

    low, high = plane_that_turns(beta_fast), plane_that_turns(beta_slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    # The upper bound is the number of channels, not of planes: so it was first written, and so
    # every trained checkpoint has it.
    low, high = max(low, 0), min(high, 2 * values.size - 1)
    if low == high:
        high += 0.001
    ramp = np.clip((np.arange(values.size) - low) / (high - low), 0.0, 1.0)
    return Frequencies(
        values * (1 - ramp) + values / factor * ramp,
        amplitude * frequencies.amplitude,
        recipe=make_recipe(
            "yarn",
            frequencies=frequencies,
            factor=factor,
            original_length=original_length,
            beta_fast=beta_fast,
            beta_slow=beta_slow,
            truncate=bool(truncate),
            amplitude=given,
            mscale=mscale,
            mscale_all_dim=mscale_all_dim,
        ),
    )


def yarn_mscale(factor: float, mscale: float = 1.0) -> float:
    """The amplitude YaRN recommends, ``0.1 mscale ln(factor) + 1``, or 1 for a factor up to 1.

    DeepSeek's models multiply the scale of the softmax by its square, with ``mscale_all_dim``.

    Example:
        >>> round(yarn_mscale(40.0), 4)
        1.3689
    """
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def _slope(values: npt.NDArray[np.float64]) -> float:
    """How much the logarithm of the frequency falls from plane to plane."""
    if values.size >= 2 and (values > 0).all():
        logs = np.log(values)
        slope = float(logs[0] - logs[-1]) / (values.size - 1)
        if slope > 0 and np.allclose(np.diff(logs), -slope, rtol=1e-6, atol=1e-9):
            return slope
    raise ConfigError(
        "yarn: the frequencies must fall as a power, over two planes or more, such as "
        "inverse_power(dim, base) or a linear scaling of it."
    )
