"""Every position encoding in a model: documents alone, padded, packed, cached, saved."""

import pytest
import torch
from tools_support import cache_of

from rotary.attention.encodings import ENCODINGS
from rotary.errors import ConfigError
from rotary.models import (
    RoFormerConfig,
    RoFormerForCausalLM,
    RoFormerForMaskedLM,
    RoFormerModel,
)

WAYS = ("rotary_packed", "sdpa", "eager")
RELATIVE = ("shaw", "nezha", "t5", "alibi")
LENGTHS = (3, 5, 5, 9)
LIMIT = 9  # Vectors of the learned encoding: padding beyond it must not ask for more.


def make(build, cls, name, **values):
    torch.manual_seed(7)
    return build(cls, position_encoding=name, max_position_embeddings=LIMIT, **values)


def documents():
    torch.manual_seed(1)
    return [torch.randint(1, 50, (length,)) for length in LENGTHS]


def padded(parts, side, width=12):
    ids = torch.zeros(len(parts), width, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, part in enumerate(parts):
        where = slice(0, len(part)) if side == "right" else slice(width - len(part), width)
        ids[row, where], mask[row, where] = part, 1
    return ids, mask


@pytest.mark.parametrize("is_decoder", [False, True])
@pytest.mark.parametrize("name", ENCODINGS)
def test_padding_and_packing_give_a_token_what_its_document_gives_it_alone(build, name, is_decoder):
    model = make(build, RoFormerModel, name, is_decoder=is_decoder)
    parts = documents()
    alone = [model(part[None]).last_hidden_state[0] for part in parts]
    packed = torch.cat((parts[0], parts[3], parts[1], torch.tensor([0, 0])))[None]
    document_ids = torch.tensor([[1] * 3 + [2] * 9 + [3] * 5 + [0] * 2])
    for way in WAYS:
        model.set_attn_implementation(way)
        for side in ("left", "right"):
            ids, mask = padded(parts, side)
            got = model(ids, attention_mask=mask).last_hidden_state
            for row, expected in enumerate(alone):
                real = got[row][mask[row].bool()]
                torch.testing.assert_close(real, expected, rtol=0, atol=1e-12)
        got = model(packed, document_ids=document_ids).last_hidden_state[0, :17]
        expected = torch.cat((alone[0], alone[3], alone[1]))
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ENCODINGS)
def test_the_order_of_the_tokens_matters_to_all_encodings_but_none(build, name):
    model = make(build, RoFormerModel, name)
    ids = torch.randint(1, 50, (1, 7))
    order = torch.tensor([3, 1, 0, 2, 6, 4, 5])
    there = model(ids).last_hidden_state[:, order]
    back = model(ids[:, order]).last_hidden_state
    difference = (there - back).abs().max().item()
    assert difference < 1e-12 if name == "none" else difference > 1e-3


@pytest.mark.parametrize("name", RELATIVE)
def test_a_layer_attends_as_the_encoding_says(build, name):
    model = make(build, RoFormerModel, name, is_decoder=True)
    layer, seen = model.encoder.layer[1].attention.self, {}
    layer.register_forward_hook(lambda _, args, out: seen.update(hidden=args[0], mixed=out[0]))
    positions = torch.tensor([0, 1, 2, 30, 31, 60, 90])
    model(torch.randint(1, 50, (2, 7)), position_ids=positions)
    q, k, v = (
        part(seen["hidden"]).reshape(2, 7, 2, 8).transpose(1, 2)
        for part in (layer.query, layer.key, layer.value)
    )
    encoding = model.positions.encoding
    order = torch.arange(7)[:, None] >= torch.arange(7)
    relation = encoding.relate(positions, positions)
    expected = encoding.attend(q, k, v, relation, mask=order, layer=1)
    torch.testing.assert_close(seen["mixed"], expected.transpose(1, 2).flatten(2))


@pytest.mark.parametrize("name", ENCODINGS)
def test_the_cache_changes_nothing(build, name):
    model = make(build, RoFormerForCausalLM, name, is_decoder=True)
    ids = torch.randint(1, 50, (2, 9))
    mask = torch.ones_like(ids)
    mask[0, :3] = 0
    for given in (None, torch.tensor([0, 1, 2, 3, 5, 6, 7, 7, 8])):
        whole = model(ids, attention_mask=mask, position_ids=given).logits
        cache, parts, stop = None, [], 0
        for piece in ids.split([4, 1, 3, 1], dim=1):
            start, stop = stop, stop + piece.shape[1]
            where = None if given is None else given[start:stop]
            output = model(
                piece,
                attention_mask=mask[:, :stop],
                position_ids=where,
                cache=cache,
                use_cache=True,
            )
            cache = cache_of(output)
            parts.append(output.logits)
        got = torch.cat(parts, 1)
        real = mask.bool()
        torch.testing.assert_close(got[real], whole[real], rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ENCODINGS)
def test_generation_is_the_same_with_every_cache_and_without(build, name):
    model = make(build, RoFormerForCausalLM, name, is_decoder=True)
    ids, mask = padded(documents()[:2], "left", width=5)
    settings = {"attention_mask": mask, "max_new_tokens": 4, "do_sample": False}
    bare = model.generate(ids, use_cache=False, **settings)
    assert model.generate(ids, **settings).tolist() == bare.tolist()
    static = model.generate(ids, cache_implementation="static", **settings)
    assert static.tolist() == bare.tolist()
    alone = model.generate(documents()[0][None], max_new_tokens=4, do_sample=False)
    assert bare[0, 2:].tolist() == alone[0].tolist()


