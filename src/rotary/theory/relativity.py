"""Two things asked of an encoding: scores see only differences, and no two positions coincide."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from rotary.errors import ConfigError, ShapeError, one_of
from rotary.frequencies import Frequencies
from rotary.frequencies.checks import integer
from rotary.theory._check import Array, in_chunks, matrix_of
from rotary.theory.generators import Encoding

Positions = Literal["real", "integer"]


def relativity_error(
    encoding: Encoding,
    *,
    num_axes: int = 1,
    positions: Positions = "real",
    extent: float = 8.0,
    draws: int = 64,
    seed: int = 0,
) -> float:
    """The largest entry of ``R(x)^T R(y) - R(y - x)`` over drawn pairs of positions.

    Args:
        encoding: Positions (n, axes) to matrices (n, dim, dim); for instance
            ``exponential(generators)``.
        num_axes: Number of position axes.
        positions: ``"real"`` or ``"integer"``: ``O^n`` exists on the integers only.
        extent: Positions are drawn from -extent to extent.
        draws: Number of pairs; the pairs of unit steps along the axes are always among them.
        seed: Of the draws.

    Returns:
        0 up to rounding for a relative encoding.

    Raises:
        ConfigError: If positions is another word.
        ShapeError: If the encoding does not return one square matrix for each position.

    Example:
        >>> from rotary.theory import quaternion_encoding
        >>> round(relativity_error(quaternion_encoding(), num_axes=2), 1) > 0.5
        True
    """
    if positions not in ("real", "integer"):
        raise ConfigError(
            f"relativity_error: {one_of('positions', positions, ('real', 'integer'))}"
        )
    num_axes = integer("relativity_error", "num_axes", num_axes)
    generator = np.random.default_rng(seed)
    pairs = generator.uniform(-extent, extent, size=(2, draws, num_axes))
    if positions == "integer":
        pairs = np.round(pairs)
    units = np.eye(num_axes)
    steps = np.stack(
        [units.repeat(num_axes, axis=0), np.tile(units, (num_axes, 1))]
    )  # Every unit step against every other.
    first, second = np.concatenate([pairs, steps], axis=1)
    left, right, both = encoding(first), encoding(second), encoding(second - first)
    for matrices in (left, right, both):
        if matrices.ndim != 3 or len(matrices) != len(first):
            raise ShapeError(
                f"relativity_error: the encoding returned shape {matrices.shape} for "
                f"{len(first)} positions; expected ({len(first)}, dim, dim)."
            )
    return float(np.abs(left.transpose(0, 2, 1) @ right - both).max())


def is_relative(
    encoding: Encoding,
    *,
    num_axes: int = 1,
    positions: Positions = "real",
    extent: float = 8.0,
    tolerance: float = 1e-9,
) -> bool:
    """Whether ``R(x)^T R(y) = R(y - x)`` holds on drawn positions, up to rounding.

    For ``exponential(generators)`` there is an exact criterion as well: every generator is
    skew-symmetric and :func:`rotary.theory.commutator_norm` is 0.

    Args:
        encoding: Positions (n, axes) to matrices (n, dim, dim).
        num_axes: Number of position axes.
        positions: ``"real"`` or ``"integer"``.
        extent: Positions are drawn from -extent to extent.
        tolerance: Largest accepted :func:`relativity_error`.

    Example:
        >>> from rotary.theory import exponential, skew
        >>> is_relative(exponential(skew([1.0])))
        True
        >>> is_relative(exponential([skew([1, 0, 0]), skew([0, 1, 0])]), num_axes=2)
        False
    """
    error = relativity_error(encoding, num_axes=num_axes, positions=positions, extent=extent)
    return error <= tolerance


def code_distance(frequencies: Frequencies, displacements: npt.ArrayLike) -> Array:
    """Euclidean distance of the codes of two positions: ``sqrt(2 sum_p (1 - cos angle_p))``.

    The code of a position is the vector of all its cosines and sines; the matrices ``R(x)`` and
    ``R(y)`` differ by this times ``sqrt(2)`` in the Frobenius norm.

    Args:
        frequencies: Any frequency matrix.
        displacements: (...) for one axis, (..., axes) for more.

    Returns:
        Values of shape (...), from 0 (the positions cannot be told apart) to ``2 sqrt(planes)``.

    Example:
        >>> from rotary import inverse_power
        >>> code_distance(inverse_power(128), [0, 1]).round(6)
        array([0.      , 1.952596])
    """
    return in_chunks(
        "code_distance",
        frequencies,
        displacements,
        lambda angles: 2 * np.sqrt(np.square(np.sin(angles / 2)).sum(axis=-1)),
    )


def rank(frequencies: Frequencies) -> int:
    """How many independent position axes the frequency matrix can tell apart.

    Locally (for small displacements) no position is lost if and only if it is the number of axes.

    Example:
        >>> rank(Frequencies([[1.0], [1.0]]))
        1
    """
    matrix = matrix_of("rank", frequencies)
    scale = np.abs(matrix).max(axis=1, keepdims=True)
    return int(np.linalg.matrix_rank(matrix / np.where(scale > 0, scale, 1.0)))


def margin(frequencies: Frequencies, positions: npt.ArrayLike) -> float:
    """The smallest code distance between any two of the positions.

    A code disturbed by less than half of it is still decoded to the right position.

    Args:
        frequencies: Any frequency matrix.
        positions: A finite set, (n,) or (n, axes), n at least 2.

    Returns:
        0 if two of them have the same code.

    Raises:
        ShapeError: If there are fewer than two positions, or they lack the axes.

    Example:
        >>> from rotary import inverse_power
        >>> round(margin(inverse_power(128), np.arange(4096)), 6)
        1.952596
    """
    where = np.asarray(positions, dtype=np.float64)
    axes = frequencies.num_axes
    where = where[:, None] if where.ndim == 1 and axes == 1 else where
    if where.ndim != 2 or where.shape[1] != axes or len(where) < 2:
        raise ShapeError(
            f"margin: positions have shape {where.shape}; expected at least two of them, "
            f"{'(n,) or (n, 1)' if axes == 1 else f'(n, {axes})'}."
        )
    moves = _displacements(where)
    return float(code_distance(frequencies, moves[:, 0] if axes == 1 else moves).min())


def is_lossless(
    frequencies: Frequencies,
    positions: npt.ArrayLike | None = None,
    *,
    tolerance: float = 1e-6,
) -> bool:
    """Whether positions can be read back from their rotation (the post's "invertibility").

    Args:
        frequencies: Any frequency matrix.
        positions: A finite set, (n,) or (n, axes), to test by its :func:`margin`. Without it the
            local criterion is used: the :func:`rank` of the matrix is the number of axes.
        tolerance: Two codes that are not further apart count as the same.

    Example:
        >>> is_lossless(Frequencies([[1.0], [1.0]]))  # R(x + y)
        False
        >>> is_lossless(Frequencies([[1.0, 0.0], [0.0, 1.0]]))
        True
    """
    if positions is None:
        return rank(frequencies) == frequencies.num_axes
    return margin(frequencies, positions) > tolerance


def _displacements(where: Array) -> Array:
    """All differences of two of the positions; on a grid each once, in one direction."""
    steps = np.diff(where, axis=0)
    if where.shape[1] == 1 and (steps == 1).all():
        return np.arange(1.0, len(where))[:, None]  # A plain sequence: no need for n^2 of them.
    extent = np.ptp(where, axis=0)
    strides = np.cumprod(np.concatenate([[1.0], 2 * extent[:-1] + 1]))
    is_grid = bool((where == np.round(where)).all()) and strides[-1] * (extent[-1] + 1) < 2**52
    parts = []
    rows = max(1, (1 << 20) // len(where))
    for start in range(0, len(where), rows):
        block = where[start : start + rows]
        later = np.arange(len(where))[None] > np.arange(start, start + len(block))[:, None]
        moves = (where[None] - block[:, None])[later]
        if is_grid:  # One number for each displacement; its sign is the direction.
            _, first = np.unique(np.abs(moves @ strides), return_index=True)
            moves = moves[first]
        parts.append(moves)
    return np.concatenate(parts)
