"""The tables are the float32 numbers next to the true cosines and sines, whoever makes them."""

import math

import numpy as np
import pytest
import torch

from rotary import RotaryEmbedding
from rotary.kernels import cpu
from rotary.kernels.tables import tables

LEVELS = range(len(cpu.instructions()))
SCALES = (1e-3, 1.0, 1e3, 1e6, 1e9, 1e12, 1e15)


@pytest.fixture(params=LEVELS, ids=cpu.instructions())
def level(request):
    cpu._cpu.use_instructions(request.param)
    yield request.param
    cpu._cpu.use_instructions(0)


def distance(got, exact):
    """In units in the last place of float32, where 0.5 is what rounding costs."""
    unit = torch.from_numpy(np.spacing(exact.abs().float().numpy())).double()
    return float(((got.double() - exact).abs() / unit).max())


@pytest.mark.parametrize("scale", SCALES)
def test_within_half_a_unit_in_the_last_place(level, scale):
    angles = (2 * torch.rand(100_003, dtype=torch.float64) - 1) * scale
    cos, sin = tables(angles, torch.float32)
    assert cos.dtype == sin.dtype == torch.float32
    assert distance(cos, angles.cos()) < 0.50001
    assert distance(sin, angles.sin()) < 0.50001


def test_each_quadrant_and_its_ends(level):
    k = torch.arange(-9, 10, dtype=torch.float64)[:, None]
    angles = k * (math.pi / 4) + torch.tensor([-1e-9, 0.0, 1e-9], dtype=torch.float64)
    cos, sin = tables(angles, torch.float32)
    assert cos.shape == angles.shape
    torch.testing.assert_close(cos, angles.cos().float(), rtol=2e-7, atol=1e-16)
    torch.testing.assert_close(sin, angles.sin().float(), rtol=2e-7, atol=1e-16)


def test_position_zero_is_the_identity_exactly(level):
    cos, sin = tables(torch.zeros(3, 5, dtype=torch.float64), torch.float32)
    assert torch.equal(cos, torch.ones(3, 5))
    assert torch.equal(sin, torch.zeros(3, 5))


def test_what_is_no_number_or_far_away(level):
    angles = torch.tensor([math.inf, -math.inf, math.nan, 1e300, -(2.0**60)], dtype=torch.float64)
    cos, sin = tables(angles.repeat(7), torch.float32)
    torch.testing.assert_close(cos, angles.cos().float().repeat(7), equal_nan=True)
    torch.testing.assert_close(sin, angles.sin().float().repeat(7), equal_nan=True)


@pytest.mark.parametrize("shape", [(0,), (0, 4), (3, 0), (), (1,), (8193,), (2, 3, 5, 7)])
def test_any_shape(level, shape):
    angles = torch.randn(shape, dtype=torch.float64)
    for got, exact in zip(tables(angles, torch.float32), (angles.cos(), angles.sin()), strict=True):
        torch.testing.assert_close(got, exact.float(), rtol=1e-6, atol=0)


def test_strides(level):
    angles = torch.randn(6, 8, dtype=torch.float64).t()[::2]
    cos, sin = tables(angles, torch.float32)
    torch.testing.assert_close(cos, angles.cos().float(), rtol=1e-6, atol=0)
    torch.testing.assert_close(sin, angles.sin().float(), rtol=1e-6, atol=0)


def test_float64_tables_stay_float64():
    angles = torch.randn(5, dtype=torch.float64)
    cos, sin = tables(angles, torch.float64)
    assert torch.equal(cos, angles.cos())
    assert torch.equal(sin, angles.sin())


@pytest.mark.skipif(cpu.MISSING is not None, reason="without the extension there is one way only")
def test_a_rotary_embedding_takes_the_kernel_where_it_may(monkeypatch):
    served = []
    monkeypatch.setattr(cpu, "_tables", lambda angles: served.append(1) or (angles, angles))
    positions = torch.arange(3)
    RotaryEmbedding(head_dim=4)(positions)
    assert len(served) == 1
    learnable = RotaryEmbedding(head_dim=4, is_learnable=True)
    learnable(positions).cos.sum().backward()  # A table with a gradient is plain PyTorch.
    assert learnable.frequency_offset.grad.abs().sum() > 0
    torch.func.jvp(lambda x: RotaryEmbedding(head_dim=4)(x).cos, (torch.ones(2),), (torch.ones(2),))
    assert len(served) == 1
    with torch.no_grad():
        learnable(positions)
    assert len(served) == 2


@pytest.mark.skipif(cpu.MISSING is not None, reason="needs the extension")
@pytest.mark.compiles
def test_opcheck_of_the_operator():
    torch.library.opcheck(
        torch.ops.rotary.tables.default, (torch.randn(3, 4, dtype=torch.float64),)
    )


@pytest.mark.skipif(cpu.MISSING is not None, reason="needs the extension")
@pytest.mark.parametrize("wrong", [torch.ones(2), torch.ones(2, dtype=torch.int64)])
def test_the_operator_refuses_other_types(wrong):
    with pytest.raises(RuntimeError, match="angles must be float64"):
        torch.ops.rotary.tables.default(wrong)
