"""`from_config` and `to_config`: old and new spellings, errors that name the key, round trips."""

import json

import numpy as np
import pytest

from rotary import Frequencies, LengthSchedule, from_config, inverse_power, to_config
from rotary.errors import ConfigError
from rotary.frequencies import (
    assign_axes,
    axial,
    dynamic_ntk,
    linear,
    llama3,
    longrope,
    mixed,
    ntk,
    per_head,
    proportional,
    sections,
    xpos,
    yarn,
)
from rotary.frequencies.config_values import fixed_base

BASE = {"head_dim": 64, "rope_theta": 10000.0, "max_position_embeddings": 4096}


def test_places_where_the_same_values_stand():
    expected = inverse_power(32, 5e5)
    assert from_config({"head_dim": 32, "rope_theta": 5e5}) == expected
    assert (
        from_config({"hidden_size": 128, "num_attention_heads": 4, "rope_theta": 5e5}) == expected
    )
    rope = {"rope_type": "default", "rope_theta": 5e5}
    assert from_config({"head_dim": 32, "rope_parameters": rope}) == expected
    assert from_config({"head_dim": 32, "rope_theta": 5e5, "rope_scaling": None}) == expected
    # Both spellings of one value that agree are no contradiction.
    assert from_config({"head_dim": 32, "rope_theta": 5e5, "rope_parameters": rope}) == expected
    neox = {"hidden_size": 128, "num_attention_heads": 1, "rotary_emb_base": 5e5}
    assert from_config({**neox, "rotary_pct": 0.25}) == expected
    assert from_config({"n_embd": 64, "n_head": 1, "rope_theta": 5e5, "rotary_dim": 32}) == expected
    deepseek = {"hidden_size": 7168, "num_attention_heads": 128, "qk_rope_head_dim": 32}
    assert from_config({**deepseek, "rope_theta": 5e5}) == expected


def test_type_and_rope_type():
    expected = linear(inverse_power(64), 2.0)
    for key in ("type", "rope_type"):
        assert from_config({**BASE, "rope_scaling": {key: "linear", "factor": 2.0}}) == expected
    both = {"type": "linear", "rope_type": "linear", "factor": 2.0}
    assert from_config({**BASE, "rope_scaling": both}) == expected
    phi = {"type": "su", "short_factor": [1.0] * 32, "long_factor": [2.0] * 32}
    found = from_config({**BASE, "rope_scaling": phi, "original_max_position_embeddings": 2048})
    assert found == longrope(inverse_power(64), [1.0] * 32, [2.0] * 32, 2048, factor=2.0)
    qwen = {"type": "mrope", "mrope_section": [16, 8, 8]}
    assert from_config({**BASE, "rope_scaling": qwen}) == sections(inverse_power(64), (16, 8, 8))


def test_a_written_value_wins_over_a_derived_one():
    rope = {"rope_type": "yarn", "original_max_position_embeddings": 1024}
    derived = from_config({**BASE, "rope_parameters": rope})
    assert derived == yarn(inverse_power(64), 4.0, 1024)
    written = from_config({**BASE, "rope_parameters": {**rope, "factor": 8.0}})
    assert written == yarn(inverse_power(64), 8.0, 1024)
    quiet = from_config({**BASE, "rope_parameters": {**rope, "attention_factor": 1.0}})
    assert quiet.amplitude == 1.0


def test_lengths():
    config = {**BASE, "rope_scaling": {"type": "dynamic", "factor": 2.0}}
    schedule = from_config(config)
    assert schedule == dynamic_ntk(inverse_power(64), 2.0, 4096)
    assert isinstance(schedule, LengthSchedule)
    assert from_config(config, length=0) == inverse_power(64)
    assert from_config(config, length=8192) == schedule.at(8192) != inverse_power(64)
    assert from_config(BASE, length=5) == inverse_power(64)


def test_layer_types():
    rope = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        "none": None,
    }
    config = {"head_dim": 32, "rope_parameters": rope}
    assert from_config(config, layer_type="full_attention") == linear(inverse_power(32, 1e6), 8.0)
    assert from_config(config, layer_type="sliding_attention") == inverse_power(32)
    assert not from_config(config, layer_type="none").matrix.any()
    # Gemma 3 as it was: the local layers have a base of their own and no scaling.
    scaling = {"rope_type": "linear", "factor": 8.0}
    old = {"head_dim": 32, "rope_theta": 1e6, "rope_local_base_freq": 1e4, "rope_scaling": scaling}
    for kind in ("full_attention", "sliding_attention"):
        assert from_config(old, layer_type=kind) == from_config(config, layer_type=kind)
    # ModernBERT as it was.
    modern = {"head_dim": 32, "global_rope_theta": 160000.0, "local_rope_theta": 1e4}
    assert from_config(modern, layer_type="full_attention") == inverse_power(32, 160000.0)
    assert from_config(modern, layer_type="sliding_attention") == inverse_power(32)


