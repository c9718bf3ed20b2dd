"""p-RoPE: the slow planes stand still, over the whole head."""

from __future__ import annotations

import numpy as np

from rotary.errors import ConfigError
from rotary.frequencies.base import Frequencies, make_recipe
from rotary.frequencies.checks import even_dim, number


def proportional(
    dim: int, fraction: float, base: float = 10000.0, *, factor: float = 1.0
) -> Frequencies:
    """Turn only the fastest planes of a head; the others have frequency 0 (arXiv 2410.06205).

    ``theta_p = base ** (-2p / dim) / factor`` for the first ``int(fraction * dim // 2)`` planes.
    Not partial rotary, which spreads all its frequencies over fewer channels: here the exponent
    runs over the whole head, and which channels stand still depends on the layout of the whole.

    Args:
        dim: Number of channels of the head, even.
        fraction: Share of the planes that turn, from 0 to 1.
        base: As in :func:`rotary.inverse_power`.
        factor: Divides all frequencies, as in :func:`rotary.frequencies.linear`.

    Returns:
        A matrix of shape (1, dim / 2).

    Raises:
        ConfigError: If a number is out of range.

    Example:
        >>> proportional(8, fraction=0.5).matrix
        array([[1. , 0.1, 0. , 0. ]])
    """
    dim = even_dim("proportional", "dim", dim)
    base = number("proportional", "base", base)
    factor = number("proportional", "factor", factor)
    if isinstance(fraction, (bool, str)) or fraction is None or not 0 <= fraction <= 1:
        raise ConfigError(f"proportional: fraction is {fraction!r}; it must lie between 0 and 1.")
    fraction = float(fraction)
    values = base ** -(np.arange(0, dim, 2, dtype=np.float64) / dim) / factor
    values[int(fraction * dim // 2) :] = 0.0
    return Frequencies(
        values,
        recipe=make_recipe("proportional", dim=dim, fraction=fraction, base=base, factor=factor),
    )
