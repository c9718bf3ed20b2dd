"""Every backend equals the float64 reference for every combination of what it may be given."""

import itertools
import threading

import pytest
import torch

from rotary import rotate
from rotary.kernels import cpu
from rotary.kernels.contract import align_tables
from rotary.kernels.reference import rotate_reference
from rotary.testing import assert_matches_reference

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
LAYOUTS = ("interleaved", "half")
B, H, L, D = 2, 3, 7, 78


@pytest.fixture(autouse=True)
def _poisoned_memory():
    """Memory that nobody has written is NaN."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    assert torch.empty(3).isnan().all()
    yield
    torch.use_deterministic_algorithms(before)


BACKENDS = ("plain", *(f"cpu:{i}" for i in range(max(1, len(cpu.instructions())))))


@pytest.fixture(params=BACKENDS)
def backend(request):
    """Plain PyTorch, and the compiled kernel with each instruction set of this processor."""
    name, _, level = request.param.partition(":")
    if name == "plain":
        yield name
        return
    assert cpu.MISSING is None, cpu.MISSING
    cpu._cpu.use_instructions(int(level))
    yield name
    cpu._cpu.use_instructions(0)


def exact_in_bfloat16(*shape):
    """Numbers that every dtype holds exactly, so that one reference serves all."""
    return torch.randn(*shape, dtype=torch.float64).to(torch.bfloat16).to(torch.float64)


def lay_out(x, pattern):
    """The same values with other strides."""
    b, h, length, dim = x.shape
    if pattern == "transposed":
        return x.transpose(1, 2).contiguous().transpose(1, 2)
    if pattern == "slice of qkv":
        qkv = torch.full((b, length, 3, h, dim), torch.nan, dtype=x.dtype)
        qkv[:, :, 1] = x.transpose(1, 2)
        return qkv[:, :, 1].transpose(1, 2)
    if pattern == "channels apart":
        return x.mT.contiguous().mT
    if pattern == "every other channel":
        return torch.stack((x, x * torch.nan), dim=-1)[..., 0]
    return x


TABLES = {
    "L": (L,),
    "BL": (B, L),
    "BHL": (B, H, L),
    "B1L": (B, 1, L),
    "1HL": (1, H, L),
    "1": (1,),
}
PATTERNS = ("dense", "transposed", "slice of qkv", "channels apart", "every other channel")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_equals_the_reference_in_every_combination(backend, layout):
    x = exact_in_bfloat16(B, H, L, D)
    for (_, shape), planes in itertools.product(TABLES.items(), (D // 2, 16, 5)):
        angles = torch.empty(*shape, planes, dtype=torch.float64).uniform_(-9, 9)
        full, _ = align_tables(x, angles, angles)
        right = rotate_reference(x, full, layout=layout, amplitude=1.25)
        for dtype, table in itertools.product(DTYPES, (torch.float32, torch.float64)):
            cos, sin = angles.cos().to(table), angles.sin().to(table)
            plain = rotate(x.to(dtype), cos, sin, layout=layout, amplitude=1.25, backend="plain")
            for pattern in PATTERNS:
                given = lay_out(x.to(dtype), pattern)
                got = rotate(given, cos, sin, layout=layout, amplitude=1.25, backend=backend)
                what = f"{backend} {dtype} {table} {pattern} {shape} {planes}"
                assert_matches_reference(got, reference=right, plain=plain, what=what)
                assert got.stride() == torch.empty_like(given).stride(), what


@pytest.mark.parametrize("layout", LAYOUTS)
def test_in_place_equals_out_of_place_and_touches_nothing_else(backend, layout):
    x = exact_in_bfloat16(B, H, L, D)
    angles = torch.empty(B, L, 19, dtype=torch.float64).uniform_(-9, 9)
    for dtype, pattern in itertools.product(DTYPES, PATTERNS):
        cos, sin = angles.cos().float(), angles.sin().float()
        given = lay_out(x.to(dtype), pattern)
        right = rotate(given.clone(), cos, sin, layout=layout, backend=backend)
        version = given._version
        back = rotate(given, cos, sin, layout=layout, backend=backend, inplace=True)
        assert back is given
        assert given._version > version
        torch.testing.assert_close(given, right, rtol=0, atol=0)
        if pattern == "every other channel":
            assert given._base[..., 1].isnan().all()


def test_the_memory_order_is_kept_where_a_gradient_is_wanted_too(backend):
    x = exact_in_bfloat16(B, H, L, D)
    angles = torch.empty(B, L, 19).uniform_(-9, 9)
    for layout, pattern in itertools.product(LAYOUTS, ("dense", "transposed", "slice of qkv")):
        given = lay_out(x, pattern).requires_grad_()
        got = rotate(given, angles.cos(), angles.sin(), layout=layout, backend=backend)
        right = rotate(given.detach(), angles.cos(), angles.sin(), layout=layout, backend=backend)
        assert got.requires_grad
        assert got.stride() == right.stride() == torch.empty_like(given).stride()
        torch.testing.assert_close(got.detach(), right, rtol=0, atol=1e-14)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_length_axis_names_where_the_positions_run(backend, layout):
    x = exact_in_bfloat16(B, L, H, D)
    for shape in ((L,), (B, L), (B, H, L)):
        angles = torch.empty(*shape, D // 2, dtype=torch.float64).uniform_(-9, 9)
        cos, sin = angles.cos(), angles.sin()
        right = rotate(x.transpose(1, 2), cos, sin, layout=layout, backend="plain").transpose(1, 2)
        got = rotate(x, cos, sin, layout=layout, length_axis=-3, backend=backend)
        assert_matches_reference(got, reference=right)
        assert got.is_contiguous()


SIZES = "3,4 1,2 0,8 3,0 5,1 2,0,3,4 1,1,1,2 0,2,3,4 2,3,4 2,1,3,5,6 2,2,2,3,5,34 3,17,2,130"


@pytest.mark.parametrize("shape", [tuple(map(int, size.split(","))) for size in SIZES.split()])
def test_sizes_from_nothing_to_odd_primes(backend, shape):
    x = exact_in_bfloat16(*shape)
    planes = shape[-1] // 2
    angles = torch.empty(shape[-2], planes, dtype=torch.float64).uniform_(-9, 9)
    for layout in LAYOUTS:
        right = rotate_reference(x, angles, layout=layout)
        for dtype in DTYPES:
            tables = (angles.cos().float(), angles.sin().float())
            plain = rotate(x.to(dtype), *tables, layout=layout, backend="plain")
            got = rotate(x.to(dtype), *tables, layout=layout, backend=backend)
            assert_matches_reference(got, reference=right, plain=plain, what=f"{dtype} {layout}")


@pytest.mark.parametrize("table_heads", [1, 19])
def test_many_tiles_and_groups_of_heads(backend, table_heads):
    """More positions than one tile of tables holds, more heads than share it, both uneven."""
    x = exact_in_bfloat16(2, 19, 449, 78)
    angles = torch.empty(2, table_heads, 449, 39, dtype=torch.float64).uniform_(-9, 9)
    for layout in LAYOUTS:
        right = rotate(x, angles.cos(), angles.sin(), layout=layout, backend="plain")
        for pattern, dtype in (("dense", torch.float32), ("slice of qkv", torch.bfloat16)):
            tables = (angles.cos().float(), angles.sin().float())
            given = lay_out(x.to(dtype), pattern)
            plain = rotate(given, *tables, layout=layout, backend="plain")
            got = rotate(given, *tables, layout=layout, backend=backend)
            assert_matches_reference(got, reference=right, plain=plain, what=f"{dtype} {layout}")


def test_halves_round_to_nearest_even_and_keep_infinity_and_nan(backend):
    """All 65,536 values of either type come through an identity unchanged; sums round as PyTorch's.

    With cos = 1 and sin = 2**-9 the first channel becomes ``a - b / 512``: ties and near-ties.
    """
    every = torch.arange(65536, dtype=torch.int32).to(torch.uint16)
    for dtype in (torch.float16, torch.bfloat16):
        values = every.view(dtype)
        x = torch.stack((values, values.flip(0)), dim=-1).reshape(64, 2048)
        ones = torch.ones(64, 1024)
        for layout in LAYOUTS:
            same = rotate(x, ones, ones * 0, layout=layout, backend=backend)
            finite = x.isfinite()
            whole = rotate(x.nan_to_num(0, 0, 0), ones, ones * 0, layout=layout, backend=backend)
            assert (whole == x.nan_to_num(0, 0, 0)).all()
            assert same[x.isnan()].isnan().all()
            assert not same[finite & finite.roll(1)].isinf().any()
        a, b = values, values.flip(0)
        x = torch.stack((a, b), dim=-1)
        got = rotate(
            x, torch.ones(65536, 1), torch.full((65536, 1), 2.0**-9), layout="half", backend=backend
        )
        right = torch.stack((a.float() - b.float() / 512, b.float() + a.float() / 512), dim=-1)
        torch.testing.assert_close(got, right.to(dtype), rtol=0, atol=0, equal_nan=True)


def test_nan_in_the_tables_stays_nan_in_half_precision(backend):
    """Whatever its payload: one with all bits set must not carry over into a number."""
    payload = torch.tensor([-1, 0x7FFFFFFF], dtype=torch.int32).view(torch.float32)
    x = torch.ones(2, 64)
    for dtype, layout in itertools.product((torch.float16, torch.bfloat16), LAYOUTS):
        for table in (payload[:, None].expand(2, 32), payload[:, None].expand(2, 32).contiguous()):
            assert rotate(x.to(dtype), table, table, layout=layout, backend=backend).isnan().all()


def test_tables_may_have_any_strides(backend):
    x = exact_in_bfloat16(B, H, L, D)
    angles = torch.empty(L, D // 2, dtype=torch.float64).uniform_(-9, 9)
    cos, sin = angles.cos(), angles.sin()
    right = rotate(x, cos, sin, layout="half", backend="plain")
    turned_tables = (cos.T.contiguous().T, torch.stack((sin, sin), dim=-1)[..., 1])
    assert turned_tables[0].stride() != turned_tables[1].stride()
    assert_matches_reference(
        rotate(x, *turned_tables, layout="half", backend=backend), reference=right
    )
    # One table differs from sequence to sequence, the other is the same view for all.
    each = torch.stack((cos, cos.flip(0)))
    for unlike in ((each, sin.expand(B, L, D // 2)), (sin.expand(B, L, D // 2), each)):
        right = rotate(x, unlike[0], unlike[1], layout="half", backend="plain")
        assert_matches_reference(
            rotate(x, *unlike, layout="half", backend=backend), reference=right
        )
    one = torch.ones(1, 1).expand(L, D // 2)
    assert (rotate(x, one, one - one, layout="half", backend=backend) == x).all()


def test_addresses_beyond_two_to_the_31():
    """Huge strides over memory that is never touched but at these rows."""
    far = 2**31 + 5
    memory = torch.empty(0)
    torch.use_deterministic_algorithms(False)  # Nobody shall write NaN into four gigabytes.
    try:
        memory = torch.empty(far + 256, dtype=torch.float16)
    except RuntimeError as error:
        pytest.skip(f"no address space: {error}")
    x = memory.as_strided((2, 1, 3, 16), (far, 1, 64, 1))
    values = torch.randn(2, 1, 3, 16).half()
    x.copy_(values)
    angles = torch.empty(3, 8).uniform_(-9, 9)
    right = rotate(values, angles.cos(), angles.sin(), layout="half", backend="cpu")
    got = rotate(x, angles.cos(), angles.sin(), layout="half", backend="cpu")
    assert got.is_contiguous()
    assert (got == right).all()
    rotate(x, angles.cos(), angles.sin(), layout="half", backend="cpu", inplace=True)
    assert (x == right).all()
    assert (x[1] == right[1]).all()


def test_a_pair_is_the_same_as_one_by_one():
    q, k = torch.randn(2, 6, 5, 16), torch.randn(2, 2, 5, 16).bfloat16()
    angles = torch.empty(5, 8).uniform_(-9, 9)
    tables = (angles.cos(), angles.sin())
    both = cpu.turn((q, k), *tables, True, -2, 1.5, False)
    for got, x in zip(both, (q, k), strict=True):
        assert (got == cpu.turn((x,), *tables, True, -2, 1.5, False)[0]).all()


def test_two_threads_at_once():
    x = torch.randn(3, 4, 257, 64)
    angles = torch.empty(257, 32).uniform_(-9, 9)
    cases = [(layout, x.to(dtype)) for layout in LAYOUTS for dtype in DTYPES]
    tables = (angles.cos(), angles.sin())
    right = [rotate(x, *tables, layout=layout, backend="cpu") for layout, x in cases]
    wrong = []

    def work(start):
        for i in [*range(start, len(cases)), *range(start)] * 5:
            layout, x = cases[i]
            if not torch.equal(rotate(x, *tables, layout=layout, backend="cpu"), right[i]):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(start,)) for start in (0, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize(
    "spoil",
    [
        lambda x, cos, sin: (x, cos[:, :3], sin, True, -2),
        lambda x, cos, sin: (x, cos[:2], sin[:2], True, -2),
        lambda x, cos, sin: (x, cos.half(), sin.half(), True, -2),
        lambda x, cos, sin: (x, cos, sin.double(), True, -2),
        lambda x, cos, sin: (x.int(), cos, sin, True, -2),
        lambda x, cos, sin: (x, cos, sin, True, 5),
        lambda x, cos, sin: (x[0, 0], cos, sin, True, -3),
        lambda x, cos, sin: (x[0, 0, 0], cos, sin, True, -2),
        lambda x, cos, sin: (x, cos[0], sin[0], True, -2),
        lambda x, cos, sin: (x, cos.repeat(1, 2), sin.repeat(1, 2), True, -2),
        lambda x, cos, sin: (x, cos.expand(2, 2, 2, 2, 5, 8), sin, True, -2),
    ],
)
def test_the_bare_operator_refuses_what_would_leave_its_memory(spoil):
    """The library checks before; the operator can be called without it, and must not crash."""
    x, table = torch.randn(2, 3, 5, 16), torch.randn(5, 8)
    with pytest.raises(RuntimeError, match=r"rotary:|expected|Expected"):
        torch.ops.rotary.turn(*spoil(x, table, table), 1.0, False)


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("dim", "planes"), [(64, 32), (128, 64), (80, 40), (96, 48), (64, 16), (24, 12)]
)
def test_large_results(backend, layout, dtype, dim, planes):
    """Results of more than 4 MiB may be written past the caches, in whole vectors or not at all."""
    size = torch.empty((), dtype=dtype).element_size()
    length = 5 * 2**20 // (dim * size) + 1
    x = torch.randn(2, length, dim).to(dtype)
    angles = torch.rand(length, planes)
    cos, sin = angles.cos(), angles.sin()
    turned = rotate(x, cos, sin, layout=layout, backend=backend)
    whole = rotate(x.double(), cos, sin, layout=layout, backend="plain")
    assert_matches_reference(turned, reference=whole)