@pytest.mark.parametrize("name", ["shaw", "t5"])
def test_beams_take_the_positions_of_their_keys_along(build, name):
    model = make(build, RoFormerForCausalLM, name, is_decoder=True)
    ids, mask = padded(documents()[:3], "left", width=6)
    settings = {"attention_mask": mask, "max_new_tokens": 4, "do_sample": False, "num_beams": 3}
    bare = model.generate(ids, use_cache=False, **settings)
    assert model.generate(ids, **settings).tolist() == bare.tolist()


@pytest.mark.parametrize("name", ENCODINGS)
def test_a_saved_model_comes_back(build, name, tmp_path):
    model = make(build, RoFormerForMaskedLM, name)
    model.save_pretrained(tmp_path)
    loaded = RoFormerForMaskedLM.from_pretrained(tmp_path, dtype=torch.float64).eval()
    assert loaded.config.position_encoding == name
    ids = torch.randint(1, 50, (2, 6))
    assert torch.equal(loaded(ids).logits, model(ids).logits)
    kind = "roformer" if name == "rotary" else "rotary_roformer"
    assert model.config.to_dict()["model_type"] == kind
    weights = [key for key in model.state_dict() if "positions" in key]
    assert bool(weights) == (name in ("learned", "shaw", "t5"))
    if weights:
        with pytest.raises(ConfigError, match="position encoding is another"):
            RoFormerForMaskedLM.from_pretrained(tmp_path, position_encoding="rotary")


def test_weights_of_an_encoding_start_like_all_others():
    sizes = {
        "hidden_size": 64,
        "num_attention_heads": 2,
        "num_hidden_layers": 1,
        "intermediate_size": 8,
        "vocab_size": 50,
    }
    for name in ("learned", "shaw", "t5"):
        config = RoFormerConfig(position_encoding=name, initializer_range=0.05, **sizes)
        model = RoFormerModel(config)
        for key, weight in model.positions.named_parameters():
            assert weight.abs().max() <= 0.1, key
            assert 0.02 < weight.std() < 0.06, key


@pytest.mark.parametrize("name", ["learned", "shaw", "t5"])
def test_weights_of_an_encoding_learn_also_with_checkpointed_layers(build, name):
    model = make(build, RoFormerModel, name).train()
    ids, mask = padded(documents(), "right")
    found = []
    for is_checkpointed in (False, True):
        if is_checkpointed:
            (
                getattr(model, "activation_checkpointing_enable", None)
                or model.gradient_checkpointing_enable
            )()
        model.zero_grad()
        (model(ids, attention_mask=mask).last_hidden_state * mask[..., None]).pow(
            3
        ).sum().backward()
        found.append([p.grad.clone() for p in model.positions.parameters()])
    for first, second in zip(*found, strict=True):
        assert first.abs().max() > 1e-6
        torch.testing.assert_close(first, second)
    enable = getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)
    if name == "t5":  # Its bias is made once, for all layers.
        with pytest.raises(ConfigError, match="reentrant checkpointing cannot"):
            enable({"use_reentrant": True})
    else:
        enable({"use_reentrant": True})


@pytest.mark.parametrize("form", ["numerator", "cosine", "performer"])
@pytest.mark.parametrize("name", ["learned", "sinusoidal", "none"])
def test_encodings_of_the_input_go_with_linear_attention(build, name, form):
    model = make(build, RoFormerModel, name, attention_form=form)
    ids, mask = padded(documents(), "left")
    got = model(ids, attention_mask=mask).last_hidden_state[0, -3:]
    alone = model(documents()[0][None]).last_hidden_state[0]
    torch.testing.assert_close(got, alone, rtol=0, atol=1e-12)


def test_what_cannot_be_is_refused(build):
    with pytest.raises(
        ConfigError, match=r"position_encoding is 't5'.*'performer', which has none"
    ):
        make(build, RoFormerModel, "t5", attention_form="performer")
    with pytest.raises(ConfigError, match="rotary_value is True, but position_encoding is 'alibi'"):
        make(build, RoFormerModel, "alibi", rotary_value=True)
    rope = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 8}
    with pytest.raises(ConfigError, match=r"'yarn'.*, but position_encoding is 'learned'"):
        make(build, RoFormerModel, "learned", rope_parameters=rope)
    with pytest.raises(ConfigError, match=r"nope_layers is \[0\], but position_encoding is 'none'"):
        make(build, RoFormerModel, "none", nope_layers=[0])
    with pytest.raises(ConfigError, match="the size of a head is 7; sinusoids come in pairs"):
        make(build, RoFormerModel, "nezha", hidden_size=14)
    learned = make(build, RoFormerModel, "learned")
    with pytest.raises(
        ConfigError, match="positions run from 0 to 9; there are vectors for 0 to 8"
    ):
        learned(torch.randint(1, 50, (1, 10)))
    shaw = make(build, RoFormerModel, "shaw")
    shaw.set_attn_implementation("eager")
    with pytest.raises(ConfigError, match="'shaw' has an attention of its own"):
        shaw(torch.randint(1, 50, (1, 4)), output_attentions=True)


@pytest.mark.skipif(
    torch.version.cuda is not None and not torch.cuda.is_available(),
    reason="this PyTorch cannot offload: it is built for a GPU and there is none",
)
def test_a_cache_that_cannot_keep_positions_is_refused(build):
    writer = make(build, RoFormerForCausalLM, "alibi", is_decoder=True)
    with pytest.raises(ConfigError, match=r"cannot keep the positions.*use transformers' Dynamic"):
        writer.generate(
            torch.randint(1, 50, (1, 4)), max_new_tokens=2, cache_implementation="offloaded"
        )
