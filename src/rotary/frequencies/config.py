"""Read frequencies from a model's config: Hugging Face's of today and of the past, and ours.

The boundary where dicts end: what is read here becomes calls of the plain functions of this
package. The key names and the formulas are those of transformers 5.24.
"""

from __future__ import annotations

from typing import Any, overload

import numpy as np

from rotary.errors import ConfigError, one_of
from rotary.frequencies.base import Frequencies
from rotary.frequencies.checks import number
from rotary.frequencies.config_models import vision, with_sections
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
from rotary.frequencies.xpos import XPos
from rotary.frequencies.yarn import yarn


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
    our own ``rotary_parameters``; and models whose code fixes the base (RoFormer, GPT-J). A value
    that is written down always wins over one that could be derived: ``factor`` over the ratio of
    the lengths, ``attention_factor`` over its formula.

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
        return Frequencies(np.zeros((1, max(entry.rotary_dim // 2, 1))))
    found: Frequencies | LengthSchedule | None = vision(entry)
    if found is not None:
        return found
    if entry.kind == "proportional":
        fraction = entry.values.get("partial_rotary_factor", 1.0)
        factor = entry.values.get("factor", 1.0)
        found = proportional(entry.head_dim, fraction, entry.base, factor=factor)
    else:
        found = _scaled(entry, _plain(entry.rotary_dim, entry.base))
    if isinstance(found, Frequencies):
        return with_sections(entry, found)
    if "mrope_section" in entry.values:
        raise ConfigError(
            f"from_config: mrope_section together with rope_type {entry.kind!r} is not supported: "
            "a schedule that depends on the length has one axis."
        )
    return found


def _plain(dim: int, base: float) -> Frequencies:
    if dim % 2 == 0:
        return inverse_power(dim, base)
    # Part of a head may be an odd number of channels: transformers then turns one more, at the
    # frequencies of the odd number.
    base = number("from_config", "rope_theta", base)
    return Frequencies(base ** -(np.arange(0, dim, 2, dtype=np.float64) / dim))


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
