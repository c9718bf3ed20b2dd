"""LongRoPE: one divisor for each plane, a short set and a long one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rotary.errors import ConfigError
from rotary.frequencies.base import Frequencies, Recipe, make_recipe, one_axis
from rotary.frequencies.checks import integer, number
from rotary.frequencies.length_schedule import LengthSchedule


@dataclass(frozen=True)
class LongRope(LengthSchedule):
    """What :func:`longrope` returns; a value that can be compared and pickled."""

    original: Frequencies
    short: Frequencies
    long: Frequencies
    original_length: int
    arguments: tuple[tuple[str, object], ...]

    @property
    def frequencies(self) -> Frequencies:
        """The frequencies before any scaling."""
        return self.original

    @property
    def constant_amplitude(self) -> float | None:
        """The amplitude, unless short and long sequences have different ones."""
        same = self.short.amplitude == self.long.amplitude
        return self.short.amplitude if same else None

    @property
    def recipe(self) -> Recipe:
        """How to make this schedule again, as plain JSON."""
        plain = {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in self.arguments
        }
        return make_recipe("longrope", frequencies=self.original, **plain)

    def _at_int(self, length: int) -> Frequencies:
        return self.long if length > self.original_length else self.short

    def _at_tensor(self, lengths: Tensor) -> tuple[Tensor, Tensor]:
        is_long = lengths > self.original_length
        short, long = (
            torch.tensor(each.rows, dtype=torch.float64, device=lengths.device)
            for each in (self.short, self.long)
        )
        low, high = (torch.full_like(lengths, each.amplitude) for each in (self.short, self.long))
        return torch.where(is_long[:, None, None], long, short), torch.where(is_long, high, low)


def longrope(
    frequencies: Frequencies,
    short_factor: Sequence[float],
    long_factor: Sequence[float],
    original_length: int,
    *,
    factor: float = 1.0,
    amplitude: float | Sequence[float] | None = None,
) -> LongRope:
    """Divide plane ``p`` by ``short_factor[p]``, or ``long_factor[p]`` for long sequences.

    Long is a sequence of more than ``original_length`` positions (LongRoPE, arXiv 2402.13753;
    the searched divisors come with the checkpoint, as in Phi-3).

    Args:
        frequencies: Of one axis, (1, planes).
        short_factor: One divisor for each plane, greater than 0.
        long_factor: The same for long sequences.
        original_length: Number of positions the model was trained on.
        factor: New length over original length; only the amplitude depends on it.
        amplitude: The factor on the turned vector; two numbers for short and long sequences.
            Left out, it is ``sqrt(1 + ln(factor) / ln(original_length))``, or 1 for a factor up
            to 1.

    Returns:
        A schedule; ``at(length)`` gives the frequencies.

    Raises:
        ConfigError: If a number is out of range or a list has the wrong length.
        ShapeError: If the frequencies have heads or more than one axis.

    Example:
        >>> from rotary import inverse_power
        >>> schedule = longrope(inverse_power(4), [1, 1], [2, 8], original_length=4096)
        >>> schedule.at(4096).matrix, schedule.at(4097).matrix
        (array([[1.  , 0.01]]), array([[0.5    , 0.00125]]))
    """
    values = one_axis("longrope", frequencies)
    short, long = _divisors("short_factor", short_factor), _divisors("long_factor", long_factor)
    if not len(short) == len(long) == values.size:
        raise ConfigError(
            f"longrope: short_factor has {len(short)} entries and long_factor {len(long)}; both "
            f"need one for each of the {values.size} planes."
        )
    original_length = integer("longrope", "original_length", original_length)
    factor = number("longrope", "factor", factor)
    if amplitude is None:
        stretched = factor > 1 and original_length > 1
        scale = math.sqrt(1 + math.log(factor) / math.log(original_length)) if stretched else 1.0
        pair, given = (scale, scale), None
    elif isinstance(amplitude, (int, float)):
        scale = number("longrope", "amplitude", amplitude)
        pair, given = (scale, scale), (scale, scale)
    else:
        numbers = tuple(number("longrope", "amplitude", each) for each in amplitude)
        if len(numbers) != 2:
            raise ConfigError(
                f"longrope: amplitude is {amplitude!r}; give one number, or two for short and long "
                "sequences."
            )
        pair = given = (numbers[0], numbers[1])
    return LongRope(
        frequencies,
        Frequencies(values / short, pair[0] * frequencies.amplitude),
        Frequencies(values / long, pair[1] * frequencies.amplitude),
        original_length,
        (
            ("short_factor", short),
            ("long_factor", long),
            ("original_length", original_length),
            ("factor", factor),
            ("amplitude", given),
        ),
    )


def _divisors(name: str, values: Any) -> tuple[float, ...]:
    if isinstance(values, str) or not hasattr(values, "__iter__"):
        raise ConfigError(f"longrope: {name} is {values!r}; it must be a list of numbers.")
    return tuple(number("longrope", f"{name}[{i}]", value) for i, value in enumerate(values))
