"""The same rotation written four ways: complex, matrix, element-wise, half-split.

Every form takes vectors ``x`` of shape (..., dim) and the angles of their positions, of shape
(..., dim / 2), and computes in float64. They are written to be read; :func:`rotary.rotate` is the
one to run.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from rotary.errors import ShapeError
from rotary.kernels.reference import rotation_matrix
from rotary.theory._check import Array


def complex_form(x: npt.ArrayLike, angles: npt.ArrayLike) -> Array:
    """Read channels (2p, 2p + 1) as a complex number and multiply by ``exp(i angle_p)``.

    The first post's derivation ends here: ``f(q, m) = q exp(i m theta)``.

    Args:
        x: Vectors, (..., dim).
        angles: Radians, (..., dim / 2): position times frequency.

    Returns:
        The turned vectors, of the common shape.

    Raises:
        ShapeError: If the number of channels is not twice the number of angles.

    Example:
        >>> complex_form([1.0, 0.0], [np.pi / 2]).round(12)
        array([0., 1.])
    """
    x, angles = _pair("complex_form", x, angles)
    turned = to_complex(x) * np.exp(1j * angles)
    return np.stack([turned.real, turned.imag], axis=-1).reshape(*turned.shape[:-1], x.shape[-1])


def matrix_form(x: npt.ArrayLike, angles: npt.ArrayLike) -> Array:
    """Multiply by the block-diagonal matrix ``R_m`` (RoFormer, eq. 15).

    Args:
        x: Vectors, (..., dim).
        angles: Radians, (..., dim / 2).

    Returns:
        The turned vectors, of the common shape.

    Raises:
        ShapeError: If the number of channels is not twice the number of angles.

    Example:
        >>> matrix_form([1.0, 0.0], [np.pi / 2]).round(12)
        array([0., 1.])
    """
    x, angles = _pair("matrix_form", x, angles)
    turn = rotation_matrix(torch.from_numpy(angles), x.shape[-1], layout="interleaved").numpy()
    return np.einsum("...ij,...j->...i", turn, x)


def elementwise_form(x: npt.ArrayLike, angles: npt.ArrayLike) -> Array:
    """Two element-wise products: ``x * cos + T x * sin``, ``T x = (-x_1, x_0, -x_3, x_2, ...)``.

    RoFormer, eq. 34: the block matrix is nearly empty, so this is what costs least.

    Args:
        x: Vectors, (..., dim).
        angles: Radians, (..., dim / 2).

    Returns:
        The turned vectors, of the common shape.

    Raises:
        ShapeError: If the number of channels is not twice the number of angles.

    Example:
        >>> elementwise_form([1.0, 0.0], [np.pi / 2]).round(12)
        array([0., 1.])
    """
    x, angles = _pair("elementwise_form", x, angles)
    twice = np.repeat(angles, 2, axis=-1)
    swapped = np.empty_like(x)
    swapped[..., 0::2], swapped[..., 1::2] = -x[..., 1::2], x[..., 0::2]
    return x * np.cos(twice) + swapped * np.sin(twice)


def half_split_form(x: npt.ArrayLike, angles: npt.ArrayLike) -> Array:
    """Pair channel ``p`` with ``p + dim / 2``: ``x * cos + (-back, front) * sin`` (third text).

    The same rotation of other pairs: with ``P`` for :func:`rotary.layouts.interleaved_to_half`,
    ``half_split_form(P x) == P elementwise_form(x)``. Scores agree only if both queries and keys
    are reordered.

    Args:
        x: Vectors, (..., dim).
        angles: Radians, (..., dim / 2).

    Returns:
        The turned vectors, of the common shape.

    Raises:
        ShapeError: If the number of channels is not twice the number of angles.

    Example:
        >>> half_split_form([1.0, 2.0, 0.0, 0.0], [np.pi / 2, 0.0]).round(12)
        array([0., 2., 1., 0.])
    """
    x, angles = _pair("half_split_form", x, angles)
    twice = np.concatenate([angles, angles], axis=-1)
    front, back = np.split(x, 2, axis=-1)
    return x * np.cos(twice) + np.concatenate([-back, front], axis=-1) * np.sin(twice)


def to_complex(x: npt.ArrayLike) -> npt.NDArray[np.complex128]:
    """Channels (2p, 2p + 1) of (..., dim) as complex numbers (..., dim / 2).

    ``Re(sum to_complex(q) * conj(to_complex(k)))`` is the inner product of q and k.
    """
    x = np.asarray(x, dtype=np.float64)
    return x[..., 0::2] + 1j * x[..., 1::2]


def expanded_score(query: npt.ArrayLike, key: npt.ArrayLike, angle: npt.ArrayLike) -> Array:
    """The score of one plane multiplied out; ``angle = (m - n) theta`` (third text, put right).

    ``(x1 cos - x2 sin) x3 + (x1 sin + x2 cos) x4`` for the query (x1, x2) and the key (x3, x4):
    the query turned by ``m - n`` against the key at rest. The third text prints the first row of
    its last line with ``+ x2 sin``, against its own line before.

    Args:
        query: (..., 2), at position m.
        key: (..., 2), at position n.
        angle: Radians, (...).

    Returns:
        Scores, (...).

    Example:
        >>> float(expanded_score([1.0, 2.0], [3.0, 4.0], 0.0))
        11.0
    """
    query, key = np.asarray(query, dtype=np.float64), np.asarray(key, dtype=np.float64)
    cos, sin = np.cos(angle), np.sin(angle)
    first = query[..., 0] * cos - query[..., 1] * sin
    second = query[..., 0] * sin + query[..., 1] * cos
    return np.asarray(first * key[..., 0] + second * key[..., 1])


def _pair(function: str, x: npt.ArrayLike, angles: npt.ArrayLike) -> tuple[Array, Array]:
    vectors, turns = np.asarray(x, dtype=np.float64), np.asarray(angles, dtype=np.float64)
    if vectors.ndim == 0 or turns.ndim == 0 or vectors.shape[-1] != 2 * turns.shape[-1]:
        raise ShapeError(
            f"{function}: x has shape {vectors.shape} and angles {turns.shape}; expected "
            "(..., dim) and (..., dim / 2)."
        )
    return vectors, turns
