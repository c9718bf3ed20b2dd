"""What may stand in a rope dict, where else its values may stand, and what contradicts what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rotary.errors import ConfigError, nearest
from rotary.frequencies.config_values import (
    BASE,
    BASE_BY_LAYER,
    HEADS,
    MAX_LENGTH,
    PARTIAL,
    WIDTH,
    WIDTH_IN_VISION,
    first,
    fixed_base,
    get,
    layer_config,
)

# Keys beyond the common ones: first those that must be there, then those that may.
_KEYS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "default": ((), ()),
    "axial": ((), ()),
    "linear": (("factor",), ()),
    "dynamic": (
        ("factor",),
        ("alpha", "beta_fast", "beta_slow", "mscale", "mscale_all_dim"),
    ),
    "yarn": (
        (),
        ("factor", "original_max_position_embeddings", "attention_factor", "beta_fast",
         "beta_slow", "mscale", "mscale_all_dim", "truncate"),
    ),
    "longrope": (
        ("short_factor", "long_factor"),
        ("factor", "original_max_position_embeddings", "attention_factor", "short_mscale",
         "long_mscale"),
    ),
    "llama3": (
        ("factor", "low_freq_factor", "high_freq_factor"),
        ("original_max_position_embeddings",),
    ),
    "proportional": ((), ("factor",)),
}  # fmt: skip

# `llama_4_scaling_beta` is a temperature of the attention, `max_position_embeddings` a copy of the
# config's own: both are Mistral's, and neither is about the rotation.
_COMMON = (
    "rope_type", "type", "rope_theta", "partial_rotary_factor", "mrope_section",
    "mrope_interleaved", "interleaved", "llama_4_scaling_beta", "max_position_embeddings",
)  # fmt: skip

_TYPE_ALIASES = {"su": "longrope", "mrope": "default"}
_WITH_ORIGINAL_LENGTH = ("llama3", "yarn", "longrope")


@dataclass(frozen=True)
class RopeEntry:
    """One layer type's values, checked: what the builder needs and nothing else."""

    kind: str
    values: dict[str, Any]
    base: float
    head_dim: int
    rotary_dim: int
    max_length: int
    original_length: int
    model_type: str
    is_absent: bool = False
    recipe: Mapping[str, Any] | None = None


def read_entry(config: Any, layer_type: str | None) -> RopeEntry:
    """Find and check the entry of one layer type; raise one error with all that is wrong."""
    rotary = get(config, "rotary_parameters")
    if rotary:
        return _ours(config, rotary, layer_type)
    rope, is_nested = _rope_dict(config, layer_type)
    if rope is None:
        return _entry(config, "default", {}, layer_type, is_nested, [], is_absent=True)
    values = {str(key): value for key, value in rope.items() if value is not None}
    problems: list[str] = []
    kind = _kind(config, values, problems)
    required, optional = _KEYS[kind]
    extra = tuple(get(config, "ignore_keys_at_rope_validation") or ())
    known = (*_COMMON, *required, *optional)
    for key in values:
        if key in known or key in extra:
            continue
        users = [name for name, (need, may) in _KEYS.items() if key in need or key in may]
        hint = f" It belongs to rope_type {' or '.join(map(repr, users))}." if users else ""
        problems.append(f"unknown key {key!r} for rope_type {kind!r}.{hint or nearest(key, known)}")
    if kind == "dynamic" and values.get("alpha"):
        required = ()  # HunYuan's factor stands there, and its code does not read it.
    if ("short_mscale" in values) != ("long_mscale" in values):
        problems.append("'short_mscale' and 'long_mscale' go together; give both, or neither.")
    problems += [
        f"the key {key!r} is missing, which rope_type {kind!r} needs."
        for key in required
        if key not in values
    ]
    return _entry(config, kind, values, layer_type, is_nested, problems)


