"""The table of stages: which stage a step belongs to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rotary.training.run_config import Stage


@dataclass(frozen=True)
class StagePlace:
    """A stage and where it lies in the run.

    Attributes:
        number: From 1.
        begin: Its first step, counted from 0.
        end: The step after its last.
        length: Tokens in a row.
        batch: Rows in a step.
    """

    number: int
    begin: int
    end: int
    length: int
    batch: int

    @property
    def steps(self) -> int:
        """How many steps it has."""
        return self.end - self.begin


class StageTable:
    """Stages one after another.

    Example:
        >>> table = StageTable([Stage(64, 8, 10), Stage(128, 4, 5)])
        >>> table.stage_of(9).number, table.stage_of(10).number, len(table)
        (1, 2, 2)
    """

    def __init__(self, stages: Sequence[Stage]) -> None:
        self.places: list[StagePlace] = []
        begin = 0
        for number, stage in enumerate(stages, start=1):
            end = begin + stage.steps
            self.places.append(StagePlace(number, begin, end, stage.length, stage.batch))
            begin = end

    def __len__(self) -> int:
        return len(self.places)

    def stage_of(self, step: int) -> StagePlace:
        """The stage of a step, counted from 0."""
        return next(place for place in self.places if step < place.end)
