"""One graph over many lengths; torch.export inside a model; ONNX in plain operators and in its own.

All of it runs a compiler or an exporter, so all of it is marked.
"""

import numpy as np
import pytest
import torch
from torch import nn

from rotary import RotaryEmbedding, inverse_power, sequence
from rotary.frequencies import axial, dynamic_ntk, longrope, mixed, xpos, yarn

pytestmark = [
    pytest.mark.compiles,
    pytest.mark.filterwarnings("ignore::FutureWarning:copyreg"),
    pytest.mark.filterwarnings("ignore:# The axis name:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*torchvision is not installed"),
    # PyTorch's own compiler uses it when it is loaded.
    pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated"),
]
D = 16


class Model(nn.Module):
    def __init__(self, frequencies, layout="interleaved", **keywords):
        super().__init__()
        self.rope = RotaryEmbedding(frequencies, layout=layout, **keywords)
        self.project = nn.Linear(D, D)

    def forward(self, x, positions, lengths=None):
        rotation = self.rope(positions, lengths=lengths)
        q, k = rotation.for_queries(), rotation.for_keys()
        return q(self.project(x)) + k(x)


FREQUENCIES = {
    "plain": yarn(inverse_power(D), 4.0, 64),
    "axial": axial(D),
    "per head": mixed(D, 2),
    "dynamic": dynamic_ntk(inverse_power(D), 4.0, 8),
    "longrope": longrope(inverse_power(D), [1] * 8, [2] * 8, 8, amplitude=(1.0, 1.5)),
    "xpos": xpos(inverse_power(D)),
}


def positions(frequencies, length):
    line = torch.arange(length)
    axes = frequencies.num_axes
    return line if axes == 1 else line.unsqueeze(-1).expand(length, axes) * 2


@pytest.mark.parametrize(
    ("name", "is_learnable"),
    [
        ("plain", False),
        ("axial", True),
        ("per head", False),
        ("dynamic", False),
        ("longrope", False),
        ("xpos", False),
    ],
)
def test_one_graph_over_many_lengths(name, is_learnable):
    from torch._dynamo.testing import CompileCounter

    frequencies = FREQUENCIES[name]
    torch._dynamo.reset()
    counter = CompileCounter()
    model = Model(frequencies, is_learnable=is_learnable)
    compiled = torch.compile(model, fullgraph=True, backend=counter)
    needs_lengths = name in ("dynamic", "longrope")
    for length in (5, 6, 9, 33):
        for lengths in (length, torch.tensor([length])) if needs_lengths else (None,):
            x, where = torch.randn(1, 2, length, D), positions(frequencies, length)
            torch.testing.assert_close(compiled(x, where, lengths), model(x, where, lengths))
    # The first length is met as a constant, the second makes it a variable; then no more, for an
    # int and for a tensor of lengths alike.
    assert counter.frame_count <= (4 if needs_lengths else 2)


@pytest.mark.parametrize("name", ["sequence", "rotate", "rotate at an offset", "lengths"])
def test_positions_made_inside_compile_once_for_all_lengths(name):
    from torch._dynamo.testing import CompileCounter

    kind = "dynamic" if name == "lengths" else "plain"
    rope = RotaryEmbedding(FREQUENCIES[kind])
    calls = {
        "sequence": lambda x, start: sequence(x.shape[-2], start),
        "rotate at an offset": lambda x, start: rope.rotate(x, x, offset=start)[1],
    }
    call = calls.get(name, lambda x, start: rope.rotate(x, x)[1])
    torch._dynamo.reset()
    counter = CompileCounter()
    compiled = torch.compile(call, fullgraph=True, backend=counter)
    for step, length in enumerate((5, 6, 9, 33, 34, 50)):
        x = torch.randn(1, 2, length, D)
        torch.testing.assert_close(compiled(x, 3 + 4 * step), call(x, 3 + 4 * step))
    assert counter.frame_count <= 2


@pytest.mark.slow
def test_inductor():
    """Generated code gives the same, forward and backward, without a warning (R83)."""
    torch._dynamo.reset()
    model = Model(FREQUENCIES["longrope"])
    compiled = torch.compile(model, fullgraph=True)
    x = torch.randn(1, 2, 12, D, requires_grad=True)
    lengths = torch.tensor([12])
    found, expected = (m(x, torch.arange(12), lengths) for m in (compiled, model))
    torch.testing.assert_close(found, expected)
    cotangent = torch.randn_like(x)
    grads = [torch.autograd.grad(y, x, cotangent)[0] for y in (found, expected)]
    torch.testing.assert_close(*grads)


