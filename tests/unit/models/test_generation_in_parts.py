"""Text that is read in parts, guessed ahead, or goes on from a cache is what it is in one piece."""

import pytest
import torch
from tools_support import cache_of, going_on_from

from rotary.errors import ConfigError
from rotary.models import RoFormerForCausalLM

WAYS = ("rotary_packed", "sdpa", "eager")
GREEDY = {"do_sample": False, "return_dict_in_generate": True, "output_logits": True}
BY_LENGTH = [
    {
        "rope_parameters": {
            "rope_type": "longrope",
            "factor": 4.0,
            "short_factor": [1.0] * 4,
            "long_factor": [3.0] * 4,
            "original_max_position_embeddings": 6,
        },
        "max_position_embeddings": 24,
    },
    {"rope_parameters": {"rope_type": "dynamic", "factor": 4.0}, "max_position_embeddings": 6},
]


def prefix_model(build):
    return build(RoFormerForCausalLM, is_decoder=True, is_prefix_lm=True)


@pytest.mark.parametrize("way", WAYS)
def test_each_packed_document_has_a_prefix_of_its_own(build, way):
    model = prefix_model(build)
    model.set_attn_implementation(way)
    ids = torch.randint(1, 50, (1, 9))
    documents = torch.tensor([[1, 1, 1, 1, 2, 2, 2, 2, 2]])
    segments = torch.tensor([[0, 0, 1, 1, 0, 0, 0, 1, 1]])
    packed = model(ids, document_ids=documents, token_type_ids=segments).logits
    for a, b in ((0, 4), (4, 9)):
        alone = model(ids[:, a:b], token_type_ids=segments[:, a:b]).logits
        torch.testing.assert_close(packed[:, a:b], alone, rtol=0, atol=1e-12)


def test_the_segment_of_padding_has_no_say_in_a_prefix(build):
    model = prefix_model(build)
    ids = torch.randint(1, 50, (1, 8))
    mask = torch.tensor([[0, 0, 1, 1, 1, 1, 1, 1]])
    segments = torch.tensor([[1, 1, 0, 0, 0, 1, 1, 1]])
    got = model(ids, attention_mask=mask, token_type_ids=segments).logits[:, 2:]
    alone = model(ids[:, 2:], token_type_ids=segments[:, 2:]).logits
    torch.testing.assert_close(got, alone, rtol=0, atol=1e-12)


def test_a_prefix_without_segments_is_all_prefix(build):
    model = prefix_model(build)
    ids = torch.randint(1, 50, (1, 6))
    expected = model(ids, token_type_ids=torch.zeros_like(ids)).logits
    torch.testing.assert_close(model(ids).logits, expected, rtol=0, atol=0)
    last_changed = ids.clone()
    last_changed[0, -1] = ids[0, -1] % 49 + 1
    assert (model(last_changed).logits[:, 0] - expected[:, 0]).abs().max() > 1e-6


def test_a_prefix_model_does_not_learn_from_what_it_sees(build):
    """Without segments all is prefix, so the labels would stand in the input."""
    model = prefix_model(build)
    ids = torch.randint(1, 50, (1, 6))
    with pytest.raises(ConfigError, match="needs token_type_ids beside labels"):
        model(ids, labels=ids)
    segments = torch.tensor([[0, 0, 1, 1, 1, 1]])
    assert model(ids, token_type_ids=segments, labels=ids).loss > 0


def test_a_prefix_in_pieces_is_refused(build):
    model = prefix_model(build)
    ids = torch.randint(1, 50, (1, 8))
    zeros = torch.zeros_like(ids)
    start = model(ids[:, :4], token_type_ids=zeros[:, :4], use_cache=True)
    for segments in (zeros[:, 4:], None):
        with pytest.raises(ConfigError, match="segment 0 come behind a cache"):
            model(ids[:, 4:], token_type_ids=segments, cache=cache_of(start))
    with pytest.raises(ConfigError, match="no prefill_chunk_size"):
        model.generate(ids, token_type_ids=zeros, prefill_chunk_size=3, max_new_tokens=2)


@pytest.mark.parametrize("has_mask", [True, False])
@pytest.mark.parametrize("form", ["softmax", "numerator", "cosine", "performer"])
def test_generation_goes_on_from_a_returned_cache(build, form, has_mask):
    model = build(RoFormerForCausalLM, is_decoder=True, attention_form=form)
    first = model.generate(torch.randint(1, 50, (2, 5)), max_new_tokens=6, **GREEDY)
    whole = torch.cat((first.sequences, torch.randint(1, 50, (2, 3))), dim=1)
    how = {**GREEDY, "max_new_tokens": 4}
    if has_mask:
        how["attention_mask"] = torch.ones_like(whole)
    fresh = model.generate(whole, **how)
    gone_on = model.generate(whole, **going_on_from(first), **how)
    torch.testing.assert_close(gone_on.logits[0], fresh.logits[0], rtol=0, atol=1e-6)
    assert torch.equal(gone_on.sequences, fresh.sequences)


def test_a_state_with_nothing_new_to_read_or_in_chunks_is_refused(build):
    model = build(RoFormerForCausalLM, is_decoder=True, attention_form="numerator")
    ids = torch.randint(1, 50, (1, 5))
    cache = going_on_from(model(ids, use_cache=True))
    with pytest.raises(ConfigError, match="has taken in 5 tokens and the text has 5"):
        model.generate(ids, **cache, max_new_tokens=2)
    longer = torch.cat((ids, ids), dim=1)
    with pytest.raises(ConfigError, match="prefill_chunk_size cannot go with a state"):
        model.generate(longer, **cache, prefill_chunk_size=2, max_new_tokens=2)


@pytest.mark.parametrize(
    "how",
    [{"prompt_lookup_num_tokens": 3}, {"prefill_chunk_size": 3}],
    ids=["looked up", "in chunks"],
)
@pytest.mark.parametrize("config", BY_LENGTH, ids=["longrope", "dynamic"])
@pytest.mark.parametrize("has_mask", [True, False])
def test_the_length_of_a_text_is_that_of_its_prompt(build, config, how, has_mask):
    """What was read first set it: a chunk of the prompt, or the prompt and guesses behind it."""
    model = build(RoFormerForCausalLM, is_decoder=True, **config)
    for length in (5, 9):
        ids = torch.tensor([[7, 9, 11, 7, 9, 11, 7, 9, 11]])[:, :length]
        mask = {"attention_mask": torch.ones_like(ids)} if has_mask else {}
        plain = model.generate(ids, max_new_tokens=6, **mask, **GREEDY)
        found = model.generate(ids, max_new_tokens=6, **mask, **how, **GREEDY)
        torch.testing.assert_close(found.logits[0], plain.logits[0], rtol=0, atol=1e-6)
        assert torch.equal(found.sequences, plain.sequences)


@pytest.mark.parametrize("form", ["softmax", "numerator"])
def test_generation_from_embeddings(build, form):
    model = build(RoFormerForCausalLM, is_decoder=True, attention_form=form)
    ids = torch.randint(1, 50, (2, 5))
    embeds = model.get_input_embeddings()(ids)
    from_ids = model.generate(ids, max_new_tokens=4, do_sample=False)[:, 5:]
    assert torch.equal(
        model.generate(inputs_embeds=embeds, max_new_tokens=4, do_sample=False), from_ids
    )
