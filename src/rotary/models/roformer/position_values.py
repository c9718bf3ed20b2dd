"""The values of a config that say how positions enter, checked and made into frequencies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rotary.attention.encodings import ENCODINGS
from rotary.errors import ConfigError
from rotary.frequencies import Frequencies, LengthSchedule, XPos, from_config, inverse_power

if TYPE_CHECKING:
    from rotary.models.roformer.configuration_roformer import RoFormerConfig

RELATIVE_ENCODINGS = ("shaw", "nezha", "t5", "alibi")
"""Encodings that enter in the softmax of every layer, each with an attention of its own."""

LEARNED_TYPE = "mixed"
"""The type of ``rotary_parameters`` whose frequencies are drawn for each layer, and learned."""


def frequencies_of(config: RoFormerConfig, layer: int) -> Frequencies | LengthSchedule | XPos:
    """Make the frequencies of a layer from ``rope_parameters`` or ``rotary_parameters``.

    Raises:
        ConfigError: With every key that is missing, unknown or contradicts another.
    """
    recipe = config.rotary_parameters
    if isinstance(recipe, Mapping) and recipe.get("type") == LEARNED_TYPE:
        # Drawn anew for each layer; the seed is a part of the config.
        recipe = {"num_axes": 1, **recipe, "layer": layer}
    return from_config(
        {
            "head_dim": config.rotary_dim,
            "max_position_embeddings": config.max_position_embeddings,
            "rope_parameters": {"rope_theta": 10000.0, **(config.rope_parameters or {})},
            "rotary_parameters": recipe,
        }
    )


def is_plain_rotary(config: RoFormerConfig) -> bool:
    """Whether the frequencies are the paper's: base 10000, all channels of a head."""
    return frequencies_of(config, 0) == inverse_power(config.rotary_dim)


def head_problems(config: RoFormerConfig) -> list[str]:
    """Name what is wrong in these values and the heads; all sizes are whole numbers already."""
    found = []
    hidden, heads = config.hidden_size, config.num_attention_heads
    if hidden % heads:
        fitting = [n for n in range(1, hidden + 1) if hidden % n == 0 and hidden // n % 2 == 0]
        near = min(fitting, key=lambda n: abs(n - heads), default=1)
        found.append(
            f"hidden_size {hidden} does not split into num_attention_heads {heads}; "
            f"{near} heads would do."
        )
    elif config.position_encoding == "rotary" and config.head_dim % 2:
        found.append(
            f"hidden_size {hidden} and num_attention_heads {heads} make heads of {hidden // heads} "
            "channels; rotary turns channels in pairs, so the number must be even."
        )
    elif config.position_encoding in ENCODINGS:
        found += _position_problems(config)
    outside = [i for i in config.nope_layers if not 0 <= i < config.num_hidden_layers]
    if outside:
        found.append(
            f"nope_layers names {outside}; the layers are 0 to {config.num_hidden_layers - 1}."
        )
    return found


def _position_problems(config: RoFormerConfig) -> list[str]:
    name = config.position_encoding
    if name == "rotary":
        return _rotary_problems(config)
    found = [
        f"{field} is {getattr(config, field)!r}, but position_encoding is {name!r}, which turns "
        "nothing; leave it out, or use 'rotary'."
        for field in ("rotary_value", "rotary_parameters", "nope_layers")
        if getattr(config, field)
    ]
    # What transformers fills in by itself says nothing.
    plain = {"rope_type": "default", "rope_theta": 10000.0}
    if config.rope_parameters and {**plain, **config.rope_parameters} != plain:
        found.append(
            f"rope_parameters are {config.rope_parameters!r}, but position_encoding is {name!r}, "
            "which turns nothing; leave them out, or use 'rotary'."
        )
    if name in RELATIVE_ENCODINGS and config.is_linear:
        found.append(
            f"position_encoding is {name!r}, which enters in the softmax, but attention_form is "
            f"{config.attention_form!r}, which has none; use attention_form='softmax', or one of "
            "'rotary', 'learned', 'sinusoidal', 'none'."
        )
    for field, width, of in (
        ("embedding_size", config.embedding_size, "sinusoidal"),
        ("the size of a head", config.head_dim, "nezha"),
    ):
        if name == of and width is not None and width % 2:
            found.append(f"{field} is {width}; sinusoids come in pairs, so it must be even.")
    length = config.max_position_embeddings
    if name == "learned" and (
        isinstance(length, bool) or not isinstance(length, int) or length < 1
    ):
        found.append(
            f"max_position_embeddings is {length!r}; it is how many vectors are learned, 1 or more."
        )
    return found


def _rotary_problems(config: RoFormerConfig) -> list[str]:
    rope = config.rope_parameters or {}
    if any(isinstance(value, Mapping) for value in rope.values()):
        return [
            "rope_parameters has a dict for each layer type, but all layers of a RoFormer are of "
            "one type; give one dict, and nope_layers for layers that do not turn."
        ]
    if config.rotary_parameters and rope.get("rope_theta", 10000.0) != 10000.0:
        return [
            f"rope_parameters with rope_theta {rope['rope_theta']!r} and rotary_parameters are "
            "both given and contradict each other; keep one of them."
        ]
    if config.attention_form == "performer" and (
        config.num_features is not None and _is_no_even_number(config.num_features)
    ):
        return []  # Said elsewhere.
    try:
        found = frequencies_of(config, 0)
    except ConfigError as error:
        return [str(error)]
    return list(_misfits(config, found))


def _is_no_even_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int):
        return True
    return value < 1 or value % 2 != 0


def _misfits(config: RoFormerConfig, found: Frequencies | LengthSchedule | XPos) -> Any:
    """What a text model of these heads cannot do with some frequencies."""
    if found.num_axes != 1:
        yield (
            f"the frequencies have {found.num_axes} position axes; text has one. Use num_axes=1, "
            "or rotary.models.vit for images."
        )
    if 2 * found.num_planes > config.rotary_dim:
        yield (
            f"the frequencies turn {2 * found.num_planes} channels, but there are "
            f"{config.rotary_dim}; make them with dim={config.rotary_dim} or less."
        )
    elif (
        config.attention_form == "performer"
        and config.rotary_dim != config.head_dim
        and 2 * found.num_planes != config.rotary_dim
    ):
        yield (
            f"the frequencies turn {2 * found.num_planes} channels, but attention_form 'performer' "
            f"turns all of its {config.rotary_dim} features; leave partial_rotary_factor out."
        )
    if (
        config.attention_form == "cosine"
        and isinstance(found, Frequencies)
        and found.amplitude != 1.0
    ):
        yield (
            f"the frequencies have amplitude {found.amplitude:g}, which would lengthen what "
            "attention_form 'cosine' has made of length 1; use 'numerator', or a schedule without."
        )
    heads = found.num_heads
    if heads not in (None, 1, config.num_attention_heads):
        yield (
            f"the frequencies are those of {heads} heads; num_attention_heads is "
            f"{config.num_attention_heads}."
        )
    if isinstance(found, XPos) and config.rotary_value:
        yield "rotary_value is True, but xpos has a scale for queries and keys only."
    needs_softmax = isinstance(found, (LengthSchedule, XPos)) or heads is not None
    if config.is_linear and needs_softmax:
        yield (
            f"the frequencies {found!r} depend on the length, the head or the side, which linear "
            f"attention ({config.attention_form!r}) does not take; use attention_form='softmax', "
            "or fixed frequencies shared by all heads."
        )
