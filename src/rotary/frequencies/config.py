"""Read frequencies from a model's config: Hugging Face's of today and of the past, and ours.

The boundary where dicts end: what is read here becomes calls of the plain functions of this
package. The key names and the formulas are those of transformers 5.24.
"""

from __future__ import annotations

from typing import Any, overload

import numpy as np

from rotary.errors import ConfigError, one_of
from rotary.frequencies.axial import axial
from rotary.frequencies.base import Frequencies
from rotary.frequencies.config_rules import RopeEntry, read_entry
from rotary.frequencies.dynamic_ntk import dynamic_ntk
from rotary.frequencies.inverse_power import inverse_power
from rotary.frequencies.length_schedule import LengthSchedule
from rotary.frequencies.linear import linear
from rotary.frequencies.llama3 import llama3
from rotary.frequencies.longrope import longrope
from rotary.frequencies.ntk import ntk
from rotary.frequencies.proportional import proportional
from rotary.frequencies.recipes import from_recipe
from rotary.frequencies.sections import assign_axes, sections
from rotary.frequencies.xpos import XPos
from rotary.frequencies.yarn import yarn

# Models whose code deals planes out in turn, whether or not their config says so.
_INTERLEAVED_SECTIONS = (
    "qwen3_vl", "qwen3_omni", "qwen3_5", "qwen4", "cohere_compass", "hy_v4_vl", "cosmos3",
)  # fmt: skip


@overload
def from_config(config: Any, *, length: int, layer_type: str | None = ...) -> Frequencies: ...


@overload
def from_config(
    config: Any, *, length: None = ..., layer_type: str | None = ...
) -> Frequencies | LengthSchedule: ...


def from_config(
    config: Any, *, length: int | None = None, layer_type: str | None = None
) -> Frequencies | LengthSchedule | XPos:
    """Make the frequencies that a model's config describes.

    Understood are ``rope_parameters``, the older ``rope_scaling`` beside ``rope_theta``, dicts per
    layer type, ``partial_rotary_factor``, ``mrope_section``, the older names of all of these, and
    our own ``rotary_parameters``. A value that is written down always wins over one that could be
    derived: ``factor`` over the ratio of the lengths, ``attention_factor`` over its formula.

    Args:
        config: A plain dict such as ``config.json`` holds, or a config object.
        length: Where the frequencies depend on it, give those of a sequence of this length (0:
            nothing seen yet); left out, give the schedule.
        layer_type: Which entry of a config with one for each layer type, for instance
            ``"sliding_attention"``. An entry of None, a layer without rotation, gives zeros.

    Returns:
        Frequencies, with ``matrix`` and ``amplitude``; or a schedule that depends on the length.

    Raises:
        ConfigError: With every key that is missing, unknown (inside the rope dict) or contradicts
            another, and the nearest known one.

    Example:
        >>> llama = {"head_dim": 128, "rope_theta": 500000.0}
        >>> from_config(llama)
        Frequencies(1x64, 1 to 2.455e-06 rad)
    """
    entry = read_entry(config, layer_type)
    found = from_recipe(entry.recipe) if entry.recipe is not None else _build(entry)
    if length is not None and isinstance(found, LengthSchedule):
        return found.at(length)
    return found


def _build(entry: RopeEntry) -> Frequencies | LengthSchedule:
    if entry.is_absent:
        return Frequencies(np.zeros((1, entry.rotary_dim // 2)))
    special = _special(entry)
    if special is not None:
        return special
    rope = entry.values
    if entry.kind == "axial":
        return axial(2 * (entry.head_dim // 4) * 2, 2, entry.base)
    if entry.kind == "proportional":
        fraction = rope.get("partial_rotary_factor", 1.0)
        found: Frequencies | LengthSchedule = proportional(
            entry.head_dim, fraction, entry.base, factor=rope.get("factor", 1.0)
        )
    else:
        found = _scaled(entry, inverse_power(entry.rotary_dim, entry.base))
    sizes = rope.get("mrope_section")
    if sizes is None:
        return found
    if not isinstance(found, Frequencies):
        raise ConfigError(
            f"from_config: mrope_section together with rope_type {entry.kind!r} is not supported: "
            "a schedule that depends on the length has one axis."
        )
    if entry.model_type.startswith("ernie4_5_vl"):
        # Height and width take turns, time has the slowest planes; sizes are (h, w, t).
        axes = [1, 2] * min(sizes[0], sizes[1]) + [0] * sizes[2]
        return assign_axes(found, axes, num_axes=3)
    in_turn = entry.model_type.startswith(_INTERLEAVED_SECTIONS)
    is_interleaved = rope.get("mrope_interleaved", rope.get("interleaved", in_turn))
    return sections(found, sizes, is_interleaved=bool(is_interleaved))


def _scaled(entry: RopeEntry, plain: Frequencies) -> Frequencies | LengthSchedule:
    rope, kind = entry.values, entry.kind
    if kind == "default":
        return plain
    if kind == "linear":
        return linear(plain, rope["factor"])
    if kind == "dynamic":
        # HunYuan's checkpoints say "dynamic" and give a fixed alpha.
        if rope.get("alpha"):
            return ntk(plain, rope["alpha"])
        return dynamic_ntk(plain, rope["factor"], entry.max_length)
    if kind == "llama3":
        return llama3(
            plain,
            rope["factor"],
            entry.original_length,
            low_freq_factor=rope["low_freq_factor"],
            high_freq_factor=rope["high_freq_factor"],
        )
    # Both say the factor, or leave it to the ratio of the two lengths.
    factor = rope.get("factor")
    factor = entry.max_length / entry.original_length if factor is None else factor
    if kind == "yarn":
        return yarn(
            plain,
            factor,
            entry.original_length,
            beta_fast=rope.get("beta_fast") or 32.0,
            beta_slow=rope.get("beta_slow") or 1.0,
            truncate=rope.get("truncate", True),
            amplitude=rope.get("attention_factor"),
            mscale=rope.get("mscale"),
            mscale_all_dim=rope.get("mscale_all_dim"),
        )
    if kind == "longrope":
        amplitude = rope.get("attention_factor")
        if "short_mscale" in rope and "long_mscale" in rope:
            amplitude = (rope["short_mscale"], rope["long_mscale"])
        return longrope(
            plain,
            rope["short_factor"],
            rope["long_factor"],
            entry.original_length,
            factor=factor,
            amplitude=amplitude,
        )
    raise ConfigError("from_config: " + one_of("rope_type", kind, ("default",)))


def _special(entry: RopeEntry) -> Frequencies | None:
    """Models whose own code departs from what their rope dict says."""
    model = entry.model_type
    if model.startswith("minimax_m3_vl") and entry.kind == "axial":
        # Three axes share the head evenly and what remains does not turn.
        return axial(3 * 2 * (entry.head_dim // 3 // 2), 3, entry.base)
    if model.startswith(("dinov3_vit", "eomt_dinov3")):
        # Coordinates run over [-1, 1], and a frequency counts turns, not radians, over that unit.
        plain = axial(entry.head_dim, 2, entry.base)
        return Frequencies(2 * np.pi * plain.matrix)
    if model.startswith("hunyuan_vl") and "mrope_section" in entry.values:
        raise ConfigError(
            "from_config: hunyuan_vl deals out channels, not planes: its mrope_section gives the "
            "two channels of one plane to different axes, which is no rotation."
        )
    return None
