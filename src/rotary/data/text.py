"""Documents from files and folders, and from the interpreter itself.

Reading is strict: what cannot be read is an error with the file and the place in it, because text
that was quietly skipped or mended shows up much later, as a model that is a little worse.
"""

from __future__ import annotations

import ast
import codecs
import gzip
import json
import os
import sysconfig
import warnings
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from rotary.errors import DataError, nearest

ENDINGS = (".txt", ".md", ".jsonl")
ACCEPTED = ".txt, .md, .jsonl, each also with .gz"
RUN_FILE, RUN_MARK = "run.toml", b"\n[record]\n"  # What a run leaves, and settings alone lack.


class Document(NamedTuple):
    """A text and where it is from: ``"notes.md"``, ``"corpus.jsonl:17"``, ``"topics:if"``."""

    name: str
    text: str


def read_documents(
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]], *, text_field: str = "text"
) -> list[Document]:
    r"""Read UTF-8 text: one document a file, or a line for JSONL.

    Folders are read recursively, sorted by path; in them files with another ending, names that
    begin with a dot, and folders that hold a run are passed over. A file that is reached twice is
    read once. Blank documents are dropped, a byte order mark is not text, and line ends become
    ``\n``.

    Args:
        paths: Files or folders; files end in .txt, .md or .jsonl, each also with .gz.
        text_field: The key of the text in a JSONL line.

    Returns:
        The documents in the order of the paths; at least one.

    Raises:
        DataError: Naming file and place: a path that is missing or has another ending, a folder
            that holds a run or no readable files, bytes that are not UTF-8, a damaged gzip file, a
            JSONL line that is broken or has no such text field, or nothing but blank text.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = pathlib.Path(folder, "a.txt").write_text("A first document.")
        ...     read_documents(folder)[0].text
        'A first document.'
    """
    given = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    files = _find_files([Path(path) for path in given])
    documents = [document for file in files for document in _read_file(file, text_field)]
    if not documents:
        shown = ", ".join(str(path) for path in given) or "no path was given"
        raise DataError(f"the corpus is empty: there is no text but blanks in it ({shown}).")
    return documents


def _find_files(paths: list[Path]) -> list[Path]:
    found: dict[str, Path] = {}  # By real path, so that each file is read once.
    for path in paths:
        if os.path.isdir(path):  # Unlike Path.is_dir, never raises (a name that is too long).
            if _holds_run(path):
                raise DataError(
                    f"{path}: this folder holds a run, and what a run writes is not read as text; "
                    "give the files or folders of the text."
                )
            files = list(_walk(path))
            if not files:
                raise DataError(
                    f"{path}: this folder holds no file that can be read; accepted are {ACCEPTED}."
                )
        elif not os.path.exists(path):
            raise DataError(f"{path}: no such file or folder.")
        elif _ending(path) is None:
            ending = "".join(path.suffixes[-2 if path.suffix.lower() == ".gz" else -1 :])
            kind = f"that end in {ending!r}" if ending else "without an ending"
            raise DataError(f"{path}: files {kind} are not read; accepted are {ACCEPTED}.")
        else:
            files = [path]
        for file in files:
            found.setdefault(os.path.realpath(file), file)
    return list(found.values())


def holds_text(folder: str | os.PathLike[str]) -> bool:
    """Whether a folder, if it is one, holds a file that would be read as text."""
    return os.path.isdir(folder) and next(_walk(Path(folder)), None) is not None


def _holds_run(folder: str | os.PathLike[str]) -> bool:
    try:
        return RUN_MARK in Path(folder, RUN_FILE).read_bytes()
    except OSError:
        return False


def _walk(folder: Path) -> Iterator[Path]:
    def fail(error: OSError) -> None:
        raise DataError(f"{error.filename}: cannot be read: {error.strerror}.") from error

    seen: set[str] = set()  # Links to folders are followed, round in a circle once.
    for root, folders, names in os.walk(folder, onerror=fail, followlinks=True):
        real = os.path.realpath(root)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        # Else a run inside its own text would find another text when it is resumed.
        if real in seen or _holds_run(root):
            folders.clear()
            continue
        seen.add(real)
        for name in sorted(names):
            path = Path(root, name)
            # A link that leads nowhere is kept: reading it then says so.
            is_file = path.is_file() or path.is_symlink()
            if not name.startswith(".") and _ending(path) is not None and is_file:
                yield path


def _ending(path: Path) -> str | None:
    name = path.name.lower().removesuffix(".gz")
    return next((ending for ending in ENDINGS if name.endswith(ending)), None)