def _entry(
    config: Any,
    kind: str,
    values: dict[str, Any],
    layer_type: str | None,
    is_nested: bool,
    problems: list[str],
    *,
    is_absent: bool = False,
) -> RopeEntry:
    if layer_type is not None:
        config = layer_config(config, layer_type)
    base = 1.0 if is_absent else _base(config, values, layer_type, problems)
    head_dim = _head_dim(config, kind, layer_type, problems)
    rotary_dim = _rotary_dim(config, values, kind, head_dim, problems)
    max_length = first(config, MAX_LENGTH)[1]
    # Phi-3 keeps the original length outside the dict, and there it wins.
    outside = None if is_nested else get(config, "original_max_position_embeddings")
    original = outside or values.get("original_max_position_embeddings") or max_length
    if kind in _WITH_ORIGINAL_LENGTH and original is None:
        problems.append(
            "the key 'original_max_position_embeddings' is missing, and so is "
            "'max_position_embeddings', which would stand in for it."
        )
    needs_max = (kind == "dynamic" and not values.get("alpha")) or (
        kind in ("yarn", "longrope") and "factor" not in values
    )
    if needs_max and max_length is None:
        problems.append(
            f"the key 'max_position_embeddings' is missing from the config; rope_type {kind!r} "
            "needs it" + (" where 'factor' is not given." if kind != "dynamic" else ".")
        )
    if problems:
        where = "" if layer_type is None else f" (layer type {layer_type!r})"
        lines = "\n  ".join(problems)
        raise ConfigError(
            f"from_config: the rope values of this config are not right{where}:\n  {lines}"
        )
    return RopeEntry(
        kind=kind,
        values=values,
        base=base,
        head_dim=head_dim,
        rotary_dim=rotary_dim,
        max_length=max_length or 0,
        original_length=original or 0,
        model_type=str(get(config, "model_type") or ""),
        is_absent=is_absent,
    )


def _ours(config: Any, rotary: Any, layer_type: str | None) -> RopeEntry:
    rope = get(config, "rope_parameters") or get(config, "rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type", "default")) if isinstance(rope, Mapping) else ""
    if kind != "default":
        raise ConfigError(
            f"from_config: 'rotary_parameters' and a rope dict of rope_type {kind!r} are both "
            "given and contradict each other; keep one of them."
        )
    if isinstance(rotary, Mapping) and "type" not in rotary and is_nested(rotary):
        rotary = _pick(rotary, layer_type, "rotary_parameters")
        if rotary is None:
            return _entry(config, "default", {}, layer_type, True, [], is_absent=True)
    return RopeEntry("", {}, 1.0, 0, 0, 0, 0, "", recipe=rotary)


def _rope_dict(config: Any, layer_type: str | None) -> tuple[Mapping[str, Any] | None, bool]:
    """The dict of this layer type (None: no rotation), and whether there is one for each."""
    new, old = get(config, "rope_parameters"), get(config, "rope_scaling")
    for name, value in (("rope_parameters", new), ("rope_scaling", old)):
        if value is not None and not isinstance(value, Mapping):
            raise ConfigError(f"from_config: {name} is {value!r}; it must be a dict.")
    if new and old and {**old, **new} != {**new, **old}:
        clash = sorted(key for key in new if key in old and new[key] != old[key])
        raise ConfigError(
            f"from_config: 'rope_parameters' and 'rope_scaling' contradict each other on {clash}; "
            "the second is the older name of the first, keep one of them."
        )
    if new and old:
        both: Mapping[str, Any] = {**old, **new}
    else:
        both = new or old or {}
    if is_nested(both):
        return _pick(both, layer_type, "rope_parameters"), True
    known = {*(get(config, "layer_types") or ())}
    if any(first(config, names)[1] is not None for names in BASE_BY_LAYER.values()):
        known |= {*BASE_BY_LAYER}
    if known and layer_type is not None and layer_type not in known:
        listed = ", ".join(map(repr, sorted(known)))
        raise ConfigError(
            f"from_config: this config has no layer type {layer_type!r}, only {listed}."
            f"{nearest(layer_type, known)}"
        )
    if layer_type == "sliding_attention" and first(config, BASE_BY_LAYER[layer_type])[1]:
        # Gemma 3 and ModernBERT, before dicts per layer type: local layers were never scaled.
        return {}, False
    return both, False


def is_nested(rope: Mapping[str, Any]) -> bool:
    """Whether a rope dict holds one for each layer type, and no values of its own."""
    return any(isinstance(value, Mapping) for value in rope.values()) or (
        bool(rope) and all(value is None for value in rope.values())
    )


def _pick(rope: Mapping[str, Any], layer_type: str | None, name: str) -> Mapping[str, Any] | None:
    types = [key for key, value in rope.items() if value is None or isinstance(value, Mapping)]
    listed = ", ".join(map(repr, types))
    if layer_type is None:
        raise ConfigError(
            f"from_config: {name} has a dict for each layer type; say which with "
            f"layer_type=, one of {listed}."
        )
    if layer_type not in types:
        raise ConfigError(
            f"from_config: {name} has no layer type {layer_type!r}, only {listed}."
            f"{nearest(layer_type, types)}"
        )
    return rope[layer_type]


