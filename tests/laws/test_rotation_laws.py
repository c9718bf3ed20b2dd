"""The laws of the rotation, drawn: norm, composition, inverse, relative shift, identity at 0."""

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rotary import RotaryEmbedding, inverse_power, rotate
from rotary.frequencies import Frequencies, axial, linear, mixed, sections, yarn
from rotary.kernels.reference import rotate_reference
from rotary.testing import assert_matches_reference, assert_relative

LAYOUTS = st.sampled_from(["interleaved", "half"])
DTYPES = st.sampled_from([torch.float64, torch.float32, torch.bfloat16, torch.float16])
DIMS = st.sampled_from([2, 4, 6, 16, 34])
POSITIONS = st.lists(st.integers(-5_000, 5_000), min_size=1, max_size=9)


def draw(shape, dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, dtype=torch.float64, generator=generator).to(dtype)


def case(dim, layout, positions, dtype, seed, extra=0):
    rope = RotaryEmbedding(head_dim=dim, layout=layout)
    where = torch.tensor(positions)
    x = draw((2, 3, len(positions), dim + extra), dtype, seed)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    return rope, where, x, rope(where, dtype=wide)


@given(DIMS, LAYOUTS, POSITIONS, DTYPES, st.integers(0, 99), st.integers(0, 3))
def test_the_operator_is_the_reference(dim, layout, positions, dtype, seed, extra):
    """Against block-diagonal float64 matrices, for every dtype, with and without a tail."""
    _, _, x, rotation = case(dim, layout, positions, dtype, seed, extra)
    theta = [10000.0 ** (-2 * p / dim) for p in range(dim // 2)]
    angles = torch.tensor([[m * t for t in theta] for m in positions], dtype=torch.float64)
    expected = rotate_reference(x, angles, layout=layout)
    # What plain PyTorch makes of the same formula in this dtype sets the tolerance.
    plain = rotate_reference(x.float(), angles.float(), layout=layout).to(dtype)
    actual = rotation(x)
    assert actual.dtype == x.dtype
    assert_matches_reference(actual, reference=expected, plain=plain)
    assert torch.equal(actual[..., dim:], x[..., dim:])


@given(DIMS, LAYOUTS, POSITIONS, DTYPES, st.integers(0, 99))
def test_norms_of_planes_are_kept(dim, layout, positions, dtype, seed):
    _, _, x, rotation = case(dim, layout, positions, dtype, seed)

    def norms(x):
        pairs = x.unflatten(-1, (-1, 2)) if layout == "interleaved" else x.unflatten(-1, (2, -1)).mT
        return pairs.double().norm(dim=-1)

    eps = torch.finfo(dtype).eps
    assert (norms(rotation(x)) - norms(x)).abs().le(3 * eps * norms(x) + eps * 1e-2).all()


@given(DIMS, LAYOUTS, st.integers(-5_000, 5_000), st.integers(-5_000, 5_000), st.integers(0, 99))
def test_two_turns_are_one(dim, layout, m, n, seed):
    """R(m) R(n) = R(m + n), applied one after the other and composed."""
    rope, _, x, first = case(dim, layout, [m], torch.float64, seed)
    second = rope(torch.tensor([n]), dtype=torch.float64)
    both = rope(torch.tensor([m + n]), dtype=torch.float64)
    bound = {"rtol": 0, "atol": 1e-11}
    torch.testing.assert_close(second(first(x)), both(x), **bound)
    torch.testing.assert_close((second @ first)(x), both(x), **bound)


@given(DIMS, LAYOUTS, POSITIONS, DTYPES, st.integers(0, 99))
def test_the_inverse_undoes(dim, layout, positions, dtype, seed):
    rope, where, x, rotation = case(dim, layout, positions, dtype, seed)
    eps = torch.finfo(dtype).eps
    bound = 8 * eps * x.double().abs().amax(-1, keepdim=True)
    for back in (rotation.inverse(), rope(-where, dtype=rotation.dtype), rotation.transpose()):
        assert (back(rotation(x)).double() - x.double()).abs().le(bound).all()


@given(DIMS, LAYOUTS, DTYPES, st.integers(0, 99))
def test_position_zero_is_the_identity(dim, layout, dtype, seed):
    _, _, x, rotation = case(dim, layout, [0, 0], dtype, seed, extra=1)
    assert torch.equal(rotation(x), x)


SCHEDULES = {
    "plain": (inverse_power(16), 1),
    "base": (inverse_power(16, 50.0), 1),
    "linear": (linear(inverse_power(16), 4.0), 1),
    "yarn": (yarn(inverse_power(16), 4.0, 64), 1),
    "axial": (axial(16), 2),
    "video": (axial(16, 3), 3),
    "sections": (sections(inverse_power(16), (4, 2, 2)), 3),
    "mixed": (mixed(16, 1), 2),
    "any": (Frequencies([[0.3, -2.0], [1.5, 0.0]]), 2),
}


@pytest.mark.parametrize("layout", ["interleaved", "half"])
@pytest.mark.parametrize("name", SCHEDULES)
def test_scores_do_not_notice_a_common_shift(name, layout):
    frequencies, axes = SCHEDULES[name]
    rope = RotaryEmbedding(frequencies, layout=layout)

    def turn(x, positions):
        rotation = rope(positions, dtype=x.dtype)
        return rotation(x[None, None])[0, 0] if frequencies.num_heads else rotation(x)

    assert_relative(turn, dim=2 * frequencies.num_planes, num_axes=axes)


@given(DIMS, LAYOUTS, POSITIONS, st.integers(-5_000, 5_000), st.integers(0, 99))
def test_scores_depend_on_the_distance_alone(dim, layout, positions, shift, seed):
    rope, where, q, _ = case(dim, layout, positions, torch.float64, seed)
    k = draw(q.shape, torch.float64, seed + 100)

    def scores(by):
        rotation = rope(where + by, dtype=torch.float64)
        return rotation(q) @ rotation(k).mT

    torch.testing.assert_close(scores(shift), scores(0), rtol=0, atol=1e-10)


def exact_angle(position, numerator, denominator):
    """position * 10000^(-numerator / denominator), reduced by 2 pi, far beyond float64."""
    import mpmath

    with mpmath.workdps(60):
        theta = mpmath.power(10000, mpmath.mpf(-numerator) / denominator)
        return float(mpmath.fmod(position * theta, 2 * mpmath.pi))


@given(st.integers(-1_000_000, 1_000_000), st.integers(0, 31))
def test_far_positions_are_right_to_a_millionth(position, plane):
    """Against sixty digits: the float32 tables to 1e-6, the float64 ones to 1e-9."""
    rope = RotaryEmbedding(head_dim=64)
    angle = exact_angle(position, 2 * plane, 64)
    for dtype, bound in ((torch.float32, 1e-6), (torch.float64, 1e-9)):
        rotation = rope(torch.tensor([position]), dtype=dtype)
        assert abs(rotation.cos[0, plane].item() - math.cos(angle)) < bound
        assert abs(rotation.sin[0, plane].item() - math.sin(angle)) < bound


@given(st.fractions(-100, 100), LAYOUTS)
def test_positions_may_be_fractions(position, layout):
    """Half way is half the turn: positions 2a and a + a agree for real a too."""
    half = float(Fraction(position) / 2)
    rope = RotaryEmbedding(head_dim=8, layout=layout)
    once = rope(torch.tensor([half], dtype=torch.float64), dtype=torch.float64)
    whole = rope(torch.tensor([2 * half], dtype=torch.float64), dtype=torch.float64)
    x = draw((1, 8), torch.float64, 1)
    torch.testing.assert_close((once @ once)(x), whole(x), rtol=0, atol=1e-12)


@pytest.mark.parametrize("layout", ["interleaved", "half"])
def test_gradients(layout):
    """First and second derivatives, of x and of the tables."""
    x = torch.randn(2, 3, 7, dtype=torch.float64, requires_grad=True)
    angle = torch.randn(3, 3, dtype=torch.float64, requires_grad=True)

    def turn(x, angle):
        return rotate(x, angle.cos(), angle.sin(), layout=layout, amplitude=1.3)

    assert torch.autograd.gradcheck(turn, (x, angle))
    assert torch.autograd.gradgradcheck(turn, (x, angle))


@pytest.mark.parametrize("layout", ["interleaved", "half"])
def test_the_gradient_is_the_transpose(layout):
    rotation = RotaryEmbedding(head_dim=8, layout=layout)(torch.arange(5), dtype=torch.float64)
    x = torch.randn(2, 5, 10, dtype=torch.float64, requires_grad=True)
    cotangent = torch.randn_like(x)
    rotation(x).backward(cotangent)
    torch.testing.assert_close(x.grad, rotation.transpose()(cotangent), rtol=0, atol=1e-15)


@pytest.mark.parametrize("layout", ["interleaved", "half"])
def test_learned_frequencies_have_gradients(layout):
    rope = RotaryEmbedding(head_dim=8, layout=layout, is_learnable=True).double()
    x = torch.randn(2, 5, 8, dtype=torch.float64)

    def turn(offset):
        with torch.no_grad():
            rope.frequency_offset.copy_(offset)
        parameters = {"frequency_offset": offset}
        rotation = torch.func.functional_call(
            rope, parameters, (torch.arange(5),), {"dtype": torch.float64}
        )
        return rotation(x)

    offset = (0.1 * torch.randn(1, 4, dtype=torch.float64)).requires_grad_()
    assert torch.autograd.gradcheck(turn, (offset,))


def test_batch_heads_and_length_of_one_size():
    """B == H == L: nothing tells the axes apart but their order."""
    n, dim = 4, 8
    rope = RotaryEmbedding(head_dim=dim)
    x = torch.randn(n, n, n, dim, dtype=torch.float64)
    positions = torch.randint(-9, 9, (n, n))
    expected = torch.empty_like(x)
    for b in range(n):
        for h in range(n):
            expected[b, h] = rope(positions[b], dtype=torch.float64)(x[b, h])
    rotation = rope(positions, dtype=torch.float64)
    torch.testing.assert_close(rotation(x), expected)
    swapped = rotation(x.transpose(1, 2), length_axis=-3)
    torch.testing.assert_close(swapped, expected.transpose(1, 2))
    assert not torch.allclose(rotation(x.transpose(0, 1)), expected.transpose(0, 1))
