"""``rotary pretrain``: parse the settings, run, say how it ended."""

from __future__ import annotations

import argparse
import dataclasses
import os
import re
import shlex
import signal
import sys
import typing
from collections.abc import Sequence
from typing import Any

from docstring_parser import parse as parse_docstring
from jsonargparse import ArgumentError, ArgumentParser
from rich.console import Console

from rotary.cli.arguments import check_utf8
from rotary.errors import ConfigError, RunError, nearest, one_of
from rotary.training import run_file
from rotary.training.checkpoints import NO_SPACE
from rotary.training.folder import RUN_FILE, Mode, RunFolder
from rotary.training.progress import say
from rotary.training.run_config import SECTIONS, RunConfig, Stage

DESCRIPTION = """\
Pre-train a RoFormer on text: by masked language modelling, or, with --objective causal,
by predicting each next token.

Without TEXT it trains on the English prose that comes with Python, and without --config it takes
the settings of the demo: about two minutes on two CPU cores. Several GPUs or machines:
torchrun --nproc-per-node N -m rotary pretrain ..."""

EPILOG = """\
examples:
  rotary pretrain
  rotary pretrain books/ notes.jsonl.gz --output runs/books --data.vocab_size 8000
  rotary pretrain --stages '[{"length":64,"batch":64,"steps":100}]' --training.learning_rate 1e-3
  rotary pretrain corpus/ --config paper --output runs/paper
  rotary pretrain corpus/ --config paper --init wobert/ --output runs/roformer
  rotary pretrain books/ --objective causal --tokenizer bytes --output runs/writer
  rotary pretrain --output runs/books --resume"""

OTHERS = ("output", "config", "resume", "overwrite", "show-config")


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Description and examples as they are written, and room for long option names."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=34)


def main(arguments: list[str]) -> int:
    """Run the command; return the exit code."""
    check_utf8(arguments)  # They are kept in run.toml.
    config_name = _value_of("--config", arguments)
    base = _base_config(config_name, _value_of("--init", arguments))
    output = _value_of("--output", arguments) or "runs/pretrain"
    stored: RunConfig | None = None
    record: dict[str, Any] = {}
    if "--resume" in arguments and RunFolder(output).holds_run:
        stored, record = RunFolder(output).read_run()
        if config_name is None:
            base = _checked(run_file.flatten(stored), RunFolder(output).file(RUN_FILE))
    parsed = _parse(arguments, base)
    config = run_file.build({key: _plain(parsed[key]) for key in run_file.config_keys()})
    if config.init is not None:
        config = dataclasses.replace(config, init=os.path.abspath(config.init))
    config.check()
    if parsed.show_config:
        print(run_file.to_toml(config), end="")
        return 0
    if parsed.resume and parsed.overwrite:
        raise ConfigError("--resume and --overwrite exclude each other; give one of them.")
    texts = [os.path.abspath(text) for text in parsed.text] or list(record.get("texts", []))
    if stored is not None:
        _check_same_config(stored, config, output)
    mode: Mode = "resume" if parsed.resume else "overwrite" if parsed.overwrite else "new"
    return _run(config, texts, output, mode, arguments)


def _run(
    config: RunConfig, texts: Sequence[str], output: str, mode: Mode, arguments: Sequence[str]
) -> int:
    console = Console()
    resume = f"rotary pretrain --output {shlex.quote(output)} --resume"
    try:
        from rotary.training.pretraining import is_finished, pretrain

        if mode == "resume" and is_finished(RunFolder(output)):
            say(console, f"{output}: this run is finished; nothing is left to do.")
            return 0
        outcome = pretrain(
            config,
            texts,
            output,
            mode=mode,
            command=shlex.join(["rotary", "pretrain", *arguments]),
            console=console,
        )
    except OSError as error:
        if error.errno not in NO_SPACE:
            raise
        raise RunError(
            f"{error.filename or output}: {os.strerror(error.errno).lower()}. Make room, then go "
            f"on from the last whole checkpoint with: {resume}"
        ) from error
    except KeyboardInterrupt:
        print(f"\nStopped. If training had begun, go on with:\n  {resume}", file=sys.stderr)
        return 128 + signal.SIGINT
    if outcome.stopped_by is not None:
        if outcome.is_main:
            print(
                f"Stopped after step {outcome.step:,}, with a checkpoint. Go on with:\n  {resume}",
                file=sys.stderr,
            )
        return 128 + outcome.stopped_by
    if not outcome.is_main:
        return 0
    command, example = "fill-mask", "text with [MASK]"
    if config.objective == "causal":
        command, example = "generate", "beginning of a text"
    text = shlex.quote(" ".join((outcome.example or example).split()))  # Of bytes, with line ends.
    hint = f"rotary {command} {shlex.quote(output)} {text}"
    say(console, f"\nEverything is in {output}. Try:\n  {hint}")
    return 0


def _base_config(name: str | None, init: str | None) -> dict[str, Any]:
    """The values that the command line changes: of the named config, or of the demo.

    Where no config is named, a checkpoint to start from says what the model is like.
    """
    text, shown = run_file.read_config_text(name or "demo")
    values = run_file.flatten(RunConfig()) | run_file.parse_toml(text, shown)
    if init is not None and name is None:
        from rotary.training.initial import read_initial

        values |= {f"model.{key}": value for key, value in read_initial(init).options.items()}
    return _checked(values, shown)


def _checked(flat: dict[str, Any], name: object) -> dict[str, Any]:
    """The values with their types checked, by the same rules as on the command line."""
    nested: dict[str, Any] = {}
    for key, value in flat.items():
        section, _, leaf = key.rpartition(".")
        (nested.setdefault(section, {}) if section else nested)[leaf] = value
    try:
        parsed = _parser({}).parse_object(nested)
    except ArgumentError as error:
        raise ConfigError(f"{name}: {_one_line(error)}") from None
    return {key: _plain(parsed[key]) for key in flat}


