"""Relative encodings that linear attention can use: RoPE is one of a family.

Linear attention never forms the matrix of scores, so position has to enter through the features of
queries and keys. Which functions of ``n - m`` can? Exactly ``c^T exp((n - m) B) b``, for any real
matrix ``B``, skew or not.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rotary.errors import ConfigError, ShapeError
from rotary.frequencies import Frequencies
from rotary.frequencies.checks import integer
from rotary.theory._check import Array, square_stack
from rotary.theory.canonical import generators_of
from rotary.theory.generators import Encoding, exponential


def relative_pair(generator: npt.ArrayLike) -> tuple[Encoding, Encoding]:
    """Two encodings, of queries and of keys, with ``A(m)^T C(n) = exp((n - m) B)``.

    ``A(m) = exp(-m B^T)`` and ``C(n) = exp(n B)``, for any square ``B``; they are the same one only
    if B is skew-symmetric (RoPE). Factors grow with the position, so float64 or centred positions.

    Args:
        generator: Any real matrix, (dim, dim).

    Returns:
        The encoding of queries and that of keys.

    Raises:
        ShapeError: If it is not one square matrix.

    Example:
        >>> for_queries, for_keys = relative_pair([[0.5]])
        >>> product = for_queries(np.array([7.0]))[0].T @ for_keys(np.array([5.0]))[0]
        >>> bool(np.isclose(product[0, 0], np.exp(-2 * 0.5)))
        True
    """
    stack = square_stack("relative_pair", generator)
    if len(stack) != 1:
        raise ShapeError(f"relative_pair: got {len(stack)} matrices; expected one, (dim, dim).")
    return exponential(-stack[0].T), exponential(stack[0])


def decaying_generator(frequencies: Frequencies, keep: npt.ArrayLike) -> Array:
    """``B = diag(theta_p J - log(keep_p) I)``: a plane turns and keeps a share of its length.

    The score of a key ``t`` positions back is multiplied by ``keep ** t``. No turn is the decay of
    RetNet (and, where it is a sum of exponentials, ALiBi-like bias); ``keep`` different from plane
    to plane is xPos; ``keep = 1`` is RoPE.

    Args:
        frequencies: Of one axis; zeros give pure decay.
        keep: Greater than 0, at most 1: one number, or one for each plane.

    Returns:
        (dim, dim), interleaved pairs; give it to :func:`relative_pair`.

    Raises:
        ConfigError: If keep is out of range.
        ShapeError: If the frequencies have several axes, or keep fits neither shape.

    Example:
        >>> decaying_generator(Frequencies([0.0]), keep=0.5).round(6) + 0.0
        array([[0.693147, 0.      ],
               [0.      , 0.693147]])
    """
    share = np.asarray(keep, dtype=np.float64)
    if not ((share > 0) & (share <= 1)).all():
        raise ConfigError(f"decaying_generator: keep is {keep!r}; it must be in (0, 1].")
    blocks = generators_of(frequencies)
    if len(blocks) != 1 or share.shape not in ((), (1,), (frequencies.num_planes,)):
        raise ShapeError(
            f"decaying_generator: frequencies of shape {frequencies.matrix.shape} and keep of "
            f"shape {share.shape}; expected one axis, and one number or one for each plane."
        )
    rates = np.broadcast_to(-np.log(share), (frequencies.num_planes,))
    return blocks[0] + np.diag(np.repeat(rates, 2))


def cosformer_features(features: npt.ArrayLike, positions: npt.ArrayLike, length: int) -> Array:
    """Double the features: ``(f cos a, f sin a)``, ``a = pi m / (2 length)`` (cosFormer, 2022).

    Their inner products are ``f_q . f_k cos(pi (m - n) / (2 length))``: relative, and not negative
    for non-negative features while ``|m - n| <= length``. This is RoPE with one frequency,
    ``pi / (2 length)``, of the planes ``(f, 0)``.

    Args:
        features: (n, dim); non-negative ones keep the weights non-negative.
        positions: (n,).
        length: The longest distance; a constant, or prefill and decoding disagree.

    Returns:
        (n, 2 dim): channels 2c and 2c + 1 come from feature c.

    Raises:
        ShapeError: If the shapes do not belong together.

    Example:
        >>> cosformer_features([[1.0]], [2.0], length=2).round(6)
        array([[0., 1.]])
    """
    values, where = np.asarray(features, dtype=np.float64), np.asarray(positions, dtype=np.float64)
    length = integer("cosformer_features", "length", length)
    if values.ndim != 2 or where.shape != values.shape[:1]:
        raise ShapeError(
            f"cosformer_features: features have shape {values.shape} and positions {where.shape}; "
            "expected (n, dim) and (n,)."
        )
    angles = (np.pi / (2 * length) * where)[:, None]
    doubled = np.stack([values * np.cos(angles), values * np.sin(angles)], axis=-1)
    return doubled.reshape(len(values), -1)
