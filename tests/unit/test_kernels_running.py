"""Denominators of causal linear attention: queries with the running sum of the keys."""

import pytest
import torch

from rotary.kernels import cpu
from rotary.kernels.running import running_dot

LEVELS = range(len(cpu.instructions()))
needs_extension = pytest.mark.skipif(cpu.MISSING is not None, reason="needs the extension")


@pytest.fixture(params=LEVELS, ids=cpu.instructions())
def level(request):
    cpu._cpu.use_instructions(request.param)
    yield request.param
    cpu._cpu.use_instructions(0)


def reference(q, k, start):
    """Each sum written out, in float64."""
    q, k, start = q.double(), k.double(), start.double()
    sums = [start + k[:, : t + 1].sum(1) for t in range(k.shape[1])]
    dots = [torch.einsum("grm,gm->gr", q[:, :, t], each) for t, each in enumerate(sums)]
    return torch.stack(dots, -1) if dots else q[..., 0], sums[-1] if sums else start


def draw(groups, heads, length, width, dtype):
    return (
        torch.rand(groups, heads, length, width, dtype=dtype),
        torch.rand(groups, length, width, dtype=dtype),
        torch.rand(groups, width, dtype=dtype),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(
    ("groups", "heads", "length", "width"),
    [(1, 1, 1, 1), (3, 2, 7, 64), (2, 1, 130, 33), (5, 4, 16, 15), (2, 2, 0, 8), (0, 1, 4, 8)],
)
def test_equals_the_sums_written_out(level, groups, heads, length, width, dtype):
    q, k, start = draw(groups, heads, length, width, dtype)
    before = start.clone()
    dots, last = running_dot(q, k, start)
    right, right_last = reference(q, k, start)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-13
    torch.testing.assert_close(dots.double(), right, rtol=tolerance, atol=0)
    torch.testing.assert_close(last.double(), right_last, rtol=tolerance, atol=0)
    assert torch.equal(start, before)


def test_strides(level):
    q, k, start = draw(2, 3, 9, 20, torch.float32)
    apart = q.transpose(1, 2).contiguous().transpose(1, 2), k.mT.contiguous().mT, start[:, ::1]
    for got, right in zip(running_dot(*apart), running_dot(q, k, start), strict=True):
        assert torch.equal(got, right)


def test_a_long_past_costs_no_digits(level):
    """The keys are summed apart from what came before, which is far larger."""
    k = torch.full((1, 256, 16), 1e-3)
    start = torch.full((1, 16), 1e4)
    _, last = running_dot(torch.ones(1, 1, 256, 16), k, start)
    assert torch.equal(last, torch.full((1, 16), 1e4 + 0.256))


def test_what_needs_a_gradient_or_mixes_dtypes_is_plain(monkeypatch):
    monkeypatch.setattr(cpu, "_running_dot", None)
    q, k, start = draw(1, 2, 3, 4, torch.float64)
    assert torch.autograd.gradcheck(
        running_dot, tuple(each.requires_grad_() for each in (q, k, start))
    )
    dots, last = running_dot(q.detach().float(), k.detach(), start.detach())
    assert dots.dtype == last.dtype == torch.float64
    vmapped = torch.func.vmap(running_dot)(*(each.detach()[None] for each in (q, k, start)))
    torch.testing.assert_close(vmapped[0][0], reference(q, k, start)[0].detach())


@needs_extension
@pytest.mark.compiles
def test_opcheck_of_the_operator():
    torch.library.opcheck(torch.ops.rotary.running_dot.default, draw(2, 2, 5, 8, torch.float32))


@needs_extension
@pytest.mark.parametrize(
    "spoil",
    [
        lambda q, k, start: (q[0], k, start),
        lambda q, k, start: (q, k[:, :-1], start),
        lambda q, k, start: (q, k[..., :-1], start),
        lambda q, k, start: (q, k, start[:1]),
        lambda q, k, start: (q, k.double(), start),
        lambda q, k, start: (q.half(), k.half(), start.half()),
    ],
)
def test_the_operator_refuses_what_would_leave_its_memory(spoil):
    with pytest.raises(RuntimeError, match="rotary: expected"):
        torch.ops.rotary.running_dot.default(*spoil(*draw(2, 2, 5, 8, torch.float32)))
