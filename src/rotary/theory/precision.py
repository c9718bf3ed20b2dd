"""How wrong an angle becomes when frequencies or products are held in a narrow dtype."""

from __future__ import annotations

import decimal
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch

from rotary.errors import ConfigError, one_of
from rotary.frequencies import inverse_power
from rotary.frequencies.checks import integer
from rotary.theory._check import Array


class AngleError(NamedTuple):
    """Radians, over all planes and the positions of a window.

    Attributes:
        max: The largest error.
        rms: The root mean square.
        plane: Where the largest is.
        step: The largest error of the angle between neighbouring positions, which is what scores
            at distance 1 see.
    """

    max: float
    rms: float
    plane: int
    step: float


def _float64(dim: int, base: float, positions: Array) -> Array:
    return positions[:, None] * inverse_power(dim, base).matrix[0]


def _float32_power(dim: int, base: float, positions: Array) -> Array:
    exponents = torch.arange(0, dim, 2, dtype=torch.int64).to(torch.float32) / dim
    theta = 1.0 / (base**exponents)
    return (torch.from_numpy(positions).to(torch.float32)[:, None] * theta).double().numpy()


def _rounded(frequency: torch.dtype, product: torch.dtype) -> Callable[[int, float, Array], Array]:
    def angles(dim: int, base: float, positions: Array) -> Array:
        theta = torch.from_numpy(inverse_power(dim, base).matrix[0].copy()).to(frequency)
        where = torch.from_numpy(positions).to(product)
        return (where[:, None] * theta.to(product)).double().numpy()

    return angles


RECIPES: dict[str, Callable[[int, float, Array], Array]] = {
    "float64": _float64,
    "float32_frequencies": _rounded(torch.float32, torch.float64),
    "float32": _rounded(torch.float32, torch.float32),
    "float32_power": _float32_power,
    "bfloat16_frequencies": _rounded(torch.bfloat16, torch.float32),
}
"""Ways to form angles: float64 (this library's); float32 frequencies with a float64 product; both
float32; the power itself taken in float32 (transformers' models); bfloat16 frequencies (what a
careless cast of a model does)."""


def angle_error(
    dim: int, position: int, recipe: str, *, base: float = 10000.0, window: int = 501
) -> AngleError:
    """Compare the angles of a recipe with exact ones at the positions just up to ``position``.

    The exact frequencies are computed to 40 digits and held as a sum of two float64; products with
    whole positions are then exact to about 1e-16 of a radian per unit of position and less.

    Args:
        dim: Number of channels that turn, even.
        position: The last position of the window, below 2^24.
        recipe: One of ``RECIPES``.
        base: Of the power law.
        window: Number of positions; several, since a single product may be exact by chance.

    Returns:
        Errors modulo a full turn, in radians.

    Raises:
        ConfigError: If an argument cannot be right.

    Example:
        >>> angle_error(128, 100_000, "float32").max > 5e-3
        True
        >>> angle_error(128, 100_000, "float64").max < 1e-10
        True
    """
    position = integer("angle_error", "position", position)
    window = integer("angle_error", "window", window)
    if position >= 1 << 24:
        raise ConfigError(f"angle_error: position is {position}; it must be below 2^24.")
    if recipe not in RECIPES:
        raise ConfigError(f"angle_error: {one_of('recipe', recipe, RECIPES)}")
    positions = np.arange(max(0, position - window + 1), position + 2, dtype=np.float64)
    high, middle, low = exact_frequencies(dim, base)
    got = RECIPES[recipe](dim, base, positions)
    # Each product of 24 bits with 26 is exact, and subtracting the largest first keeps it so.
    error = got - positions[:, None] * high - positions[:, None] * middle
    error = _wrap(error - positions[:, None] * low)
    step = _wrap(np.diff(error, axis=0))
    inside = np.abs(error[:-1])
    return AngleError(
        float(inside.max()),
        float(np.sqrt(np.square(inside).mean())),
        int(inside.max(axis=0).argmax()),
        float(np.abs(step).max()),
    )


def exact_frequencies(dim: int, base: float) -> tuple[Array, Array, Array]:
    """``base ** (-2p / dim)`` as the sum of three float64: two of 26 bits and the rest.

    Products of the first two with integers below 2^24 are exact.

    Example:
        >>> high, middle, low = exact_frequencies(4, 10000.0)
        >>> (high + middle + low).tolist()
        [1.0, 0.01]
    """
    planes = inverse_power(dim, base).num_planes
    with decimal.localcontext() as context:
        context.prec = 40
        exact = [
            context.power(decimal.Decimal(base), decimal.Decimal(-2 * p) / decimal.Decimal(dim))
            for p in range(planes)
        ]
        parts = []
        for value in exact:
            high = _leading_bits(float(value))
            middle = _leading_bits(float(value - decimal.Decimal(high)))
            low = float(value - decimal.Decimal(high) - decimal.Decimal(middle))
            parts.append((high, middle, low))
    high_parts, middle_parts, low_parts = np.array(parts).T
    return high_parts, middle_parts, low_parts


def _leading_bits(value: float) -> float:
    mantissa, exponent = np.frexp(value)
    return float(np.ldexp(np.round(np.ldexp(mantissa, 26)), exponent - 26))


def _wrap(angles: Array) -> Array:
    return angles - 2 * np.pi * np.round(angles / (2 * np.pi))
