"""Wavelengths, and how far positions stay apart in the tables of a dtype."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from rotary.errors import ConfigError, DtypeError, ShapeError
from rotary.frequencies import Frequencies
from rotary.frequencies.checks import integer
from rotary.theory._check import Array, angles_at, matrix_of
from rotary.theory.relativity import code_distance


def wavelengths(frequencies: Frequencies) -> Array:
    """Positions in one full turn: ``2 pi / |theta|``, infinite for a plane that stands still.

    Args:
        frequencies: Any frequency matrix.

    Returns:
        Of the shape of the matrix: (axes, planes), or (heads, axes, planes).

    Example:
        >>> from rotary import inverse_power
        >>> wavelengths(inverse_power(4)).round(3)
        array([[  6.283, 628.319]])
    """
    with np.errstate(divide="ignore"):
        return np.asarray(2 * np.pi / np.abs(frequencies.matrix))


def incomplete_planes(frequencies: Frequencies, length: int) -> list[int]:
    """Planes that never complete a turn within the context, along any axis; still ones included.

    Over such a plane a longer context brings angles that training has never shown.

    Args:
        frequencies: Any frequency matrix that is the same for all heads.
        length: Positions in the context, along each axis.

    Returns:
        Indices of planes, rising.

    Example:
        >>> from rotary import inverse_power
        >>> len(incomplete_planes(inverse_power(128), 4096))
        18
    """
    length = integer("incomplete_planes", "length", length)
    matrix = matrix_of("incomplete_planes", frequencies)
    slow = 2 * np.pi > np.abs(matrix) * length
    return [int(plane) for plane in np.flatnonzero(slow.all(axis=0))]


class Alias(NamedTuple):
    """Two positions that nearly share a code: how far apart they are, and their code distance."""

    displacement: int
    distance: float


def closest_alias(frequencies: Frequencies, limit: int) -> Alias:
    """The displacement from 2 to limit - 1 whose codes are nearest to each other.

    With 32 channels or more and base 10000 it is 2, up to a million positions; with few channels
    (partial rotary, axes of an image) far positions come closer than neighbours.

    Args:
        frequencies: Of one axis.
        limit: At least 3.

    Returns:
        The displacement (the first of equals) and its :func:`rotary.theory.code_distance`.

    Example:
        >>> from rotary import inverse_power
        >>> closest_alias(inverse_power(2), 1000).displacement
        710
    """
    limit = integer("closest_alias", "limit", limit, least=3)
    distances = code_distance(_one_axis("closest_alias", frequencies), np.arange(2, limit))
    best = int(distances.argmin())
    return Alias(best + 2, float(distances[best]))


def resolution(frequencies: Frequencies, dtype: torch.dtype, *, limit: int = 1_000_000) -> int:
    """How many positions stay decodable when the tables are rounded to a dtype.

    The largest ``n`` for which the rounded code of every position below ``n`` is sure to be nearer
    to the exact code of that position than to any other's: all code distances at displacements
    below ``n`` exceed twice the largest rounding error of a code, ``sqrt(planes) * eps / 2``. The
    angles are exact here; positions or frequencies held in the dtype fail much earlier
    (:func:`exact_integers`, :func:`rotary.theory.angle_error`).

    Args:
        frequencies: Of one axis.
        dtype: Of the tables: bfloat16, float16, float32 or float64.
        limit: Where the search ends.

    Returns:
        A number of positions; ``limit`` means that none was lost up to there.

    Raises:
        DtypeError: If it is not a floating dtype.

    Example:
        >>> from rotary import inverse_power
        >>> resolution(inverse_power(2), torch.bfloat16, limit=10_000)
        710
    """
    limit = integer("resolution", "limit", limit, least=2)
    theta = _one_axis("resolution", frequencies)
    radius = np.sqrt(theta.num_planes) * _floating("resolution", dtype).eps / 2
    size = 1 << 15
    for start in range(1, limit, size):
        distances = code_distance(theta, np.arange(start, min(start + size, limit)))
        lost = np.flatnonzero(distances <= 2 * radius)
        if lost.size:
            return start + int(lost[0])
    return limit


def exact_integers(dtype: torch.dtype) -> int:
    """The largest ``n`` so that a dtype holds every integer from 0 to n: 256, 2048, 2^24, 2^53.

    Positions cast to bfloat16 are wrong from 257 on.

    Example:
        >>> exact_integers(torch.bfloat16), exact_integers(torch.float16)
        (256, 2048)
    """
    return round(2 / _floating("exact_integers", dtype).eps)


def distinct_codes(frequencies: Frequencies, length: int, dtype: torch.dtype) -> int:
    """How many different rows the table of positions 0 .. length - 1 has in a dtype.

    Args:
        frequencies: Of one axis.
        length: Number of positions.
        dtype: Of the table, whose angles are exact.

    Example:
        >>> from rotary import inverse_power
        >>> distinct_codes(Frequencies(inverse_power(128).matrix[:, 63]), 4096, torch.bfloat16)
        781
    """
    length = integer("distinct_codes", "length", length)
    _floating("distinct_codes", dtype)
    table = _table(_one_axis("distinct_codes", frequencies), np.arange(length), dtype)
    rows = np.ascontiguousarray(table.numpy() + 0.0)  # -0 and 0 are one value.
    return len(np.unique(rows.view(f"V{rows.shape[1] * rows.itemsize}")))


class TableError(NamedTuple):
    """What rounding the tables does to a rotation whose angles are exact.

    Attributes:
        max_angle: Radians.
        rms_angle: Radians.
        max_norm: Largest departure of ``sqrt(cos^2 + sin^2)`` from 1.
        max_tokens: For each plane, the largest angle error in positions, (planes,).
    """

    max_angle: float
    rms_angle: float
    max_norm: float
    max_tokens: Array


def table_error(
    frequencies: Frequencies, positions: npt.ArrayLike, dtype: torch.dtype
) -> TableError:
    """Measure the angles and norms of a table rounded to a dtype against the exact ones.

    Args:
        frequencies: Of one axis.
        positions: (n,).
        dtype: Of the table.

    Example:
        >>> from rotary import inverse_power
        >>> error = table_error(inverse_power(128), np.arange(0, 32768, 7), torch.bfloat16)
        >>> round(error.max_angle, 4), round(float(error.max_tokens[63]), 1)
        (0.0027, 23.3)
    """
    _floating("table_error", dtype)
    theta = _one_axis("table_error", frequencies)
    exact = angles_at("table_error", theta, positions)
    cos, sin = _table(theta, positions, dtype).numpy().reshape(len(exact), 2, -1).swapaxes(0, 1)
    # The angle between the rounded and the exact direction, without subtracting two large angles.
    error = np.abs(
        np.arctan2(
            sin * np.cos(exact) - cos * np.sin(exact), cos * np.cos(exact) + sin * np.sin(exact)
        )
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        tokens = error.max(axis=0) / np.abs(theta.matrix[0])
    return TableError(
        float(error.max()),
        float(np.sqrt(np.square(error).mean())),
        float(np.abs(np.hypot(cos, sin) - 1).max()),
        tokens,
    )


def _table(frequencies: Frequencies, positions: npt.ArrayLike, dtype: torch.dtype) -> torch.Tensor:
    """Rows (cos, sin) rounded to the dtype, held in float64."""
    angles = angles_at("table", frequencies, positions)
    table = torch.from_numpy(np.concatenate([np.cos(angles), np.sin(angles)], axis=-1))
    return table.to(dtype).to(torch.float64)


def _floating(function: str, dtype: torch.dtype) -> torch.finfo:
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise DtypeError(f"{function}: dtype is {dtype!r}; expected a floating torch.dtype.")
    return torch.finfo(dtype)


def _one_axis(function: str, frequencies: Frequencies) -> Frequencies:
    if len(matrix_of(function, frequencies)) != 1:
        raise ShapeError(
            f"{function}: these frequencies have {frequencies.num_axes} position axes; ask about "
            "one of them: Frequencies(frequencies.matrix[axis])."
        )
    if not frequencies.matrix.any():
        raise ConfigError(f"{function}: every frequency is 0; nothing turns.")
    return frequencies
