"""Who serves a call, what is refused, and what the refusal says."""

import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch

from rotary import RotaryEmbedding, Rotation, rotate
from rotary.errors import BackendError, ConfigError, DtypeError, ShapeError
from rotary.kernels import explain
from rotary.kernels.contract import align_tables


def tables(*shape):
    angles = torch.randn(*shape)
    return angles.cos(), angles.sin()


def test_tables_line_up_by_rank_even_where_every_size_is_the_same():
    """B == H == L: aligned from the right this would run, and be wrong."""
    n, planes = 3, 2
    x, (cos, sin) = torch.randn(n, n, n, 2 * planes), tables(n, n, planes)
    for axis in (-2, -3):
        full, _ = align_tables(x, cos, sin, length_axis=axis)
        for b in range(n):
            for h in range(n):
                for at in range(n):
                    index = (b, h, at) if axis == -2 else (b, at, h)
                    assert (full.expand(n, n, n, planes)[index] == cos[b, at]).all()
        for backend in ("cpu", "plain"):
            got = rotate(x, cos, sin, layout="half", length_axis=axis, backend=backend)
            right = torch.stack(
                [
                    rotate(x[b], cos[b], sin[b], layout="half", length_axis=axis, backend=backend)
                    for b in range(n)
                ]
            )
            assert (got == right).all()


@pytest.mark.parametrize(
    ("x", "table", "axis", "message"),
    [
        ((2, 3, 5, 8), (5, 6), -2, "6 planes, but x has 8 channels, which form 4 planes"),
        ((2, 3, 5, 8), (4, 4), -2, "x has 5 positions and the tables 4"),
        ((2, 3, 5, 8), (3, 5, 4), -2, "batch and heads must match or be 1"),
        ((2, 3, 5, 8), (2, 2, 5, 4), -2, "batch and heads must match or be 1"),
        ((2, 3, 5, 8), (1, 2, 3, 5, 4), -2, "tables of rank 5 do not fit"),
        ((2, 3, 5, 8), (4,), -2, "a table needs a length and a plane axis"),
        ((2, 5, 3, 8), (5, 4), -2, "length_axis=-3"),
        ((8,), (1, 4), -2, "no axis -2"),
        ((5, 8), (5, 4), -3, "no axis -3"),
    ],
)
def test_shapes_that_do_not_belong_together(x, table, axis, message):
    for backend in ("auto", "plain"):
        with pytest.raises(ShapeError, match=message):
            rotate(
                torch.randn(x), *tables(*table), layout="half", length_axis=axis, backend=backend
            )


def test_dtypes_devices_and_names(request):
    x, (cos, sin) = torch.randn(2, 5, 8), tables(5, 4)
    wrongs = [{"length_axis": 1}]
    if not request.config.getoption("--enforce-shapes"):  # There the annotations refuse first.
        wrongs += [{"backend": "cuda"}, {"layout": "halves"}]
        with pytest.raises(ConfigError, match="Did you mean 'interleaved'"):
            rotate(x, cos, sin, layout="interleave")
        for amplitude in ("2", None, 1j):
            with pytest.raises(ConfigError, match=f"amplitude is {amplitude!r}.*give a number"):
                rotate(x, cos, sin, layout="half", amplitude=amplitude)
        doubled = rotate(x, cos, sin, layout="half", amplitude=2.0)
        for amplitude in (2, np.float32(2.0)):
            assert torch.equal(rotate(x, cos, sin, layout="half", amplitude=amplitude), doubled)
    for wrong in wrongs:
        with pytest.raises(ConfigError, match="accepted are"):
            rotate(x, cos, sin, **({"layout": "half"} | wrong))
    with pytest.raises(ShapeError, match="two halves of one table"):
        Rotation(cos, sin[:3], "half")(x)
    with pytest.raises(ConfigError, match="cos on meta"):
        Rotation(cos.to("meta"), sin, "half")(x)
    with pytest.raises(DtypeError, match="Half-precision tables lose the position"):
        Rotation(cos.half(), sin.half(), "half")(x)
    for dtype in (torch.int64, torch.complex64, torch.bool, torch.float8_e4m3fn):
        with pytest.raises(DtypeError, match="accepted are float64, float32, bfloat16"):
            Rotation(cos, sin, "half")(x.to(dtype))


