"""Models of transformers whose own code departs from, or adds to, what their rope dict says."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rotary.errors import ConfigError
from rotary.frequencies.axial import axial
from rotary.frequencies.base import Frequencies
from rotary.frequencies.config_rules import RopeEntry
from rotary.frequencies.inverse_power import inverse_power
from rotary.frequencies.sections import assign_axes, sections

# What the code of a model takes where `mrope_section` is not written, and whether it deals the
# planes out in turn, which its config may leave out too.
_SECTIONS: dict[str, tuple[tuple[int, int, int], bool]] = {
    "cohere_compass": ((24, 20, 20), True),
    "cosmos3_edge": ((24, 20, 20), True),
    "ernie4_5_vl_moe": ((22, 22, 20), False),
    "glm4v": ((8, 12, 12), False),
    "glm4v_moe": ((8, 12, 12), False),
    "glm_image": ((8, 12, 12), False),
    "glm_ocr": ((8, 12, 12), False),
    "hy_v4_vl": ((24, 20, 20), True),
    "paddleocr_vl": ((16, 24, 24), False),
    "qwen2_5_omni": ((16, 24, 24), False),
    "qwen2_5_omni_talker": ((16, 24, 24), False),
    "qwen2_5_vl": ((16, 24, 24), False),
    "qwen2_vl": ((16, 24, 24), False),
    "qwen3_5": ((11, 11, 10), True),
    "qwen3_5_moe": ((11, 11, 10), True),
    "qwen3_omni_moe": ((24, 20, 20), True),
    "qwen3_omni_moe_thinker": ((24, 20, 20), True),
    "qwen3_omni_moe_talker": ((24, 20, 20), True),
    "qwen3_vl": ((24, 20, 20), True),
    "qwen3_vl_moe": ((24, 20, 20), True),
    "qwen4_exp": ((11, 11, 10), True),
}


def with_sections(entry: RopeEntry, found: Frequencies) -> Frequencies:
    """Deal the planes of a text model out to time, height and width, where its code does so."""
    model = entry.model_type.removesuffix("_text")
    default, in_turn = _SECTIONS.get(model, (None, False))
    sizes: Sequence[int] | None = entry.values.get("mrope_section", default)
    if sizes is None:
        return found
    if model == "ernie4_5_vl_moe":
        # Height and width take turns, time has the slowest planes; sizes are (h, w, t).
        return assign_axes(found, [1, 2] * sizes[0] + [0] * sizes[2], num_axes=3)
    if model == "hunyuan_vl":
        raise ConfigError(
            "from_config: hunyuan_vl deals out channels, not planes: its mrope_section gives the "
            "two channels of one plane to different axes, which is no rotation."
        )
    interleaved = entry.values.get("mrope_interleaved", entry.values.get("interleaved", in_turn))
    return sections(found, sizes, is_interleaved=bool(interleaved))


def vision(entry: RopeEntry) -> Frequencies | None:
    """The frequencies of a vision model with two axes or three; None for a text model."""
    model = entry.model_type
    if model.startswith(("dinov3_vit", "eomt_dinov3")):
        # Coordinates run over [-1, 1], and a frequency counts turns, not radians, over that unit.
        return Frequencies(2 * np.pi * axial(entry.head_dim, 2, entry.base).matrix)
    if entry.kind != "axial":
        return None
    if model.startswith("minimax_m3_vl"):
        # Three axes share the head evenly, and what remains does not turn.
        return axial(3 * 2 * (entry.head_dim // 3 // 2), 3, entry.base)
    if model.startswith("pixtral"):
        # One falling row, its even entries for the height and its odd ones for the width.
        row = inverse_power(entry.head_dim, entry.base).matrix[0]
        split = Frequencies(np.concatenate((row[0::2], row[1::2])))
        half = len(row[0::2])
        return assign_axes(split, [0] * half + [1] * (len(row) - half))
    plain = axial(2 * 2 * (entry.head_dim // 4), 2, entry.base)
    half = plain.num_planes // 2
    row = Frequencies(plain.matrix.sum(axis=0))
    if model.startswith(("inkling2", "step3p5_vision", "step3p7")):
        # The width has the first half of the planes; positions stay (height, width).
        return assign_axes(row, [1] * half + [0] * half)
    if model.startswith("kimi_k25"):
        # Width and height take turns.
        return assign_axes(Frequencies(np.repeat(row.matrix[0, :half], 2)), [1, 0] * half)
    return plain
