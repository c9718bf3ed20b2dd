"""``rotary explain``: what the RoPE values of a model's config mean, in a table."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

from rotary.errors import ConfigError
from rotary.frequencies import Frequencies, LengthSchedule, XPos, from_config, from_recipe
from rotary.theory.base import base_for_length
from rotary.theory.explanation import Explanation, explain

# How transformers' code pairs the channels of these models; no config says it.
INTERLEAVED = (
    "blt", "codegen", "cohere", "cohere2", "cohere2_moe", "deepseek_v2", "deepseek_v4",
    "ernie4_5", "ernie4_5_moe", "glm", "glm4", "glm_moe_dsa", "gptj", "helium", "llama4_text",
    "longcat_flash", "moonshine", "roformer",
)  # fmt: skip
HALF = (
    "bitnet", "dbrx", "doge", "esm", "exaone4", "falcon", "gemma", "gemma2", "gemma3_text",
    "gemma3n_text", "gemma4_text", "glm4_moe", "gpt_neox", "gpt_neox_japanese", "gpt_oss",
    "granite", "granitemoe", "hunyuan_v1_dense", "jetmoe", "lfm2", "llama", "minimax", "ministral",
    "mistral", "mixtral", "modernbert", "nemotron", "olmo", "olmo2", "olmo3", "olmoe",
    "persimmon", "phi", "phi3", "phimoe", "qwen2", "qwen2_moe", "qwen2_vl_text", "qwen2_5_vl_text",
    "qwen3", "qwen3_moe", "qwen3_next", "qwen3_vl_text", "seed_oss", "smollm3", "stablelm",
    "starcoder2",
)  # fmt: skip
# Models whose code fixes the base, so that their configs do not have it.
FIXED_BASE = {"roformer": 10000.0, "gptj": 10000.0, "codegen": 10000.0}
_LENGTHS = ("max_position_embeddings", "n_positions", "max_sequence_length", "max_seq_len")
_DICTS = ("rope_parameters", "rope_scaling", "rotary_parameters")
_BASES = ("rope_theta", "rotary_emb_base")
_LOCAL_BASES = ("rope_local_base_freq", "local_rope_theta", "swa_rope_theta")
_LONGEST_SEARCH = 1 << 21


class Section(NamedTuple):
    """One table: a layer type, or one of the sets of a schedule that depends on the length."""

    title: str
    frequencies: Frequencies
    original: Frequencies
    length: int


def main(arguments: list[str]) -> int:
    """Read a config and print what its rotation does within the context."""
    parser = argparse.ArgumentParser(prog="rotary explain", description=__doc__)
    parser.add_argument("config", metavar="CONFIG_OR_DIR", help="config.json, or a folder with it")
    parser.add_argument("--length", type=int, help="context length; the config's when left out")
    parser.add_argument("--layer-type", help="only this layer type of a config that has several")
    parser.add_argument("--no-base", action="store_true", help="do not search for a suitable base")
    options = parser.parse_args(arguments)
    path, config = read_config(options.config)
    length = context_length(config, options.length)
    sections = sections_of(config, length, options.layer_type)
    console = Console(highlight=False, soft_wrap=True)
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
    if not any(config.get(name) for name in (*_DICTS, *_BASES, *_LOCAL_BASES)):
        model = str(config.get("model_type"))
        if model not in FIXED_BASE:
            raise ConfigError(
                f"{path} has no RoPE values ({', '.join((*_DICTS, *_BASES))}); model_type is "
                f"{model!r}. If its code fixes the base, add 'rope_theta' to the config."
            )
        config = {**config, "rope_theta": FIXED_BASE[model]}
    return path, config


def context_length(config: Mapping[str, Any], given: int | None) -> int:
    """The context length to look at: the one given, or the config's."""
    if given is not None:
        if given < 1:
            raise ConfigError(f"--length is {given}; it is a number of positions, at least 1.")
        return given
    for name in _LENGTHS:
        if isinstance(config.get(name), int) and config[name] > 0:
            return int(config[name])
    raise ConfigError("the config names no context length; give one with --length.")


