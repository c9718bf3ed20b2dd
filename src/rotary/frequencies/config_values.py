"""Where a config keeps its values: their names of today and of the past, and what code fixes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Where the same value stood in older configs, or stands in other families.
BASE = ("rope_theta", "rotary_emb_base")
BASE_BY_LAYER = {
    "sliding_attention": ("rope_local_base_freq", "local_rope_theta", "swa_rope_theta"),
    "full_attention": ("global_rope_theta",),
}
PARTIAL = ("partial_rotary_factor", "rotary_pct", "rope_pct")
WIDTH = ("hidden_size", "n_embd", "d_model", "embed_dim", "dim")
WIDTH_IN_VISION = ("embed_dim", *WIDTH)  # There `hidden_size` may be that of the text model.
HEADS = ("num_attention_heads", "n_head", "num_heads", "n_heads")
MAX_LENGTH = ("max_position_embeddings", "n_positions", "max_sequence_length", "max_seq_len")

# Models whose code fixes the base, so that their configs need not have it.
_FIXED_BASE = {"roformer": 10000.0, "rotary_roformer": 10000.0, "gptj": 10000.0, "codegen": 10000.0}


def fixed_base(config: Any) -> float | None:
    """The base that the code of this config's model fixes; None where it fixes none."""
    if get(config, "position_encoding") not in (None, "rotary"):  # Of our own RoFormer.
        return None
    return _FIXED_BASE.get(str(get(config, "model_type")))


def layer_config(config: Any, layer_type: str) -> Any:
    """Transformers' heterogeneous configs (Gemma 4) keep a whole config for each layer type."""
    try:
        return config.per_layer_config[layer_type]
    except (AttributeError, KeyError, TypeError, ValueError):  # Most are none, or lack the type.
        return config


def first(config: Any, names: tuple[str, ...]) -> tuple[str, Any]:
    """The first of the names that is there, and its value; None if none is."""
    for name in names:
        value = get(config, name)
        if value is not None:
            return name, value
    return names[0], None


def get(config: Any, name: str) -> Any:
    """A value of a dict or a config object; None if it is not there."""
    if isinstance(config, Mapping):
        return config.get(name)
    try:
        return getattr(config, name, None)
    except RuntimeError:  # Heterogeneous configs refuse to answer for all layers at once.
        return None
