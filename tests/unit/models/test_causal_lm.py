import pytest
import torch
from tools_support import cache_of

from rotary.errors import ConfigError
from rotary.models import RoFormerForCausalLM

WAYS = ("rotary_packed", "sdpa", "eager")


@pytest.fixture
def model(build):
    return build(RoFormerForCausalLM, is_decoder=True)


def logits_of(model, ids, **inputs):
    return model(ids, **inputs).logits


@pytest.mark.parametrize("way", WAYS)
def test_a_token_sees_only_what_came_before(model, way):
    model.set_attn_implementation(way)
    ids = torch.randint(0, 50, (2, 8))
    changed = ids.clone()
    changed[:, 5:] = (ids[:, 5:] + 1) % 50
    before, after = logits_of(model, ids), logits_of(model, changed)
    torch.testing.assert_close(after[:, :5], before[:, :5], rtol=0, atol=1e-13)
    assert (after[:, 5:] - before[:, 5:]).abs().max() > 1e-2


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("pieces", [[7], [3, 4], [1] * 7, [2, 1, 4]])
def test_the_cache_changes_nothing_however_the_text_is_cut(model, way, pieces):
    """huggingface/transformers#22416: each new token was given position 0."""
    model.set_attn_implementation(way)
    ids = torch.randint(0, 50, (2, 7))
    whole = logits_of(model, ids, use_cache=False)
    cache, parts = None, []
    for piece in ids.split(pieces, dim=1):
        output = model(piece, cache=cache, use_cache=True)
        cache = cache_of(output)
        parts.append(output.logits)
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=0, atol=1e-12)
    old_name = model(ids[:, :1], past_key_values=cache).logits
    again = logits_of(model, torch.cat((ids, ids[:, :1]), 1))[:, -1:]
    torch.testing.assert_close(old_name, again, rtol=0, atol=1e-12)


@pytest.mark.parametrize("way", WAYS)
def test_left_padding_with_a_cache_gives_what_the_text_gives_alone(model, way):
    model.set_attn_implementation(way)
    ids = torch.randint(0, 50, (2, 9))
    mask = torch.ones(2, 9, dtype=torch.long)
    mask[0, :3] = 0
    first = model(ids[:, :6], attention_mask=mask[:, :6], use_cache=True)
    second = model(ids[:, 6:], attention_mask=mask, cache=cache_of(first))
    got = torch.cat((first.logits, second.logits), 1)
    alone = logits_of(model, ids[:1, 3:])
    torch.testing.assert_close(got[:1, 3:], alone, rtol=0, atol=1e-12)
    torch.testing.assert_close(got[1:], logits_of(model, ids[1:]), rtol=0, atol=1e-12)


@pytest.mark.parametrize("way", WAYS)
def test_packed_texts_do_not_see_each_other(model, way):
    model.set_attn_implementation(way)
    ids = torch.randint(0, 50, (1, 9))
    documents = torch.tensor([[1, 1, 1, 2, 2, 2, 2, 0, 0]])
    packed = logits_of(model, ids, document_ids=documents)
    for a, b in ((0, 3), (3, 7)):
        torch.testing.assert_close(
            packed[:, a:b], logits_of(model, ids[:, a:b]), rtol=0, atol=1e-12
        )
    labels = ids.masked_fill(documents == 0, -100)
    loss = model(ids, document_ids=documents, labels=labels).loss
    alone = [model(ids[:, a:b], labels=ids[:, a:b]).loss * (b - a - 1) for a, b in ((0, 3), (3, 7))]
    torch.testing.assert_close(loss, sum(alone) / 5, rtol=0, atol=1e-12)
    sparse = model(ids, document_ids=documents, labels=labels, sparse_logits=True)
    torch.testing.assert_close(sparse.loss, loss, rtol=0, atol=1e-12)
    assert sparse.logits.shape == (5, 50)


def test_generation_with_and_without_cache_is_the_same(model):
    ids = torch.randint(1, 50, (2, 5))
    how = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
    plain = model.generate(ids, use_cache=False, **how)
    assert torch.equal(model.generate(ids, **how), plain)
    assert torch.equal(model.generate(ids, cache_implementation="static", **how), plain)
    beams = model.generate(ids, num_beams=3, use_cache=False, **how)
    assert torch.equal(model.generate(ids, num_beams=3, **how), beams)
    assert plain.shape == (2, 13)


def test_generation_from_left_padded_prompts(model):
    ids = torch.randint(1, 50, (2, 6))
    mask = torch.ones_like(ids)
    mask[0, :2] = 0
    how = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    together = model.generate(ids, attention_mask=mask, **how)
    alone = model.generate(ids[:1, 2:], **how)
    assert torch.equal(together[0, 6:], alone[0, 4:])
    assert torch.equal(together[1:], model.generate(ids[1:], **how))


def test_a_prefix_model_sees_its_prefix_whole_and_writes_segment_one(build):
    """JunnYu/RoFormer_pytorch#45: segments stayed 0 in generation, silently wrong."""
    model = build(RoFormerForCausalLM, is_decoder=True, is_prefix_lm=True)
    ids = torch.randint(1, 50, (2, 9))
    segments = torch.tensor([[0] * 4 + [1] * 5]).expand(2, -1)
    order = segments.cumsum(-1)
    unilm = (order[:, None, :] <= order[:, :, None])[:, None]
    right = logits_of(model, ids, token_type_ids=segments, attention_mask=unilm)
    got = logits_of(model, ids, token_type_ids=segments)
    torch.testing.assert_close(got, right, rtol=0, atol=1e-13)
    first = model(ids[:, :4], token_type_ids=segments[:, :4], use_cache=True)
    rest = model(ids[:, 4:], token_type_ids=segments[:, 4:], cache=cache_of(first)).logits
    torch.testing.assert_close(torch.cat((first.logits, rest), 1), right, rtol=0, atol=1e-12)

    prompt, types = ids[:, :4], segments[:, :4]
    how = {"token_type_ids": types, "max_new_tokens": 5, "do_sample": False, "pad_token_id": 0}
    written = model.generate(prompt, **how)
    assert torch.equal(written, model.generate(prompt, use_cache=False, **how))
    for step in range(4, 9):  # By hand, one token after the other.
        logits = logits_of(model, written[:, :step], token_type_ids=segments[:, :step])
        assert torch.equal(written[:, step], logits[:, -1].argmax(-1))
    with pytest.raises(ConfigError, match="needs token_type_ids"):
        model.generate(prompt, max_new_tokens=2)


def test_only_the_logits_that_are_wanted(model):
    ids = torch.randint(0, 50, (2, 7))
    whole = logits_of(model, ids)
    last = logits_of(model, ids, logits_to_keep=2)
    torch.testing.assert_close(last, whole[:, -2:], rtol=0, atol=1e-13)
    some = logits_of(model, ids, logits_to_keep=torch.tensor([0, 4]))
    torch.testing.assert_close(some, whole[:, [0, 4]], rtol=0, atol=1e-13)


def test_a_model_that_sees_the_future_cannot_be_causal(build):
    with pytest.raises(ConfigError, match="use is_decoder=True"):
        build(RoFormerForCausalLM)


def test_the_cache_is_kept_out_of_training_and_of_encoders(model, build):
    ids = torch.randint(0, 50, (1, 4))
    assert cache_of(model(ids)) is not None
    assert cache_of(model(ids, labels=ids)) is None
    assert cache_of(model.train()(ids)) is None
    from rotary.models import RoFormerModel

    with pytest.raises(ConfigError, match="is_decoder is False"):
        build(RoFormerModel)(ids, use_cache=True)