def _parse(arguments: Sequence[str], base: dict[str, Any]) -> Any:
    try:
        return _parser(base).parse_args(list(arguments))
    except ArgumentError as error:
        message = _one_line(error)
        if "nrecognized arguments" in message:
            given = message.split(":", 1)[1].split()[0].rstrip(".")
            known = [*run_file.config_keys(), *OTHERS]
            hint = nearest(given.lstrip("-").split("=")[0], known)
            hint = hint.replace("'", "'--", 1)
            message = f"there is no option {given}.{hint} `rotary pretrain --help` lists them."
        raise ConfigError(message) from None


def _one_line(error: ArgumentError) -> str:
    """The parser's message in one line, types by their plain names."""
    text = " ".join(str(error).split())
    key = re.match(r'Parser key "([\w.]+)": ', text)
    if key is None:
        return f"{text}."
    if key[1] == "stages":
        return (
            "stages: expected a list of stages with three whole numbers each, such as "
            '[{"length":64,"batch":64,"steps":100}].'
        )
    value = re.search(r"(?:Got|Given) value: (.*?)\.?$", text)
    if value is None:
        return f"{key[1]}: {text[key.end() :]}."
    section, _, name = key[1].rpartition(".")
    kind = typing.get_type_hints(SECTIONS.get(section, RunConfig))[name]
    if typing.get_origin(kind) is typing.Literal:
        return one_of(key[1], value[1], typing.get_args(kind))
    return f"{key[1]} is {value[1]!r}; it must be {_kind(kind)}."


def _kind(kind: Any) -> str:
    """A type in words."""
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    kinds = [part for part in typing.get_args(kind) or (kind,) if part is not type(None)]
    return " or ".join(words.get(part, str(part)) for part in kinds)


def _parser(base: dict[str, Any]) -> ArgumentParser:
    parser = ArgumentParser(
        prog="rotary pretrain",
        description=DESCRIPTION,
        epilog=EPILOG,
        exit_on_error=False,
        formatter_class=_Formatter,
        usage="rotary pretrain [TEXT ...] [--output DIR] [--config FILE.toml] "
        "[--section.key value ...]",
    )
    parser.add_argument(
        "text",
        nargs="*",
        metavar="TEXT",
        default=[],
        help="Files or folders of UTF-8 text: .txt, .md, .jsonl, each also .gz; inside folders, "
        "runs are passed over.",
    )
    parser.add_argument(
        "--output",
        metavar="DIR",
        default="runs/pretrain",
        help="Folder of the run.",
    )
    parser.add_argument(
        "--config",
        metavar="FILE.toml",
        help=f"Settings to begin with: a file, or one of {', '.join(run_file.shipped_configs())}.",
    )
    parser.add_argument(
        "--resume",
        action="store_true",
        help="Go on with the run in DIR from its last checkpoint. With TEXT, and DIR absent or "
        "empty, begin one, so that a scheduler can repeat the command.",
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="Replace the run in DIR; other files stay."
    )
    parser.add_argument(
        "--show-config", action="store_true", help="Print the settings as TOML and stop."
    )
    _add_settings(parser, RunConfig, "", base)
    for section, cls in SECTIONS.items():
        _add_settings(parser, cls, section, base)
    return parser


def _add_settings(
    parser: ArgumentParser, cls: type[Any], section: str, base: dict[str, Any]
) -> None:
    """An option for each field, its help from the docstring of the class."""
    document = parse_docstring(cls.__doc__ or "")
    helps = {parameter.arg_name: parameter.description for parameter in document.params}
    group = parser.add_argument_group(section, document.short_description) if section else parser
    types = typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        if field.name in SECTIONS:
            continue
        key = f"{section}.{field.name}" if section else field.name
        default = base.get(key)
        group.add_argument(
            f"--{key}",
            type=list[Stage] if key == "stages" else types[field.name],
            default=default,
            metavar=_metavar(key, types[field.name]),
            help=f"{helps[field.name]} [{_shown(default)}]".replace("%", "%%"),
        )


def _metavar(key: str, kind: Any) -> str | None:
    if key == "stages":
        return "LIST"
    if typing.get_origin(kind) is typing.Literal:
        return "|".join(typing.get_args(kind))
    return {"int": "N", "float": "X", "bool": "true|false"}.get(
        getattr(kind, "__name__", ""), "VALUE"
    )


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(
            f"{stage['length']} x {stage['batch']} x {stage['steps']}" for stage in value
        )
    return (
        "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    )


def _plain(value: Any) -> Any:
    """Values of the parser as plain Python: stages as dicts."""
    if isinstance(value, list):
        return [dict(stage) if isinstance(stage, dict) else vars(stage) for stage in value]
    return value


def _value_of(option: str, arguments: Sequence[str]) -> str | None:
    """The value of an option that has to be known before the parser can be built."""
    found = None
    for index, argument in enumerate(arguments):
        if argument == option and index + 1 < len(arguments):
            found = arguments[index + 1]
        elif argument.startswith(f"{option}="):
            found = argument.split("=", 1)[1]
    return found


def _check_same_config(stored: RunConfig, config: RunConfig, output: str) -> None:
    before, now = run_file.flatten(stored), run_file.flatten(config)
    changed = [
        f"{key} was {_shown(before[key])} and is {_shown(now[key])} now"
        for key in before
        # Workers change no batch, and another machine may not have as many.
        if before[key] != now[key] and key != "training.workers"
    ]
    if changed:
        raise RunError(
            f"--resume: the run in {output} began with other settings: {'; '.join(changed)}. "
            "Leave them out (a resumed run keeps its own), or give another --output."
        )
