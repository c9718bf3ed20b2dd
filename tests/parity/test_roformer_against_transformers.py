"""Our RoFormer against transformers' with the same random weights."""

import copy

import pytest
import torch
import transformers
from transformers.models.roformer.modeling_roformer import (
    RoFormerForMaskedLM as StockForMaskedLM,
)

from rotary import RotaryEmbedding, models
from rotary.models import RoFormerConfig, RoFormerForMaskedLM, RoFormerModel

SIZES = {
    "vocab_size": 50,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    # Ten times the usual, so that attention is far from uniform and positions matter.
    "initializer_range": 0.2,
}


def stock_model(**extra):
    torch.manual_seed(1)
    model = StockForMaskedLM(transformers.RoFormerConfig(**{**SIZES, **extra})).eval()
    with torch.no_grad():  # Biases and norms start at 0 and 1, where a mix-up would not show.
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def ours_from(stock, **extra):
    model = RoFormerForMaskedLM(RoFormerConfig(**{**SIZES, **extra})).to(stock.dtype).eval()
    model.load_state_dict(stock.state_dict())
    return model


def batch_of(length):
    ids = torch.randint(1, 50, (3, length))
    segments = (torch.arange(length) > length // 3).long().expand(3, -1)
    mask = torch.ones(3, length, dtype=torch.long)
    mask[1, max(1, length // 2) :] = 0
    mask[2, : length // 4] = 0  # Left padding.
    return {"input_ids": ids, "token_type_ids": segments, "attention_mask": mask}


def with_exact_table(stock):
    """Stock rounds its float64 table to float32; give it ours, sines first, then cosines."""
    exact = copy.deepcopy(stock)
    table = exact.roformer.encoder.embed_positions.weight
    rotation = RotaryEmbedding(head_dim=16)(torch.arange(len(table)), dtype=torch.float64)
    table.data = torch.cat((rotation.sin, rotation.cos), dim=-1)
    return exact


def real(logits, batch):
    return logits[batch["attention_mask"].bool()]


@pytest.mark.parametrize("length", [1, 7, 513])
@pytest.mark.parametrize("attention", ["rotary_packed", "sdpa", "eager"])
def test_masked_lm_logits_equal_stock(length, attention):
    batch = batch_of(length)
    stock = stock_model().double()
    ours = ours_from(stock)
    ours.set_attn_implementation(attention)
    logits = real(ours(**batch).logits, batch)
    exact = real(with_exact_table(stock)(**batch).logits, batch)
    assert exact.abs().max() > 1  # Numbers of some size, or the tolerance means nothing.
    torch.testing.assert_close(logits, exact, rtol=0, atol=1e-10)
    # As it is, with its table rounded to float32; at the usual size of the weights.
    stock = stock_model(initializer_range=0.02).double()
    logits = real(ours_from(stock)(**batch).logits, batch)
    expected = real(stock(**batch).logits, batch)
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-8)


@pytest.mark.parametrize("length", [1, 7, 513])
def test_masked_lm_logits_equal_stock_in_float32(length):
    stock = stock_model()
    batch = batch_of(length)
    logits, expected = ours_from(stock)(**batch).logits, stock(**batch).logits
    torch.testing.assert_close(real(logits, batch), real(expected, batch), rtol=0, atol=1e-5)


def test_gradients_equal_stock():
    stock = with_exact_table(stock_model().double())
    ours, batch = ours_from(stock), batch_of(9)
    labels = torch.where(batch["attention_mask"].bool(), batch["input_ids"], -100)
    for model in (stock, ours):
        model(**batch, labels=labels).loss.backward()
    expected = dict(stock.named_parameters())
    compared = 0
    for name, parameter in ours.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name].grad, rtol=0, atol=1e-10)
        compared += 1
    assert compared == 41


@pytest.mark.parametrize("option", [{"embedding_size": 16}, {"rotary_value": True}])
def test_options_of_stock_are_computed_equally(option):
    stock = with_exact_table(stock_model(**option).double())
    # No left padding: turned values feel where a text starts, which stock counts from the padding.
    ours, batch = ours_from(stock, **option), {n: t[:2] for n, t in batch_of(9).items()}
    expected = real(stock(**batch).logits, batch)
    torch.testing.assert_close(real(ours(**batch).logits, batch), expected, rtol=0, atol=1e-10)


def test_a_folder_of_stock_loads_here_and_ours_loads_there(tmp_path):
    stock, batch = stock_model(), batch_of(7)
    stock.save_pretrained(tmp_path / "stock")
    ours = RoFormerForMaskedLM.from_pretrained(tmp_path / "stock")
    expected = real(stock(**batch).logits, batch)
    torch.testing.assert_close(real(ours(**batch).logits, batch), expected, rtol=0, atol=1e-5)
    ours.save_pretrained(tmp_path / "ours")
    back = StockForMaskedLM.from_pretrained(tmp_path / "ours").eval()
    torch.testing.assert_close(real(back(**batch).logits, batch), expected, rtol=0, atol=1e-6)


def test_names_with_and_without_the_prefix_load():
    stock = stock_model()
    weights = stock.state_dict()
    bare = {name.removeprefix("roformer."): tensor for name, tensor in weights.items()}
    ours = RoFormerForMaskedLM(RoFormerConfig(**SIZES)).eval()
    ours.load_state_dict(bare)
    base = RoFormerModel(RoFormerConfig(**SIZES)).eval()
    base.load_state_dict({n: t for n, t in weights.items() if n.startswith("roformer.")})
    batch = batch_of(7)
    expected = stock.roformer(**batch).last_hidden_state
    for model in (ours.roformer, base):
        hidden = model(**batch).last_hidden_state
        torch.testing.assert_close(real(hidden, batch), real(expected, batch), rtol=0, atol=1e-5)


def test_weights_that_do_not_fit_are_an_error():
    weights = stock_model().state_dict()
    ours = RoFormerForMaskedLM(RoFormerConfig(**SIZES))
    missing = {n: t for n, t in weights.items() if n != "cls.predictions.bias"}
    with pytest.raises(RuntimeError, match=r"cls\.predictions\.bias"):
        ours.load_state_dict(missing)
    with pytest.raises(RuntimeError, match="surplus"):
        ours.load_state_dict({**weights, "surplus": torch.zeros(1)})


def test_ours_runs_beyond_the_length_where_stock_stops():
    """1536 is the length that stock's table has by default; ours takes any."""
    stock = stock_model(max_position_embeddings=1700, num_hidden_layers=1).double()
    ours = ours_from(stock, max_position_embeddings=1536, num_hidden_layers=1)
    batch = {name: tensor[:2] for name, tensor in batch_of(1701).items()}
    with pytest.raises(IndexError):
        stock(**batch)
    logits = real(ours(**batch).logits, batch)
    table = stock.roformer.encoder.embed_positions
    table.weight = torch.nn.Parameter(torch.zeros(1701, 16, dtype=torch.float64))
    expected = real(with_exact_table(stock)(**batch).logits, batch)
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-10)


