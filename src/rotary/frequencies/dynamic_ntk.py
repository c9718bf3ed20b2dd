"""Dynamic NTK: the base grows with the length, once it exceeds the trained one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rotary.frequencies.base import Frequencies, Recipe, make_recipe, one_axis
from rotary.frequencies.checks import integer, number
from rotary.frequencies.length_schedule import LengthSchedule
from rotary.frequencies.ntk import ntk_exponents


@dataclass(frozen=True)
class DynamicNTK(LengthSchedule):
    """What :func:`dynamic_ntk` returns; a value that can be compared and pickled."""

    original: Frequencies
    factor: float
    original_length: int

    @property
    def frequencies(self) -> Frequencies:
        """The frequencies before any scaling: those of every length up to the original."""
        return self.original

    @property
    def recipe(self) -> Recipe:
        """How to make this schedule again, as plain JSON."""
        return make_recipe(
            "dynamic_ntk",
            frequencies=self.original,
            factor=self.factor,
            original_length=self.original_length,
        )

    def _at_int(self, length: int) -> Frequencies:
        stretch = self._stretch(max(length, self.original_length))
        values = self.original.matrix[0]
        return Frequencies(values * stretch ** -ntk_exponents(values.size), self.original.amplitude)

    def _at_tensor(self, lengths: Tensor) -> tuple[Tensor, Tensor]:
        stretch = self._stretch(lengths.clamp(min=self.original_length))
        planes = self.original.num_planes
        # Lists of floats, not arrays: a compiler takes them as constants.
        exponents = _like([-p / max(planes - 1, 1) for p in range(planes)], lengths)
        matrix = _like(self.original.rows[0], lengths) * stretch[:, None] ** exponents
        return matrix[:, None, :], torch.full_like(lengths, self.original.amplitude)

    def _stretch(self, length: Any) -> Any:
        return self.factor * length / self.original_length - (self.factor - 1)


def dynamic_ntk(frequencies: Frequencies, factor: float, original_length: int) -> DynamicNTK:
    """Leave lengths up to the original alone; beyond, NTK with a factor that grows with the length.

    ``theta'_p = theta_p * s ** (-p / (planes - 1))`` with ``s = factor * length / original_length
    - (factor - 1)``, 1 at the original length: NTK by ``s`` (bloc97 and emozilla, 2023).

    Args:
        frequencies: Of one axis, (1, planes).
        factor: How fast the base grows, greater than 0.
        original_length: Number of positions the model was trained on.

    Returns:
        A schedule; ``at(length)`` gives the frequencies.

    Raises:
        ConfigError: If a number is out of range.
        ShapeError: If the frequencies have heads or more than one axis.

    Example:
        >>> from rotary import inverse_power
        >>> schedule = dynamic_ntk(inverse_power(4), factor=2.0, original_length=8)
        >>> schedule.at(8).matrix, schedule.at(16).matrix.round(5)
        (array([[1.  , 0.01]]), array([[1.     , 0.00333]]))
    """
    one_axis("dynamic_ntk", frequencies)
    return DynamicNTK(
        frequencies,
        number("dynamic_ntk", "factor", factor),
        integer("dynamic_ntk", "original_length", original_length),
    )


def _like(values: list[float], other: Tensor) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, device=other.device)
