"""Random numbers by name: a draw is a pure function of (seed, purpose, epoch, row).

There is no generator whose state somebody could advance, so a batch can be made in any order, by
any process, again after a restart. Raw bits of Philox (Salmon et al. 2011), a counter-based
generator, are the same in every version of NumPy; what NumPy makes of them need not be, so the few
distributions needed are made here.
"""

from __future__ import annotations

import hashlib

import numpy as np

from rotary._shapes import Float, Shaped


def derive_seed(seed: int, purpose: str) -> int:
    """A 64-bit seed of its own for a purpose, for instance ``"stage 3"``.

    Args:
        seed: Any integer.
        purpose: What it is for; each has a stream that has nothing to do with the others.

    Returns:
        An integer from 0 to 2^64 - 1.

    Example:
        >>> derive_seed(0, "stage 0") != derive_seed(0, "stage 1")
        True
    """
    digest = hashlib.sha256(f"{seed} {purpose}".encode()).digest()
    return int.from_bytes(digest[:8], "big")


def bits(
    count: int, *, seed: int, purpose: str, epoch: int = 0, row: int = 0
) -> Shaped[np.ndarray, " count"]:
    """Draw that many times 64 random bits (uint64).

    Draws that differ in any argument but the count are independent; a smaller count gives the
    beginning of a larger one.
    """
    key = np.array([derive_seed(seed, purpose), epoch], dtype=np.uint64)
    # The generator counts up in the first word, so rows never meet.
    counter = np.array([0, 0, 0, row], dtype=np.uint64)
    return np.random.Philox(counter=counter, key=key).random_raw(count)


def uniform(raw: Shaped[np.ndarray, "*shape"]) -> Float[np.ndarray, "*shape"]:
    """Turn 64 bits into float64 in [0, 1): 53 bits, evenly spaced."""
    return (raw >> np.uint64(11)).astype(np.float64) * 2.0**-53


def permutation(count: int, *, seed: int, purpose: str, epoch: int) -> Shaped[np.ndarray, " count"]:
    """A random order of ``range(count)`` (int64)."""
    keys = bits(count, seed=seed, purpose=purpose, epoch=epoch)
    return np.argsort(keys, kind="stable")
