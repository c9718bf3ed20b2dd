"""RoFormer's frequencies, the ones that nearly every model starts from."""

from __future__ import annotations

import operator

import numpy as np

from rotary.errors import ConfigError
from rotary.frequencies.base import Frequencies


def inverse_power(dim: int, base: float = 10000.0) -> Frequencies:
    """Let the frequencies fall as a power: ``theta_p = base ** (-2p / dim)`` (RoFormer, 3.2.2).

    Args:
        dim: Number of channels that turn, even; the head dim, or less for partial rotary.
        base: Greater than 0. The wavelengths run from ``2 pi`` to nearly ``2 pi base`` positions;
            10000 is the value of the first post, larger ones suit longer contexts.

    Returns:
        A matrix of shape (1, dim / 2), in radians per position, falling from 1.

    Raises:
        ConfigError: If dim is odd or below 2, or the base is not a positive, finite number.

    Example:
        >>> inverse_power(4).matrix
        array([[1.  , 0.01]])
    """
    try:
        dim = operator.index(dim)
    except TypeError:
        raise ConfigError(f"inverse_power: dim is {dim!r}; it must be an integer.") from None
    if dim < 2 or dim % 2:
        raise ConfigError(
            f"inverse_power: dim is {dim}; it is the number of channels that turn in pairs, so it "
            "must be even and at least 2. For a head of odd size choose fewer channels: "
            f"dim={max(2, dim - dim % 2)}."
        )
    if not (np.isfinite(base) and base > 0):
        raise ConfigError(f"inverse_power: base is {base!r}; it must be a positive, finite number.")
    exponents = np.arange(0, dim, 2, dtype=np.float64) / dim
    return Frequencies(float(base) ** -exponents)
