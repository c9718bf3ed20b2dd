"""torch.compile: one graph, few of them over many shapes, a compiled training step."""

import pytest
import torch
from tools_support import ragged, tiny
from torch._dynamo.testing import CompileCounter

from rotary.models import RoFormerForCausalLM, RoFormerForMaskedLM

pytestmark = pytest.mark.compiles
SHAPES = ((3, 5), (2, 6), (4, 9), (2, 33))


def documents(rows, columns):
    """Two documents a row, the first three tokens long, and one place of padding at the end."""
    ids = torch.full((rows, columns), 2)
    ids[:, :3], ids[:, -1] = 1, 0
    return ids


@pytest.mark.parametrize("kind", ["no padding", "mask", "left mask", "documents"])
def test_one_graph_over_many_shapes(kind):
    """Lengths are not constants of the program: the second shape makes them variables."""
    torch._dynamo.reset()
    counter = CompileCounter()
    model = tiny(RoFormerForMaskedLM)
    compiled = torch.compile(model, fullgraph=True, backend=counter)
    for rows, columns in SHAPES:
        ids, mask = ragged(rows, columns, side="left" if kind == "left mask" else "right")
        given = {"attention_mask": mask} if "mask" in kind else {}
        if kind == "documents":
            given = {"document_ids": documents(rows, columns)}
            mask = given["document_ids"]
        real = mask.bool() if given else torch.ones_like(mask, dtype=torch.bool)
        with torch.no_grad():
            found, expected = (m(ids, **given).logits[real] for m in (compiled, model))
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    assert counter.frame_count <= 2


@pytest.mark.parametrize("form", ["softmax", "numerator", "cosine", "performer"])
def test_every_attention_form_of_a_decoder_is_one_graph(form):
    torch._dynamo.reset()
    model = tiny(RoFormerForCausalLM, is_decoder=True, attention_form=form)
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    for rows, columns in SHAPES[:2]:
        ids, mask = ragged(rows, columns)
        with torch.no_grad():
            found, expected = (m(ids, attention_mask=mask).logits for m in (compiled, model))
        torch.testing.assert_close(found[mask.bool()], expected[mask.bool()], rtol=0, atol=1e-5)


@pytest.mark.slow
def test_a_compiled_training_step():
    """Inductor's code for forward and backward gives the loss and every gradient."""
    torch._dynamo.reset()
    model = tiny(RoFormerForMaskedLM).train()
    compiled = torch.compile(model, fullgraph=True)
    ids, mask = ragged(3, 7)
    labels = ids.masked_fill((torch.rand(ids.shape) < 0.5) | ~mask.bool(), -100)
    results = []
    for each in (compiled, model):
        model.zero_grad()
        loss = each(ids, attention_mask=mask, labels=labels).loss
        loss.backward()
        results.append((loss, {name: p.grad for name, p in model.named_parameters()}))
    (loss, grads), (expected_loss, expected) = results
    torch.testing.assert_close(loss, expected_loss)
    assert all(grad is not None for grad in expected.values())
    torch.testing.assert_close(grads, expected, rtol=1e-4, atol=1e-5)


def test_sparse_logits_compile_with_a_break():
    """The number of labels is data, so this is two graphs and not ``fullgraph``."""
    torch._dynamo.reset()
    model = tiny(RoFormerForMaskedLM, sparse_logits=True)
    compiled = torch.compile(model, backend="eager")
    for rows, columns in SHAPES[:3]:
        ids, mask = ragged(rows, columns)
        labels = ids.masked_fill(~mask.bool(), -100)
        found, expected = (m(ids, attention_mask=mask, labels=labels) for m in (compiled, model))
        torch.testing.assert_close(found.loss, expected.loss)
        assert found.logits.shape == (int(mask.sum()), 100)
