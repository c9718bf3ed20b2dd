"""Every head: what padding does to it (nothing), its loss, its training, its file."""

import json

import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss

from rotary.errors import ShapeError
from rotary.models import (
    RoFormerForCausalLM,
    RoFormerForMaskedLM,
    RoFormerForMultipleChoice,
    RoFormerForPairMatching,
    RoFormerForQuestionAnswering,
    RoFormerForSentenceEmbedding,
    RoFormerForSequenceClassification,
    RoFormerForTokenClassification,
    RoFormerModel,
)

TEXT_HEADS = [
    RoFormerForSequenceClassification,
    RoFormerForPairMatching,
    RoFormerForSentenceEmbedding,
]
TOKEN_HEADS = [
    RoFormerForMaskedLM,
    RoFormerForTokenClassification,
    RoFormerForQuestionAnswering,
]


def first_of(output):
    return output[0] if not hasattr(output, "start_logits") else output.start_logits


def padded(ids, side, pad=3):
    """Texts of length 6 and 4 in one batch, padded on one side; where their tokens are."""
    lengths, width = (6, 4), 6 + pad
    out = torch.randint(0, 50, (2, width))
    mask = torch.zeros(2, width, dtype=torch.long)
    where = []
    for row, length in enumerate(lengths):
        start = width - length if side == "left" else 0
        out[row, start : start + length] = ids[row, :length]
        mask[row, start : start + length] = 1
        where.append(slice(start, start + length))
    return out, mask, where, lengths


@pytest.mark.parametrize("way", ["rotary_packed", "sdpa"])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("pooling", ["first", "mean"])
@pytest.mark.parametrize("head", TEXT_HEADS)
def test_padding_changes_no_text(build, head, pooling, side, way):
    model = build(head, pooling=pooling)
    model.set_attn_implementation(way)
    ids = torch.randint(0, 50, (2, 6))
    batch, mask, _, lengths = padded(ids, side)
    got = first_of(model(batch, attention_mask=mask))
    for row, length in enumerate(lengths):
        alone = first_of(model(ids[row : row + 1, :length]))
        torch.testing.assert_close(got[row : row + 1], alone, rtol=0, atol=1e-12)


@pytest.mark.parametrize("way", ["rotary_packed", "sdpa"])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("head", TOKEN_HEADS)
def test_padding_changes_no_token(build, head, side, way):
    model = build(head)
    model.set_attn_implementation(way)
    ids = torch.randint(0, 50, (2, 6))
    batch, mask, where, lengths = padded(ids, side)
    got = first_of(model(batch, attention_mask=mask))
    for row, length in enumerate(lengths):
        alone = first_of(model(ids[row : row + 1, :length]))[0]
        torch.testing.assert_close(got[row, where[row]], alone, rtol=0, atol=1e-12)


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_no_choice(build, side):
    """Stock reads the last position: [-0.155, -0.049] became [-0.066, -0.066] with four pads."""
    model = build(RoFormerForMultipleChoice)
    ids = torch.randint(0, 50, (2, 6))
    batch, mask, _, lengths = padded(ids, side)
    got = model(batch[None], attention_mask=mask[None]).logits
    assert got.shape == (1, 2)
    for choice, length in enumerate(lengths):
        alone = model(ids[None, choice : choice + 1, :length]).logits
        torch.testing.assert_close(got[:, choice : choice + 1], alone, rtol=0, atol=1e-12)
    loss = model(batch[None], attention_mask=mask[None], labels=torch.tensor([1])).loss
    torch.testing.assert_close(loss, cross_entropy(got, torch.tensor([1])))
    with pytest.raises(ShapeError, match=r"\(batch, choices, length\)"):
        model(batch)


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_does_not_enter_the_loss_of_an_answer(build, side):
    model = build(RoFormerForQuestionAnswering)
    ids = torch.randint(0, 50, (2, 6))
    batch, mask, where, _ = padded(ids, side)
    row = 1
    alone = model(ids[1:, :4], start_positions=torch.tensor([1]), end_positions=torch.tensor([3]))
    start = torch.tensor([where[row].start])
    got = model(
        batch[1:],
        attention_mask=mask[1:],
        start_positions=start + 1,
        end_positions=start + 3,
    )
    torch.testing.assert_close(got.loss, alone.loss, rtol=0, atol=1e-12)
    expected = cross_entropy(alone.start_logits, torch.tensor([1])) / 2
    expected = expected + cross_entropy(alone.end_logits, torch.tensor([3])) / 2
    torch.testing.assert_close(alone.loss, expected)


def test_an_answer_beyond_the_text_is_left_out_of_the_loss(build):
    model, ids = build(RoFormerForQuestionAnswering), torch.randint(0, 50, (2, 5))
    both = model(ids, start_positions=torch.tensor([1, 9]), end_positions=torch.tensor([2, 9]))
    one = model(ids[:1], start_positions=torch.tensor([1]), end_positions=torch.tensor([2]))
    torch.testing.assert_close(both.loss, one.loss)


