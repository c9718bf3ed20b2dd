"""torch.export, ONNX in onnxruntime and its int8 quantisation, with free batch and length."""

import collections
import os

import pytest
import torch
from tools_support import MASK, learn_by_heart, ragged, tiny

from rotary.models import (
    RoFormerForCausalLM,
    RoFormerForMaskedLM,
    RoFormerForSentenceEmbedding,
    RoFormerForSequenceClassification,
)

onnxruntime = pytest.importorskip("onnxruntime")

pytestmark = [
    pytest.mark.compiles,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::FutureWarning:copyreg"),
    pytest.mark.filterwarnings("ignore:# The axis name:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*torchvision is not installed"),
]
AXES = {"input_ids": {0: "B", 1: "L"}, "attention_mask": {0: "B", 1: "L"}}


DYNAMIC = {
    "rope_parameters": {"rope_type": "dynamic", "factor": 4.0},
    "max_position_embeddings": 8,
}


@pytest.mark.parametrize(
    ("cls", "config"),
    [
        (RoFormerForMaskedLM, {}),
        (RoFormerForCausalLM, {"is_decoder": True, "use_cache": False}),  # A cache is no tensor.
        (RoFormerForSequenceClassification, {}),
        (RoFormerForSentenceEmbedding, {"pooling": "mean"}),
        (RoFormerForMaskedLM, DYNAMIC),
    ],
)
def test_an_exported_program_saved_and_loaded(cls, config, tmp_path):
    model = tiny(cls, **config)
    ids, mask = ragged(3, 7)
    sizes = {0: torch.export.Dim("B", max=64), 1: torch.export.Dim("L", min=2, max=10_000)}
    program = torch.export.export(
        model,
        (ids,),
        {"attention_mask": mask},
        dynamic_shapes=dict.fromkeys(AXES, sizes),
    )
    torch.export.save(program, tmp_path / "model.pt2")
    loaded = torch.export.load(tmp_path / "model.pt2").module()
    for rows, columns, side in ((1, 3, "right"), (4, 20, "left"), (2, 300, "right")):
        ids, mask = ragged(rows, columns, side)
        with torch.no_grad():
            found = loaded(ids, attention_mask=mask).to_tuple()[0]
            expected = model(ids, attention_mask=mask).to_tuple()[0]
        if found.shape[:2] == mask.shape:  # One row for each token; padding means nothing.
            found, expected = found[mask.bool()], expected[mask.bool()]
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def to_onnx(model, path, opset):
    """Write the model for onnxruntime; the example's shapes are not those it is run with."""
    program = torch.onnx.export(
        model,
        ragged(3, 7),
        dynamo=True,
        opset_version=opset,
        input_names=list(AXES),
        output_names=["logits"],
        dynamic_shapes=AXES,
        verbose=False,
    )
    program.save(path)
    return path


def run_onnx(path, ids, mask):
    session = onnxruntime.InferenceSession(path)
    assert [each.name for each in session.get_inputs()] == list(AXES)
    assert [each.name for each in session.get_outputs()] == ["logits"]
    feed = {"input_ids": ids.numpy(), "attention_mask": mask.numpy()}
    return torch.from_numpy(session.run(None, feed)[0])


@pytest.mark.usefixtures("exact_onnxruntime")
@pytest.mark.parametrize("opset", [18, 23])
def test_junnyu_24_transformers_12397_onnxruntime_gives_the_same_logits(opset, tmp_path):
    """Opset 18 is the oldest PyTorch writes; 23 has an attention operator of its own."""
    model = tiny(RoFormerForMaskedLM)
    path = to_onnx(model, tmp_path / "model.onnx", opset)
    for rows, columns, side in (
        (1, 3, "right"),
        (4, 20, "right"),
        (4, 20, "left"),
        (2, 300, "right"),
    ):
        ids, mask = ragged(rows, columns, side)
        with torch.no_grad():
            expected = model(ids, attention_mask=mask).logits
        found = run_onnx(path, ids, mask)
        torch.testing.assert_close(found[mask.bool()], expected[mask.bool()], rtol=0, atol=1e-4)


@pytest.mark.usefixtures("exact_onnxruntime")
def test_int8_by_onnxruntime_keeps_what_was_learnt(tmp_path):
    import onnx
    from onnxruntime.quantization import quantize_dynamic

    sizes = {"vocab_size": 1000, "hidden_size": 128, "intermediate_size": 256}
    model = tiny(RoFormerForMaskedLM, **sizes, initializer_range=0.02)
    texts = torch.randint(5, 1000, (4, 12))
    learn_by_heart(model, texts, rate=2e-3)
    path = to_onnx(model, tmp_path / "model.onnx", 18)
    small = tmp_path / "int8.onnx"
    quantize_dynamic(path, small)
    assert os.path.getsize(small) < 0.5 * os.path.getsize(path)
    operators = collections.Counter(node.op_type for node in onnx.load(small).graph.node)
    assert operators["MatMulInteger"] == 2 * 6 + 1  # Each linear layer; the tied one is looked up.

    ids = torch.cat((texts, torch.zeros(4, 3, dtype=torch.int64)), dim=1)
    mask = (ids != 0).to(torch.int64)
    ids[:, 2] = MASK
    with torch.no_grad():
        expected = model(ids, attention_mask=mask).logits[mask.bool()]
    found = run_onnx(small, ids, mask)[mask.bool()]
    assert (found - expected).abs().max() < 0.15 * expected.std()
    assert found.argmax(-1).equal(expected.argmax(-1))
    guesses = run_onnx(small, ids, mask)[:, 2].argmax(-1)
    assert guesses.equal(texts[:, 2])
