"""Joint eigenspaces of commuting Hermitian matrices, degenerate and nearly degenerate ones too."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rotary.theory._check import Array

Complex = npt.NDArray[np.complex128]


class Eigenspace(NamedTuple):
    """Orthonormal columns (dim, size) and the eigenvalue of each matrix on them, (axes,)."""

    columns: Complex
    values: Array


def rounding(dim: int) -> float:
    """What counts as zero in a matrix of this size and of norm 1."""
    return 32 * dim * float(np.finfo(np.float64).eps)


def joint_eigenspaces(hermitian: npt.NDArray[np.complexfloating]) -> list[Eigenspace]:
    """Split the space until every matrix is a multiple of the identity on each part.

    Args:
        hermitian: Commuting matrices of norm about 1, (axes, dim, dim).

    Returns:
        The parts; together their columns are a unitary matrix.
    """
    dim = hermitian.shape[-1]
    found: list[Eigenspace] = []
    spaces: list[Complex] = [np.eye(dim, dtype=np.complex128)]
    while spaces:
        space = spaces.pop()
        inside = space.conj().T @ hermitian @ space
        inside = (inside + inside.conj().transpose(0, 2, 1)) / 2
        size = space.shape[1]
        centre = np.einsum("aii->a", inside).real / size
        spread = inside - centre[:, None, None] * np.eye(size)
        # The axis that tells most here goes first, and only wide gaps are cut: so planes whose
        # frequencies are close on one axis stay together until another axis tells them apart.
        sizes = np.abs(spread).max(axis=(1, 2))
        axis = int(sizes.argmax())
        if sizes[axis] <= rounding(dim):
            found.append(Eigenspace(space, centre))
            continue
        values, vectors = np.linalg.eigh(spread[axis])
        cuts = np.flatnonzero(np.diff(values) > (values[-1] - values[0]) / (2 * size)) + 1
        spaces += [space @ part for part in np.split(vectors, cuts, axis=1)]
    return found