LENGTH = torch.export.Dim("L", min=2, max=10_000)


@pytest.mark.parametrize(
    ("name", "strict"),
    [("plain", True), ("axial", False), ("xpos", False), ("longrope", False)],
)
def test_export_inside_a_model(name, strict):
    frequencies = FREQUENCIES[name]
    model = Model(frequencies)
    x, where = torch.randn(1, 2, 5, D), positions(frequencies, 5)
    given, shapes = [x, where], [{2: LENGTH}, {0: LENGTH}]
    if name == "longrope":
        given, shapes = [*given, torch.tensor([5])], [*shapes, None]
    program = torch.export.export(model, tuple(given), dynamic_shapes=tuple(shapes), strict=strict)
    for length in (3, 40):
        given = [torch.randn(1, 2, length, D), positions(frequencies, length)]
        given += [torch.tensor([length])] if name == "longrope" else []
        torch.testing.assert_close(program.module()(*given), model(*given))


@pytest.mark.parametrize("strict", [True, False])
def test_positions_made_inside_export_for_all_lengths(strict):
    class Whole(nn.Module):
        def __init__(self):
            super().__init__()
            self.rope = RotaryEmbedding(head_dim=D)

        def forward(self, x):
            return self.rope.rotate(x, x)[0]

    model, x = Whole(), torch.randn(1, 2, 5, D)
    program = torch.export.export(model, (x,), dynamic_shapes=({2: LENGTH},), strict=strict)
    for length in (3, 40):
        x = torch.randn(1, 2, length, D)
        torch.testing.assert_close(program.module()(x), model(x))


class Operator(nn.Module):
    """The operator that ONNX has had since opset 23, fed by ``rope.tables``."""

    def __init__(self, layout):
        super().__init__()
        self.rope = RotaryEmbedding(inverse_power(8), layout=layout)
        self.is_interleaved = layout == "interleaved"

    def forward(self, x, where):
        cos, sin = self.rope.tables(where)
        return torch.onnx.ops.rotary_embedding(
            x, cos, sin, interleaved=self.is_interleaved, rotary_embedding_dim=8
        )


def run_onnx(model, given, shapes, opset, again):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    program = torch.onnx.export(
        model.eval(), given, dynamo=True, opset_version=opset, dynamic_shapes=shapes, verbose=False
    )
    session = onnxruntime.InferenceSession(program.model_proto.SerializeToString())
    names = [each.name for each in session.get_inputs()]
    feed = {name: np.ascontiguousarray(t.numpy()) for name, t in zip(names, again, strict=True)}
    kinds = {node.op_type for node in program.model_proto.graph.node}
    return torch.from_numpy(session.run(None, feed)[0]), kinds


@pytest.mark.slow
@pytest.mark.usefixtures("exact_onnxruntime")
@pytest.mark.parametrize(("layout", "opset"), [("interleaved", 18), ("half", 23)])
def test_onnx_onnx_6480_exports_in_plain_operators(layout, opset):
    model = Model(inverse_power(D), layout)
    given = (torch.randn(2, 3, 5, D), torch.arange(5))
    shapes = ({2: LENGTH}, {0: LENGTH})
    again = (torch.randn(2, 3, 9, D), torch.arange(9) * 100)
    found, kinds = run_onnx(model, given, shapes, opset, again)
    torch.testing.assert_close(found, model(*again), rtol=0, atol=1e-5)
    assert "RotaryEmbedding" not in kinds


@pytest.mark.slow
@pytest.mark.usefixtures("exact_onnxruntime")
@pytest.mark.parametrize("layout", ["interleaved", "half"])
def test_onnx_in_its_own_operator(layout):
    model = Operator(layout)
    given = (torch.randn(2, 3, 5, D), torch.arange(5).expand(2, 5))
    shapes = ({2: LENGTH}, {1: LENGTH})
    again = (torch.randn(2, 3, 9, D), torch.arange(9).expand(2, 9) * 100)
    found, kinds = run_onnx(model, given, shapes, 23, again)
    expected = model.rope(again[1])(again[0])  # Partial: 8 of 16 channels turn.
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    assert "RotaryEmbedding" in kinds
