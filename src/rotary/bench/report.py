"""A benchmark's record as lines for people and as JSON with machine, versions and commit."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import asdict
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from rotary._version import __version__
from rotary.bench.suite import Bar, Record, Row

PACKAGES = (
    "numpy",
    "transformers",
    "tokenizers",
    "performer-pytorch",
    "rotary-embedding-torch",
    "x-transformers",
)


_NAME_WIDTH = 44


def machine() -> dict[str, Any]:
    """What the figures depend on: processor, threads, memory, GPU, system."""
    facts: dict[str, Any] = {
        "processor": _processor(),
        "architecture": platform.machine(),
        "system": platform.system(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load_average": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "vector_instructions": torch.backends.cpu.get_cpu_capability(),
    }
    if torch.cuda.is_available():
        facts["gpu"] = torch.cuda.get_device_name()
    return facts


def versions(packages: Iterable[str] = PACKAGES) -> dict[str, str | None]:
    """Versions of Python, PyTorch, this library and the peers; None for what is not installed."""
    found: dict[str, str | None] = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "rotary": __version__,
    }
    return found | {package: _installed(package) for package in packages}


def commit() -> str | None:
    """The commit of the source this package runs from, ``-dirty`` if changed; None outside git."""
    folder = Path(__file__).resolve().parent

    def git(*arguments: str) -> str:
        run = ["git", "-C", str(folder), *arguments]
        return subprocess.run(run, capture_output=True, text=True, check=True).stdout.strip()

    try:
        # Outside its own checkout (site-packages inside somebody's repository) it has no commit.
        git("ls-files", "--error-unmatch", Path(__file__).name)
        changed = git("status", "--porcelain", "--untracked-files=no", "--", "..")
        return git("rev-parse", "HEAD") + ("-dirty" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def as_json(suite: str, record: Record) -> dict[str, Any]:
    """Everything a reader needs to judge the figures, ready for ``json.dump``."""
    return {
        "suite": suite,
        "when": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "commit": commit(),
        "machine": machine(),
        "versions": versions(),
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "rows": [asdict(row) for row in record.rows],
        "bars": [{**asdict(bar), "is_met": bar.is_met} for bar in record.bars],
        "facts": record.facts,
        "exit_code": record.exit_code,
    }


def write_json(path: Path, suite: str, record: Record) -> None:
    """Write :func:`as_json` to a file, making its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(as_json(suite, record), indent=1, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")


class Table:
    """Prints rows as they come, under the names of their sections."""

    def __init__(self) -> None:
        self._section: str | None = None

    def __call__(self, row: Row) -> None:
        """Print one row."""
        if row.section != self._section:
            self._section = row.section
            print(f"\n{row.section}")
        print(row_line(row), flush=True)


def bar_line(bar: Bar) -> str:
    """One line that ends in ``holds`` or ``missed``."""
    measured = "not measured" if bar.measured is None else f"{bar.measured:.2f} {bar.unit}"
    bound = f"{'at least' if bar.at_least else 'at most'} {bar.limit:g}"
    return f"{bar.case}: {measured} ({bound}) {'holds' if bar.is_met else 'missed'}"


def row_line(row: Row) -> str:
    """One line: what ran, its time, its ratio and what else was measured."""
    cells = [f"  {row.name:<{_NAME_WIDTH}}"]
    if row.is_absent:
        cells.append("absent")
    if row.timing is not None:
        cells.append(f"{_duration(row.timing.seconds):>10}  ±{row.timing.spread:4.0%}")
    if row.ratio is not None:
        cells.append(f"{row.ratio:7.2f} x")
    cells += [f"{name}={_number(value)}" for name, value in row.facts.items()]
    return "  ".join([*cells, row.note]).rstrip()


def _duration(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def _number(value: float | int | str) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _installed(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
