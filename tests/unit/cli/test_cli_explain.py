"""Configs as transformers writes them, without a network."""

import json

import pytest

from rotary import inverse_power
from rotary.cli.main import main
from rotary.theory import base_for_length, first_negative_distance


@pytest.fixture
def explain(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")

    def run(config, *options, code=0):
        path = tmp_path / "config.json"
        path.write_text(json.dumps(config), encoding="utf-8")
        assert main(["explain", str(path), *options]) == code
        captured = capsys.readouterr()
        return captured.err if code else captured.out

    return run


def rows(text):
    """The table's cells, split where columns are at least two spaces apart."""
    import re

    return [re.split(r" {2,}", line.strip()) for line in text.splitlines()]


def test_llama_3(explain):
    from transformers import LlamaConfig

    config = LlamaConfig(
        hidden_size=4096,
        num_attention_heads=32,
        max_position_embeddings=131072,
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 500000.0,
            "factor": 8.0,
            "original_max_position_embeddings": 8192,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
        },
    )
    text = explain(config.to_dict(), "--no-base")
    assert "half: channels p and p + planes (transformers' llama)" in text
    assert "context   131,072 positions" in text
    table = rows(text)
    assert ["0-28", "6.28 to 1,956", "67 to 20,861", "as the base gives them"] in table
    assert ["29-34", "2,900 to 35,198", "3.72 to 45.2", "divided by 1.207 to 5.257"] in table
    assert ["35-63", "65,750 to 20,473,564", "0.0064 to 1.99", "divided by 8"] in table
    assert "25 of 64 planes never complete a turn within 131,072 positions (39-63)." in text
    assert "first negative at distance 85,133" in text


def test_a_suitable_base(explain):
    config = {"model_type": "llama", "head_dim": 64, "rope_theta": 1e4}
    text = explain(config, "--length", "1024")
    base = base_for_length(64, 1024, ratio=1.01)
    assert f"about {base:,.0f} (this config: 10,000)" in text
    first = first_negative_distance(inverse_power(64), 1024)
    assert f"first negative at distance {first:,}" in text
    assert "Su's condition holds" in explain({**config, "rope_theta": base}, "--length", "1024")


def test_qwen_with_yarn(explain):
    from transformers import Qwen3Config

    config = Qwen3Config(
        head_dim=128,
        max_position_embeddings=131072,
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": 1000000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 32768,
        },
    )
    text = explain(config.to_dict(), "--no-base")
    assert "yarn: 64 planes (128 channels), 1 axis, amplitude 1.13863" in text
    assert ["40-63", "141,332 to 20,253,023", "0.00647 to 0.927", "divided by 4"] in rows(text)


def test_phi_turns_a_part_and_longrope_depends_on_the_length(explain):
    from transformers import Phi3Config, PhiConfig

    text = explain(PhiConfig().to_dict(), "--no-base")
    assert "16 planes (32 channels)" in text
    config = Phi3Config(
        max_position_embeddings=131072,
        original_max_position_embeddings=4096,
        rope_parameters={
            "rope_type": "longrope",
            "rope_theta": 10000.0,
            "short_factor": [1.0] * 48,
            "long_factor": [float(i + 1) for i in range(48)],
            "original_max_position_embeddings": 4096,
            "factor": 32.0,
        },
    )
    text = explain(config.to_dict(), "--no-base")
    assert "here 4,096: 48 planes (96 channels), 1 axis, amplitude 1.19024" in text
    assert "here 131,072" in text
    assert ["1-47", "15.2 to 2,489,360", "0.0527 to 8,609", "divided by 2 to 48"] in rows(text)


def test_gemma_has_layer_types(explain):
    from transformers import Gemma3TextConfig

    config = Gemma3TextConfig().to_dict()
    text = explain(config, "--no-base")
    assert "sliding_attention: window of 4,096, no scaling: 128 planes" in text
    assert "full_attention: no scaling" in text
    assert "turns in 4,096" in text
    assert "turns in 131,072" in text
    only = explain(config, "--no-base", "--layer-type", "full_attention")
    assert "sliding" not in only
    message = explain(config, "--layer-type", "ful_attention", code=2)
    assert "Did you mean 'full_attention'?" in message
    # The same model's config of the time before dicts per layer type.
    old = {
        "model_type": "gemma3_text",
        "head_dim": 256,
        "rope_theta": 1e6,
        "rope_local_base_freq": 1e4,
        "max_position_embeddings": 131072,
    }
    text = explain(old, "--no-base")
    assert ["0-127", "6.28 to 58,470", "2.24 to 20,861", "as the base gives them"] in rows(text)
    assert ["0-127", "6.28 to 5,640,335", "0.0232 to 20,861", "as the base gives them"] in rows(
        text
    )


