"""RoFormer's frequencies, the ones that nearly every model starts from."""

from __future__ import annotations

import numpy as np

from rotary.frequencies.base import Frequencies, make_recipe
from rotary.frequencies.checks import even_dim, number


def inverse_power(dim: int, base: float = 10000.0) -> Frequencies:
    """Let the frequencies fall as a power: ``theta_p = base ** (-2p / dim)`` (RoFormer, 3.2.2).

    Args:
        dim: Number of channels that turn, even; the head dim, or less for partial rotary, which
            leaves the channels from ``dim`` on alone.
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
    dim = even_dim("inverse_power", "dim", dim)
    base = number("inverse_power", "base", base)
    exponents = np.arange(0, dim, 2, dtype=np.float64) / dim
    return Frequencies(base**-exponents, recipe=make_recipe("inverse_power", dim=dim, base=base))