def test_a_named_backend_that_cannot_serve_says_why():
    x, (cos, sin) = torch.randn(2, 5, 8), tables(5, 4)
    with pytest.raises(BackendError, match="backend='triton' cannot serve this call: x is on cpu"):
        rotate(x, cos, sin, layout="half", backend="triton")
    with pytest.raises(BackendError, match="the tables need a gradient"):
        rotate(x, cos.requires_grad_(), sin, layout="half", backend="cpu")

    class Odd(torch.Tensor):
        pass

    odd = x.as_subclass(Odd)
    with pytest.raises(BackendError, match="x is a Odd"):
        rotate(odd, cos.detach(), sin, layout="half", backend="cpu")
    assert type(rotate(odd, cos.detach(), sin, layout="half")) is Odd


def test_explain_names_the_backend_and_the_reasons():
    lines = explain(torch.randn(2, 4)).splitlines()
    assert [line.split(":")[0] for line in lines] == ["cpu", "triton", "plain"]
    assert lines[0].startswith("cpu: serves torch.float32 on cpu with ")
    assert "needs a GPU" in lines[1]
    cos, sin = tables(2, 2)
    lines = explain(torch.randn(2, 4), cos.requires_grad_(), sin).splitlines()
    assert "the tables need a gradient" in lines[0]
    assert lines[2].startswith("plain: serves")
    assert "x is on meta" in explain(torch.randn(2, 4, device="meta"))


def test_in_place_only_where_autograd_allows_it():
    cos, sin = tables(5, 4)
    rotation = Rotation(cos, sin, "half")
    leaf = torch.randn(2, 5, 8).requires_grad_()
    for backend in ("auto", "plain"):
        with pytest.raises(BackendError, match="leaf that requires a gradient"):
            rotation(leaf, inplace=True, backend=backend)
        with pytest.raises(BackendError, match="several elements share memory"):
            rotation(torch.randn(1, 5, 8).expand(2, 5, 8), inplace=True, backend=backend)
        with pytest.raises(BackendError, match="negated view"):
            rotation(torch.randn(5, 8).cfloat().conj().imag, inplace=True, backend=backend)
        with pytest.raises(BackendError, match="view"):
            rotation((leaf * 1).unbind(0)[0], inplace=True, backend=backend)
        with torch.inference_mode():
            made_there = torch.randn(2, 5, 8)
            right = rotation(made_there)
            rotation(made_there, inplace=True, backend=backend)
            torch.testing.assert_close(made_there, right)
        with pytest.raises(BackendError, match="inference mode"):
            rotation(made_there, inplace=True, backend=backend)
        with torch.no_grad():
            right = rotation(leaf)
            rotation(leaf, inplace=True, backend=backend)
            torch.testing.assert_close(leaf.data, right)

        inner = leaf * 2
        rotation(inner, inplace=True, backend=backend)
        (got,) = torch.autograd.grad((inner * cos.sum()).sum(), leaf)
        (right,) = torch.autograd.grad((rotation(leaf * 2) * cos.sum()).sum(), leaf)
        torch.testing.assert_close(got, right)

        inner = leaf * 2
        needed = inner.exp()  # Its backward wants its own result.
        rotation(needed, inplace=True, backend=backend)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            needed.sum().backward()


def test_in_place_refuses_elements_that_share_memory():
    """Windows over one line: each element would be turned once a window, and end up wrong."""
    rotation = Rotation(*tables(5, 4), "half")
    for x in (
        torch.as_strided(torch.randn(20), (5, 8), (2, 1)),
        torch.randn(12).unfold(0, 8, 1),
        torch.as_strided(torch.randn(68), (2, 5, 8), (32, 7, 1)),
    ):
        for backend in ("auto", "plain"):
            with pytest.raises(BackendError, match="several elements share memory"):
                rotation(x, inplace=True, backend=backend)
    fused = torch.randn(2, 5, 3, 2, 8)
    apart = [
        *fused.unbind(2),
        torch.randn(8, 5).T,
        torch.randn(3, 5, 16)[..., ::2],
        torch.randn(1, 5, 8).expand(1, 1, 5, 8),
        torch.randn(0, 5, 8),
    ]
    for x in apart:
        axis = -3 if x.ndim == 4 and x.shape[-3] == 5 else -2
        right = rotation(x, length_axis=axis)
        torch.testing.assert_close(rotation(x, length_axis=axis, inplace=True), right)


