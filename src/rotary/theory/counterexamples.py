"""Encodings that look right and are not: each fails one of relativity and losslessness."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rotary.errors import ShapeError
from rotary.frequencies import Frequencies
from rotary.frequencies.checks import integer
from rotary.theory._check import Array, matrix_of
from rotary.theory.generators import Encoding


def quaternion_product(left: npt.ArrayLike, right: npt.ArrayLike) -> Array:
    """The Hamilton product of quaternions (real, i, j, k), shape (..., 4): ``ij = k``, ``ji = -k``.

    Example:
        >>> quaternion_product([0, 1, 0, 0], [0, 0, 1, 0])
        array([0., 0., 0., 1.])
    """
    left, right = (
        _quaternions("quaternion_product", left),
        _quaternions("quaternion_product", right),
    )
    return np.einsum("...ij,...j->...i", quaternion_matrix(left), right)


def quaternion_exponential(quaternion: npt.ArrayLike) -> Array:
    """``exp(a + v) = e^a (cos |v| + v / |v| sin |v|)``, shape (..., 4).

    Example:
        >>> quaternion_exponential([0, np.pi / 2, 0, 0]).round(12)
        array([0., 1., 0., 0.])
    """
    q = _quaternions("quaternion_exponential", quaternion)
    length = np.linalg.norm(q[..., 1:], axis=-1, keepdims=True)
    imaginary = q[..., 1:] * np.sinc(length / np.pi)
    return np.exp(q[..., :1]) * np.concatenate([np.cos(length), imaginary], axis=-1)


def quaternion_matrix(quaternion: npt.ArrayLike) -> Array:
    """The 4x4 matrix of multiplying by a quaternion from the left, (..., 4, 4).

    A homomorphism: ``quaternion_matrix(p q) = quaternion_matrix(p) @ quaternion_matrix(q)``.

    Example:
        >>> quaternion_matrix([1, 0, 0, 0]).shape
        (4, 4)
    """
    a, b, c, d = np.moveaxis(_quaternions("quaternion_matrix", quaternion), -1, 0)
    rows = [[a, -b, -c, -d], [b, a, -d, c], [c, d, a, -b], [d, -c, b, a]]
    return np.stack([np.stack(row, axis=-1) for row in rows], axis=-2)


def quaternion_encoding(theta: float = 1.0) -> Encoding:
    """``R(x, y) = exp(theta (x i + y j))`` by left multiplication: orthogonal, and not relative.

    ``i`` and ``j`` do not commute, so ``exp(p) exp(q)`` is not ``exp(p + q)``. For ``q = k = 1``
    the same displacement (0, 1) scores 0.540302 from the origin and 0.671987 from (1, 0).

    Args:
        theta: Radians per step; the violation shrinks as its square.

    Returns:
        A function of positions (n, 2) to matrices (n, 4, 4).

    Example:
        >>> encode = quaternion_encoding()
        >>> (left, right) = encode(np.array([[1.0, 0.0], [1.0, 1.0]]))
        >>> round(float((left.T @ right)[0, 0]), 6)
        0.671987
    """

    def encode(positions: Array) -> Array:
        where = np.asarray(positions, dtype=np.float64)
        if where.ndim != 2 or where.shape[1] != 2:
            raise ShapeError(
                f"quaternion_encoding: positions have shape {where.shape}; expected (n, 2)."
            )
        pure = np.zeros((len(where), 4))
        pure[:, 1:3] = theta * where
        return quaternion_matrix(quaternion_exponential(pure))

    return encode


def summed(frequencies: Frequencies, num_axes: int = 2) -> Frequencies:
    """``R(x, y) = R(x + y)``: relative, and lossy, since (2, 3) and (4, 1) coincide.

    Args:
        frequencies: Of one axis.
        num_axes: How many axes to add up.

    Returns:
        A matrix of equal rows: its rank is 1.

    Example:
        >>> summed(Frequencies([1.0, 0.1])).matrix.tolist()
        [[1.0, 0.1], [1.0, 0.1]]
    """
    theta = _single_axis("summed", frequencies)
    num_axes = integer("summed", "num_axes", num_axes)
    return Frequencies(np.repeat(theta[None], num_axes, axis=0), frequencies.amplitude)


def flattened(frequencies: Frequencies, width: int) -> Frequencies:
    """Number the cells of a grid row by row and encode ``x * width + y`` in one axis.

    Relative in that number, and wrong about the grid: a step down is ``width`` steps right, and the
    end of a row is next to the start of the following one.

    Args:
        frequencies: Of one axis.
        width: Cells in a row.

    Returns:
        A matrix of two rows, ``width * theta`` and ``theta``: its rank is 1.

    Example:
        >>> flattened(Frequencies([1.0]), width=14).matrix.tolist()
        [[14.0], [1.0]]
    """
    theta = _single_axis("flattened", frequencies)
    width = integer("flattened", "width", width)
    return Frequencies(np.stack([width * theta, theta]), frequencies.amplitude)


def random_generators(dim: int, num_axes: int = 2, *, scale: float = 1.0, seed: int = 0) -> Array:
    """Skew-symmetric matrices with independent normal entries: they do not commute (LieRE-like).

    ``exp(sum_a x_a B_a)`` is then orthogonal and lossless but not relative.

    Args:
        dim: Number of channels, at least 3 (2x2 skew matrices all commute).
        num_axes: Number of position axes.
        scale: Standard deviation of the entries below the diagonal.
        seed: Of the draws.

    Returns:
        (num_axes, dim, dim).

    Example:
        >>> random_generators(8).shape
        (2, 8, 8)
    """
    dim = integer("random_generators", "dim", dim, least=3)
    num_axes = integer("random_generators", "num_axes", num_axes)
    draws = np.random.default_rng(seed).normal(scale=scale, size=(num_axes, dim, dim))
    lower = np.tril(draws, -1)
    return lower - lower.transpose(0, 2, 1)


def _single_axis(function: str, frequencies: Frequencies) -> Array:
    matrix = matrix_of(function, frequencies)
    if len(matrix) != 1:
        raise ShapeError(
            f"{function}: these frequencies have {len(matrix)} axes; expected one axis."
        )
    return matrix[0]


def _quaternions(function: str, quaternion: npt.ArrayLike) -> Array:
    values = np.asarray(quaternion, dtype=np.float64)
    if values.ndim == 0 or values.shape[-1] != 4:
        raise ShapeError(f"{function}: got shape {values.shape}; expected (..., 4): real, i, j, k.")
    return values