HEADS = {
    "RoFormerForCausalLM": ["logits"],
    "RoFormerForSequenceClassification": ["logits"],
    "RoFormerForTokenClassification": ["logits"],
    "RoFormerForQuestionAnswering": ["start_logits", "end_logits"],
}


@pytest.mark.parametrize("name", HEADS)
def test_every_head_that_is_right_there_gives_the_same(name, tmp_path):
    """Its multiple choice reads padding, so it is not among them."""
    torch.manual_seed(1)
    extra = {"num_labels": 3, "is_decoder": name == "RoFormerForCausalLM"}
    stock = getattr(transformers, name)(transformers.RoFormerConfig(**SIZES, **extra)).eval()
    stock.save_pretrained(tmp_path / "stock")
    ours = getattr(models, name).from_pretrained(tmp_path / "stock").double()
    stock = with_exact_table(stock.double())
    batch = {n: t[:2] for n, t in batch_of(9).items()}
    expected, got = stock(**batch), ours(**batch)
    tokens = batch["attention_mask"].bool()
    for field in HEADS[name]:
        a, b = got[field], expected[field]
        a, b = (a, b) if a.shape[:2] != tokens.shape else (a[tokens], b[tokens])
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10)
    ours.float().save_pretrained(tmp_path / "ours")
    back = getattr(transformers, name).from_pretrained(tmp_path / "ours")
    stock, got = stock.float(), back(**batch)
    for field in HEADS[name]:
        torch.testing.assert_close(got[field], stock(**batch)[field], rtol=0, atol=1e-4)


def test_stock_and_ours_write_the_same():
    torch.manual_seed(1)
    config = transformers.RoFormerConfig(**SIZES, is_decoder=True)
    stock = with_exact_table(transformers.RoFormerForCausalLM(config).double()).eval()
    ours = models.RoFormerForCausalLM(RoFormerConfig(**SIZES, is_decoder=True)).double().eval()
    ours.load_state_dict(stock.state_dict())
    ids = torch.randint(1, 50, (2, 5))
    how = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0}
    for beams in (1, 3):
        expected = stock.generate(ids, num_beams=beams, **how)
        assert torch.equal(ours.generate(ids, num_beams=beams, **how), expected)
