"""What a suite is made of: a gate, rows, bars, and the record that collects them."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rotary.bench.timing import Timing, warm_allocator
from rotary.errors import ConfigError, RunError, one_of

SUITES: dict[str, str] = {
    "rotate": "rotary.bench.rotate",
    "linear": "rotary.bench.linear",
    "models": "rotary.bench.models",
    "tokenizer": "rotary.bench.tokenizer",
}
"""Name of each suite and the module that holds it; loaded only when it is asked for."""


@dataclass(frozen=True)
class Row:
    """One line of a table: what ran, how long it took, and what it was compared with.

    Attributes:
        section: The table it belongs to.
        name: What ran.
        timing: How long it took; None where nothing ran.
        ratio: Its time in units of the section's floor or rival; None where there is none.
        note: More to say, or why nothing ran.
        is_absent: Whether nothing ran because a package or a file is missing.
        facts: Further numbers for the JSON, such as tokens per second.
    """

    section: str
    name: str
    timing: Timing | None = None
    ratio: float | None = None
    note: str = ""
    is_absent: bool = False
    facts: dict[str, float | int | str] = field(default_factory=dict)


@dataclass(frozen=True)
class Bar:
    """A bound that a measured number must respect.

    Attributes:
        case: What is claimed, in words.
        measured: The number, or None where it could not be taken.
        limit: The bound.
        at_least: Whether the number must reach the bound rather than stay under it.
        unit: What the number counts, for instance ``"x clone"``.
    """

    case: str
    measured: float | None
    limit: float
    at_least: bool = False
    unit: str = "x"

    @property
    def is_met(self) -> bool:
        """Whether the measured number is on the right side; what was not measured is not."""
        if self.measured is None:
            return False
        return self.measured >= self.limit if self.at_least else self.measured <= self.limit


@dataclass
class Record:
    """Where a suite writes what it saw, and reads how it was asked to run.

    Attributes:
        data: Folder with real text and other data, see :meth:`find_data`.
        device: Where to run, ``"cpu"`` or ``"cuda"``.
        repeats: Samples for each case.
        rows: The rows so far.
        bars: The bars so far.
        facts: Anything else for the JSON.
        show: Called with each row as it comes.
    """

    data: Path = Path("../shared/data")
    device: str = "cpu"
    repeats: int = 25
    rows: list[Row] = field(default_factory=list)
    bars: list[Bar] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    show: Callable[[Row], None] = lambda row: None

    def row(
        self,
        section: str,
        name: str,
        timing: Timing | None = None,
        *,
        ratio: float | None = None,
        note: str = "",
        **facts: float | int | str,
    ) -> None:
        """Add a measured row."""
        self._add(Row(section, name, timing, ratio, note, facts=facts))

    def absent(self, section: str, name: str, why: str) -> None:
        """Add a row that says what could not run and why; for data that makes the run fail."""
        self._add(Row(section, name, note=why, is_absent=True))

    def _add(self, row: Row) -> None:
        self.rows.append(row)
        self.show(row)

    def at_most(self, case: str, measured: float | None, limit: float, unit: str = "x") -> None:
        """Add a bar that holds where the number does not exceed the limit."""
        self.bars.append(Bar(case, measured, limit, unit=unit))

    def at_least(self, case: str, measured: float | None, limit: float, unit: str = "x") -> None:
        """Add a bar that holds where the number reaches the limit."""
        self.bars.append(Bar(case, measured, limit, at_least=True, unit=unit))

    def find_data(self, section: str, name: str) -> Path | None:
        """The path of a data file, or None after adding a row that says it is absent."""
        path = self.data / name
        if path.exists():
            return path
        self.facts.setdefault("absent_data", []).append(str(name))
        self.absent(section, name, f"no such file in {self.data}; name its folder with --data")
        return None

    @property
    def exit_code(self) -> int:
        """0 if every bar is met and all data was there, else 1."""
        return int(bool(self.facts.get("absent_data")) or not all(bar.is_met for bar in self.bars))


@dataclass(frozen=True)
class Suite:
    """A benchmark: what it is for, the gate before it, and the measuring.

    Attributes:
        name: As in ``rotary bench NAME``.
        summary: One line for the help.
        gate: Returns what is wrong with the code about to be timed; nothing may be timed unless
            that is an empty list.
        measure: Runs the cases and writes rows and bars into the record.
    """

    name: str
    summary: str
    gate: Callable[[Record], list[str]]
    measure: Callable[[Record], None]


def load_suite(name: str) -> Suite:
    """Import the module of a suite and return its ``SUITE``."""
    if name not in SUITES:
        raise ConfigError(one_of("suite", name, SUITES))
    suite: Suite = importlib.import_module(SUITES[name]).SUITE
    return suite


def run_suite(suite: Suite, record: Record) -> Record:
    """Run the gate, then, only if it is green, the measuring; return the record.

    Raises:
        RunError: If the gate found something wrong: a fast wrong answer is not a result.
    """
    wrong = suite.gate(record)
    if wrong:
        listed = "\n".join(f"  {each}" for each in wrong)
        raise RunError(
            f"the correctness gate of the suite {suite.name!r} is red, so nothing was timed:\n"
            f"{listed}"
        )
    warm_allocator()
    suite.measure(record)
    return record
