"""What the RoPE values of a model's config say: layout, length, and frequencies by layer type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from rotary.errors import ConfigError
from rotary.frequencies import Frequencies, LengthSchedule, XPos, from_config, from_recipe
from rotary.frequencies.config_rules import is_nested
from rotary.frequencies.config_values import BASE, BASE_BY_LAYER, MAX_LENGTH

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
# Models whose configs say how positions enter; all others that come here turn.
_OURS = ("roformer", "rotary_roformer")
_DICTS = ("rotary_parameters", "rope_parameters", "rope_scaling")
# Every key that may hold the values, or a base; the dicts come first.
ROPE_KEYS = (*_DICTS, *BASE, *(name for names in BASE_BY_LAYER.values() for name in names))


class Section(NamedTuple):
    """The frequencies of a layer type, or one of the sets of a schedule that depends on the length.

    Attributes:
        title: Which they are, in words.
        frequencies: They themselves.
        original: What they were scaled from.
        length: Positions that these layers see.
    """

    title: str
    frequencies: Frequencies
    original: Frequencies
    length: int


def position_encoding(config: Mapping[str, Any]) -> str:
    """How positions enter: a RoFormer's config names it, and every other model here turns.

    Example:
        >>> position_encoding({"model_type": "rotary_roformer", "position_encoding": "alibi"})
        'alibi'
    """
    if config.get("model_type") not in _OURS:
        return "rotary"
    return str(config.get("position_encoding") or "rotary")


def context_length(config: Mapping[str, Any], given: int | None) -> int:
    """The context length to look at: the one given, or the config's.

    Raises:
        ConfigError: If the one given is not positive, or there is none.
    """
    if given is not None:
        if given < 1:
            raise ConfigError(f"--length is {given}; it is a number of positions, at least 1.")
        return given
    for name in MAX_LENGTH:
        if isinstance(config.get(name), int) and config[name] > 0:
            return int(config[name])
    raise ConfigError("the config names no context length; give one with --length.")


def layout_of(config: Mapping[str, Any]) -> str:
    """How the channels are paired, and where that is known from.

    Example:
        >>> layout_of({"model_type": "llama"})
        "half: channels p and p + planes (transformers' llama)"
    """
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


def resting_layers(config: Mapping[str, Any]) -> tuple[list[int], str] | None:
    """The layers that do not turn, and the key that says so; None if no key does.

    Example:
        >>> resting_layers({"no_rope_layers": [1, 1, 0]})
        ([2], 'no_rope_layers, where 0 is none')
    """
    named, flags = config.get("nope_layers"), config.get("no_rope_layers")
    if isinstance(named, list) and named and isinstance(named[0], int):
        return named, "nope_layers"
    if isinstance(flags, list) and 0 in flags:
        layers = [index for index, turns in enumerate(flags) if not turns]
        return layers, "no_rope_layers, where 0 is none"
    return None


def turned_features(config: Mapping[str, Any]) -> int | None:
    """How many random features turn in place of a head's channels (FAVOR+); None elsewhere."""
    if config.get("attention_form") != "performer":
        return None
    features: int | None = config.get("num_features")
    return features


def sections_of(config: dict[str, Any], length: int, layer_type: str | None) -> list[Section]:
    """The frequencies of every layer type, and of every set of a length-dependent schedule.

    Args:
        config: As ``config.json`` holds it, of a text model.
        length: Positions in the context.
        layer_type: Only this one.

    Raises:
        ConfigError: With all that is wrong in the values.

    Example:
        >>> sections = sections_of({"head_dim": 8, "rope_theta": 1e4}, 100, None)
        >>> [section.title for section in sections]
        ['no scaling']
    """
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
    features = turned_features(config)
    if features is not None:
        config = {**config, "head_dim": features}
    recipe = config.get("rotary_parameters")
    if isinstance(recipe, Mapping) and recipe.get("type") == "mixed":
        # Drawn for each layer, and learned from there: the first layer's, as it begins.
        config = {**config, "rotary_parameters": {"num_axes": 1, **recipe, "layer": 0}}
    try:
        return from_config(config, layer_type=layer_type)
    except ConfigError as error:  # It lists every problem on a line of its own.
        raise ConfigError(" ".join(str(error).split())) from None


def layer_types(config: Mapping[str, Any]) -> list[str]:
    """The layer types that have values of their own; none where all layers share one.

    Example:
        >>> layer_types({"rope_theta": 1e6, "rope_local_base_freq": 1e4})
        ['full_attention', 'sliding_attention']
    """
    for name in _DICTS:
        rope = config.get(name)
        if not isinstance(rope, Mapping) or {"type", "rope_type"} & rope.keys():
            continue
        if is_nested(rope):
            return [k for k, value in rope.items() if value is None or isinstance(value, Mapping)]
    if any(config.get(name) for name in BASE_BY_LAYER["sliding_attention"]):
        return sorted(BASE_BY_LAYER)
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


def _named(kind: str) -> str:
    return {"inverse_power": "no scaling", "explicit": "given numbers"}.get(kind, kind)
