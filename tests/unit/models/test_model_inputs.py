"""Inputs that cannot be meant are one clear error; inputs of no size give results of no size."""

import pytest
import torch

from rotary.errors import ConfigError, DtypeError, ShapeError
from rotary.models import (
    RoFormerForCausalLM,
    RoFormerForMaskedLM,
    RoFormerForMultipleChoice,
    RoFormerForPairMatching,
    RoFormerForQuestionAnswering,
    RoFormerForSentenceEmbedding,
    RoFormerForSequenceClassification,
    RoFormerModel,
)

IDS = torch.arange(1, 10)[None]
MASK = torch.tensor([[0, 0, 1, 1, 1, 1, 1, 1, 1]])


@pytest.mark.parametrize("pooling", ["first", "mean"])
@pytest.mark.parametrize(
    "head",
    [
        RoFormerForSequenceClassification,
        RoFormerForPairMatching,
        RoFormerForSentenceEmbedding,
    ],
)
def test_a_mask_over_pairs_does_not_say_what_a_text_is(build, head, pooling):
    with pytest.raises(ShapeError, match=r"one vector for each text needs \(batch, length\)"):
        build(head, pooling=pooling)(IDS, attention_mask=torch.ones(1, 1, 9, 9, dtype=torch.bool))


def test_the_pooler_takes_the_first_real_token_of_packed_rows_too(build):
    model = build(RoFormerModel, pooler_activation="tanh")
    documents = torch.tensor([[0, 1, 1, 1, 2, 2, 2, 2, 2]])
    output = model(IDS, document_ids=documents)
    expected = model.pooler(output.last_hidden_state[:, 1])
    torch.testing.assert_close(output.pooler_output, expected)


def test_a_pooler_beside_a_cache_and_left_padding(build):
    model = build(RoFormerForCausalLM, is_decoder=True, pooler_activation="tanh")
    how = {"max_new_tokens": 4, "do_sample": False, "pad_token_id": 0}
    got = model.generate(IDS, attention_mask=MASK, **how)
    assert torch.equal(got[:, 9:], model.generate(IDS[:, 2:], **how)[:, 7:])


@pytest.mark.parametrize(
    ("mask", "value"),
    [
        (torch.tensor([[0.0] * 7 + [-1e9] * 2]), r"-1e\+09"),
        (torch.tensor([[0.5] + [1.0] * 8]), r"0\.5"),
        (torch.tensor([[1] * 4 + [2] * 5]), "2"),
    ],
)
def test_a_mask_of_tokens_is_zeros_and_ones(build, mask, value):
    """One that is added to scores would be turned into its opposite by ``bool``."""
    with pytest.raises(ConfigError, match=f"attention_mask holds {value};"):
        build(RoFormerForMaskedLM)(IDS, attention_mask=mask)


@pytest.mark.parametrize(
    ("inputs", "error", "message"),
    [
        ({"input_ids": IDS.float()}, DtypeError, "input_ids are torch.float32"),
        ({"input_ids": IDS, "token_type_ids": IDS}, ConfigError, "type_vocab_size is 2"),
        ({"input_ids": IDS, "token_type_ids": IDS * 0.0}, DtypeError, "must be integers"),
        ({"inputs_embeds": torch.zeros(1, 3, 7)}, ShapeError, r"expected \(batch, length, 16\)"),
    ],
)
def test_tokens_and_segments_that_cannot_be_looked_up(build, inputs, error, message):
    with pytest.raises(error, match=message):
        build(RoFormerModel)(**inputs)


def test_segments_play_no_part_without_their_embedding(build):
    model = build(RoFormerModel, type_vocab_size=0)
    plain = model(IDS).last_hidden_state
    assert torch.equal(model(IDS, token_type_ids=torch.ones_like(IDS)).last_hidden_state, plain)


def test_caches_that_cannot_be_used(build):
    model = build(RoFormerForCausalLM, is_decoder=True)
    with pytest.raises(ConfigError, match="the cache is a tuple"):
        model(IDS, cache=((1, 2),))
    one, two = (model(IDS).to_tuple()[1] for _ in range(2))
    with pytest.raises(ConfigError, match="an older name of cache"):
        model(IDS, cache=one, past_key_values=two)


@pytest.mark.parametrize("label", [5.0, -1.0, float("nan")])
def test_a_pair_matches_or_does_not(build, label):
    with pytest.raises(ConfigError, match="1 and does not with 0"):
        build(RoFormerForPairMatching)(IDS, labels=torch.tensor([label]))


@pytest.mark.parametrize("label", [3, 11, -1])
def test_a_class_that_the_head_does_not_have(build, label):
    with pytest.raises(ConfigError, match=f"labels hold {label}, but the head has 3 classes"):
        build(RoFormerForSequenceClassification, num_labels=3)(IDS, labels=torch.tensor([label]))


def test_answers_outside_the_text_are_left_out(build):
    """All answers of a batch cut off made the loss not a number; -100 was taken for token 0."""
    model = build(RoFormerForQuestionAnswering)
    outside = {"start_positions": torch.tensor([99]), "end_positions": torch.tensor([-100])}
    loss = model(IDS, **outside).loss
    assert loss.item() == 0.0
    loss.backward()
    two = IDS.expand(2, -1)
    places = {"start_positions": torch.tensor([3, -100]), "end_positions": torch.tensor([4, 99])}
    one = {name: value[:1] for name, value in places.items()}
    torch.testing.assert_close(model(two, **places).loss, model(IDS, **one).loss)


def test_an_answer_on_padding_is_an_error(build):
    places = {"start_positions": torch.tensor([1]), "end_positions": torch.tensor([4])}
    with pytest.raises(ConfigError, match="answer of row 0 begins or ends at token 1"):
        build(RoFormerForQuestionAnswering)(IDS, attention_mask=MASK, **places)


def test_choices_share_positions_of_one_axis(build):
    model = build(RoFormerForMultipleChoice)
    ids = torch.stack((IDS, IDS.flip(-1)), dim=1)
    shared = model(ids, position_ids=torch.arange(9)).logits
    torch.testing.assert_close(shared, model(ids).logits, rtol=0, atol=1e-12)


@pytest.mark.parametrize("way", ["rotary_packed", "sdpa", "eager"])
@pytest.mark.parametrize("shape", [(2, 0), (0, 0), (0, 5)])
@pytest.mark.parametrize(
    "config",
    [{}, {"is_decoder": True}, {"position_encoding": "t5"}],
    ids=["encoder", "decoder", "t5"],
)
def test_nothing_in_nothing_out(build, config, shape, way):
    model = build(RoFormerModel, **config)
    model.set_attn_implementation(way)
    ids = torch.zeros(shape, dtype=torch.long)
    for mask in (None, torch.ones(shape)):
        assert model(ids, attention_mask=mask).last_hidden_state.shape == (*shape, 16)
