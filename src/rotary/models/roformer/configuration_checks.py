"""What can be wrong with the values of a config; each check names all that it finds."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from transformers.activations import ACT2FN

from rotary.attention.encodings import ENCODINGS as POSITION_ENCODINGS
from rotary.errors import ConfigError, one_of
from rotary.kernels.contract import LAYOUTS
from rotary.models.roformer.position_values import head_problems

if TYPE_CHECKING:
    from rotary.models.roformer.configuration_roformer import RoFormerConfig

ATTENTION_FORMS = ("softmax", "numerator", "cosine", "performer")
NORM_TYPES = ("layer_norm", "rms_norm")
NORM_POSITIONS = ("post", "pre")
POOLINGS = ("first", "mean")
LM_HEADS = ("transform", "direct")


def misspelt(given: dict[str, Any], fields: dict[str, Any]) -> list[str]:
    """Keywords so close to a field that they were meant as one; others are plain attributes."""
    found = []
    for name in given:
        match = difflib.get_close_matches(name, [str(f) for f in fields], n=1, cutoff=0.85)
        if match and not name.startswith("_"):
            found.append(f"there is no {name!r}. Did you mean {match[0]!r}?")
    return found


def check_config(config: RoFormerConfig, more: Sequence[str] = ()) -> None:
    """Raise if a value cannot be right, alone or beside the others.

    Args:
        config: What to check.
        more: Problems that are known already.

    Raises:
        ConfigError: With every problem, one a line.
    """
    problems = [*more, *_problems(config)]
    if problems:
        raise ConfigError("RoFormerConfig: " + "\n  ".join(problems))


def _problems(config: RoFormerConfig) -> list[str]:
    found = []
    for name, accepted in {
        "position_encoding": POSITION_ENCODINGS,
        "attention_form": ATTENTION_FORMS,
        "norm_type": NORM_TYPES,
        "norm_position": NORM_POSITIONS,
        "rotary_layout": LAYOUTS,
        "hidden_act": tuple(ACT2FN),
        "lm_head": LM_HEADS,
        "pooling": POOLINGS,
        "pooler_activation": (None, *ACT2FN),
    }.items():
        if getattr(config, name) not in accepted:
            found.append(one_of(name, getattr(config, name), filter(None, accepted)))
    sizes = {
        "vocab_size": 1,
        "embedding_size": 1,
        "hidden_size": 1,
        "num_hidden_layers": 0,
        "num_attention_heads": 1,
        "intermediate_size": 1,
        "type_vocab_size": 0,
    }
    bad_sizes = False
    for name, least in sizes.items():
        value = getattr(config, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            found.append(f"{name} is {value!r}; it is a whole number, {least} or more.")
            bad_sizes = True
    if not bad_sizes:
        found += head_problems(config)
    for name in ("hidden_dropout_prob", "attention_probs_dropout_prob"):
        value = getattr(config, name)
        if not isinstance(value, (int, float)) or not 0 <= value < 1:
            found.append(f"{name} is {value!r}; it is a probability, at least 0 and below 1.")
    for name in ("initializer_range", "layer_norm_eps"):
        value = getattr(config, name)
        if name == "initializer_range" and value is None:
            continue
        if not isinstance(value, (int, float)) or value < 0:
            found.append(f"{name} is {value!r}; it is a number, 0 or more.")
    if config.add_cross_attention:
        found.append("add_cross_attention is True; this RoFormer has no cross attention.")
    if config.is_prefix_lm and not (config.is_decoder and config.type_vocab_size >= 2):
        found.append("is_prefix_lm needs is_decoder=True and two segments (type_vocab_size=2).")
    if config.is_linear:
        found += _linear_problems(config)
    return found


def _linear_problems(config: RoFormerConfig) -> list[str]:
    form = config.attention_form
    found = [
        f"{name} is True, but attention_form is {form!r}; {why}"
        for name, why in (
            ("is_prefix_lm", "which pairs of tokens see each other is free in 'softmax' alone."),
            ("rotary_value", "the values are turned in 'softmax' alone."),
        )
        if getattr(config, name)
    ]
    if form != "performer":
        return found
    for name, least, accepts_none in (
        ("num_features", 1, True),
        ("redraw_interval", 1, True),
        ("feature_seed", 0, False),
    ):
        value = getattr(config, name)
        if value is None and accepts_none:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            more = ", or None" if accepts_none else ""
            found.append(f"{name} is {value!r}; it is a whole number, {least} or more{more}.")
        elif name == "num_features" and value % 2 and config.position_encoding == "rotary":
            found.append(
                f"num_features is {value}; rotary turns the features in pairs, so the number must "
                f"be even: {value + 1} would do."
            )
    return found
