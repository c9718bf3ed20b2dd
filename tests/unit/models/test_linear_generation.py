"""Writing with a state of constant size gives what writing without a cache gives."""

import pytest
import torch
from tools_support import cache_of
from transformers import DynamicCache

from rotary.errors import ConfigError, ShapeError
from rotary.models import LinearStateCache, RoFormerForCausalLM, RoFormerModel

FORMS = ("numerator", "cosine", "performer")
HOW = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}


@pytest.fixture(params=FORMS)
def model(build, request):
    return build(RoFormerForCausalLM, is_decoder=True, attention_form=request.param)


@pytest.mark.parametrize("pieces", [[7], [3, 4], [1] * 7, [2, 1, 4]])
def test_whole_in_pieces_and_token_by_token_are_the_same(model, pieces):
    ids = torch.randint(0, 50, (2, 7))
    whole = model(ids, use_cache=False).logits
    cache, parts = None, []
    for piece in ids.split(pieces, dim=1):
        output = model(piece, cache=cache, use_cache=True)
        cache = cache_of(output)
        parts.append(output.logits)
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=0, atol=1e-12)
    assert cache.get_seq_length() == 7
    again = model(torch.cat((ids, ids[:, :1]), 1), use_cache=False).logits[:, -1:]
    by_old_name = model(ids[:, :1], past_key_values=cache).logits
    torch.testing.assert_close(by_old_name, again, rtol=0, atol=1e-12)


def test_left_padding_with_a_state_gives_what_the_text_gives_alone(model):
    ids = torch.randint(0, 50, (2, 9))
    mask = torch.ones(2, 9, dtype=torch.long)
    mask[0, :3] = 0
    first = model(ids[:, :6], attention_mask=mask[:, :6], use_cache=True)
    second = model(ids[:, 6:], attention_mask=mask, cache=cache_of(first))
    got = torch.cat((first.logits, second.logits), 1)
    alone = model(ids[:1, 3:], use_cache=False).logits
    torch.testing.assert_close(got[:1, 3:], alone, rtol=0, atol=1e-12)
    other = model(ids[1:], use_cache=False).logits
    torch.testing.assert_close(got[1:], other, rtol=0, atol=1e-12)


def test_generation_with_and_without_the_state_is_the_same(model):
    ids = torch.randint(1, 50, (2, 5))
    plain = model.generate(ids, use_cache=False, **HOW)
    output = model.generate(ids, return_dict_in_generate=True, **HOW)
    assert torch.equal(output.sequences, plain)
    assert plain.shape == (2, 13)
    beams = {"num_beams": 4, "num_return_sequences": 2}
    slow = model.generate(ids, use_cache=False, **beams, **HOW)
    assert torch.equal(model.generate(ids, **beams, **HOW), slow)
    assert not torch.equal(slow[::2, :13], plain)  # So beams were taken over and reordered.
    drawn = []
    for use_cache in (True, False):
        torch.manual_seed(5)
        how = {**HOW, "do_sample": True, "temperature": 0.8}
        drawn.append(model.generate(ids, use_cache=use_cache, num_return_sequences=3, **how))
    assert torch.equal(*drawn)
    assert len({tuple(row.tolist()) for row in drawn[0]}) == 6


def test_generation_from_left_padded_prompts_is_that_of_each_alone(model):
    ids = torch.randint(1, 50, (2, 6))
    mask = torch.ones_like(ids)
    mask[0, :2] = 0
    together = model.generate(ids, attention_mask=mask, **HOW)
    alone = model.generate(ids[:1, 2:], **HOW)
    assert torch.equal(together[0, 6:], alone[0, 4:])
    assert torch.equal(together[1:], model.generate(ids[1:], **HOW))


def test_the_state_does_not_grow_and_old_ones_stay_as_they_are(model):
    ids = torch.randint(1, 50, (1, 40))
    cache = cache_of(model(ids[:, :1], use_cache=True))
    assert isinstance(cache, LinearStateCache)
    before = cache.layers[1].state()
    kept = before.memory.clone()
    sizes = [part.shape for part in (before.memory, before.key_sum)]
    model(ids[:, 1:], cache=cache)
    after = cache.layers[1].state()
    assert [part.shape for part in (after.memory, after.key_sum)] == sizes
    assert torch.equal(before.memory, kept)
    assert not torch.equal(after.memory, kept)
    assert cache.get_seq_length() == 40
    cache.reset()
    fresh = model(ids[:, :5], cache=cache).logits
    plain = model(ids[:, :5], use_cache=False).logits
    torch.testing.assert_close(fresh, plain, rtol=0, atol=1e-12)


def test_sums_of_a_half_precision_model_are_float32(model):
    cache = cache_of(model.bfloat16()(torch.randint(1, 50, (1, 4)), use_cache=True))
    assert {layer.state().memory.dtype for layer in cache.layers} == {torch.float32}


def test_rows_of_the_state_are_repeated_and_chosen(model):
    ids = torch.randint(1, 50, (2, 6))
    cache = cache_of(model(ids[:, :5], use_cache=True))
    cache.batch_repeat_interleave(2)
    cache.batch_select_indices(torch.tensor([3, 0]))
    got = model(ids[[1, 0], 5:], cache=cache).logits
    right = model(ids[[1, 0]], use_cache=False).logits[:, -1:]
    torch.testing.assert_close(got, right, rtol=0, atol=1e-12)


def test_what_a_state_cannot_do_is_refused(model, build):
    ids = torch.randint(1, 50, (1, 4))
    with pytest.raises(ConfigError, match="is a DynamicCache, which holds keys and values"):
        model(ids, cache=DynamicCache())
    with pytest.raises(ConfigError, match="cache_implementation is 'static'"):
        model.generate(ids, cache_implementation="static", **HOW)
    softmax = build(RoFormerForCausalLM, is_decoder=True)
    with pytest.raises(ValueError, match="assisted generation is not supported with stateful"):
        model.generate(ids, assistant_model=softmax, **HOW)
    with pytest.raises(ConfigError, match="cannot assist another one"):
        softmax.generate(ids, assistant_model=model, **HOW)
    documents = torch.ones_like(ids)
    with pytest.raises(ShapeError, match="cannot go with a cache"):
        model(ids, document_ids=documents, cache=cache_of(model(ids, use_cache=True)))


def test_a_softmax_model_refuses_a_linear_state(build):
    model = build(RoFormerModel, is_decoder=True)
    with pytest.raises(ConfigError, match="is a LinearStateCache"):
        model(torch.tensor([[1, 2]]), cache=LinearStateCache(2))
