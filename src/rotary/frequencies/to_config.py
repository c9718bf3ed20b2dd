"""Write frequencies into a model's config, in transformers' spelling where it has one."""

from __future__ import annotations

from typing import Any

from rotary.errors import ConfigError
from rotary.frequencies.base import Frequencies, Recipe
from rotary.frequencies.checks import even_dim
from rotary.frequencies.length_schedule import LengthSchedule
from rotary.frequencies.xpos import XPos


def to_config(
    frequencies: Frequencies | LengthSchedule | XPos, *, head_dim: int | None = None
) -> dict[str, Any]:
    """Entries for a model's config from which :func:`rotary.from_config` makes the same again.

    Schedules that transformers knows are written as it spells them, under ``rope_parameters``;
    everything else as a recipe under ``rotary_parameters``, which transformers leaves alone.

    Args:
        frequencies: Any value of the library.
        head_dim: Channels of a head, where fewer of them turn; twice the planes if left out.

    Returns:
        A plain dict that ``json`` can write, to be merged into the config: ``head_dim``, one of the
        two dicts, and ``max_position_embeddings`` where the schedule is defined by it.

    Raises:
        ConfigError: If the value is none of the library's, or the head is too small for it.

    Example:
        >>> from rotary import inverse_power
        >>> to_config(inverse_power(64), head_dim=128)["rope_parameters"]
        {'rope_type': 'default', 'rope_theta': 10000.0, 'partial_rotary_factor': 0.5}
    """
    if not isinstance(frequencies, (Frequencies, LengthSchedule, XPos)):
        raise ConfigError(
            f"to_config: frequencies are {frequencies!r}, of type {type(frequencies).__name__}; "
            "give Frequencies, a LengthSchedule or xpos(...)."
        )
    rotary_dim = 2 * frequencies.num_planes
    dim = rotary_dim if head_dim is None else even_dim("to_config", "head_dim", head_dim)
    if dim < rotary_dim:
        raise ConfigError(
            f"to_config: head_dim is {dim}, but {rotary_dim} channels turn; it must be as many "
            "or more."
        )
    recipe = frequencies.recipe
    written = _transformers_spelling(recipe, dim)
    if written is None:
        return {"head_dim": dim, "rotary_parameters": recipe}
    return {"head_dim": dim, **written}


def _transformers_spelling(recipe: Recipe, head_dim: int) -> dict[str, Any] | None:
    """The config entries, or None where transformers has no words for this."""
    kind = recipe["type"]
    rope: dict[str, Any] | None
    if kind == "sections":
        inner = _transformers_spelling(recipe["frequencies"], head_dim)
        if inner is None or inner["rope_parameters"]["rope_type"] == "proportional":
            return None
        inner["rope_parameters"]["mrope_section"] = recipe["sizes"]
        if recipe["is_interleaved"]:
            inner["rope_parameters"]["mrope_interleaved"] = True
        return inner
    if kind == "proportional":
        if recipe["dim"] != head_dim:
            return None
        rope = {
            "rope_type": "proportional",
            "rope_theta": recipe["base"],
            "partial_rotary_factor": recipe["fraction"],
            "factor": recipe["factor"],
        }
        return {"rope_parameters": rope}
    if kind == "inverse_power":
        source, rope = recipe, {"rope_type": "default"}
    else:
        source = recipe.get("frequencies") or {}
        rope = _schedule(recipe)
        if source.get("type") != "inverse_power" or rope is None:
            return None
    rope["rope_theta"] = source["base"]
    written: dict[str, Any] = {"rope_parameters": rope}
    if kind == "dynamic_ntk":
        written["max_position_embeddings"] = recipe["original_length"]
    if source["dim"] != head_dim:
        share = source["dim"] / head_dim
        # Read back as int(head_dim * share), which must not fall short by a rounding.
        if int(head_dim * share) != source["dim"]:
            return None
        rope["partial_rotary_factor"] = share
    return written


def _schedule(recipe: Recipe) -> dict[str, Any] | None:
    kind = recipe["type"]
    if kind in ("linear", "dynamic_ntk"):
        name = "linear" if kind == "linear" else "dynamic"
        return {"rope_type": name, "factor": recipe["factor"]}
    if kind not in ("yarn", "llama3", "longrope"):
        return None
    rope: dict[str, Any] = {"rope_type": kind}
    renamed = {"original_length": "original_max_position_embeddings"}
    for key, value in recipe.items():
        if key in ("type", "frequencies") or value is None:
            continue
        if key == "amplitude":
            pair = value if isinstance(value, (list, tuple)) else (value, value)
            if pair[0] != pair[1]:
                rope["short_mscale"], rope["long_mscale"] = pair
            else:
                rope["attention_factor"] = pair[0]
            continue
        rope[renamed.get(key, key)] = value
    return rope
