"""What the functions of this room ask of their arguments, and angles of many positions at once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from rotary.errors import ConfigError, ShapeError
from rotary.frequencies import Frequencies

Array = npt.NDArray[np.float64]

# Angles of this many positions are held at a time: 64 planes of complex numbers are then 32 MB.
CHUNK = 1 << 15


def matrix_of(function: str, frequencies: Frequencies) -> Array:
    """The (axes, planes) matrix; a matrix for each head has to be split by the caller."""
    if frequencies.matrix.ndim != 2:
        heads = frequencies.matrix.shape[0]
        raise ShapeError(
            f"{function}: these frequencies differ from head to head ({heads} heads); ask about "
            "one of them: Frequencies(frequencies.matrix[head])."
        )
    return frequencies.matrix


def angles_at(function: str, frequencies: Frequencies, positions: npt.ArrayLike) -> Array:
    """Angles (..., planes) of positions (...) for one axis, or (..., axes) for more."""
    matrix = matrix_of(function, frequencies)
    where = np.asarray(positions, dtype=np.float64)
    if not np.isfinite(where).all():
        raise ConfigError(f"{function}: some positions or distances are not finite numbers.")
    if frequencies.num_axes == 1:
        return where[..., None] * matrix[0]
    if where.ndim == 0 or where.shape[-1] != frequencies.num_axes:
        raise ShapeError(
            f"{function}: positions have shape {where.shape}; with {frequencies.num_axes} position "
            f"axes expected (..., {frequencies.num_axes})."
        )
    return np.einsum("...a,ap->...p", where, matrix)


def in_chunks(
    function: str,
    frequencies: Frequencies,
    positions: npt.ArrayLike,
    reduce: Callable[[Array], Array],
) -> Array:
    """Apply ``reduce`` (angles (n, planes) to (n,)) without holding all angles at once."""
    where = np.asarray(positions, dtype=np.float64)
    shape = where.shape if frequencies.num_axes == 1 else where.shape[:-1]
    if int(np.prod(shape, dtype=np.int64)) <= CHUNK:
        return np.asarray(reduce(angles_at(function, frequencies, where)))
    flat = where.reshape(-1) if frequencies.num_axes == 1 else where.reshape(-1, where.shape[-1])
    parts = [
        reduce(angles_at(function, frequencies, flat[start : start + CHUNK]))
        for start in range(0, len(flat), CHUNK)
    ]
    return np.concatenate(parts).reshape(shape)


def square_stack(function: str, matrices: npt.ArrayLike) -> Array:
    """One (dim, dim) matrix or several (n, dim, dim), always as the stack, float64."""
    stack = np.asarray(matrices, dtype=np.float64)
    if stack.ndim == 2:
        stack = stack[None]
    if stack.ndim != 3 or stack.shape[0] == 0 or stack.shape[-1] != stack.shape[-2]:
        raise ShapeError(
            f"{function}: got an array of shape {np.shape(matrices)}; expected square matrices, "
            "(dim, dim) or (axes, dim, dim)."
        )
    if not np.isfinite(stack).all():
        raise ConfigError(f"{function}: the matrices have entries that are not finite numbers.")
    return stack
