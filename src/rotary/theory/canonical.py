"""From commuting generators to frequencies: every relative encoding is RoPE in some basis."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rotary.errors import ConfigError, ShapeError
from rotary.frequencies import Frequencies
from rotary.theory._check import Array
from rotary.theory._spectral import joint_eigenspaces, rounding
from rotary.theory.generators import check_skew, commutator_norm


class CanonicalForm(NamedTuple):
    """``B_a = basis @ generators_of(frequencies)[a] @ basis.T``.

    Attributes:
        frequencies: The frequency matrix, (axes, dim // 2).
        basis: Orthogonal, (dim, dim). Columns 2p and 2p + 1 span plane p; with an odd dim the last
            column never turns.
    """

    frequencies: Frequencies
    basis: Array


def canonical_form(generators: npt.ArrayLike, *, tolerance: float = 1e-10) -> CanonicalForm:
    """Find the planes and frequencies of commuting skew-symmetric generators (real Schur form).

    ``exp(sum_a x_a B_a) = basis @ R(x @ frequencies) @ basis.T``: one orthogonal change of basis
    turns every exactly relative encoding into RoPE, and in softmax attention the projections of
    queries and keys absorb that change. Frequencies may be equal, close or zero: the space is split
    along whichever axis tells most, until every generator is one frequency on each part.

    Args:
        generators: Skew-symmetric and commuting, (dim, dim) or (axes, dim, dim), dim at least 2.
        tolerance: Largest accepted departure from skewness and from commuting, relative to the
            norms of the generators.

    Returns:
        Frequencies and basis. Planes are sorted by their frequencies, largest first, along the
        first axis, then the second, and so on; the first frequency of a plane that is not zero is
        positive.

    Raises:
        ConfigError: If a generator is not skew-symmetric, or two do not commute (with the norm of
            their commutator).
        ShapeError: If the matrices are not square or smaller than 2x2.

    Example:
        >>> B = np.array([[0.0, -3.0], [3.0, 0.0]])
        >>> canonical_form(B).frequencies.matrix
        array([[3.]])
    """
    stack = check_skew("canonical_form", generators, tolerance)
    dim = stack.shape[-1]
    if dim < 2:
        raise ShapeError("canonical_form: the generators are 1x1; a plane needs two channels.")
    norms = np.array([np.linalg.norm(matrix, ord=2) for matrix in stack])
    _refuse_noncommuting(stack, norms, tolerance)
    scale = np.where(norms > 0, norms, 1.0)
    # An axis in small units counts as much as any other.
    scaled = stack / scale[:, None, None]
    basis = _complete(_positive_planes(scaled), dim)
    return _read_off(stack, norms, basis)


def generators_of(frequencies: Frequencies, dim: int | None = None) -> Array:
    """The block-diagonal generators of a frequency matrix: ``B_a = diag(theta_{a,p} J)``.

    Args:
        frequencies: Without a matrix for each head.
        dim: Number of channels, twice the planes by default; further ones never turn.

    Returns:
        (axes, dim, dim), interleaved pairs.

    Raises:
        ShapeError: If the frequencies differ from head to head, or dim is too small.

    Example:
        >>> generators_of(Frequencies([3.0]))
        array([[[ 0., -3.],
                [ 3.,  0.]]])
    """
    if frequencies.matrix.ndim != 2:
        raise ShapeError("generators_of: these frequencies differ from head to head; take one.")
    axes, planes = frequencies.matrix.shape
    dim = 2 * planes if dim is None else dim
    if dim < 2 * planes:
        raise ShapeError(f"generators_of: {planes} planes need {2 * planes} channels, not {dim}.")
    result = np.zeros((axes, dim, dim))
    first = 2 * np.arange(planes)
    result[:, first + 1, first] = frequencies.matrix
    result[:, first, first + 1] = -frequencies.matrix
    return result


def _refuse_noncommuting(stack: Array, norms: Array, tolerance: float) -> None:
    for second in range(1, len(stack)):
        for first in range(second):
            off = commutator_norm(stack[[first, second]])
            if off > tolerance * norms[first] * norms[second]:
                raise ConfigError(
                    f"canonical_form: generators {first} and {second} do not commute; their "
                    f"commutator has norm {off:.3g} (their own norms: {norms[first]:.3g} and "
                    f"{norms[second]:.3g}). Then exp(x B_1 + y B_2) is not relative, and no basis "
                    "turns both into planes."
                )


def _positive_planes(scaled: Array) -> npt.NDArray[np.complex128]:
    """One complex unit vector for each plane that turns: joint eigenvectors of ``i B_a``."""
    dim = scaled.shape[-1]
    planes = []
    for space, values in joint_eigenspaces(1j * scaled):
        turning = np.flatnonzero(np.abs(values) > rounding(dim))
        # The conjugate space, with the opposite eigenvalues, holds the same planes.
        if turning.size and values[turning[0]] > 0:
            planes.append(space)
    return np.hstack(planes) if planes else np.zeros((dim, 0), dtype=np.complex128)


def _complete(planes: npt.NDArray[np.complex128], dim: int) -> Array:
    """A real orthogonal basis: two columns for each plane, then what never turns."""
    count = planes.shape[1]
    columns = np.empty((dim, 2 * count))
    columns[:, 0::2], columns[:, 1::2] = planes.real * np.sqrt(2), planes.imag * np.sqrt(2)
    # The nearest orthonormal columns; nearly resting planes may have come out a little askew.
    left, _, right = np.linalg.svd(columns, full_matrices=True)
    return np.hstack([left[:, : 2 * count] @ right, left[:, 2 * count :]])


def _read_off(stack: Array, norms: Array, basis: Array) -> CanonicalForm:
    dim = stack.shape[-1]
    count = dim // 2
    inside = basis.T @ stack @ basis
    first = 2 * np.arange(count)
    theta = (inside[:, first + 1, first] - inside[:, first, first + 1]) / 2
    zero = 64 * dim * np.finfo(np.float64).eps * norms[:, None]
    theta[np.abs(theta) <= zero] = 0.0
    columns = basis[:, : 2 * count].reshape(dim, count, 2).copy()
    for plane in range(count):
        leading = np.flatnonzero(theta[:, plane])
        if leading.size and theta[leading[0], plane] < 0:
            theta[:, plane] *= -1
            columns[:, plane] = columns[:, plane, ::-1]
    # Frequencies that agree up to rounding must not be told apart by it.
    keys = np.round(theta / np.where(norms > 0, norms, 1.0)[:, None], 10)
    order = np.lexsort(-keys[::-1])
    theta, columns = theta[:, order], columns[:, order]
    result = np.hstack([columns.reshape(dim, 2 * count), basis[:, 2 * count :]])
    form = CanonicalForm(Frequencies(theta), result)
    rebuilt = result @ generators_of(form.frequencies, dim) @ result.T
    error = np.abs(rebuilt - stack).max(axis=(1, 2))
    assert (error <= 1e-8 * norms + np.finfo(np.float64).tiny).all(), error
    return form