def test_a_misspelt_layer_type_of_a_flat_config():
    old = {"head_dim": 32, "rope_theta": 1e6, "rope_local_base_freq": 1e4}
    modern = {"head_dim": 32, "rope_theta": 1e6, "layer_types": ["full_attention"]}
    with pytest.raises(ConfigError, match="Did you mean 'sliding_attention'"):
        from_config(old, layer_type="slidng_attention")
    with pytest.raises(ConfigError, match="only 'full_attention'"):
        from_config(modern, layer_type="sliding_attention")
    assert from_config(modern, layer_type="full_attention") == inverse_power(32, 1e6)
    assert from_config({"head_dim": 32, "rope_theta": 1e6}, layer_type="any") == from_config(old)


def test_models_whose_code_fixes_the_base():
    """Dicts as the hub has them, and config objects, theirs and ours."""
    transformers = pytest.importorskip("transformers")
    from rotary.models.roformer import RoFormerConfig

    heads = {"hidden_size": 96, "num_attention_heads": 3}
    whole, part = inverse_power(32), inverse_power(16)
    for kind in ("roformer", "rotary_roformer"):
        assert from_config({"model_type": kind, **heads}) == whole
    for config in (RoFormerConfig(**heads), transformers.RoFormerConfig(**heads)):
        assert from_config(config) == from_config(config.to_dict()) == whole
    scaled = RoFormerConfig(**heads, rope_parameters={"rope_type": "linear", "factor": 2.0})
    assert from_config(scaled) == from_config(scaled.to_dict()) == linear(whole, 2.0)
    for make in (transformers.GPTJConfig, transformers.CodeGenConfig):
        config = make(n_embd=96, n_head=3, rotary_dim=16)
        assert from_config(config) == from_config(config.to_dict()) == part
    for config in (RoFormerConfig(**heads, position_encoding="none"), transformers.BertConfig()):
        assert fixed_base(config) is None
        with pytest.raises(ConfigError, match="'rope_theta' is missing"):
            from_config(config)


def test_only_what_configs_raise_is_taken_for_absence():
    class Broken:
        head_dim, rope_theta = 32, 1e4

        @property
        def rope_parameters(self):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        from_config(Broken())


def scaled(**rope):
    return {**BASE, "rope_parameters": rope}


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}
ERRORS = {
    "missing factor": (scaled(rope_type="linear"), ["'factor' is missing", "linear"]),
    "missing two": (scaled(rope_type="longrope"), ["'short_factor'", "'long_factor'"]),
    "missing theta": ({"head_dim": 64}, ["'rope_theta' is missing"]),
    "missing dim": ({"rope_theta": 1e4}, ["'head_dim' is missing"]),
    "inside": ({"rope_theta": 1e4, "text_config": {"head_dim": 4}}, ["text_config"]),
    "missing length": (
        {"head_dim": 64, "rope_theta": 1e4, "rope_scaling": {"type": "dynamic", "factor": 2.0}},
        ["'max_position_embeddings' is missing"],
    ),
    "unknown key": (scaled(**YARN, atention_factor=1.0), ["Did you mean 'attention_factor'"]),
    "key of another type": (scaled(rope_type="default", factor=2.0), ["'factor'", "'linear'"]),
    "several at once": (
        scaled(rope_type="linear", fctor=2.0),
        ["'factor' is missing", "unknown key 'fctor'", "Did you mean 'factor'"],
    ),
    "one mscale": (
        scaled(rope_type="longrope", short_factor=[1], long_factor=[1], short_mscale=1.0),
        ["'short_mscale' and 'long_mscale' go together"],
    ),
    "type of a wrong type": (scaled(rope_type=3), ["rope_type is 3", "'yarn'"]),
    "types of a wrong type": (scaled(rope_type=["yarn"], type=3), ["rope_type", "keep one"]),
    "share above 1": (scaled(partial_rotary_factor=1.5), ["1.5", "a number from 0 to 1"]),
    "share in words": (scaled(partial_rotary_factor="0.5"), ["'0.5'", "a number from 0 to 1"]),
    "more than the head": ({**BASE, "rotary_dim": 128}, ["128 of 64 channels", "from 2 to 64"]),
    "alpha of 0": (scaled(rope_type="dynamic", alpha=0.0), ["'factor' is missing"]),
    "unknown type": (scaled(rope_type="yarm"), ["'yarm'", "Did you mean 'yarn'"]),
    "two types": (scaled(rope_type="linear", type="yarn", factor=2.0), ["'linear'", "'yarn'"]),
    "two thetas": (scaled(rope_theta=5e5), ["500000.0", "10000.0", "contradict"]),
    "two shares": (
        {**scaled(partial_rotary_factor=0.5), "partial_rotary_factor": 0.25},
        ["0.5", "0.25", "contradict"],
    ),
    "two dims": ({**BASE, "rotary_dim": 16, "partial_rotary_factor": 0.5}, ["16", "32"]),
    "two dicts": (
        {**scaled(**YARN), "rope_scaling": {**YARN, "factor": 8.0}},
        ["rope_scaling", "['factor']"],
    ),
    "no dict": ({**BASE, "rope_scaling": 4.0}, ["4.0", "must be a dict"]),
    "odd head": ({**BASE, "head_dim": 63}, ["63 of 63"]),
    "ours and theirs": (
        {**scaled(**YARN), "rotary_parameters": inverse_power(8).recipe},
        ["'rotary_parameters'", "'yarn'"],
    ),
    "ours: type": ({"rotary_parameters": {"type": "ntkk"}}, ["Did you mean 'ntk'"]),
    "ours: no type": ({"rotary_parameters": {"dim": 4}}, ["'type' is missing"]),
    "ours: keys": (
        {"rotary_parameters": {"type": "inverse_power", "bas": 3.0}},
        ["unknown key 'bas'", "Did you mean 'base'", "'dim' is missing"],
    ),
    "schedule with sections": (
        scaled(rope_type="dynamic", factor=2.0, mrope_section=[16, 8, 8]),
        ["mrope_section", "not supported"],
    ),
}