def test_in_place_turns_nothing_twice():
    rope = RotaryEmbedding(head_dim=8)
    rotation, x = rope(torch.arange(5)), torch.randn(2, 3, 5, 8)
    for q, k in ((x, x), (x, x.view(x.shape)), (x, x[:, :1])):
        for call in (lambda q, k: rope.rotate(q, k, inplace=True), None):
            call = call or (lambda q, k: rotation(q, k, inplace=True))
            with pytest.raises(BackendError, match="would be turned twice"):
                call(q, k)
    q, k, v = fused = torch.randn(2, 5, 3, 4, 8).unbind(2)
    expected = rotation(*fused, length_axis=-3)
    rotation(*fused, length_axis=-3, inplace=True)
    for got, right in zip((q, k, v), expected, strict=True):
        torch.testing.assert_close(got, right)
    empty = torch.randn(0, 5, 8)
    assert rotation(empty, empty, inplace=True)[0] is empty


@pytest.mark.parametrize("amplitude", [1.0, "tensor"])
def test_in_place_refuses_tables_that_need_a_gradient(amplitude):
    """The gradient of a table is made from the old values of x; backward would find the new."""
    rope = RotaryEmbedding(head_dim=8, is_learnable=True)
    learned, x = rope(torch.arange(5)), torch.randn(2, 5, 8)
    if amplitude == "tensor":
        learned = Rotation(learned.cos, learned.sin, "interleaved", torch.ones(2, 1, 1))
    for backend in ("auto", "plain"):
        with pytest.raises(BackendError, match="the tables need a gradient"):
            learned(x, inplace=True, backend=backend)
    with torch.no_grad():
        right = learned(x)
        torch.testing.assert_close(learned(x, inplace=True), right)


def test_an_amplitude_may_differ_from_sequence_to_sequence():
    x, (cos, sin) = torch.randn(2, 3, 5, 10), tables(5, 4)
    amplitude = torch.tensor([1.0, 3.0])
    for axis, given in ((-2, x), (-3, x.transpose(1, 2))):
        for layout in ("half", "interleaved"):
            options = {"layout": layout, "length_axis": axis}
            for backend in ("cpu", "plain"):
                got = rotate(given, cos, sin, amplitude=amplitude, backend=backend, **options)
                for b in range(2):
                    right = rotate(given[b], cos, sin, amplitude=float(amplitude[b]), **options)
                    torch.testing.assert_close(got[b], right)
                same = rotate(given.clone(), cos, sin, amplitude=amplitude, inplace=True, **options)
                torch.testing.assert_close(same, got)
    assert (
        rotate(x, cos, sin, layout="half", amplitude=torch.tensor(2.0))[..., 8:] == x[..., 8:]
    ).all()
    with pytest.raises(ShapeError, match="one for each sequence"):
        rotate(x, cos, sin, layout="half", amplitude=torch.ones(3))


def test_rotation_of_several_tensors_keeps_their_order():
    rotation = RotaryEmbedding(head_dim=8)(torch.arange(5))
    q, k, v = torch.randn(2, 6, 5, 8), torch.randn(2, 2, 5, 8), torch.randn(5, 10)
    for got, x in zip(rotation(q, k, v), (q, k, v), strict=True):
        torch.testing.assert_close(got, rotation(x), rtol=0, atol=0)


def test_without_the_extension_everything_runs_in_plain_pytorch():
    code = """
        import sys
        sys.modules["rotary.kernels._cpu"] = None
        import torch, rotary
        from rotary.kernels import explain
        from rotary.errors import BackendError
        x = torch.randn(2, 3, 5, 8, requires_grad=True)
        rotation = rotary.RotaryEmbedding(head_dim=8)(torch.arange(5))
        rotation(x).sum().backward()
        print(x.grad.shape)
        print(explain(x))
        try:
            rotation(x, backend="cpu")
        except BackendError as error:
            print(error)
    """
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        check=True,
    )
    lines = done.stdout.splitlines()
    assert lines[0] == "torch.Size([2, 3, 5, 8])"
    assert lines[1].startswith("cpu: the extension is not there")
    assert lines[3] == "plain: serves torch.float32 on cpu"
    assert "backend='cpu' cannot serve this call: the extension is not there" in lines[4]
    assert "--no-build-isolation" in lines[4]
