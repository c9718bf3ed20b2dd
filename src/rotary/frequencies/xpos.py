"""xPos: queries and keys are also scaled by position, in opposite senses."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rotary.errors import ConfigError
from rotary.frequencies.base import Frequencies, Recipe, make_recipe, one_axis
from rotary.frequencies.checks import number


@dataclass(frozen=True)
class XPos:
    """What :func:`xpos` returns; a value that can be compared and pickled."""

    frequencies: Frequencies
    scale_base: float
    gamma: float
    centre: float

    @property
    def rates(self) -> tuple[float, ...]:
        """``ln(zeta_p) / scale_base`` for each plane: the logarithm of the scale at position 1."""
        planes = self.frequencies.num_planes
        zetas = [(p / planes + self.gamma) / (1 + self.gamma) for p in range(planes)]
        return tuple(math.log(zeta) / self.scale_base for zeta in zetas)

    @property
    def recipe(self) -> Recipe:
        """How to make this value again, as plain JSON."""
        return make_recipe(
            "xpos",
            frequencies=self.frequencies,
            scale_base=self.scale_base,
            gamma=self.gamma,
            centre=self.centre,
        )

    @property
    def num_axes(self) -> int:
        """Always 1."""
        return 1

    @property
    def num_planes(self) -> int:
        """Number of planes, half the number of channels that turn."""
        return self.frequencies.num_planes

    @property
    def num_heads(self) -> int | None:
        """Always None: shared by all heads."""
        return None


def xpos(
    frequencies: Frequencies, scale_base: float = 512.0, *, gamma: float = 0.4, centre: float = 0.0
) -> XPos:
    """Let scores fall with the distance: a scale per position and plane (xPos, arXiv 2212.10554).

    A query at ``m`` is turned and multiplied by ``zeta_p ** ((m - centre) / scale_base)``, a key at
    ``n`` by ``zeta_p ** (-(n - centre) / scale_base)``, with ``zeta_p = (2p / d + gamma) /
    (1 + gamma)``. In a score only ``m - n`` is left, whatever the centre; so the centre is a
    constant, not half of the current length, and keys in a cache stay valid.

    Use it as ``rotation = RotaryEmbedding(xpos(...))(positions)``, then
    ``rotation.for_queries()(q)`` and ``rotation.for_keys()(k)``.

    Args:
        frequencies: Of one axis, (1, planes).
        scale_base: Distance over which a score falls by ``zeta_p``, in positions.
        gamma: Greater than 0; the paper's is 0.4.
        centre: The position with scale 1. The scales of keys grow away from it: with 32 planes and
            the defaults they overflow float16 about 4500 positions after it and float32 about
            36000 after it, so put it into the middle of what you expect.

    Returns:
        A value for :class:`rotary.RotaryEmbedding`.

    Raises:
        ConfigError: If a number is out of range.
        ShapeError: If the frequencies have heads or more than one axis.

    Example:
        >>> from rotary import inverse_power
        >>> [round(rate, 6) for rate in xpos(inverse_power(4)).rates]
        [-0.002447, -0.000863]
    """
    one_axis("xpos", frequencies)
    if isinstance(centre, (bool, str)) or not math.isfinite(centre):
        raise ConfigError(f"xpos: centre is {centre!r}; it must be a finite position.")
    return XPos(
        frequencies,
        number("xpos", "scale_base", scale_base),
        number("xpos", "gamma", gamma),
        float(centre),
    )
