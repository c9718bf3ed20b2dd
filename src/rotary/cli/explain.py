"""``rotary explain``: what the RoPE values of a model's config mean, in a table."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from rotary.errors import ConfigError
from rotary.frequencies import Frequencies
from rotary.frequencies.config_values import fixed_base
from rotary.theory.base import base_for_length
from rotary.theory.explanation import Explanation, explain
from rotary.theory.model_config import (
    ROPE_KEYS,
    Section,
    context_length,
    layout_of,
    position_encoding,
    resting_layers,
    sections_of,
    turned_features,
)

_LONGEST_SEARCH = 1 << 21


def main(arguments: list[str]) -> int:
    """Read a config and print what its rotation does within the context."""
    parser = argparse.ArgumentParser(prog="rotary explain", description=__doc__)
    parser.add_argument("config", metavar="CONFIG_OR_DIR", help="config.json, or a folder with it")
    parser.add_argument("--length", type=int, help="context length; the config's when left out")
    parser.add_argument("--layer-type", help="only this layer type of a config that has several")
    parser.add_argument("--no-base", action="store_true", help="do not search for a suitable base")
    options = parser.parse_args(arguments)
    path, config = read_config(options.config)
    console = Console(highlight=False, soft_wrap=True)
    encoding = position_encoding(config)
    if encoding != "rotary":
        console.print(f"[bold]{config.get('model_type')}[/]  {path}")
        console.print(f"position  {encoding}: nothing turns (position_encoding)")
        return 0
    length = context_length(config, options.length)
    sections = sections_of(config, length, options.layer_type)
    _header(console, path, config, length)
    for section in sections:
        _print_section(console, section)
        if not options.no_base:
            _suitable_base(console, section)
    return 0


def read_config(given: str) -> tuple[Path, dict[str, Any]]:
    """The config of a file or folder; of a model with several parts, that of its text model."""
    path = Path(given)
    if path.is_dir():
        path = path / "config.json"
    if not path.is_file():
        raise ConfigError(f"{path} does not exist; give a config.json or a folder that holds one.")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ConfigError(f"{path} is not JSON: {error}.") from None
    if not isinstance(config, dict):
        raise ConfigError(f"{path} holds a {type(config).__name__}; a config is a JSON object.")
    text = config.get("text_config")
    if isinstance(text, dict):
        config = {**text, "model_type": text.get("model_type", config.get("model_type"))}
    has_values = any(config.get(name) for name in ROPE_KEYS)
    if not has_values and position_encoding(config) == "rotary" and fixed_base(config) is None:
        raise ConfigError(
            f"{path} has no RoPE values ({', '.join(ROPE_KEYS)}); model_type is "
            f"{config.get('model_type')!r}. If its code fixes the base, add 'rope_theta' to the "
            "config."
        )
    return path, config


def _header(console: Console, path: Path, config: Mapping[str, Any], length: int) -> None:
    console.print(f"[bold]{config.get('model_type') or 'a model without model_type'}[/]  {path}")
    console.print(f"layout    {layout_of(config)}")
    console.print(f"context   {length:,} positions")
    features = turned_features(config)
    if features is not None:
        console.print(f"turned    {features} random features of a head (performer)")
    resting = resting_layers(config)
    if resting is not None:
        layers, key = resting
        console.print(f"no turn   in layers {', '.join(map(str, layers))} ({key})")


def _print_section(console: Console, section: Section) -> None:
    frequencies, original, length = section.frequencies, section.original, section.length
    heads = ""
    if frequencies.matrix.ndim == 3:
        heads = f", head 0 of {len(frequencies.matrix)}"
        frequencies = Frequencies(frequencies.matrix[0], frequencies.amplitude)
        original = Frequencies(original.matrix[0]) if original.matrix.ndim == 3 else frequencies
    found = explain(frequencies, length, original=original)
    planes = frequencies.num_planes
    console.print()
    amplitude = frequencies.amplitude
    console.print(
        f"[bold]{section.title}[/]: {planes} planes ({2 * planes} channels), "
        f"{frequencies.num_axes} ax{'i' if frequencies.num_axes == 1 else 'e'}s{heads}"
        + (f", amplitude {amplitude:.6g}" if amplitude != 1 else "")
    )
    if len(found.still) == planes:
        console.print("These layers do not turn: they have no position.")
        return
    console.print(_table(found, length, frequencies.num_axes))
    _summary(console, found, planes, length)


def _table(found: Explanation, length: int, num_axes: int) -> Table:
    table = Table(box=None, pad_edge=False, header_style="underline")
    for name in ("axis", "planes", "wavelength", f"turns in {length:,}", "change"):
        if name == "axis" and num_axes == 1:
            continue
        table.add_column(name, justify="left" if name in ("planes", "change") else "right")
    for group in found.groups:
        shortest, longest = group.wavelengths
        planes = f"{group.first}" if group.first == group.last else f"{group.first}-{group.last}"
        row = [
            planes,
            _range(shortest, longest),
            "0" if group.change == "still" else _range(length / longest, length / shortest),
            _change(group.change, *group.divisors),
        ]
        table.add_row(*([str(group.axis), *row] if num_axes > 1 else row))
    return table


def _summary(console: Console, found: Explanation, planes: int, length: int) -> None:
    slow = found.incomplete
    span = f" ({_runs(slow)})" if slow else ""
    console.print(
        f"{len(slow)} of {planes} planes never complete a turn within {length:,} positions{span}"
        + (f"; {len(found.still)} do not turn at all" if found.still else "")
        + "."
    )
    if found.first_negative is None:
        console.print("Su's condition holds: the mean cosine is never negative in this context.")
    else:
        console.print(
            "Su's condition fails: the mean cosine is first negative at distance "
            f"{found.first_negative:,}."
        )


def _suitable_base(console: Console, section: Section) -> None:
    """Only where all planes turn, along one axis: there is one base to choose."""
    original, length = section.original, section.length
    if original.recipe["type"] != "inverse_power" or section.frequencies.matrix.shape[0] != 1:
        return
    if length > _LONGEST_SEARCH:
        console.print(f"A suitable base is searched for up to {_LONGEST_SEARCH:,} positions only.")
        return
    dim, own = 2 * original.num_planes, original.recipe["base"]
    try:
        base = f"about {base_for_length(dim, length, ratio=1.01):,.0f}"
    except ConfigError:
        base = f"none: {dim} channels are too few"
    console.print(f"Base that satisfies it without scaling: {base} (this config: {own:,.0f}).")


def _change(change: str, low: float, high: float) -> str:
    if change == "divided":
        return f"divided by {low:.4g}"
    if change in ("blended", "raised"):
        return f"divided by {low:.4g} to {high:.4g}"
    return {"kept": "as the base gives them", "still": "do not turn"}[change]


def _range(low: float, high: float) -> str:
    first, last = _short(low), _short(high)
    return first if first == last else f"{first} to {last}"


def _short(value: float) -> str:
    if np.isinf(value):
        return "never"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _runs(planes: list[int]) -> str:
    starts = [p for i, p in enumerate(planes) if i == 0 or planes[i - 1] != p - 1]
    stops = [p for i, p in enumerate(planes) if i + 1 == len(planes) or planes[i + 1] != p + 1]
    return ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in zip(starts, stops, strict=True))