def test_roformer_and_gptj_fix_their_base_in_code(explain):
    from transformers import GPTJConfig, RoFormerConfig

    text = explain(RoFormerConfig().to_dict(), "--no-base")
    assert "interleaved: channels 2p and 2p + 1 (transformers' roformer)" in text
    assert ["0-31", "6.28 to 47,117", "0.0326 to 244", "as the base gives them"] in rows(text)
    assert "32 planes (64 channels)" in explain(GPTJConfig().to_dict(), "--no-base")


OURS = {
    "half": ({"rotary_layout": "half"}, ["half (rotary_layout)", "32 planes (64 channels)"]),
    "pre": ({"norm_position": "pre"}, ["interleaved (rotary_layout)", "32 planes (64 channels)"]),
    "performer": (
        {"attention_form": "performer", "num_features": 80},
        ["turned    80 random features of a head (performer)", "40 planes (80 channels)"],
    ),
    "resting": ({"nope_layers": [1]}, ["no turn   in layers 1 (nope_layers)", "32 planes"]),
    "yarn": (
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "factor": 3.0,
                "original_max_position_embeddings": 512,
            }
        },
        ["yarn: 32 planes (64 channels)", "divided by 3"],
    ),
    "mixed": (
        {"rotary_parameters": {"type": "mixed", "dim": 64, "num_heads": 12}},
        ["mixed: 32 planes (64 channels), 1 axis, head 0 of 12"],
    ),
}


@pytest.mark.parametrize("name", OURS)
def test_roformers_of_ours_as_they_are_saved(tmp_path, capsys, monkeypatch, name):
    from rotary.models import RoFormerConfig

    monkeypatch.setenv("COLUMNS", "120")
    values, expected = OURS[name]
    RoFormerConfig(**values).save_pretrained(tmp_path)
    assert main(["explain", str(tmp_path), "--no-base"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("rotary_roformer")
    for piece in ["context   1,536 positions", *expected]:
        assert piece in text


@pytest.mark.parametrize("encoding", ["alibi", "none", "learned"])
def test_a_roformer_with_other_positions_does_not_turn(tmp_path, capsys, encoding):
    from rotary.models import RoFormerConfig

    RoFormerConfig(position_encoding=encoding).save_pretrained(tmp_path)
    assert main(["explain", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == [
        f"position  {encoding}: nothing turns (position_encoding)"
    ]


def test_layers_without_rotation_are_named(explain):
    config = {"model_type": "smollm3", "head_dim": 64, "rope_theta": 1e4}
    options = ("--length", "100", "--no-base")
    text = explain({**config, "no_rope_layers": [1, 1, 0, 1, 0]}, *options)
    assert "no turn   in layers 2, 4 (no_rope_layers, where 0 is none)" in text
    text = explain({**config, "nope_layers": [3, 7]}, *options)
    assert "no turn   in layers 3, 7 (nope_layers)" in text


def test_several_axes_and_our_own_parameters(explain):
    from rotary.frequencies import axial

    text = explain({"rotary_parameters": axial(8).recipe}, "--length", "14", "--no-base")
    assert "2 axes" in text
    assert rows(text)[5] == ["axis", "planes", "wavelength", "turns in 14", "change"]
    assert ["0", "0-1", "6.28 to 628", "0.0223 to 2.23", "as the base gives them"] in rows(text)
    qwen = {
        "head_dim": 16,
        "rope_theta": 1e4,
        "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]},
    }
    text = explain({"text_config": {**qwen, "model_type": "qwen2_vl_text"}}, "--length", "99")
    assert "sections: 8 planes (16 channels), 3 axes" in text
    assert "half: channels" in text


def test_a_folder_is_as_good_as_a_file(tmp_path, capsys):
    config = {"model_type": "llama", "head_dim": 8, "rope_theta": 1e4}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    assert main(["explain", str(tmp_path), "--length", "10"]) == 0
    assert "4 planes (8 channels)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"model_type": "bert"}', "has no RoPE values"),
        ("{", "is not JSON"),
        ("[1]", "holds a list; a config is a JSON object"),
        ('{"head_dim": 8, "rope_theta": 1e4}', "give one with --length"),
        (
            '{"head_dim": 8, "rope_theta": 1e4, "max_position_embeddings": 9,'
            ' "rope_scaling": {"rope_type": "linear", "fator": 2}}',
            "unknown key 'fator'",
        ),
    ],
)
def test_errors_are_one_line(tmp_path, capsys, content, message):
    path = tmp_path / "config.json"
    path.write_text(content, encoding="utf-8")
    assert main(["explain", str(path)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("rotary explain: error: ")
    assert len(captured.err.splitlines()) == 1
    assert message in captured.err


def test_a_missing_folder(tmp_path, capsys):
    assert main(["explain", str(tmp_path / "none")]) == 2
    assert "does not exist; give a config.json" in capsys.readouterr().err
