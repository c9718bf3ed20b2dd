"""Run configs as TOML: every unknown key is named, and ``--config`` takes back what was written."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from rotary.errors import ConfigError, nearest
from rotary.training.run_config import SECTIONS, RunConfig, Stage

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# The table that a finished config carries about itself: versions, corpus. Reading passes over it.
RECORD = "record"


def shipped_configs() -> list[str]:
    """Names of the configs that come with the package, usable as ``--config NAME``."""
    folder = resources.files("rotary.training") / "configs"
    return sorted(
        entry.name.removesuffix(".toml")
        for entry in folder.iterdir()
        if entry.name.endswith(".toml")
    )


def read_config_text(name: str) -> tuple[str, str]:
    """The text of a config file, or of a shipped config, and the name to call it by in messages.

    Raises:
        ConfigError: If there is no such file, or it cannot be read as UTF-8.
    """
    path = Path(name)
    if not path.exists() and name in shipped_configs():
        file = resources.files("rotary.training") / "configs" / f"{name}.toml"
        return file.read_text(encoding="utf-8"), f"{name}.toml"
    try:
        return path.read_text(encoding="utf-8"), name
    except FileNotFoundError:
        shipped = ", ".join(shipped_configs())
        raise ConfigError(
            f"--config: there is no file {name!r}.{nearest(name, shipped_configs())} "
            f"Shipped configs, taken by name, are: {shipped}."
        ) from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{name}: not UTF-8 at byte {error.start}.") from None
    except OSError as error:
        raise ConfigError(f"--config: cannot read {name!r}: {error.strerror}.") from None


def parse_toml(text: str, name: str) -> dict[str, Any]:
    """Parse TOML into ``{"section.key": value}``, passing over the record of a run.

    Raises:
        ConfigError: On a syntax error (file, line), or with every unknown key.
    """
    return read_run(text, name)[0]


def read_run(text: str, name: str) -> tuple[dict[str, Any], Any]:
    """Parse TOML as :func:`parse_toml` does, and give the record too (None without).

    Raises:
        ConfigError: On a syntax error (file, line), or with every unknown key.
    """
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{name}: not valid TOML: {error}.") from None
    record = tables.pop(RECORD, None)
    flat: dict[str, Any] = {}
    problems: list[str] = []
    for key, value in tables.items():
        if key in SECTIONS and isinstance(value, Mapping):
            flat |= {f"{key}.{inner}": item for inner, item in value.items()}
        elif key in SECTIONS:
            problems.append(f"{key} is a section; write [{key}] and its keys below it.")
        else:
            flat[key] = value
    known = [*config_keys(), *SECTIONS]
    problems += [f"unknown key {key!r}.{nearest(key, known)}" for key in flat if key not in known]
    if "stages" in flat:
        problems += _stage_key_problems(flat["stages"])
    if problems:
        raise ConfigError(f"{name}: {' '.join(problems)}")
    return flat, record


def _stage_key_problems(stages: Any) -> list[str]:
    names = [field.name for field in dataclasses.fields(Stage)]
    if not isinstance(stages, list) or not all(isinstance(stage, Mapping) for stage in stages):
        return ["stages must be a list of tables with length, batch and steps."]
    problems = []
    for index, stage in enumerate(stages):
        problems += [
            f"stages[{index}]: unknown key {key!r}.{nearest(key, names)}"
            for key in stage
            if key not in names
        ]
        missing = [name for name in names if name not in stage]
        if missing:
            problems.append(f"stages[{index}] lacks {', '.join(missing)}.")
    return problems


def config_keys() -> list[str]:
    """Every key that a config has, as ``section.key``."""
    keys: list[str] = []
    for field in dataclasses.fields(RunConfig):
        section = SECTIONS.get(field.name)
        if section is None:
            keys.append(field.name)
        else:
            keys += [f"{field.name}.{inner.name}" for inner in dataclasses.fields(section)]
    return keys


def flatten(config: RunConfig) -> dict[str, Any]:
    """A config as ``{"section.key": value}``, stages as a list of dicts."""
    flat: dict[str, Any] = {}
    for key, value in config.as_dict().items():
        if key in SECTIONS:
            flat |= {f"{key}.{inner}": item for inner, item in value.items()}
        else:
            flat[key] = value
    return flat


def build(flat: Mapping[str, Any]) -> RunConfig:
    """The config of checked values ``{"section.key": value}``; other keys keep their defaults."""
    sections: dict[str, dict[str, Any]] = {name: {} for name in SECTIONS}
    top: dict[str, Any] = {}
    for key, value in flat.items():
        section, _, name = key.rpartition(".")
        if section:
            sections[section][name] = value
        else:
            top[key] = value
    stages = tuple(
        stage if isinstance(stage, Stage) else Stage(**stage) for stage in top.pop("stages", ())
    )
    made = {name: cls(**sections[name]) for name, cls in SECTIONS.items()}
    return RunConfig(**made, **top, stages=stages)


def to_toml(config: RunConfig, record: Mapping[str, Any] | None = None, header: str = "") -> str:
    """Write a config, and what is to be known about the run, as TOML.

    Example:
        >>> text = to_toml(RunConfig(stages=(Stage(64, 8, 10),)))
        >>> build(parse_toml(text, "run.toml")).stages
        (Stage(length=64, batch=8, steps=10),)
    """
    values = config.as_dict()
    stages = values.pop("stages")
    lines = [f"# {line}".rstrip() for line in header.splitlines()]
    lines += _entries({key: value for key, value in values.items() if key not in SECTIONS})
    for section in SECTIONS:
        lines += ["", f"[{section}]", *_entries(values[section])]
    for stage in stages:
        lines += ["", "[[stages]]", *_entries(stage)]
    if record is not None:
        plain = {key: value for key, value in record.items() if not isinstance(value, Mapping)}
        lines += ["", f"[{RECORD}]", *_entries(plain)]
        for key, table in record.items():
            if isinstance(table, Mapping):
                lines += ["", f"[{RECORD}.{key}]", *_entries(table)]
    return "\n".join(lines).lstrip("\n") + "\n"


def _entries(table: Mapping[str, Any]) -> list[str]:
    return [f"{key} = {_literal(value)}" for key, value in table.items() if value is not None]


def _literal(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            return str(value)  # inf and nan are TOML's words too.
        text = repr(value)
        return text if any(mark in text for mark in ".en") else f"{text}.0"
    if isinstance(value, str):
        # JSON's strings are TOML's, but for the delete character that JSON leaves bare.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_literal, value))}]"
    raise TypeError(f"a run config holds no {type(value).__name__}: {value!r}")