def layout_of(config: Mapping[str, Any]) -> str:
    """How the channels are paired, and where that is known from."""
    model = str(config.get("model_type") or "")
    if config.get("rotary_layout") in ("interleaved", "half"):
        return f"{config['rotary_layout']} (rotary_layout)"
    if isinstance(config.get("rope_interleave"), bool):
        return f"{'interleaved' if config['rope_interleave'] else 'half'} (rope_interleave)"
    if model in INTERLEAVED:
        return f"interleaved: channels 2p and 2p + 1 (transformers' {model})"
    if model in HALF:
        return f"half: channels p and p + planes (transformers' {model})"
    return "not in the config, and not known here for this model_type; see the model's code"


def sections_of(config: dict[str, Any], length: int, layer_type: str | None) -> list[Section]:
    """The frequencies of every layer type, and of every set of a length-dependent schedule."""
    types: list[str | None] = [*layer_types(config)] or [None]
    if layer_type is not None:
        types = [layer_type]
    found = []
    for name in types:
        prefix = "" if name is None else f"layers of type {name}: "
        value = _read(config, name)
        if isinstance(value, XPos):
            value, prefix = value.frequencies, prefix + "xPos scales beside "
        window = config.get("sliding_window")
        reach = length
        if "sliding" in str(name) and isinstance(window, int) and 0 < window < length:
            reach, prefix = window, f"{prefix}window of {window:,}, "
        if isinstance(value, LengthSchedule):
            found += _of_schedule(prefix, value, reach)
        else:
            title = prefix + _named(str(value.recipe["type"]))
            found.append(Section(title, value, _original(value), reach))
    return found


def _read(config: dict[str, Any], layer_type: str | None) -> Any:
    try:
        return from_config(config, layer_type=layer_type)
    except ConfigError as error:  # It lists every problem on a line of its own.
        raise ConfigError(" ".join(str(error).split())) from None


def layer_types(config: Mapping[str, Any]) -> list[str]:
    """The layer types that have values of their own; none where all layers share one."""
    for name in ("rotary_parameters", "rope_parameters", "rope_scaling"):
        rope = config.get(name)
        if isinstance(rope, Mapping) and "type" not in rope and "rope_type" not in rope:
            nested = [key for key, value in rope.items() if value is None or _is_dict(value)]
            if nested and len(nested) == len(rope):
                return nested
    if any(config.get(name) for name in _LOCAL_BASES):
        return ["full_attention", "sliding_attention"]
    return []


def _of_schedule(prefix: str, schedule: LengthSchedule, length: int) -> list[Section]:
    kind = str(schedule.recipe["type"])
    # Every schedule changes at the length of the first training, if it changes at all.
    switch = int(schedule.recipe["original_length"])
    lengths = [min(switch, length)]
    if schedule.at(length) != schedule.at(lengths[0]):
        lengths.append(length)
    title = f"{prefix}{_named(kind)}, which depends on the length, here"
    return [
        Section(f"{title} {each:,}", schedule.at(each), schedule.frequencies, each)
        for each in lengths
    ]


def _original(frequencies: Frequencies) -> Frequencies:
    """What the frequencies were scaled from, dealt out to the same axes."""
    recipe = frequencies.recipe
    inner = recipe.get("frequencies")
    if inner is None:
        return frequencies
    if recipe["type"] in ("sections", "assign_axes"):
        before = _original(from_recipe(inner)).matrix[0]  # type: ignore[arg-type]
        return Frequencies(np.where(frequencies.matrix != 0, before, 0.0))
    before_scaling = from_recipe(inner)
    assert isinstance(before_scaling, Frequencies)
    return before_scaling


def _header(console: Console, path: Path, config: Mapping[str, Any], length: int) -> None:
    console.print(f"[bold]{config.get('model_type') or 'a model without model_type'}[/]  {path}")
    console.print(f"layout    {layout_of(config)}")
    console.print(f"context   {length:,} positions")
    resting = config.get("nope_layers")
    flags = config.get("no_rope_layers")
    if isinstance(resting, list) and resting and isinstance(resting[0], int):
        console.print(f"no turn   in layers {', '.join(map(str, resting))} (nope_layers)")
    elif isinstance(flags, list) and 0 in flags:
        layers = [str(index) for index, turns in enumerate(flags) if not turns]
        console.print(f"no turn   in layers {', '.join(layers)} (no_rope_layers, where 0 is none)")


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


def _named(kind: str) -> str:
    return {"inverse_power": "no scaling", "explicit": "given numbers"}.get(kind, kind)


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


def _is_dict(value: object) -> bool:
    return isinstance(value, Mapping)
