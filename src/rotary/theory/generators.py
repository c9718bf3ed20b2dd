"""Every exactly relative encoding: ``exp(sum_a x_a B_a)``, and ``O^n`` on the integers.

An *encoding* is a function from positions (n, axes) to matrices (n, dim, dim); it is relative when
``R(x)^T R(y) = R(y - x)``.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch

from rotary.errors import ConfigError, ShapeError
from rotary.theory._check import Array, square_stack
from rotary.theory._spectral import joint_eigenspaces, rounding

Encoding = Callable[[Array], Array]


def matrix_exponential(matrices: npt.ArrayLike) -> Array:
    """``exp(B) = sum_k B^k / k!`` of matrices (..., dim, dim), in float64.

    Example:
        >>> matrix_exponential([[0.0, -np.pi], [np.pi, 0.0]]).round(12) + 0.0
        array([[-1.,  0.],
               [ 0., -1.]])
    """
    return torch.linalg.matrix_exp(torch.tensor(np.asarray(matrices, dtype=np.float64))).numpy()


def exponential(generators: npt.ArrayLike) -> Encoding:
    """The encoding ``x -> exp(sum_a x_a B_a)`` (2-D post, "1D General Solution" and "2D").

    It is relative for all real positions if and only if every ``B_a`` is skew-symmetric and all of
    them commute; this function takes any, so that the failures can be looked at.

    Args:
        generators: One matrix (dim, dim), or one for each position axis, (axes, dim, dim).

    Returns:
        A function of positions: (n,) or (n, 1) for one generator, (n, axes) for more; it returns
        matrices (n, dim, dim).

    Raises:
        ShapeError: If the generators are not square, or later the positions do not fit.

    Example:
        >>> encode = exponential([[0.0, -1.0], [1.0, 0.0]])
        >>> encode(np.array([0.0, np.pi])).round(12) + 0.0
        array([[[ 1.,  0.],
                [ 0.,  1.]],
        <BLANKLINE>
               [[-1.,  0.],
                [ 0., -1.]]])
    """
    stack = square_stack("exponential", generators)

    def encode(positions: Array) -> Array:
        where = _with_axes("exponential", positions, len(stack))
        return matrix_exponential(np.einsum("na,aij->nij", where, stack))

    return encode


def orthogonal_power(orthogonal: npt.ArrayLike) -> Encoding:
    """The encoding ``n -> O^n``, relative on the integers for any orthogonal ``O``.

    Every relative encoding of the integers with ``R(0) = I`` is of this form. Between the integers
    it continues only where ``O = exp(B)``, that is, where the eigenvalue -1 occurs an even number
    of times (``det O = 1``): see :func:`skew_logarithm`. ``O = diag(1, -1)`` flips the sign of its
    second channel at every step and is no ``exp(nB)``.

    Args:
        orthogonal: (dim, dim).

    Returns:
        A function of whole-numbered positions of any sign, (n,) or (n, 1), to (n, dim, dim).

    Raises:
        ConfigError: If the matrix is not orthogonal, or later a position is not a whole number.

    Example:
        >>> orthogonal_power(np.diag([1.0, -1.0]))(np.array([3.0]))[0]
        array([[ 1.,  0.],
               [ 0., -1.]])
    """
    matrix = _orthogonal("orthogonal_power", orthogonal)

    def encode(positions: Array) -> Array:
        where = _with_axes("orthogonal_power", positions, 1)[:, 0]
        if not (where == np.round(where)).all():
            raise ConfigError(
                "orthogonal_power: O^n is defined on whole numbers only; take exp(nB) with "
                "B = skew_logarithm(O) for real positions."
            )
        steps = [int(step) for step in where]
        powers = [
            np.linalg.matrix_power(matrix if step >= 0 else matrix.T, abs(step)) for step in steps
        ]
        return np.stack(powers) if powers else np.empty((0, *matrix.shape))

    return encode


def skew_logarithm(orthogonal: npt.ArrayLike) -> Array:
    """A skew-symmetric ``B`` with ``exp(B) = O``: the way from the integers to the reals.

    Eigenvalues -1 are taken in pairs, each a half turn of a plane of their own; the choice of the
    planes is free there, and so is every multiple of a full turn (these are the smallest angles).

    Args:
        orthogonal: (dim, dim), of determinant 1.

    Returns:
        (dim, dim), with frequencies from 0 to pi.

    Raises:
        ConfigError: If the matrix is not orthogonal, or has the eigenvalue -1 an odd number of
            times: then ``O^n`` is relative on the integers only.

    Example:
        >>> skew_logarithm([[0.0, -1.0], [1.0, 0.0]]).round(6) + 0.0
        array([[ 0.      , -1.570796],
               [ 1.570796,  0.      ]])
    """
    matrix = _orthogonal("skew_logarithm", orthogonal)
    if np.linalg.det(matrix) < 0:
        raise ConfigError(
            "skew_logarithm: this matrix has the eigenvalue -1 an odd number of times "
            "(determinant -1), so it is no exp(B) with real B. Its powers O^n are relative on "
            "whole-numbered positions only."
        )
    # O is normal: its symmetric part has the cosines, its skew part the sines, jointly.
    parts = np.stack([(matrix + matrix.T) / 2 + 0j, (matrix - matrix.T) / 2j])
    result = np.zeros_like(matrix)
    for space, (cosine, sine) in joint_eigenspaces(parts):
        if abs(sine) > rounding(len(matrix)) or cosine > 0:
            angle = np.arctan2(sine, cosine)
            result += (1j * angle * space @ space.conj().T).real
        else:
            result += _half_turns(space)
    return (result - result.T) / 2


def _half_turns(space: npt.NDArray[np.complex128]) -> Array:
    """Turn the eigenspace of -1 by pi, plane by plane; which channels pair up is free."""
    _, vectors = np.linalg.eigh((space @ space.conj().T).real)
    basis = vectors[:, -space.shape[1] :]
    first, second = basis[:, 0::2], basis[:, 1::2]
    return np.pi * (second @ first.T - first @ second.T)


def commutator_norm(generators: npt.ArrayLike) -> float:
    """The largest spectral norm of ``B_a B_b - B_b B_a`` over all pairs; 0 for one generator.

    Args:
        generators: (axes, dim, dim).

    Example:
        >>> commutator_norm([skew([1, 0, 0]), skew([0, 1, 0])])
        1.0
    """
    stack = square_stack("commutator_norm", generators)
    norms = [
        float(np.linalg.norm(first @ second - second @ first, ord=2))
        for index, first in enumerate(stack)
        for second in stack[index + 1 :]
    ]
    return max(norms, default=0.0)


def skew(parameters: npt.ArrayLike) -> Array:
    """The skew-symmetric matrix of the 2-D post: its rows below the diagonal, in order.

    ``skew([a])``, ``skew([a, b, c])`` and ``skew([a, b, c, d, e, f])`` are the general 2x2, 3x3 and
    4x4 ones in the post's letters: below the diagonal row 2 is a, row 3 is b c, row 4 is d e f.

    Args:
        parameters: dim (dim - 1) / 2 numbers.

    Raises:
        ShapeError: If no dim has so many.

    Example:
        >>> skew([1.0, 2.0, 3.0])
        array([[ 0., -1., -2.],
               [ 1.,  0., -3.],
               [ 2.,  3.,  0.]])
    """
    values = np.asarray(parameters, dtype=np.float64)
    dim = round((1 + np.sqrt(1 + 8 * values.size)) / 2)
    if values.ndim != 1 or values.size == 0 or dim * (dim - 1) // 2 != values.size:
        raise ShapeError(
            f"skew: got parameters of shape {values.shape}; a skew-symmetric matrix has 1, 3, 6, "
            "10, ... of them (dim (dim - 1) / 2)."
        )
    matrix = np.zeros((dim, dim))
    matrix[np.tril_indices(dim, -1)] = values
    return matrix - matrix.T


def centraliser(generators: npt.ArrayLike) -> Array:
    """All skew-symmetric matrices that commute with the given ones: a basis of the space.

    What is left for one more position axis. For a generator whose frequencies are distinct and not
    zero it has dimension dim / 2 (rounded down): nothing but multiples of itself in 2x2 and 3x3, so
    a second axis needs 4x4. Of commuting generators that fill it, no further axis exists: at most
    dim / 2 independent axes.

    Args:
        generators: Skew-symmetric, (dim, dim) or (axes, dim, dim).

    Returns:
        An orthonormal basis (in the entries below the diagonal), (dimension, dim, dim).

    Raises:
        ConfigError: If a generator is not skew-symmetric.

    Example:
        >>> [len(centraliser(skew(np.arange(1, n * (n - 1) // 2 + 1)))) for n in (2, 3, 4, 5, 6)]
        [1, 1, 2, 2, 3]
    """
    stack = check_skew("centraliser", generators)
    dim = stack.shape[-1]
    count = dim * (dim - 1) // 2
    if count == 0:
        return np.zeros((0, dim, dim))
    units = np.stack([skew(row) for row in np.eye(count)])
    brackets = stack[:, None] @ units - units @ stack[:, None]  # (axes, count, dim, dim)
    system = brackets.transpose(0, 2, 3, 1).reshape(-1, count)
    _, sizes, rows = np.linalg.svd(system, full_matrices=True)
    full = np.zeros(count)
    full[: len(sizes)] = sizes[:count]
    scale = max(float(np.abs(stack).max()), np.finfo(np.float64).tiny)
    free = rows[full <= 1e-10 * scale]
    return np.stack([skew(row) for row in free]) if len(free) else np.zeros((0, dim, dim))


def check_skew(function: str, generators: npt.ArrayLike, tolerance: float = 1e-10) -> Array:
    """The generators as a stack, each made exactly skew, or an error that says how far they are."""
    stack = square_stack(function, generators)
    for axis, matrix in enumerate(stack):
        off = float(np.linalg.norm((matrix + matrix.T) / 2, ord=2))
        if off > tolerance * max(float(np.linalg.norm(matrix, ord=2)), np.finfo(np.float64).tiny):
            raise ConfigError(
                f"{function}: generator {axis} is not skew-symmetric; its symmetric part has norm "
                f"{off:.3g}. A relative encoding exp(nB) needs B^T = -B; take (B - B^T) / 2."
            )
    return (stack - stack.transpose(0, 2, 1)) / 2


def _orthogonal(function: str, matrix: npt.ArrayLike) -> Array:
    stack = square_stack(function, matrix)
    if len(stack) != 1:
        raise ShapeError(f"{function}: got {len(stack)} matrices; expected one, (dim, dim).")
    off = float(np.abs(stack[0].T @ stack[0] - np.eye(stack.shape[-1])).max())
    if off > 1e-9:
        raise ConfigError(f"{function}: the matrix is not orthogonal; O^T O is {off:.3g} off I.")
    return stack[0]


def _with_axes(function: str, positions: npt.ArrayLike, axes: int) -> Array:
    where = np.asarray(positions, dtype=np.float64)
    if where.ndim == 1 and axes == 1:
        where = where[:, None]
    if where.ndim != 2 or where.shape[1] != axes:
        raise ShapeError(
            f"{function}: positions have shape {where.shape}; expected "
            f"{'(n,) or (n, 1)' if axes == 1 else f'(n, {axes})'}."
        )
    return where
