"""What the user sees while it runs: a line per stage, live on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as Bars

from rotary.training.metrics import Event
from rotary.training.run_config import Stage
from rotary.training.stages import StagePlace

PLAIN_EVERY = 10.0  # Seconds between plain lines.


class Progress:
    """Shows stages as they are trained.

    Args:
        stages: All of them.
        console: Where to; a quiet one in the other processes of a run.
    """

    def __init__(self, stages: Sequence[Stage], console: Console) -> None:
        self.console = console
        self.stages = list(stages)
        self.last: Event | None = None
        self._bars: Bars | None = None
        self._bar: Any = None
        self._shown = 0
        self._stage = 0
        self._pace = 0.0  # Seconds a step, the last ten or so weighing most.
        self._taken = 0.0  # Seconds of the steps of this stage.
        self._last_plain = time.monotonic()

    def __enter__(self) -> Progress:
        if self.console.is_terminal:
            self._bars = Bars(
                TextColumn("stage {task.fields[name]}"),
                BarColumn(bar_width=16),
                MofNCompleteColumn(),
                TextColumn("{task.fields[numbers]}"),
                console=self.console,
                refresh_per_second=4,
            )
            self._bars.start()
        return self

    def __exit__(self, *error: Any) -> None:
        if self._bars is not None:
            self._bars.stop()
            self._bars = None

    def measured(self, event: Event) -> None:
        """Take the newest line of the metrics."""
        self.last = event

    def evaluated(self, event: Event) -> None:
        """Say the newest validation, above the live lines."""
        say(
            self.console,
            f"validation at step {event['step']:,}  loss {event['loss']:.3f}  "
            f"accuracy {event['accuracy']:.3f}",
        )

    def stepped(self, step: int, stage: StagePlace, seconds: float) -> None:
        """A step is done.

        Args:
            step: Steps done in all.
            stage: The stage it was in.
            seconds: How long it took.
        """
        done = step - stage.begin
        if self._stage != stage.number:
            self._stage, self._pace, self._taken = stage.number, seconds, 0.0
        self._pace = 0.9 * self._pace + 0.1 * seconds
        self._taken += seconds
        numbers = self._numbers(stage, stage.steps - done)
        if self._bars is not None:
            self._show_bar(stage, done, numbers)
        elif done == stage.steps or time.monotonic() - self._last_plain >= PLAIN_EVERY:
            self._last_plain = time.monotonic()
            say(self.console, f"stage {self._name(stage)}  step {done}/{stage.steps}  {numbers}")

    def _show_bar(self, stage: StagePlace, done: int, numbers: str) -> None:
        assert self._bars is not None
        if self._shown != stage.number:
            self._shown = stage.number
            self._bar = self._bars.add_task(
                "", total=stage.steps, name=self._name(stage), numbers=numbers
            )
        self._bars.update(self._bar, completed=done, numbers=numbers)

    def _name(self, stage: StagePlace) -> str:
        return f"{stage.number}/{len(self.stages)} ({stage.length} x {stage.batch})"

    def _numbers(self, stage: StagePlace, steps_left: int) -> str:
        if self.last is None or self.last["stage"] != stage.number:
            return "..."
        time_left = f"{clock(steps_left * self._pace)} left"
        return (
            f"loss {self.last['loss']:.3f}  accuracy {self.last['accuracy']:.3f}  "
            f"{self.last['tokens_per_second']:,} tokens/s  "
            f"{time_left if steps_left else 'took ' + clock(self._taken)}"
        )


def say(console: Console, text: str) -> None:
    """Print a text as it is: no markup, no colours for numbers, no line breaks put in."""
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def clock(seconds: float) -> str:
    """Seconds as ``m:ss`` or ``h:mm:ss``.

    Example:
        >>> clock(75), clock(3700)
        ('1:15', '1:01:40')
    """
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"
