"""torch.compile: one graph, few of them over many shapes, a compiled training step."""

import pytest
import torch
from tools_support import ragged, tiny
from torch._dynamo.testing import CompileCounter

from rotary.models import RoFormerForCausalLM, RoFormerForMaskedLM

pytestmark = pytest.mark.compiles
SHAPES = ((3, 5), (2, 6), (4, 9), (2, 33))


def inputs(kind, rows, columns):
    """Tokens, what else the model is given, and where its answer means something."""
    ids, mask = ragged(rows, columns, side="left" if kind == "left mask" else "right")
    if kind == "documents":  # Two a row, the first three tokens long, and one place of padding.
        documents = torch.full((rows, columns), 2)
        documents[:, :3], documents[:, -1] = 1, 0
        return ids, {"document_ids": documents}, documents.bool()
    if kind == "no padding":
        return ids, {}, torch.ones_like(mask, dtype=torch.bool)
    return ids, {"attention_mask": mask}, mask.bool()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["no padding", "left mask", "documents"])
def test_one_graph_over_many_shapes(kind):
    """Lengths are not constants of the program: the second shape makes them variables."""
    torch._dynamo.reset()
    counter = CompileCounter()
    model = tiny(RoFormerForMaskedLM, num_hidden_layers=1)
    compiled = torch.compile(model, fullgraph=True, backend=counter)
    for shape in SHAPES:
        ids, given, real = inputs(kind, *shape)
        with torch.no_grad():
            found, expected = (m(ids, **given).logits[real] for m in (compiled, model))
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    assert counter.frame_count <= 2


@pytest.mark.slow
def test_a_linear_decoder_is_one_graph_at_each_shape():
    """The second shape makes symbols of sizes; linear attention cuts a length into fixed blocks."""
    torch._dynamo.reset()
    model = tiny(
        RoFormerForCausalLM, is_decoder=True, attention_form="numerator", num_hidden_layers=1
    )
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    for shape in SHAPES[:2]:
        ids, mask = ragged(*shape)
        with torch.no_grad():
            found, expected = (m(ids, attention_mask=mask).logits for m in (compiled, model))
        torch.testing.assert_close(found[mask.bool()], expected[mask.bool()], rtol=0, atol=1e-5)


@pytest.mark.slow
def test_a_compiled_training_step():
    """Inductor's code for forward and backward gives the loss and every gradient."""
    torch._dynamo.reset()
    model = tiny(RoFormerForMaskedLM, num_hidden_layers=1).train()
    compiled = torch.compile(model, fullgraph=True)
    ids, mask = ragged(3, 7)
    labels = ids.masked_fill((torch.rand(ids.shape) < 0.5) | ~mask.bool(), -100)
    results = []
    for each in (compiled, model):
        model.zero_grad()
        loss = each(ids, attention_mask=mask, labels=labels).loss
        loss.backward()
        results.append((loss, {name: p.grad.clone() for name, p in model.named_parameters()}))
    (loss, grads), (expected_loss, expected) = results
    torch.testing.assert_close(loss, expected_loss)
    torch.testing.assert_close(grads, expected, rtol=1e-4, atol=1e-5)


# Where the second graph starts, PyTorch's compiler itself asks a hidden state for its gradient.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_sparse_logits_compile_with_a_break():
    """The number of labels is data, so this is two graphs and not ``fullgraph``."""
    torch._dynamo.reset()
    model = tiny(RoFormerForMaskedLM, num_hidden_layers=1)
    compiled = torch.compile(model, backend="eager")
    ids, mask = ragged(3, 5)
    labels = ids.masked_fill(~mask.bool(), -100)
    inputs = {"attention_mask": mask, "labels": labels, "sparse_logits": True}
    found, expected = (m(ids, **inputs) for m in (compiled, model))
    torch.testing.assert_close(found.loss, expected.loss)
    assert found.logits.shape == (int(mask.sum()), 100)
