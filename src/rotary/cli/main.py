"""The command ``rotary``: finds the sub-command, loads only its module, turns errors into one line.

A sub-command is a module with ``main(arguments) -> int``, listed in ``COMMANDS``. What it raises on
purpose (a ``RotaryError``), and a path that cannot be read or written, become one line on standard
error and exit code 2.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import NamedTuple

from rotary import __version__
from rotary.errors import RotaryError, missing, nearest


class Command(NamedTuple):
    """One sub-command: the module that does it, the extra it needs, and a line for the help."""

    module: str
    extra: str | None
    summary: str


COMMANDS: dict[str, Command] = {
    "pretrain": Command("rotary.cli.pretrain", "train", "pre-train a RoFormer on text"),
    "fill-mask": Command(
        "rotary.cli.fill_mask", "train", "guess masked words with a trained model"
    ),
    "generate": Command("rotary.cli.generate", "models", "continue a text with a causal model"),
    "run": Command("rotary.cli.run", "models", "run a Hugging Face script with these models"),
    "explain": Command("rotary.cli.explain", "train", "say what the RoPE of a config does"),
    "plot": Command("rotary.cli.plot", "train", "draw the figures of the theory"),
    "bench": Command("rotary.cli.bench", "bench", "time the library beside its floors and peers"),
}


def main(arguments: list[str] | None = None) -> int:
    """Run ``rotary`` with these arguments (the process's own by default); return the exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_help())
        return 0 if arguments else 2
    if arguments[0] in ("-V", "--version"):
        print(f"rotary {__version__}")
        return 0
    name, rest = arguments[0], arguments[1:]
    try:
        return _call(name, rest)
    except RotaryError as error:
        print(f"rotary {name}: error: {error}" if name in COMMANDS else str(error), file=sys.stderr)
        return 2
    except BrokenPipeError:  # `rotary ... | head` is not an error.
        sys.stderr.close()
        return 0
    except OSError as error:  # A path that cannot be read or written; what names none is a defect.
        if error.filename is None or name == "run":
            raise
        reason = (error.strerror or str(error)).lower()
        print(f"rotary {name}: error: {error.filename}: {reason}.", file=sys.stderr)
        return 2


def _call(name: str, arguments: list[str]) -> int:
    if name not in COMMANDS:
        raise RotaryError(
            f"rotary: error: there is no command {name!r}.{nearest(name, COMMANDS)} "
            "`rotary --help` lists them."
        )
    command = COMMANDS[name]
    try:
        run: Callable[[list[str]], int] = importlib.import_module(command.module).main
        return run(arguments)
    except ModuleNotFoundError as error:
        is_ours = error.name is None or error.name.split(".")[0] == "rotary"
        if is_ours or command.extra is None or name == "run":  # Whose script's imports are its own.
            raise
        raise missing("this command", error.name, command.extra) from error


def _help() -> str:
    width = max(map(len, COMMANDS), default=0)
    lines = [
        "usage: rotary COMMAND [ARGUMENTS ...]",
        "",
        "Rotary position embedding (RoPE), from the operator to trained RoFormer models.",
        "",
        "commands:",
    ]
    for name, command in COMMANDS.items():
        extra = f"  (needs rotary[{command.extra}])" if command.extra else ""
        lines.append(f"  {name:<{width}}  {command.summary}{extra}")
    lines += [
        "",
        "`rotary COMMAND --help` explains a command; `rotary --version` gives the version.",
    ]
    return "\n".join(lines)
