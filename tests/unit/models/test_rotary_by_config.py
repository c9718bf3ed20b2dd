"""Frequencies by config: every schedule, one rotation a pass, lengths fixed when first read."""

import json

import pytest
import torch
from tools_support import cache_of
from torch.nn.functional import scaled_dot_product_attention

from rotary import RotaryEmbedding, from_config
from rotary.errors import ConfigError
from rotary.frequencies import inverse_power, linear, xpos
from rotary.models import RoFormerConfig, RoFormerForCausalLM, RoFormerForMaskedLM, RoFormerModel

WAYS = ("rotary_packed", "sdpa", "eager")
ORIGINAL = 8
ROPES = {
    "base": {"rope_type": "default", "rope_theta": 500000.0},
    "partial": {"rope_type": "default", "partial_rotary_factor": 0.5},
    "proportional": {"rope_type": "proportional", "partial_rotary_factor": 0.5},
    "linear": {"rope_type": "linear", "factor": 2.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": ORIGINAL},
    "llama3": {
        "rope_type": "llama3",
        "factor": 4.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": ORIGINAL,
    },
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
    "longrope": {
        "rope_type": "longrope",
        "factor": 4.0,
        "short_factor": [1.0, 1.2, 1.4, 1.6],
        "long_factor": [2.0, 3.0, 4.0, 5.0],
        "short_mscale": 1.1,
        "long_mscale": 1.3,
        "original_max_position_embeddings": ORIGINAL,
    },
}
BY_LENGTH = ("dynamic", "longrope")
RECIPES = {
    "xpos": xpos(inverse_power(8), scale_base=32.0).recipe,
    "half a head": inverse_power(4, 100.0).recipe,
}


def values(name):
    length = ORIGINAL if name == "dynamic" else 4 * ORIGINAL
    return {"rope_parameters": dict(ROPES[name]), "max_position_embeddings": length}


def make(build, cls, **config):
    torch.manual_seed(3)
    return build(cls, **config)


def watched(model, index):
    """The self attention of a layer, and a dict that its input and output go to."""
    layer, seen = model.encoder.layer[index].attention.self, {}
    layer.register_forward_hook(lambda _, args, out: seen.update(hidden=args[0], mixed=out[0]))
    return layer, seen


def by_hand(layer, hidden, rope, **lengths):
    q, k, v = (
        part(hidden).unflatten(-1, (2, 8)).transpose(1, 2)
        for part in (layer.query, layer.key, layer.value)
    )
    rotation = rope(torch.arange(hidden.shape[1]), dtype=torch.float64, **lengths)
    q, k = rotation.for_queries()(q), rotation.for_keys()(k)
    return scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


@pytest.mark.parametrize("name", ROPES)
@pytest.mark.parametrize("layout", ["interleaved", "half"])
def test_a_schedule_turns_as_its_rotary_embedding_does(build, name, layout):
    """A longer context is a change of the config: here four times the original length."""
    model = make(build, RoFormerModel, rotary_layout=layout, nope_layers=[0], **values(name))
    length = 4 * ORIGINAL
    known = {"rope_theta": 10000.0, **ROPES[name]}
    config = {**values(name), "rope_parameters": known, "head_dim": 8}
    rope = RotaryEmbedding(from_config(config), layout=layout)
    layer, seen = watched(model, 1)
    model(torch.randint(1, 50, (1, length)))
    lengths = {"lengths": length} if name in BY_LENGTH else {}
    expected = by_hand(layer, seen["hidden"], rope, **lengths)
    torch.testing.assert_close(seen["mixed"], expected)
    plain = by_hand(layer, seen["hidden"], RotaryEmbedding(head_dim=8, layout=layout))
    assert (expected - plain).abs().max() > 1e-4


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_of_our_own_turn_as_written(build, name):
    model = make(build, RoFormerModel, rotary_parameters=RECIPES[name])
    rope = RotaryEmbedding(from_config({"rotary_parameters": RECIPES[name]}))
    layer, seen = watched(model, 1)
    model(torch.randint(1, 50, (1, 9)))
    torch.testing.assert_close(seen["mixed"], by_hand(layer, seen["hidden"], rope))


@pytest.mark.parametrize("name", ROPES)
def test_the_config_and_its_type_come_back(name, tmp_path):
    config = RoFormerConfig(**{**values(name), "hidden_size": 16, "num_attention_heads": 2})
    assert config.to_dict()["model_type"] == "rotary_roformer"
    assert config.differences_from_stock() == ["rope_parameters"]
    again = RoFormerConfig.from_dict(config.to_dict())
    assert again.layer_frequencies() == config.layer_frequencies()
    config.save_pretrained(tmp_path)
    saved = RoFormerConfig.from_pretrained(tmp_path)
    assert saved.layer_frequencies() == config.layer_frequencies()
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "rotary_roformer"


def test_the_plain_base_is_still_stock_however_it_is_written():
    rope = {"rope_type": "default", "rope_theta": 10000.0}
    assert RoFormerConfig(rope_parameters=rope).to_dict()["model_type"] == "roformer"
    recipe = inverse_power(64).recipe
    assert RoFormerConfig(rotary_parameters=recipe).to_dict()["model_type"] == "roformer"


def test_a_longer_context_is_given_when_loading(build, tmp_path):
    make(build, RoFormerForMaskedLM).save_pretrained(tmp_path)
    plain = RoFormerForMaskedLM.from_pretrained(tmp_path)
    longer = RoFormerForMaskedLM.from_pretrained(tmp_path, **values("yarn"))
    for (key, old), new in zip(
        plain.state_dict().items(), longer.state_dict().values(), strict=True
    ):
        assert torch.equal(old, new), key
    ids = torch.randint(1, 50, (1, 4 * ORIGINAL))
    assert (plain(ids).logits - longer(ids).logits).abs().max() > 1e-3


def test_the_older_names_of_rope_are_taken_when_loading(build, tmp_path):
    make(build, RoFormerForMaskedLM).save_pretrained(tmp_path)
    base = RoFormerForMaskedLM.from_pretrained(tmp_path, rope_theta=5e4).config
    assert base.rope_parameters["rope_theta"] == 5e4
    scaling = {"rope_type": "linear", "factor": 2.0}
    scaled = RoFormerForMaskedLM.from_pretrained(tmp_path, rope_scaling=scaling).config
    assert scaled.layer_frequencies()[0] == linear(inverse_power(8), factor=2.0)


def test_equal_frequencies_are_made_into_tables_once_a_pass(build, monkeypatch):
    calls = []
    forward = RotaryEmbedding.forward

    def counted(self, *args, **keywords):
        calls.append(self)
        return forward(self, *args, **keywords)

    monkeypatch.setattr(RotaryEmbedding, "forward", counted)
    ids = torch.randint(1, 50, (1, 6))
    for config, expected in (
        ({"num_hidden_layers": 4, "nope_layers": [1]}, 1),
        ({"num_hidden_layers": 3, **values("dynamic")}, 1),
        ({"num_hidden_layers": 2, "nope_layers": [0, 1]}, 0),
        ({"position_encoding": "none"}, 0),
    ):
        calls.clear()
        make(build, RoFormerModel, **config)(ids)
        assert len(calls) == expected, config


@pytest.mark.parametrize("name", BY_LENGTH)
@pytest.mark.parametrize("way", WAYS)
def test_each_document_has_the_frequencies_of_its_own_length(build, name, way):
    model = make(build, RoFormerModel, **values(name))
    model.set_attn_implementation(way)
    lengths = (5, 20, 11)  # Below and above the original length.
    parts = [torch.randint(1, 50, (length,)) for length in lengths]
    alone = [model(part[None]).last_hidden_state[0] for part in parts]
    ids, mask = torch.zeros(2, 3, 24, dtype=torch.long).unbind()
    for side in ("left", "right"):
        ids.zero_(), mask.zero_()
        for row, part in enumerate(parts):
            where = slice(0, len(part)) if side == "right" else slice(24 - len(part), 24)
            ids[row, where], mask[row, where] = part, 1
        got = model(ids, attention_mask=mask).last_hidden_state
        for row, expected in enumerate(alone):
            torch.testing.assert_close(got[row][mask[row].bool()], expected, rtol=0, atol=1e-12)
    packed = torch.cat((*parts, torch.zeros(2, dtype=torch.long)))[None]
    document_ids = torch.tensor([[1] * 5 + [2] * 20 + [3] * 11 + [0] * 2])
    got = model(packed, document_ids=document_ids).last_hidden_state[0, :36]
    torch.testing.assert_close(got, torch.cat(alone), rtol=0, atol=1e-12)
    counted = torch.cat([torch.arange(n) for n in (*lengths, 2)])
    for positions in (counted, counted[None]):  # Given, for all rows alike.
        given = model(packed, document_ids=document_ids, position_ids=positions)
        torch.testing.assert_close(given.last_hidden_state[0, :36], got, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", BY_LENGTH)
def test_generation_keeps_the_frequencies_of_the_prompt(build, name):
    """What is written has the frequencies that the prompt had, so cached keys stay valid."""
    model = make(build, RoFormerForCausalLM, is_decoder=True, **values(name))
    prompt = 11 if name == "dynamic" else 6  # longrope passes from short to long while writing.
    ids = torch.randint(1, 50, (2, prompt))
    got = model.generate(ids, max_new_tokens=9, do_sample=False)
    fixed = from_config(
        {**values(name), "head_dim": 8, "rope_parameters": {"rope_theta": 1e4, **ROPES[name]}},
        length=prompt,
    )
    same = make(build, RoFormerForCausalLM, is_decoder=True, rotary_parameters=fixed.recipe)
    same.load_state_dict(model.state_dict())
    assert (
        got.tolist()
        == same.generate(ids, max_new_tokens=9, do_sample=False, use_cache=False).tolist()
    )
    output = model(ids, use_cache=True)
    later = model(got[:, prompt:], cache=cache_of(output)).logits
    expected = same(got, use_cache=False).logits[:, prompt:]
    torch.testing.assert_close(later, expected, rtol=0, atol=1e-12)
    moved = model(got, use_cache=False).logits[:, prompt:]
    assert (moved - expected).abs().max() > 1e-6
    static = model.generate(ids, max_new_tokens=9, do_sample=False, cache_implementation="static")
    assert static.tolist() == got.tolist()


def test_each_row_of_a_prompt_keeps_its_own_length(build):
    model = make(build, RoFormerForCausalLM, is_decoder=True, **values("dynamic"))
    ids = torch.randint(1, 50, (2, 14))
    mask = torch.ones_like(ids)
    mask[0, :8], ids[0, :8] = 0, 0
    got = model.generate(ids, attention_mask=mask, max_new_tokens=5, do_sample=False)
    alone = model.generate(ids[:1, 8:], max_new_tokens=5, do_sample=False)
    static = model.generate(
        ids, attention_mask=mask, max_new_tokens=5, do_sample=False, cache_implementation="static"
    )
    assert static.tolist() == got.tolist()
    assert got[0, 8:].tolist() == alone[0].tolist()


MIXED = {"type": "mixed", "dim": 8, "num_heads": 2, "base": 10000.0, "seed": 5}


def test_mixed_frequencies_learn_for_each_layer_and_head(build, tmp_path):
    model = make(build, RoFormerForMaskedLM, rotary_parameters=MIXED)
    ids = torch.randint(1, 50, (2, 7))
    model(ids, labels=ids).loss.backward()
    offsets = dict(model.roformer.positions.named_parameters())
    assert len(offsets) == 2
    for name, offset in offsets.items():
        assert offset.shape == (2, 1, 4), name
        assert offset.grad.abs().amax(dim=(1, 2)).min() > 1e-7, name
    with torch.no_grad():
        for index, offset in enumerate(offsets.values()):
            offset.normal_(std=0.1 * (index + 1))
    model.save_pretrained(tmp_path)
    loaded = RoFormerForMaskedLM.from_pretrained(tmp_path, dtype=torch.float64).eval()
    assert torch.equal(loaded(ids).logits, model(ids).logits)
    assert loaded.config.rotary_parameters == MIXED
    assert loaded.config.to_dict()["model_type"] == "rotary_roformer"
    mask = torch.ones_like(ids)
    mask[0, :3] = 0
    alone = model(ids[:1, 3:]).logits[0]
    for way in WAYS:
        model.set_attn_implementation(way)
        got = model(ids, attention_mask=mask).logits[0, 3:]
        torch.testing.assert_close(got, alone, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"rope_parameters": {"rope_type": "yarm", "factor": 2.0}}, "Did you mean 'yarn'"),
        ({"rope_parameters": {"rope_type": "linear"}}, "the key 'factor' is missing"),
        ({"rotary_parameters": {"type": "inverse_power", "din": 8}}, "unknown key 'din'"),
        ({"rotary_parameters": inverse_power(16).recipe}, "turn 16 channels, but there are 8"),
        ({"rotary_parameters": {**MIXED, "num_axes": 2}}, "have 2 position axes; text has one"),
        ({"rotary_parameters": {**MIXED, "num_heads": 3}}, "those of 3 heads"),
        (
            {"rotary_parameters": MIXED, "rope_parameters": {"rope_theta": 5e5}},
            "contradict each other",
        ),
        ({**values("dynamic"), "attention_form": "cosine"}, r"linear attention \('cosine'\) does"),
        ({"rotary_parameters": RECIPES["xpos"], "rotary_value": True}, "xpos has a scale"),
        (
            {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1e4}}},
            "a dict for each layer type",
        ),
    ],
)
def test_frequencies_that_cannot_be_are_refused(config, message):
    with pytest.raises(ConfigError, match=message):
        RoFormerConfig(**{"hidden_size": 16, "num_attention_heads": 2, **config})
