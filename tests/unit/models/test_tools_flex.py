"""Flex attention, the real one: padding, documents and order as a block mask."""

import pytest
import torch
from tools_support import ragged, tiny

from rotary.models import RoFormerForCausalLM, RoFormerForMaskedLM

pytestmark = [pytest.mark.compiles, pytest.mark.slow]


@pytest.fixture(autouse=True)
def _compile_anew():
    torch._dynamo.reset()


@torch.no_grad()
def agree(model, ids, real, **given):
    expected = model(ids, **given).logits
    model.set_attn_implementation("flex_attention")
    found = model(ids, **given).logits
    torch.testing.assert_close(found[real], expected[real], rtol=0, atol=1e-5)


def long_documents(rows, columns):
    documents = torch.full((rows, columns), 2)
    documents[:, : columns // 3], documents[:, -5:] = 1, 0
    return documents


def test_an_encoder_without_padding():
    ids, _ = ragged(2, 150)
    agree(tiny(RoFormerForMaskedLM), ids, torch.ones_like(ids, dtype=torch.bool))


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("is_causal", [False, True])
def test_padding(is_causal, side):
    kind, more = (RoFormerForMaskedLM, {})
    if is_causal:
        kind, more = RoFormerForCausalLM, {"is_decoder": True}
    ids, mask = ragged(3, 140, side=side)
    agree(tiny(kind, **more), ids, mask.bool(), attention_mask=mask)


def test_documents_of_a_row():
    ids, _ = ragged(2, 140)
    documents = long_documents(2, 140)
    agree(tiny(RoFormerForMaskedLM), ids, documents > 0, document_ids=documents)


def test_a_mask_for_each_head():
    ids, _ = ragged(2, 12)
    model = tiny(RoFormerForMaskedLM)
    mask = torch.rand(2, model.config.num_attention_heads, 12, 12) < 0.7
    mask |= torch.eye(12, dtype=torch.bool)
    model.set_attn_implementation("sdpa")
    agree(model, ids, torch.ones_like(ids, dtype=torch.bool), attention_mask=mask)


def test_generation_with_a_cache():
    ids, mask = ragged(2, 9, side="left")
    model = tiny(RoFormerForCausalLM, is_decoder=True)
    options = {"attention_mask": mask, "max_new_tokens": 4, "min_new_tokens": 4, "do_sample": False}
    expected = model.generate(ids, **options)
    model.set_attn_implementation("flex_attention")
    assert torch.equal(model.generate(ids, **options), expected)