@pytest.mark.parametrize("case", ERRORS)
def test_errors_name_the_key(case):
    config, parts = ERRORS[case]
    with pytest.raises(ConfigError) as caught:
        from_config(config)
    for part in parts:
        assert part in str(caught.value)


def test_a_missing_or_misspelt_layer_type():
    config = {"head_dim": 8, "rope_parameters": {"full_attention": {"rope_theta": 1e4}}}
    with pytest.raises(ConfigError, match="layer_type=, one of 'full_attention'"):
        from_config(config)
    with pytest.raises(ConfigError, match="Did you mean 'full_attention'"):
        from_config(config, layer_type="ful_attention")


VALUES = {
    "inverse_power": inverse_power(64, 5e5),
    "explicit": Frequencies([[0.5, 0.1], [0.25, 3.0]], amplitude=1.25),
    "proportional": proportional(64, 0.25, 1e6, factor=2.0),
    "axial": axial(24, 3, base=100.0),
    "mixed": mixed(16, 3, seed=5, layer=2),
    "sections": sections(inverse_power(64), (16, 8, 8)),
    "sections in turn": sections(inverse_power(64), (12, 10, 10), is_interleaved=True),
    "sections of yarn": sections(yarn(inverse_power(64), 4.0, 1024), (16, 8, 8)),
    "assign_axes": assign_axes(inverse_power(8), [0, 2, 1, 0]),
    "per_head": per_head(inverse_power(8), None, linear(inverse_power(8), 3.0)),
    "linear": linear(inverse_power(64), 4.0),
    "linear of axial": linear(axial(16), 4.0),
    "ntk": ntk(inverse_power(64), 4.0),
    "yarn": yarn(inverse_power(64), 4.0, 1024, beta_fast=16, truncate=False),
    "yarn with mscale": yarn(inverse_power(64), 4.0, 1024, mscale=0.7, mscale_all_dim=1.0),
    "yarn with amplitude": yarn(inverse_power(64), 4.0, 1024, amplitude=1.5),
    "llama3": llama3(inverse_power(64, 5e5), low_freq_factor=2.0),
    "dynamic_ntk": dynamic_ntk(inverse_power(64), 4.0, 1024),
    "longrope": longrope(inverse_power(8), [1, 2, 3, 4], [5, 6, 7, 8], 64, factor=4.0),
    "longrope with two": longrope(inverse_power(4), [1, 2], [3, 4], 64, amplitude=(1.1, 1.2)),
    "xpos": xpos(inverse_power(64), 256.0, centre=100.0),
    "dynamic of linear": dynamic_ntk(linear(inverse_power(64), 2.0), 4.0, 1024),
}


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("extra", [0, 64])
def test_what_is_written_reads_back_equal(name, extra):
    value = VALUES[name]
    written = to_config(value, head_dim=2 * value.num_planes + extra)
    config = json.loads(json.dumps(written))
    assert set(config) <= {
        "head_dim", "rope_parameters", "rotary_parameters", "max_position_embeddings"
    }  # fmt: skip
    assert from_config(config) == value
    if isinstance(value, LengthSchedule):
        np.testing.assert_array_equal(
            from_config(config, length=10_000).matrix, value.at(10_000).matrix
        )


def test_transformers_reads_what_is_written():
    transformers = pytest.importorskip("transformers")
    for name in ("inverse_power", "linear", "yarn", "llama3", "dynamic_ntk"):
        config = to_config(VALUES[name], head_dim=128)
        config = {"max_position_embeddings": 4096, **config}
        theirs = transformers.LlamaConfig(hidden_size=256, num_attention_heads=2, **config)
        assert from_config(theirs) == VALUES[name]


@pytest.mark.usefixtures("wrong_types")
def test_to_config_refuses_what_it_cannot_write():
    with pytest.raises(ConfigError, match="give Frequencies"):
        to_config(64)
    with pytest.raises(ConfigError, match="64 channels turn"):
        to_config(inverse_power(64), head_dim=32)
