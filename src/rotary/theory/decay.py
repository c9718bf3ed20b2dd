"""Long-range decay: what the first post's bound says, and the two curves it is often taken for.

The bound is loose and does not fall monotonically; see ``docs/theory/decay.md``. Nothing here says
that the scores of a model decay.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rotary.errors import ShapeError
from rotary.frequencies import Frequencies
from rotary.theory._check import Array, angles_at, in_chunks
from rotary.theory.forms import to_complex


def decay(frequencies: Frequencies, distances: npt.ArrayLike) -> Array:
    """Average the partial sums of the first post: ``B(m) = 1/P sum_{j=1..P} |S_j(m)|``.

    ``S_j(m) = sum_{p<j} exp(i m theta_p)``; the Abel transform bounds a score at distance ``m`` by
    ``max_p |h_{p+1} - h_p| * P * B(m)`` (:func:`abel_bound`). An upper bound's factor: it is loose,
    not monotone, rises again beyond the longest wavelength, and depends on the order of the planes.
    With one theta shared by all planes it is ``(P + 1) / 2`` at every distance: no decay at all.

    Args:
        frequencies: Any frequency matrix, not only powers.
        distances: Relative positions, (...) for one axis, (..., axes) for more; real, of any sign.

    Returns:
        Values of shape (...), from 1/P to (P + 1) / 2.

    Raises:
        ShapeError: If the frequencies differ from head to head, or the distances lack the axes.

    Example:
        >>> from rotary import inverse_power
        >>> decay(inverse_power(128), [0, 256]).round(6)
        array([32.5     ,  6.543097])
    """
    return in_chunks(
        "decay", frequencies, distances, lambda angles: np.abs(_sums(angles)).mean(axis=-1)
    )


def mean_cosine(frequencies: Frequencies, distances: npt.ArrayLike) -> Array:
    """The mean score of a vector with itself: ``1/P sum_p cos(m theta_p)``.

    The curve of Su's condition on the base (:func:`rotary.theory.is_base_sufficient`): while it is
    positive, similar vectors can be expected to attend to each other more than random ones.

    Args:
        frequencies: Any frequency matrix.
        distances: Relative positions, (...) for one axis, (..., axes) for more.

    Returns:
        Values of shape (...), from -1 to 1.

    Raises:
        ShapeError: As :func:`decay`.

    Example:
        >>> from rotary import inverse_power
        >>> mean_cosine(inverse_power(128), [0, 4096]).round(6)
        array([ 1.      , -0.052853])
    """
    return in_chunks(
        "mean_cosine", frequencies, distances, lambda angles: np.cos(angles).mean(axis=-1)
    )


def final_sum(frequencies: Frequencies, distances: npt.ArrayLike) -> Array:
    """The last partial sum alone: ``|S_P(m)| / P``, the score of equal planes in the best phase.

    Args:
        frequencies: Any frequency matrix.
        distances: Relative positions, (...) for one axis, (..., axes) for more.

    Returns:
        Values of shape (...), from 0 to 1.

    Raises:
        ShapeError: As :func:`decay`.

    Example:
        >>> from rotary import inverse_power
        >>> final_sum(inverse_power(128), [0, 4096]).round(6)
        array([1.      , 0.067621])
    """
    return in_chunks(
        "final_sum",
        frequencies,
        distances,
        lambda angles: np.abs(np.exp(1j * angles).sum(axis=-1)) / angles.shape[-1],
    )


def score(
    frequencies: Frequencies,
    query: npt.ArrayLike,
    key: npt.ArrayLike,
    distances: npt.ArrayLike,
) -> Array:
    """The score of one query and one key: ``Re sum_p h_p exp(i m theta_p)``, ``h_p = q_p k_p*``.

    Args:
        frequencies: Any frequency matrix.
        query: Interleaved channels, (dim,).
        key: Interleaved channels, (dim,).
        distances: Position of the query minus that of the key, (...) or (..., axes).

    Returns:
        Scores of shape (...).

    Raises:
        ShapeError: If query or key do not have two channels for each plane.

    Example:
        >>> from rotary import inverse_power
        >>> score(inverse_power(4), [1, 0, 0, 0], [1, 0, 0, 0], [0, 1]).round(6)
        array([1.      , 0.540302])
    """
    h = _products("score", frequencies, query, key)
    return in_chunks("score", frequencies, distances, lambda angles: (np.exp(1j * angles) @ h).real)


def abel_bound(
    frequencies: Frequencies,
    query: npt.ArrayLike,
    key: npt.ArrayLike,
    distances: npt.ArrayLike,
) -> Array:
    """Bound the modulus of the score: ``max_p |h_{p+1} - h_p| * sum_j |S_j|`` (first post).

    ``h_P = 0`` by convention, so the last difference is ``|h_{P-1}|``.

    Args:
        frequencies: Any frequency matrix.
        query: Interleaved channels, (dim,).
        key: Interleaved channels, (dim,).
        distances: Position of the query minus that of the key, (...) or (..., axes).

    Returns:
        Bounds of shape (...): ``abs(score(...)) <= abel_bound(...)`` always.

    Raises:
        ShapeError: If query or key do not have two channels for each plane.

    Example:
        >>> from rotary import inverse_power
        >>> abel_bound(inverse_power(128), np.ones(128), np.ones(128), [0]).round(6)
        array([4160.])
    """
    h = _products("abel_bound", frequencies, query, key)
    largest_step = np.abs(np.diff(h, append=0.0)).max()
    return np.asarray(largest_step * h.size * decay(frequencies, distances))


def partial_sums(frequencies: Frequencies, distances: npt.ArrayLike) -> npt.NDArray[np.complex128]:
    """All partial sums ``S_1 .. S_P`` at each distance, (..., planes)."""
    return _sums(angles_at("partial_sums", frequencies, distances))


def _sums(angles: Array) -> npt.NDArray[np.complex128]:
    return np.cumsum(np.exp(1j * angles), axis=-1)


def _products(
    function: str, frequencies: Frequencies, query: npt.ArrayLike, key: npt.ArrayLike
) -> npt.NDArray[np.complex128]:
    expected = (2 * frequencies.num_planes,)
    if np.shape(query) != expected or np.shape(key) != expected:
        raise ShapeError(
            f"{function}: query has shape {np.shape(query)} and key {np.shape(key)}; for "
            f"{frequencies.num_planes} planes expected {expected} each."
        )
    return to_complex(query) * to_complex(key).conj()