@pytest.mark.parametrize(
    ("num_labels", "labels", "loss"),
    [
        (3, torch.tensor([0, 2]), cross_entropy),
        (1, torch.tensor([0.5, -2.0]), lambda x, y: mse_loss(x.squeeze(-1), y.double())),
        (
            3,
            torch.tensor([[1.0, 0, 1], [0, 0, 1]]),
            lambda x, y: binary_cross_entropy_with_logits(x, y.double()),
        ),
    ],
)
def test_losses_of_sequence_classification(build, num_labels, labels, loss):
    model = build(RoFormerForSequenceClassification, num_labels=num_labels)
    output = model(torch.randint(0, 50, (2, 5)), labels=labels)
    assert output.logits.shape == (2, num_labels)
    torch.testing.assert_close(output.loss, loss(output.logits, labels))


def test_pair_matching_is_the_mean_of_all_tokens_through_one_layer(build):
    """The official SCM script: [CLS] and [SEP] are in the mean, padding is not."""
    model, ids = build(RoFormerForPairMatching), torch.randint(0, 50, (2, 6))
    mask = torch.tensor([[1] * 6, [1] * 4 + [0] * 2])
    segments = torch.tensor([[0, 0, 0, 1, 1, 1]]).expand(2, -1)
    inputs = {"attention_mask": mask, "token_type_ids": segments}
    hidden = model.roformer(ids, **inputs).last_hidden_state
    mean = torch.stack((hidden[0].mean(0), hidden[1, :4].mean(0)))
    expected = (mean @ model.score.weight.T + model.score.bias).squeeze(-1)
    labels = torch.tensor([1, 0])
    output = model(ids, labels=labels, **inputs)
    torch.testing.assert_close(output.logits, expected)
    probability = expected.sigmoid()
    right = -(probability[0].log() + (1 - probability[1]).log()) / 2
    torch.testing.assert_close(output.loss, right)


def test_sentence_vectors_have_length_one_and_use_the_pooler_if_there_is_one(build):
    ids = torch.randint(0, 50, (2, 6))
    for config in ({}, {"pooling": "mean"}, {"pooler_activation": "linear"}):
        model = build(RoFormerForSentenceEmbedding, **config)
        vector = model(ids).sentence_embedding
        torch.testing.assert_close(vector.norm(dim=-1), torch.ones(2, dtype=torch.float64))
    pooler = model.roformer.pooler.dense
    first = model.roformer(ids).last_hidden_state[:, 0]
    linear = first @ pooler.weight.T + pooler.bias
    torch.testing.assert_close(vector, linear / linear.norm(dim=-1, keepdim=True))
    bert = build(RoFormerModel, pooler_activation="tanh")
    assert bert(ids).pooler_output.abs().max() < 1


@pytest.mark.parametrize(
    ("head", "labels"),
    [
        (RoFormerForSequenceClassification, {"labels": torch.tensor([0, 1])}),
        (RoFormerForPairMatching, {"labels": torch.tensor([0, 1])}),
        (RoFormerForTokenClassification, {"labels": torch.tensor([[0, 1, 1, 0, 1]] * 2)}),
        (
            RoFormerForQuestionAnswering,
            {"start_positions": torch.tensor([1, 2]), "end_positions": torch.tensor([3, 4])},
        ),
        (RoFormerForCausalLM, {"labels": torch.tensor([[5, 4, 3, 2, 1]] * 2)}),
    ],
)
def test_every_head_learns(build, head, labels):
    model = build(
        head, dtype=torch.float32, is_decoder=head is RoFormerForCausalLM, hidden_dropout_prob=0.1
    ).train()
    ids = torch.tensor([[5, 4, 3, 2, 1], [9, 8, 7, 6, 5]])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(30):
        loss = model(ids, **labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
    assert all(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize(
    ("head", "model_type"),
    [
        (RoFormerForSequenceClassification, "roformer"),
        (RoFormerForTokenClassification, "roformer"),
        (RoFormerForQuestionAnswering, "roformer"),
        (RoFormerForCausalLM, "roformer"),
        (RoFormerForMultipleChoice, "rotary_roformer"),
        (RoFormerForPairMatching, "rotary_roformer"),
        (RoFormerForSentenceEmbedding, "rotary_roformer"),
    ],
)
def test_the_file_of_a_head_says_who_computes_it(build, head, model_type, tmp_path):
    model = build(head, dtype=torch.float32, is_decoder=head is RoFormerForCausalLM)
    model.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == model_type
    back = head.from_pretrained(tmp_path)
    ids = torch.randint(0, 50, (2, 5))
    if head is RoFormerForMultipleChoice:
        ids = ids[None]
    torch.testing.assert_close(first_of(back(ids)), first_of(model(ids)), rtol=0, atol=1e-6)


def test_a_head_is_put_on_a_pretrained_encoder(build, tmp_path):
    build(RoFormerForMaskedLM, dtype=torch.float32).save_pretrained(tmp_path)
    model, info = RoFormerForSequenceClassification.from_pretrained(
        tmp_path, num_labels=4, output_loading_info=True
    )
    assert model.classifier.out_proj.out_features == 4
    assert all(name.startswith("classifier.") for name in info["missing_keys"])
