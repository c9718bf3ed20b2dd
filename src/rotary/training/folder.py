"""The folder of a run: what a run writes there, and what it leaves alone."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import filelock

from rotary.data.text import holds_text
from rotary.errors import RunError
from rotary.training import checkpoints, run_file
from rotary.training.run_config import RunConfig

Mode = Literal["new", "overwrite", "resume"]

RUN_FILE = "run.toml"
METRICS = "metrics.jsonl"
PICTURE = "loss.png"
REPORT = "report.md"
WEIGHTS = "model.safetensors"
CHECKPOINTS = "checkpoints"
LOCK = ".lock"
MODEL_FILES = (WEIGHTS, "config.json")
# Names under which the tokenizers in use save themselves.
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.txt",
)
FILES = (METRICS, PICTURE, REPORT, *MODEL_FILES, *TOKENIZER_FILES, RUN_FILE)


class RunFolder:
    """The folder of one run.

    Args:
        path: The folder; it need not exist.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.checkpoints = self.path / CHECKPOINTS
        # The system's own lock, which ends with the process, however that ends; the file stays.
        self._lock = filelock.FileLock(self.file(LOCK), timeout=0)

    def file(self, name: str) -> Path:
        """A file of the run."""
        return self.path / name

    @property
    def holds_run(self) -> bool:
        """Whether a run was begun here."""
        return self.file(RUN_FILE).is_file()

    def check(self, mode: Mode, *, has_texts: bool) -> None:
        """Refuse a folder that cannot be used as asked; nothing is changed.

        A command that a scheduler repeats has ``--resume`` from the start: it begins a run, if it
        names its text and nothing is there.

        Raises:
            RunError: If the path is a file, cannot be written to, holds a run and ``mode`` is
                ``"new"``, holds none to resume, or holds files of others under names that a run
                writes.
        """
        if self.path.exists() and not self.path.is_dir():
            raise RunError(f"--output {self.path}: this is a file; give a folder.")
        self._check_writable()
        if self.holds_run:
            if mode == "new":
                raise RunError(
                    f"--output {self.path}: this folder already holds a run. Use --resume to go on "
                    "with it, --overwrite to replace it, or another folder."
                )
            return
        if mode == "resume" and not (has_texts and self._is_empty()):
            runs = sorted(
                {*self.path.parent.glob(f"*/{RUN_FILE}"), *self.path.glob(f"*/{RUN_FILE}")}
            )
            nearby = ", ".join(str(run.parent) for run in runs[:3])
            raise RunError(
                f"--resume: {self.path} holds no run."
                + (f" There is one in: {nearby}." if nearby else "")
                + " With TEXT, --resume also begins a run, in a folder that is absent or empty."
            )
        foreign = [name for name in (*FILES, CHECKPOINTS) if self.file(name).exists()]
        if foreign:
            raise RunError(
                f"--output {self.path}: {foreign[0]} there was not written by a run (there is no "
                f"{RUN_FILE}) and would be replaced; give another folder."
            )

    def _is_empty(self) -> bool:
        """Whether nothing is there but hidden files: a killed run may leave some of its own."""
        return not self.path.exists() or all(
            path.name.startswith(".") for path in self.path.iterdir()
        )

    def check_texts(self, texts: Sequence[str]) -> None:
        """Refuse to begin where text of the corpus lies: beside a run it would not be read again.

        Raises:
            RunError: If the folder lies in one of ``texts`` and holds text itself.
        """
        if self.holds_run or not holds_text(self.path):
            return
        for text in texts:
            if os.path.isdir(text) and self.path.resolve().is_relative_to(Path(text).resolve()):
                raise RunError(
                    f"--output {self.path}: this folder holds text that is to be trained on; give "
                    "a folder for the run alone, which may lie inside this one."
                )

    def _check_writable(self) -> None:
        existing = self.path
        while not existing.exists():
            existing = existing.parent
        if not existing.is_dir():
            raise RunError(f"--output {self.path}: {existing} is a file; give a folder.")
        try:
            with tempfile.TemporaryFile(dir=existing):
                pass
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            if isinstance(error, FileNotFoundError):  # It exists, but as /proc does.
                reason = "it takes no new files"
            raise RunError(f"--output {self.path}: cannot write to {existing}: {reason}.") from None

    def lock(self) -> None:
        """Keep other processes from writing here, until :meth:`unlock` or the end of this one.

        Raises:
            RunError: If another process does so.
        """
        try:
            self._lock.acquire()
        except filelock.Timeout:
            raise self._is_taken() from None

    def unlock(self) -> None:
        """Let other processes write here again."""
        self._lock.release()

    def _is_taken(self) -> RunError:
        return RunError(
            f"--output {self.path}: another process is writing this run; wait for its end, stop "
            "it, or give another folder."
        )

    def begin(self, config: RunConfig, record: dict[str, Any]) -> None:
        """Make the folder, take away an earlier run, write the run file."""
        self.path.mkdir(parents=True, exist_ok=True)
        if not self._lock.is_locked:
            self.lock()
            if self.holds_run:  # Begun by another process after this one had looked.
                raise self._is_taken()
        self.clear()
        header = (
            "The settings of this run, all of them; `rotary pretrain --config` takes this file.\n"
            "The table [record] says what it ran on."
        )
        text = run_file.to_toml(config, record, header)
        checkpoints.write_atomically(self.file(RUN_FILE), text.encode("utf-8"))

    def clear(self) -> None:
        """Delete what a run wrote, and nothing else."""
        for name in FILES:  # The run file last: until then the folder is known to hold a run.
            if name == RUN_FILE:
                checkpoints.remove_all(self.checkpoints)
            self.file(name).unlink(missing_ok=True)

    def write(self, name: str, content: bytes) -> None:
        """Write a file of the run, whole or not at all."""
        checkpoints.write_atomically(self.file(name), content)

    def adopt(self, staging: Path, names: Sequence[str]) -> None:
        """Move files that were written aside into the folder, each in one step."""
        mode = self.file(RUN_FILE).stat().st_mode  # Some libraries write for the owner alone.
        for name in names:
            if (staging / name).exists():
                (staging / name).chmod(mode)
                os.replace(staging / name, self.file(name))

    def read_run(self) -> tuple[RunConfig, dict[str, Any]]:
        """The config and the record of the run in the folder.

        Raises:
            RunError: If its run file cannot be read.
        """
        path = self.file(RUN_FILE)
        try:
            flat, record = run_file.read_run(path.read_text(encoding="utf-8"), str(path))
            config = run_file.build(flat)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RunError(f"{path}: cannot be read as a run's file: {error}") from None
        if record is None:
            raise RunError(f"{path}: this is no run's file: it has no table [{run_file.RECORD}].")
        return config, record
