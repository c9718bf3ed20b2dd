"""Which base suits a context length: Su's condition on the mean cosine."""

from __future__ import annotations

import numpy as np

from rotary.errors import ConfigError
from rotary.frequencies import Frequencies, inverse_power
from rotary.frequencies.base import one_axis
from rotary.frequencies.checks import integer
from rotary.theory._check import Array

# Distances are looked at in pieces of this many; most bases fail in the first.
_FIRST, _LARGEST = 256, 1 << 14


def first_negative_distance(frequencies: Frequencies, limit: int) -> int | None:
    """The first distance below ``limit`` at which the mean cosine is negative, or None.

    From there on a key like the query is expected to score less than a random one (Su, kexue.fm
    10122; "Base of RoPE bounds context length", 2024).

    Args:
        frequencies: Of one axis; scaled ones too.
        limit: Distances 0, 1, ..., limit - 1 are looked at.

    Returns:
        A distance from 1 to limit - 1, or None.

    Raises:
        ShapeError: If the frequencies have several axes or differ from head to head.
        ConfigError: If the limit cannot be right.

    Example:
        >>> first_negative_distance(inverse_power(128), 4096)
        1707
    """
    limit = integer("first_negative_distance", "limit", limit)
    theta = one_axis("first_negative_distance", frequencies)
    return _first_negative(theta, 0, limit)


def is_base_sufficient(dim: int, base: float, length: int) -> bool:
    """Su's condition: ``sum_p cos(m theta_p) >= 0`` for every distance ``0 <= m < length``.

    Args:
        dim: Number of channels that turn, even.
        base: Of the power law ``theta_p = base ** (-2p / dim)``.
        length: The context length in positions.

    Returns:
        Whether it holds. It is not monotone in the base: a larger base can fail where a smaller one
        holds.

    Raises:
        ConfigError: If dim, base or length cannot be right.

    Example:
        >>> is_base_sufficient(128, 10000.0, 1024), is_base_sufficient(128, 10000.0, 2048)
        (True, False)
    """
    length = integer("is_base_sufficient", "length", length)
    return first_negative_distance(inverse_power(dim, base), length) is None


def base_for_length(dim: int, length: int, *, ratio: float = 1.001) -> float:
    """The smallest base of a geometric grid that satisfies Su's condition for a context length.

    The bases that satisfy it have holes between them, so nothing is bisected: the grid 1, ratio,
    ratio^2, ... is walked upwards. A finer grid may find a slightly smaller base, and rounding the
    result can break the condition; test what you use with :func:`is_base_sufficient`.

    Args:
        dim: Number of channels that turn, even.
        length: The context length in positions.
        ratio: From one base of the grid to the next, greater than 1.

    Returns:
        A base that satisfies the condition, checked at every distance.

    Raises:
        ConfigError: If an argument cannot be right, or no base up to 1e15 satisfies it (with few
            channels there may be none).

    Example:
        >>> base = base_for_length(128, 1024)
        >>> 4250 < base < 4350 and is_base_sufficient(128, base, 1024)
        True
    """
    length = integer("base_for_length", "length", length)
    if not (np.isfinite(ratio) and ratio > 1):
        raise ConfigError(f"base_for_length: ratio is {ratio!r}; it must be greater than 1.")
    last = int(np.log(1e15) / np.log(ratio))
    witness: int | None = None
    for step in range(last + 1):
        base = float(ratio**step)
        theta = inverse_power(dim, base).matrix[0]
        found = None if witness is None else _near(theta, witness, length)
        witness = _last_negative(theta, 0, length) if found is None else found
        if witness is None:
            return base
    raise ConfigError(
        f"base_for_length: with dim={dim} no base up to 1e15 keeps the mean cosine from going "
        f"negative within {length} positions; turn more channels."
    )


def _first_negative(theta: Array, start: int, stop: int) -> int | None:
    size = _FIRST
    while start < stop:
        distances = np.arange(start, min(start + size, stop), dtype=np.float64)
        negative = np.flatnonzero(np.cos(distances[:, None] * theta).sum(axis=1) < 0)
        if negative.size:
            return start + int(negative[0])
        start, size = start + size, min(2 * size, _LARGEST)
    return None


def _last_negative(theta: Array, start: int, stop: int) -> int | None:
    """Searched from the far end, where negative sums are most likely."""
    size = _FIRST
    while stop > start:
        lowest = max(start, stop - size)
        distances = np.arange(lowest, stop, dtype=np.float64)
        negative = np.flatnonzero(np.cos(distances[:, None] * theta).sum(axis=1) < 0)
        if negative.size:
            return lowest + int(negative[-1])
        stop, size = lowest, min(2 * size, _LARGEST)
    return None


def _near(theta: Array, witness: int, length: int) -> int | None:
    """A negative distance moves slowly with the base: look around the last one, ever wider."""
    for reach in (8, 64, max(512, witness // 64)):
        found = _last_negative(theta, max(0, witness - reach), min(length, witness + reach + 1))
        if found is not None:
            return found
    return None
