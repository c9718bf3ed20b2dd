"""Checkpoints that are whole or not there: written aside, synced, hashed, renamed, verified.

A checkpoint is a folder ``step-000000123``. While it is written it is called ``.writing-...``; its
manifest lists the size and the SHA-256 of every file; the rename that gives it its name comes last.
So a kill at any moment leaves either no checkpoint or one that verifies.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

MANIFEST = "manifest.json"
_NAME = re.compile(r"step-(\d{9})")
_WRITING = ".writing-"


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint on disk that was verified."""

    step: int
    path: Path


def checkpoint_path(folder: Path, step: int) -> Path:
    """Where the checkpoint of a step lies in the folder of checkpoints."""
    return folder / f"step-{step:09d}"


def staging_path(folder: Path, step: int) -> Path:
    """Where the checkpoint of a step is written before it is whole."""
    return folder / f"{_WRITING}{step:09d}"


def publish(staging: Path, target: Path) -> None:
    """Make a written folder a checkpoint: list its hashes, sync it, give it its name.

    Args:
        staging: The folder with all files written.
        target: Its name as a checkpoint; one that is there already is replaced.
    """
    files = {}
    for path in _files(staging):
        files[path.relative_to(staging).as_posix()] = {
            "bytes": path.stat().st_size,
            "sha256": sha256_of(path),
        }
        _sync(path)
    manifest = staging / MANIFEST
    manifest.write_text(json.dumps({"files": files}, indent=1) + "\n", encoding="utf-8")
    _sync(manifest)
    for folder in {path.parent for path in _files(staging)}:
        _sync(folder)
    if target.exists():  # From an earlier run of the same step; its content may be damaged.
        shutil.rmtree(target)
    staging.rename(target)
    _sync(target.parent)


def verify(path: Path) -> str | None:
    """Say what is wrong with a checkpoint, or None if every file is as its manifest has it."""
    try:
        listed = json.loads((path / MANIFEST).read_text(encoding="utf-8"))["files"]
        expected = {name: (entry["bytes"], entry["sha256"]) for name, entry in listed.items()}
    except FileNotFoundError:
        return f"{MANIFEST} is missing"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{MANIFEST} cannot be read ({type(error).__name__})"
    for name, (size, digest) in expected.items():
        file = path / name
        try:
            if file.stat().st_size != size:
                return f"{name} has {file.stat().st_size:,} bytes instead of {size:,}"
            if sha256_of(file) != digest:
                return f"{name} is damaged (its SHA-256 differs from the manifest)"
        except FileNotFoundError:
            return f"{name} is missing"
        except OSError as error:
            return f"{name} cannot be read ({error.strerror})"
    present = {file.relative_to(path).as_posix() for file in _files(path)} - {MANIFEST}
    if extra := sorted(present - set(expected)):
        return f"{extra[0]} is not in the manifest"
    return None


def newest(folder: Path, say: Callable[[str], None]) -> Checkpoint | None:
    """The newest checkpoint that verifies; each one passed over is said, with what is wrong."""
    for path, step in sorted(_named(folder), key=lambda item: -item[1]):
        problem = verify(path)
        if problem is None:
            return Checkpoint(step, path)
        say(f"checkpoint {path.name} is passed over: {problem}")
    return None


def prune(folder: Path, keep: int) -> None:
    """Delete all but the newest ``keep`` checkpoints, and what an interrupted writing left."""
    found = sorted(_named(folder), key=lambda item: -item[1])
    for path, _ in found[keep:]:
        # Renamed first: half a deleted folder must not look like a checkpoint.
        doomed = path.with_name(f"{_WRITING}old-{path.name}")
        path.rename(doomed)
        shutil.rmtree(doomed)
    clear_unfinished(folder)


def clear_unfinished(folder: Path) -> None:
    """Delete what an interrupted writing left."""
    if folder.is_dir():
        for path in folder.iterdir():
            if path.name.startswith(_WRITING):
                shutil.rmtree(path)


def remove_all(folder: Path) -> None:
    """Delete every checkpoint; the folder too, if nothing else is in it."""
    clear_unfinished(folder)
    for path, _ in list(_named(folder)):
        shutil.rmtree(path)
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        digest = hashlib.sha256()
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that a kill leaves the old content or the new, never a part."""
    staging = path.with_name(f"{_WRITING}{path.name}")
    with staging.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    staging.replace(path)
    _sync(path.parent)


def _named(folder: Path) -> Iterator[tuple[Path, int]]:
    if folder.is_dir():
        for path in folder.iterdir():
            if (match := _NAME.fullmatch(path.name)) and path.is_dir():
                yield path, int(match[1])


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _sync(path: Path) -> None:
    if os.name == "nt" and path.is_dir():
        return  # Windows has no sync of folders.
    handle = os.open(path, os.O_RDONLY if path.is_dir() or os.name != "nt" else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
