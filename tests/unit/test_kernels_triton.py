"""The GPU kernel under Triton's interpreter on a CPU: right, not fast."""

import importlib
import itertools

import pytest
import torch

pytest.importorskip("triton", reason="Triton is published for Linux alone")

from rotary import rotate
from rotary.kernels import explain
from rotary.kernels import triton as launcher
from rotary.kernels.dispatch import rotate_all
from rotary.testing import assert_matches_reference

# Triton reads its functions as source, which the hook that enforces shapes rewrites.
pytestmark = pytest.mark.compiles

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


@pytest.fixture(autouse=True, scope="module")
def _interpreted():
    """Triton decides when a kernel is defined whether to compile or to interpret it."""
    patch = pytest.MonkeyPatch()
    patch.setenv("TRITON_INTERPRET", "1")
    launcher._rows.cache_clear()
    rows = launcher._rows()
    assert not isinstance(rows, str), rows
    importlib.reload(rows)
    yield
    patch.undo()
    importlib.reload(rows)


@pytest.fixture(autouse=True)
def _poisoned_memory():
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(before)


def turned(x, cos, sin, **options):
    """The kernel's result, held against plain PyTorch in float64."""
    got = rotate(x, cos, sin, backend="triton", **options)
    right = rotate(x.double(), cos, sin, backend="plain", **options)
    plain = rotate(x, cos, sin, backend="plain", **options)
    if x.dtype == torch.bfloat16:  # The interpreter cuts off: one unit in the last place.
        unit = right.abs().amax(-1, keepdim=True) * 2.0**-7
        assert ((got.double() - right).abs() <= unit).all()
    else:
        assert_matches_reference(got, reference=right, plain=plain)
    return got


@pytest.mark.parametrize("layout", ["interleaved", "half"])
def test_dtypes_tables_strides_and_partial_widths(layout):
    b, h, length, dim = 2, 5, 7, 22
    x = torch.randn(b, h, length, dim, dtype=torch.float64)
    shapes = [(length,), (b, length), (b, h, length), (1, h, length), (1,)]
    for i, (shape, dtype) in enumerate(itertools.product(shapes, DTYPES)):
        planes = (11, 4)[i // 2 % 2]
        angles = torch.randn(*shape, planes, dtype=(torch.float32, torch.float64)[i % 2])
        given = x.to(dtype)
        if i % 3 == 1:
            given = given.transpose(1, 2).contiguous().transpose(1, 2)
        if i % 3 == 2:
            given = torch.stack((given, given * torch.nan), dim=2)[:, :, 0]
        got = turned(given, angles.cos(), angles.sin(), layout=layout, amplitude=1.25)
        assert got.stride() == torch.empty_like(given).stride()


@pytest.mark.parametrize(
    "shape", [(3, 4), (1, 2), (0, 8), (2, 3, 0), (2, 3, 4), (2, 1, 3, 5, 6), (1, 1, 300, 64)]
)
def test_ranks_and_sizes(shape):
    planes = shape[-1] // 2
    angles = torch.randn(shape[-2], planes)
    for layout in ("interleaved", "half"):
        turned(torch.randn(shape), angles.cos(), angles.sin(), layout=layout)


def test_length_axis_in_place_pairs_and_gradients():
    angles = torch.randn(2, 5, 4, dtype=torch.float64)
    tables = (angles.cos(), angles.sin())
    x = torch.randn(2, 5, 3, 10, dtype=torch.float64)
    got = turned(x, *tables, layout="half", length_axis=-3)
    assert rotate(x, *tables, layout="half", length_axis=-3, backend="triton", inplace=True) is x
    assert torch.equal(x, got)

    q = torch.randn(2, 6, 5, 10, dtype=torch.float64, requires_grad=True)
    k = torch.randn(2, 2, 5, 10, dtype=torch.float64, requires_grad=True)
    for layout in ("interleaved", "half"):
        options = {"layout": layout, "amplitude": 1.5}
        got = rotate_all((q, k), *tables, backend="triton", **options)
        right = rotate_all((q, k), *tables, backend="plain", **options)
        cotangents = [torch.randn_like(t) for t in got]
        torch.testing.assert_close(got, right)
        torch.testing.assert_close(
            torch.autograd.grad(got, (q, k), cotangents),
            torch.autograd.grad(right, (q, k), cotangents),
        )
    plain_x = x.detach()
    torch.library.opcheck(
        torch.ops.rotary.rotate_triton.default,
        (plain_x.transpose(1, 2), *tables, True, -2, 1.5, False),
        test_utils=("test_schema", "test_faketensor", "test_autograd_registration"),
    )


def test_negated_views_are_read_with_their_sign():
    z = torch.randn(5, 4, dtype=torch.complex128)
    x = torch.randn(2, 5, 8, dtype=torch.complex128).conj().imag
    turned(x, z.conj().real, z.conj().imag, layout="half")


def test_addresses_beyond_two_to_the_31():
    far = 2**31 + 5
    torch.use_deterministic_algorithms(False)
    try:
        memory = torch.empty(far + 256, dtype=torch.float16)
    except RuntimeError as error:
        pytest.skip(f"no address space: {error}")
    x = memory.as_strided((2, 1, 3, 16), (far, 1, 64, 1))
    x.copy_(torch.randn(2, 1, 3, 16))
    angles = torch.randn(3, 8)
    turned(x, angles.cos(), angles.sin(), layout="half")


def test_explain_says_who_interprets():
    assert "could serve it too" in explain(torch.randn(2, 4)).splitlines()[1]
