"""RoFormer against golden numbers and against the rotation that they were made with."""

import golden_roformer as golden
import pytest
import torch

from rotary import RotaryEmbedding
from rotary.models import RoFormerConfig, RoFormerForCausalLM, RoFormerForMaskedLM


def tiny_model(cls=RoFormerForMaskedLM, **config):
    values = {
        "vocab_size": 12,
        "hidden_size": 8,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 16,
        "type_vocab_size": 2,
    }
    model = cls(RoFormerConfig(**values, **config)).double().eval()
    parameters = dict(model.named_parameters())
    assert sorted(parameters) == sorted(golden.PARAMETERS)
    with torch.no_grad():
        for j, name in enumerate(golden.PARAMETERS):
            tensor = parameters[name]
            k = torch.arange(tensor.numel(), dtype=torch.float64)
            values = 0.5 * (0.7 * (k + 1) + 1.3 * j).sin()
            if name.endswith("LayerNorm.weight"):
                values = 1 + 0.2 * values
            tensor.copy_(values.reshape(tensor.shape))
    return model


def test_rotation_of_the_upstream_test():
    q = torch.arange(2 * 12 * 16 * 64, dtype=torch.float64).reshape(2, 12, 16, 64) / 100
    turned, opposite = RotaryEmbedding(head_dim=64).rotate(q, -q)
    torch.testing.assert_close(turned[0, 0, :6, :8], golden.ROTATED_QUERY, rtol=0, atol=1e-11)
    torch.testing.assert_close(opposite, -turned, rtol=0, atol=0)
    for channel, value in golden.ROTATED_QUERY_LAST_ROW.items():
        assert turned[1, 11, 15, channel].item() == pytest.approx(value, abs=1e-8)


@pytest.mark.parametrize("attention", ["eager", "sdpa", "rotary_packed"])
def test_tiny_model_gives_the_golden_numbers(attention):
    model = tiny_model()
    model.set_attn_implementation(attention)
    batch = {
        "input_ids": golden.INPUT_IDS,
        "token_type_ids": golden.TOKEN_TYPE_IDS,
        "attention_mask": golden.ATTENTION_MASK,
    }
    hidden, logits = model.roformer(**batch).last_hidden_state, model(**batch).logits
    # Rows of padded queries have golden values too, where padding is computed at all.
    rows = golden.ATTENTION_MASK.bool() if attention == "rotary_packed" else slice(None)
    torch.testing.assert_close(hidden[rows], golden.HIDDEN[rows], rtol=0, atol=1e-9)
    torch.testing.assert_close(logits[rows], golden.MLM_LOGITS[rows], rtol=0, atol=1e-9)


def test_a_ready_made_mask_gives_the_unilm_numbers():
    """RoFormer-Sim: segment 0 sees itself whole, segment 1 sees what came before."""
    order = golden.TOKEN_TYPE_IDS[:1].cumsum(-1)
    mask = (order[:, None, :] <= order[:, :, None])[:, None]
    logits = tiny_model()(
        golden.INPUT_IDS[:1], token_type_ids=golden.TOKEN_TYPE_IDS[:1], attention_mask=mask
    ).logits
    torch.testing.assert_close(logits, golden.UNILM_LOGITS, rtol=0, atol=1e-9)


@pytest.mark.parametrize("attention", ["eager", "sdpa", "rotary_packed"])
def test_the_causal_model_gives_the_golden_numbers(attention):
    """RoFormer-GPT."""
    model = tiny_model(RoFormerForCausalLM, is_decoder=True)
    model.set_attn_implementation(attention)
    logits = model(golden.INPUT_IDS[:1]).logits
    torch.testing.assert_close(logits, golden.CAUSAL_LOGITS, rtol=0, atol=1e-9)


def test_the_prefix_model_gives_the_golden_numbers():
    """RoFormer-Sim."""
    model = tiny_model(RoFormerForCausalLM, is_decoder=True, is_prefix_lm=True)
    logits = model(golden.INPUT_IDS[:1], token_type_ids=golden.TOKEN_TYPE_IDS[:1]).logits
    torch.testing.assert_close(logits, golden.UNILM_LOGITS, rtol=0, atol=1e-9)


def test_the_epsilon_of_the_norms_is_seen_in_the_numbers():
    """1e-7, bert4keras' later default, moves the logits by 6.7e-7: the golden ones tell."""
    model = tiny_model(layer_norm_eps=1e-7)
    logits = model(golden.INPUT_IDS, token_type_ids=golden.TOKEN_TYPE_IDS).logits
    moved = (logits[0] - golden.MLM_LOGITS[0]).abs().max().item()
    assert 1e-8 < moved < 1e-6