def _read_file(path: Path, text_field: str) -> Iterator[Document]:
    is_gzip = path.name.lower().endswith(".gz")
    try:
        with gzip.open(path, "rb") if is_gzip else path.open("rb") as stream:
            if _ending(path) == ".jsonl":
                yield from _read_lines(path, stream, text_field)
            else:
                data = stream.read()
                text = _decode(data.removeprefix(codecs.BOM_UTF8), path, len(data))
                if text and not text.isspace():
                    yield Document(str(path), text)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path}: this gzip file is truncated or damaged ({error}).") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}.") from error


def _decode(data: bytes, path: Path, end: int) -> str:
    """Decode bytes that end at byte ``end`` of the file."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        start = end - len(data)
        is_utf16 = start == 0 and data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        guess = "it looks like UTF-16" if is_utf16 else f"0x{data[error.start]:02x}, {error.reason}"
        place = "of the unpacked text " if path.name.lower().endswith(".gz") else ""
        raise DataError(
            f"{path}: not UTF-8 at byte {start + error.start} {place}({guess}); convert the file, "
            "for instance with iconv -t UTF-8."
        ) from error
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def _read_lines(path: Path, lines: Iterable[bytes], text_field: str) -> Iterator[Document]:
    end = 0
    for number, data in enumerate(lines, start=1):
        end += len(data)
        line = _decode(data.removeprefix(codecs.BOM_UTF8) if number == 1 else data, path, end)
        if not line.strip():
            continue
        text = _field(line, text_field, f"{path}:{number}")
        if text and not text.isspace():
            yield Document(f"{path}:{number}", text)


def _field(line: str, text_field: str, place: str) -> str:
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise DataError(f"{place}: broken JSON ({error.msg}, column {error.colno}).") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{place}: broken JSON ({error}).") from error
    if not isinstance(record, dict):
        raise DataError(
            f"{place}: a line has to be a JSON object with the field {text_field!r}; this one is "
            f"of type {type(record).__name__}."
        )
    if text_field not in record:
        keys = ", ".join(map(repr, record)) or "none"
        raise DataError(
            f"{place}: there is no field {text_field!r}; the fields are {keys}."
            f"{nearest(text_field, record)}"
        )
    text = record[text_field]
    if not isinstance(text, str):
        raise DataError(
            f"{place}: the field {text_field!r} is of type {type(text).__name__}; it has to be a "
            "string."
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"{place}: the field {text_field!r} holds half of a surrogate pair "
            f"(\\u{ord(text[error.start]):04x} at character {error.start}), which is no text."
        ) from error
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


# Folders of the standard library that are not the prose of every CPython: tests, third-party
# packages, compiled files, and the parts that distributions ship apart or later versions dropped.
_NOT_EVERYWHERE = frozenset(
    ("test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__", "pydoc_data")
) | frozenset(("tkinter", "idlelib", "turtledemo", "lib2to3", "distutils", "ensurepip", "venv"))


def embedded_corpus() -> list[Document]:
    """The English prose that every CPython carries, read from the running interpreter.

    The language reference that ``help()`` shows (``pydoc_data.topics``), a document a topic, and
    the docstrings of the standard library, a document a module, taken from the sources without
    importing them. Nothing is downloaded; the text differs a little between Python versions.

    Returns:
        Some 520 documents, about 1.9 million characters, in an order that depends on names alone.

    Raises:
        DataError: If this interpreter comes without its sources or topics.

    Example:
        >>> "topics:if" in {document.name for document in embedded_corpus()}
        True
    """
    advice = "give text files or folders instead."
    try:
        from pydoc_data.topics import topics
    except ImportError as error:
        raise DataError(f"this Python has no pydoc_data.topics; {advice}") from error
    documents = [Document(f"topics:{name}", topics[name]) for name in sorted(topics)]
    root = Path(sysconfig.get_path("stdlib"))
    modules = [_docstrings(path, root) for path in _sources(root)]
    if not modules:
        raise DataError(f"this Python has no sources of its library in {root}; {advice}")
    documents += modules
    return [document for document in documents if document.text.strip()]


def _sources(root: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if name not in _NOT_EVERYWHERE)
        yield from (Path(folder, name) for name in sorted(names) if name.endswith(".py"))


def _docstrings(path: Path, root: Path) -> Document:
    name = ".".join(path.relative_to(root).with_suffix("").parts)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Old escapes in somebody else's source.
            tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):  # A template or a patched file is not a module.
        return Document(f"docstrings:{name}", "")
    found = (ast.get_docstring(owner) for owner in _owners(tree))
    return Document(f"docstrings:{name}", "\n\n".join(text for text in found if text))


def _owners(node: ast.AST) -> Iterator[ast.Module | ast.ClassDef | ast.FunctionDef]:
    """Modules, classes and functions in the order of the source; expressions are not entered."""
    if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
        yield node  # type: ignore[misc]
    for block in ("body", "handlers", "orelse", "finalbody", "cases"):
        children = getattr(node, block, ())
        for child in children if isinstance(children, list) else ():
            yield from _owners(child)
