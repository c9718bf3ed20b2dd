import json

import pytest

from rotary.errors import ConfigError
from rotary.frequencies import inverse_power
from rotary.models import RoFormerConfig, RoFormerModel
from rotary.models.roformer import RotaryRoFormerConfig


def test_defaults_are_the_released_base_model():
    config = RoFormerConfig()
    assert (config.hidden_size, config.num_hidden_layers, config.head_dim) == (768, 12, 64)
    assert config.layer_norm_eps == 1e-12
    assert config.embedding_size == 768
    assert config.layer_frequencies() == [inverse_power(64, 10000.0)] * 12


def test_all_problems_are_named_at_once():
    with pytest.raises(ConfigError) as caught:
        RoFormerConfig(
            hiden_size=3,
            num_attention_heads=7,
            position_encoding="rotry",
            norm_position="before",
            hidden_dropout_prob=1.5,
            nope_layers=[12],
            vocab_size=0,
        )
    message = str(caught.value)
    assert "there is no 'hiden_size'. Did you mean 'hidden_size'?" in message
    assert "position_encoding is 'rotry'" in message
    assert "Did you mean 'rotary'?" in message
    assert "norm_position is 'before'; accepted are 'post', 'pre'" in message
    assert "hidden_dropout_prob is 1.5" in message
    assert "vocab_size is 0; it is a whole number, 1 or more." in message


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"num_attention_heads": 7}, "hidden_size 768 does not split into num_attention_heads 7"),
        ({"hidden_size": 36, "num_attention_heads": 4}, "heads of 9 channels"),
        ({"nope_layers": [0, 12]}, r"nope_layers names \[12\]; the layers are 0 to 11"),
        ({"add_cross_attention": True}, "no cross attention"),
        ({"rope_parameters": {"rope_type": "yarm"}}, "rope_type"),
        ({"attention_form": "cosine", "rope_parameters": YARN}, "have amplitude 1.138"),
        (
            {
                "attention_form": "performer",
                "rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5},
            },
            "turns all of its 266 features",
        ),
    ],
)
def test_values_that_contradict(values, message):
    with pytest.raises(ConfigError, match=message):
        RoFormerConfig(**values)


@pytest.mark.parametrize(
    ("values", "model_type"),
    [
        ({}, "roformer"),
        ({"rotary_value": True, "embedding_size": 128, "sparse_logits": True}, "roformer"),
        ({"norm_position": "pre"}, "rotary_roformer"),
        ({"rotary_layout": "half"}, "rotary_roformer"),
        ({"nope_layers": [1]}, "rotary_roformer"),
        ({"position_encoding": "none"}, "rotary_roformer"),
        ({"rope_parameters": {"rope_theta": 500.0}}, "rotary_roformer"),
        ({"type_vocab_size": 0}, "rotary_roformer"),
    ],
)
def test_the_file_names_the_model_type_that_the_values_need(values, model_type, tmp_path):
    config = RoFormerConfig(**values)
    config.save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text("utf-8"))
    assert written["model_type"] == model_type
    for cls in (RoFormerConfig, RotaryRoFormerConfig):
        back = cls.from_pretrained(tmp_path)
        assert {n: getattr(back, n) for n in values} == {n: getattr(config, n) for n in values}
        assert back.to_dict()["model_type"] == model_type


def test_the_base_is_read_in_transformers_old_and_new_spelling():
    new = RoFormerConfig(rope_parameters={"rope_type": "default", "rope_theta": 500.0})
    old = RoFormerConfig(rope_theta=500.0)
    assert new.layer_frequencies() == old.layer_frequencies() == [inverse_power(64, 500.0)] * 12
    assert RoFormerConfig().rope_parameters is None


def test_what_is_set_afterwards_is_checked_when_a_model_is_built():
    config = RoFormerConfig(num_hidden_layers=1)
    config.nope_layers = [7]
    with pytest.raises(ConfigError, match=r"nope_layers names \[7\]"):
        RoFormerModel(config)
