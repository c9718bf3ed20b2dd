"""What is measured while training: sums over a window of steps, and the lines of metrics.jsonl."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

Event = dict[str, Any]


@dataclass
class Window:
    """Sums since the last line of metrics.jsonl; plain numbers, so that a checkpoint can hold them.

    Attributes:
        steps: Steps summed.
        loss: Summed loss of the predicted tokens, in nats.
        correct: Predicted tokens that were right.
        count: Predicted tokens.
        tokens: Real tokens, that is without padding.
        seconds: Time of the steps.
        total_tokens: Real tokens since the beginning of the run.
        total_seconds: Time of all steps since the beginning of the run.
    """

    steps: int = 0
    loss: float = 0.0
    correct: float = 0.0
    count: float = 0.0
    tokens: float = 0.0
    seconds: float = 0.0
    total_tokens: float = 0.0
    total_seconds: float = 0.0

    def add(self, loss: float, correct: float, count: float, tokens: float) -> None:
        """Add the sums of the steps since the last call."""
        self.loss += loss
        self.correct += correct
        self.count += count
        self.tokens += tokens
        self.total_tokens += tokens

    def count_step(self, seconds: float) -> None:
        """Count a step and its time."""
        self.steps += 1
        self.seconds += seconds
        self.total_seconds += seconds

    def take(self, step: int, stage: int, learning_rate: float) -> Event | None:
        """The event of this window, None if no token was predicted; the sums begin anew."""
        event = {
            "event": "step",
            "step": step,
            "stage": stage,
            "loss": mean(self.loss, self.count),
            "accuracy": mean(self.correct, self.count),
            "learning_rate": learning_rate,
            "tokens": int(self.total_tokens),
            "seconds": round(self.total_seconds, 3),
            "tokens_per_second": round(self.tokens / self.seconds) if self.seconds else 0,
        }
        has_loss = self.count > 0
        self.steps = 0
        self.loss = self.correct = self.count = self.tokens = self.seconds = 0.0
        return event if has_loss else None

    def state(self) -> dict[str, int | float]:
        """The numbers, for a checkpoint."""
        return asdict(self)


def mean(total: float, count: float) -> float:
    """``total / count``, and NaN for nothing."""
    return total / count if count else math.nan


class MetricsLog:
    """metrics.jsonl: one event a line, kept in memory as well.

    Lines are flushed as they are written. A checkpoint holds a copy of the file, which
    :meth:`restore` puts back, so that a resumed run neither repeats nor lacks a line.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.events: list[Event] = []

    def start(self) -> None:
        """Begin with an empty file."""
        self.restore(b"")

    def restore(self, content: bytes) -> None:
        """Begin with the lines that a checkpoint holds."""
        self.events = [json.loads(line) for line in content.decode("utf-8").splitlines()]
        self.path.write_bytes(content)

    def append(self, event: Event) -> None:
        """Write an event as a line."""
        self.events.append(event)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(event) + "\n")

    def of_kind(self, kind: str) -> list[Event]:
        """The events of one kind, in order."""
        return [event for event in self.events if event["event"] == kind]

    def stage_summary(self, stage: int, *, length: int, batch: int, steps: int) -> Event:
        """Loss and accuracy of a stage: the mean over the last fifth of its steps.

        None where no step of the stage predicted a token.

        Args:
            stage: Its number, from 1.
            length: Tokens in a row.
            batch: Rows in a step.
            steps: Steps.
        """
        lines = [event for event in self.of_kind("step") if event["stage"] == stage]
        begin = lines[-1]["step"] - max(1, steps // 5) if lines else 0
        last = [event for event in lines if event["step"] > begin]
        means = {
            key: fmean(event[key] for event in last) if last else None
            for key in ("loss", "accuracy")
        }
        return {"length": length, "batch": batch, "steps": steps, **means}