def _kind(config: Any, values: dict[str, Any], problems: list[str]) -> str:
    names = [values[key] for key in ("rope_type", "type") if key in values]
    kinds = [_TYPE_ALIASES.get(name, name) if isinstance(name, str) else name for name in names]
    # "default" is what a converter fills in; "mrope" beside it is the older word for it.
    if len(kinds) == 2 and kinds[0] != kinds[1]:
        problems.append(
            f"'rope_type' is {names[0]!r} and 'type' is {names[1]!r}; the second is the older name "
            "of the first, keep one of them."
        )
    kind = kinds[0] if kinds else "default"
    if not isinstance(kind, str) or kind not in _KEYS:
        problems.append(
            f"rope_type is {kind!r}; known are {', '.join(map(repr, _KEYS))}."
            f"{nearest(str(kind), _KEYS)}"
        )
        raise ConfigError("from_config: " + " ".join(problems))
    if kind == "default" and str(get(config, "default_rope_type") or "default") == "axial":
        return "axial"
    return kind


def _base(
    config: Any, values: dict[str, Any], layer_type: str | None, problems: list[str]
) -> float:
    names = (*BASE_BY_LAYER.get(layer_type or "", ()), *BASE)
    name, outside = first(config, names)
    inside = values.get("rope_theta")
    if (
        inside is not None
        and outside is not None
        and inside != outside
        and isinstance(config, Mapping)
    ):
        problems.append(
            f"'rope_theta' is {inside!r} in the rope dict and {name!r} is {outside!r} beside it; "
            "they contradict each other, keep one of them."
        )
    base = outside if inside is None else inside
    base = fixed_base(config) if base is None else base
    if base is None:
        problems.append(
            "the key 'rope_theta' is missing, in the rope dict and beside it; it is the base of "
            "the frequencies, 10000 in the first models."
        )
        return 1.0
    return base


def _head_dim(config: Any, kind: str, layer_type: str | None, problems: list[str]) -> int:
    if layer_type == "full_attention" and isinstance(config, Mapping):
        wide = get(config, "global_head_dim")  # Gemma 4
        if wide:
            return int(wide)
    memory = get(config, "memory_attention_hidden_size")  # SAM 2 and its kin, for video
    if memory:
        parts = get(config, "memory_attention_downsample_rate") or 1
        return int(memory) // (parts * int(get(config, "memory_attention_num_attention_heads")))
    for name in ("head_dim", "qk_rope_head_dim", "kv_channels"):
        value = get(config, name)
        if value:
            return int(value)
    width = first(config, WIDTH_IN_VISION if kind == "axial" else WIDTH)[1]
    heads = first(config, HEADS)[1]
    if width and heads:
        return int(width) // int(heads)
    inner = get(config, "text_config")
    more = " This config holds its text model in 'text_config'; give that." if inner else ""
    problems.append(
        "the key 'head_dim' is missing, and 'hidden_size' and 'num_attention_heads' do not stand "
        f"in for it.{more}"
    )
    return 2


def _rotary_dim(
    config: Any, values: dict[str, Any], kind: str, head_dim: int, problems: list[str]
) -> int:
    name, outside = first(config, PARTIAL)
    inside = values.get("partial_rotary_factor")
    if (
        inside is not None
        and outside is not None
        and inside != outside
        and isinstance(config, Mapping)
    ):
        problems.append(
            f"'partial_rotary_factor' is {inside!r} in the rope dict and {name!r} is {outside!r} "
            "beside it; they contradict each other, keep one of them."
        )
    share = outside if inside is None else inside
    # Config objects of today have turned it into the factor, but for those that know no rope dict
    # (GPT-J); plain dicts of the past have it alone.
    has_dim = isinstance(config, Mapping) or fixed_base(config) is not None
    explicit = get(config, "rotary_dim") if has_dim else None
    # EfficientLoFTR turns its vectors before they are split into heads.
    most = float("inf") if get(config, "model_type") == "efficientloftr" else 1
    if share is not None and (not isinstance(share, (int, float)) or not 0 <= share <= most):
        problems.append(f"partial_rotary_factor is {share!r}; it must be a number from 0 to 1.")
        return head_dim
    if share is None:
        dim = int(explicit) if explicit else head_dim
    else:
        if kind == "proportional":
            values["partial_rotary_factor"] = share
        dim = int(head_dim * share)
        if explicit and int(explicit) != dim:
            problems.append(
                f"'rotary_dim' is {explicit!r}, but the partial rotary factor {share!r} of "
                f"head_dim {head_dim} is {dim}; they contradict each other, keep one of them."
            )
    is_wrong = dim > head_dim * most or dim < 1 or (dim % 2 and dim == head_dim)
    if is_wrong and kind not in ("proportional", "axial"):
        problems.append(
            f"{dim} of {head_dim} channels would turn; channels turn in pairs, so it must be an "
            f"even number from 2 to {head_dim}. An odd head can only turn in part."
        )
    return dim
