"""Linear attention against the dense float64 reference: forms, maps, masks, gradients, states."""

import itertools

import pytest
import torch
from linear_cases import FORMS, PLAIN_MAPS, draw
from torch._dynamo.testing import CompileCounterWithBackend
from torch.autograd import gradcheck, gradgradcheck

from rotary import RotaryEmbedding, Rotation
from rotary.attention import FavorFeatures, LinearState, linear_attention, walk
from rotary.attention.reference import linear_attention_reference, weights_reference
from rotary.testing import assert_matches_reference


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of a few rows, so that short sequences cross many of their borders."""
    monkeypatch.setattr(walk, "CPU_ELEMENTS_PER_THREAD", 64 // torch.get_num_threads())


def close(actual, expected, bound=1e-11):
    assert actual.shape == expected.shape
    if not actual.numel():
        return
    assert ((actual - expected).abs() <= bound * (1 + expected.abs().max())).all()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("masked", [False, True])
def test_every_form_equals_the_dense_reference(form, causal, masked, small_blocks):
    case = draw()
    mask = torch.rand(2, 37) > 0.3 if masked else None
    expected = case.dense(form, causal=causal, mask=mask)
    cotangent = torch.randn_like(expected)
    inputs = (case.q, case.k, case.v)
    gradients = torch.autograd.grad(expected, inputs, cotangent)
    # "both" divides by sums that nearly cancel: rounding is larger there, in the reference too.
    bound = 1e-7 if form == "both" else 1e-11
    for chunk in (1, 4, 64):
        out = linear_attention(
            *inputs,
            rotation=case.rotation,
            form=form,
            causal=causal,
            key_padding_mask=mask,
            chunk_size=chunk,
        )
        close(out, expected, bound)
        for ours, right in zip(torch.autograd.grad(out, inputs, cotangent), gradients, strict=True):
            close(ours, right, bound)


@pytest.mark.parametrize("layout", ["interleaved", "half"])
@pytest.mark.parametrize("feature_map", ["relu", "exp", "softmax", "softmax_exp"])
def test_every_feature_map_equals_the_dense_reference(feature_map, layout, small_blocks):
    case = draw(layout=layout)
    for causal in (False, True):
        out = linear_attention(
            case.q, case.k, case.v, rotation=case.rotation, feature_map=feature_map, causal=causal,
            chunk_size=4,
        )  # fmt: skip
        expected = case.dense("numerator", feature_map, causal=causal)
        close(out, expected)
        inputs, cotangent = (case.q, case.k, case.v), torch.randn_like(out)
        ours = torch.autograd.grad(out, inputs, cotangent)
        right = torch.autograd.grad(expected, inputs, cotangent)
        for a, b in zip(ours, right, strict=True):
            close(a, b)


@pytest.mark.parametrize("form", ["undivided", "rotate_first", "both"])
def test_identity_features(form, small_blocks):
    case = draw()
    out = linear_attention(
        case.q, case.k, case.v, rotation=case.rotation, form=form, feature_map="identity",
        causal=True, chunk_size=4,
    )  # fmt: skip
    close(out, case.dense(form, "identity", causal=True), 1e-6 if form != "undivided" else 1e-11)


def test_softmax_over_positions_leaves_padding_out():
    case = draw(key_heads=6)
    mask = torch.rand(2, 37) > 0.4
    out = linear_attention(
        case.q, case.k, case.v, rotation=case.rotation, feature_map="softmax_positions",
        key_padding_mask=mask,
    )  # fmt: skip
    weights = case.k.exp() * mask[:, None, :, None]
    keys = weights / weights.sum(-2, keepdim=True)
    rotation = case.rotation
    queries = case.q.softmax(-1)
    expected = (rotation(queries) @ rotation(keys).mT) @ case.v
    close(out, expected / (queries @ keys.mT).sum(-1, keepdim=True))


@pytest.mark.parametrize("length", [0, 1, 2, 3, 4, 5, 11, 64, 65])
@pytest.mark.parametrize("causal", [False, True])
def test_lengths_that_do_not_fill_a_chunk(length, causal, small_blocks):
    case = draw(length=length, batch=1, heads=2, key_heads=1)
    out = linear_attention(
        case.q, case.k, case.v, rotation=case.rotation, causal=causal, chunk_size=2
    )
    close(out, case.dense("numerator", causal=causal))
    assert out.shape == (1, 2, length, 5)
    out.sum().backward()
    assert case.q.grad.shape == case.q.shape


def test_equal_sizes_everywhere_and_unequal_ones():
    """B == H == L hides swapped axes; unequal sizes are in the other tests."""
    case = draw(batch=3, heads=3, key_heads=3, length=3, dim=4, value_dim=4)
    mask = torch.tensor([[1, 1, 0], [0, 1, 1], [1, 0, 1]], dtype=torch.bool)
    out = linear_attention(
        case.q, case.k, case.v, rotation=case.rotation, causal=True, key_padding_mask=mask
    )
    close(out, case.dense("numerator", causal=True, mask=mask))


def test_ranks_two_and_three():
    case = draw(batch=1, heads=1, key_heads=1)
    expected = case.dense("numerator", causal=True)
    for rank in (2, 3):
        q, k, v = (x.reshape(x.shape[-rank:]) for x in (case.q, case.k, case.v))
        out = linear_attention(q, k, v, rotation=case.rotation, causal=True)
        close(out, expected.reshape(out.shape))


def test_cross_attention_with_positions_of_its_own(small_blocks):
    rope = RotaryEmbedding(head_dim=6)
    q = torch.randn(2, 4, 9, 6, dtype=torch.float64)
    k, v = torch.randn(2, 2, 2, 31, 6, dtype=torch.float64)
    q_positions, k_positions = torch.randn(9) * 40, torch.arange(31).flip(0)
    out = linear_attention(
        q,
        k,
        v,
        rotation=rope(q_positions, dtype=torch.float64),
        key_rotation=rope(k_positions, dtype=torch.float64),
    )
    on_queries, on_keys = PLAIN_MAPS["elu+1"]
    k, v = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
    above, below = weights_reference(
        q, k, form="numerator", on_queries=on_queries, on_keys=on_keys,
        query_angles=rope.angles(q_positions), key_angles=rope.angles(k_positions),
    )  # fmt: skip
    close(out, linear_attention_reference(above, below, v))


def test_tables_per_head_and_of_two_axes():
    """Every head its own frequencies; positions are (row, column) pairs."""
    q, k, v = torch.randn(3, 2, 3, 20, 8, dtype=torch.float64)
    positions = torch.randint(-9, 9, (20, 2)).double()
    angles = positions @ torch.randn(3, 2, 4, dtype=torch.float64)  # (heads, length, planes)
    tables = Rotation(angles.cos()[None], angles.sin()[None], "half")
    out = linear_attention(q, k, v, rotation=tables, causal=True, chunk_size=4)
    for head in range(3):
        turn = Rotation(angles[head].cos(), angles[head].sin(), "half")
        one = linear_attention(q[:, head], k[:, head], v[:, head], rotation=turn, causal=True)
        close(out[:, head], one)


def test_positions_per_sequence():
    rope = RotaryEmbedding(head_dim=8)
    q, k, v = torch.randn(3, 2, 3, 20, 8, dtype=torch.float64)
    positions = torch.randint(0, 99, (2, 20))
    out = linear_attention(q, k, v, rotation=rope(positions, dtype=torch.float64), causal=True)
    for row in range(2):
        rotation = rope(positions[row], dtype=torch.float64)
        one = linear_attention(q[row], k[row], v[row], rotation=rotation, causal=True)
        close(out[row], one)


@pytest.mark.parametrize("form", FORMS)
def test_gradcheck_of_output_and_state(form, small_blocks):
    case = draw(batch=1, heads=2, key_heads=1, length=5, dim=4, value_dim=3)
    state = linear_attention(
        case.q, case.k, case.v, rotation=case.rotation, form=form, causal=True, return_state=True
    )[1]
    sums = [x.detach().requires_grad_() for x in state[:2] if x is not None]

    def call(q, k, v, *sums):
        past = LinearState(sums[0], sums[1] if len(sums) > 1 else None, state.position)
        out, new = linear_attention(
            q, k, v, rotation=case.rotation, form=form, causal=True, state=past, return_state=True,
            chunk_size=2,
        )  # fmt: skip
        return (out, *(x for x in new[:2] if x is not None))

    assert gradcheck(call, (case.q, case.k, case.v, *sums))
    if form in ("numerator", "cosine"):
        assert gradgradcheck(call, (case.q, case.k, case.v, *sums))


def test_gradcheck_without_causality(small_blocks):
    case = draw(batch=1, heads=2, key_heads=1, length=5, dim=4, value_dim=3)

    def call(q, k, v):
        return linear_attention(q, k, v, rotation=case.rotation)

    assert gradcheck(call, (case.q, case.k, case.v))
    assert gradgradcheck(call, (case.q, case.k, case.v))


def test_only_the_inputs_and_the_states_between_blocks_are_kept(small_blocks):
    """64 rows, blocks of 4: backward recomputes everything else."""
    case = draw(batch=1, heads=2, key_heads=2, length=64, dim=8, value_dim=8)
    kept = {}

    def pack(x):
        kept[x.data_ptr()] = x.numel()
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        linear_attention(case.q, case.k, case.v, rotation=case.rotation, causal=True, chunk_size=4)
    state = 2 * (8 * 8 + 8)
    assert sum(kept.values()) == 3 * case.q.numel() + (64 // 4) * state


def test_learnable_tables_get_their_gradient(small_blocks):
    case = draw(batch=1, heads=2, key_heads=1, length=9, dim=4)
    angles = case.rope.angles(case.positions).requires_grad_()
    rotation = Rotation(angles.cos(), angles.sin(), "interleaved")
    out = linear_attention(
        case.q.detach(), case.k.detach(), case.v.detach(), rotation=rotation, causal=True,
        chunk_size=2,
    )  # fmt: skip
    out.square().sum().backward()
    step = torch.zeros_like(angles)
    step[3, 1] = 1e-6

    def value(angles):
        rotation = Rotation(angles.cos(), angles.sin(), "interleaved")
        out = linear_attention(case.q, case.k, case.v, rotation=rotation, causal=True, chunk_size=2)
        return out.square().sum()

    slope = (value(angles.detach() + step) - value(angles.detach() - step)) / 2e-6
    close(angles.grad[3, 1], slope.detach(), 1e-6)


@pytest.mark.parametrize("side", ["rotation", "key_rotation"])
@pytest.mark.parametrize("causal", [False, True])
def test_a_learnable_amplitude_gets_its_gradient(causal, side, small_blocks):
    """The output of the numerator form is linear in the amplitude of either side."""
    case = draw(batch=1, heads=2, key_heads=1, length=37)
    tables = case.rotation
    amplitude = torch.ones(1, 1, 1, dtype=torch.float64, requires_grad=True)
    scaled = Rotation(tables.cos[None], tables.sin[None], "interleaved", amplitude)
    rotations = {"rotation": tables, "key_rotation": tables, side: scaled}
    out = linear_attention(case.q, case.k, case.v, **rotations, causal=causal, chunk_size=2)
    cotangent = torch.randn_like(out)
    (slope,) = torch.autograd.grad(out, amplitude, cotangent)
    close(slope.sum(), (case.dense("numerator", causal=causal) * cotangent).sum())


def test_a_custom_map_with_parameters_gets_its_gradient(small_blocks):
    layer = torch.nn.Linear(8, 10).double()
    case = draw()
    rotation = RotaryEmbedding(head_dim=10)(case.positions, dtype=torch.float64)

    def call(feature_map):
        return linear_attention(
            case.q, case.k, case.v, rotation=rotation, causal=True, feature_map=feature_map,
            chunk_size=4,
        )  # fmt: skip

    out = call(lambda x: torch.nn.functional.softplus(layer(x)))
    close(out, call((lambda q: torch.nn.functional.softplus(layer(q)),) * 2))
    out.sum().backward()
    assert layer.weight.grad.abs().min() > 0


@pytest.mark.parametrize("form", [*FORMS, "rotate_first"])
def test_prefill_equals_chunks_equals_token_by_token(form, small_blocks):
    case = draw(length=23)
    options = {"form": form, "causal": True, "chunk_size": 4}
    if form == "rotate_first":
        options["feature_map"] = FavorFeatures(8, 16)
    whole, last = linear_attention(
        case.q, case.k, case.v, rotation=case.rotation, return_state=True, **options
    )
    for cuts in ([0, 9, 10, 23], list(range(24))):
        state, pieces = None, []
        for a, b in itertools.pairwise(cuts):
            out, state = linear_attention(
                case.q[:, :, a:b], case.k[:, :, a:b], case.v[:, :, a:b],
                rotation=case.rotation[a:b], state=state, return_state=True, **options,
            )  # fmt: skip
            pieces.append(out)
        bound = 1e-6 if form == "both" else 1e-10
        close(torch.cat(pieces, -2), whole, bound)
        close(state.memory, last.memory)
        if form != "undivided":
            close(state.key_sum, last.key_sum)
        assert state.position.tolist() == [23, 23]


def test_a_state_can_be_used_twice_and_is_not_changed():
    case = draw(length=12)
    first = slice(0, 7)
    _, state = linear_attention(
        case.q[:, :, first], case.k[:, :, first], case.v[:, :, first],
        rotation=case.rotation[first], causal=True, return_state=True,
    )  # fmt: skip
    before = [x.detach().clone() for x in state]

    def go_on(scale):
        q, k, v = (x[:, :, 7:] for x in (case.q, case.k, case.v))
        return linear_attention(
            q, k * scale, v, rotation=case.rotation[7:], causal=True, state=state
        )

    one, other, again = go_on(1.0), go_on(-2.0), go_on(1.0)
    assert torch.equal(one, again)
    assert not torch.allclose(one, other)
    for kept, now in zip(before, state, strict=True):
        assert torch.equal(kept, now)
    # Both uses send their gradient into the past.
    both = torch.autograd.grad((one + other).sum(), case.k, retain_graph=True)[0]
    apart = [torch.autograd.grad(x.sum(), case.k, retain_graph=True)[0] for x in (one, other)]
    close(both, apart[0] + apart[1])


def test_selected_states_follow_their_sequences():
    case = draw()
    _, state = linear_attention(
        case.q, case.k, case.v, rotation=case.rotation, causal=True, return_state=True
    )
    rows = torch.tensor([1, 1, 0])
    picked = state.select(rows)
    assert torch.equal(picked.memory, state.memory[rows])
    assert torch.equal(picked.key_sum, state.key_sum[rows])
    assert picked.position.tolist() == [37, 37, 37]


def test_left_padding_changes_nothing_and_the_state_counts_real_tokens():
    case = draw(batch=2, length=13)
    padded = torch.arange(13) >= torch.tensor([[5], [0]])
    # With plain positions: the numerator form does not notice a common offset.
    out, state = linear_attention(
        case.q, case.k, case.v, rotation=case.rotation, causal=True, key_padding_mask=padded,
        return_state=True,
    )  # fmt: skip
    alone = linear_attention(
        case.q[:1, :, 5:], case.k[:1, :, 5:], case.v[:1, :, 5:],
        rotation=case.rope(torch.arange(8), dtype=torch.float64), causal=True,
    )  # fmt: skip
    close(out[:1, :, 5:], alone)
    assert (out[0, :, :5] == 0).all()
    assert state.position.tolist() == [8, 13]


def test_a_batch_of_one_is_masked_too():
    case = draw(batch=1)
    mask = torch.arange(37)[None] < 30
    out = linear_attention(case.q, case.k, case.v, rotation=case.rotation, key_padding_mask=mask)
    cut = linear_attention(
        case.q, case.k[:, :, :30], case.v[:, :, :30], rotation=case.rotation,
        key_rotation=case.rotation[:30],
    )  # fmt: skip
    close(out, cut)


def test_masks_do_not_let_infinite_padding_through():
    case = draw()
    mask = torch.arange(37) < 30
    k = case.k.detach().clone()
    k[:, :, 30:] = torch.inf
    out = linear_attention(case.q, k, case.v, feature_map="exp", key_padding_mask=mask)
    assert out.isfinite().all()


def test_values_are_not_edited():
    case = draw()
    v = case.v.detach().clone()
    linear_attention(case.q, case.k, v, causal=True, key_padding_mask=torch.rand(37) > 0.5)
    assert torch.equal(v, case.v)


@pytest.mark.parametrize("causal", [False, True])
def test_rows_without_a_key_are_zero_with_finite_gradients(causal):
    for form in FORMS:
        case = draw()
        out = linear_attention(
            case.q, case.k, case.v, rotation=case.rotation, form=form, causal=causal,
            key_padding_mask=torch.zeros(2, 37, dtype=torch.bool),
        )  # fmt: skip
        assert (out == 0).all()
        out.sum().backward()
        assert all(x.grad.isfinite().all() for x in (case.q, case.k, case.v))


def test_denominators_near_zero_stay_finite():
    q = torch.full((1, 1, 3, 4), -50.0, requires_grad=True)
    k = torch.full((1, 1, 3, 4), -60.0, requires_grad=True)
    v = torch.ones(1, 1, 3, 2)
    # exp(-50) exp(-60) underflows: these rows see nothing.
    out = linear_attention(q, k, v, causal=True)
    assert (out == 0).all()
    # exp(-20) exp(-20) is small, and a denominator all the same: one key, so its value.
    small = linear_attention(q * 0.4, k / 3, v, causal=True)
    torch.testing.assert_close(small, torch.ones_like(small))
    (out.sum() + small.sum()).backward()
    assert q.grad.isfinite().all()
    assert k.grad.isfinite().all()


@pytest.mark.parametrize("causal", [False, True])
def test_a_finite_output_has_finite_gradients_however_small_its_denominator(causal):
    """Features of exp(-x), down to where their product is no denominator any more."""
    seen = set()
    for x in torch.arange(30.0, 50.0, 0.5):
        q, k = torch.full((2, 1, 1, 8, 16), -x.item()).requires_grad_()
        v = torch.randn(1, 1, 8, 64)
        out = linear_attention(q, k, v, causal=causal)
        assert out.isfinite().all()
        assert all(each.isfinite().all() for each in torch.autograd.grad(out.sum(), (q, k)))
        seen.add(bool((out == 0).all()))
    assert seen == {False, True}


def test_cosine_rows_sum_to_one_and_opposite_vectors_are_no_accident():
    q = torch.randn(1, 2, 9, 6)
    ones = torch.ones(1, 2, 9, 1)
    rotation = RotaryEmbedding(head_dim=6)(torch.arange(9))
    total = linear_attention(q, q, ones, rotation=rotation, form="cosine", causal=True)
    torch.testing.assert_close(total, ones)
    # The first query meets one key, which is its opposite: no weight at all.
    opposite = (-q).requires_grad_()
    out = linear_attention(q, opposite, ones, rotation=rotation, form="cosine", causal=True)
    assert out.isfinite().all()
    assert out[:, :, 0].abs().max() < 1e-5
    zero = torch.zeros_like(q, requires_grad=True)
    linear_attention(zero, zero, ones, form="cosine", causal=True).sum().backward()
    assert zero.grad.isfinite().all()


def test_both_can_lose_its_denominator_and_holds_it():
    """One plane, half a turn away: the turned score is minus the plain one."""
    q, k, v = torch.ones(3, 1, 1, 2, 2, dtype=torch.float64)
    k[..., 0, :] = 1.0
    angle = torch.tensor([[0.0], [torch.pi]], dtype=torch.float64)
    turn = Rotation(angle.cos(), angle.sin(), "interleaved")
    out = linear_attention(q, k, v, rotation=turn, form="both", causal=True, feature_map="relu")
    assert out.isfinite().all()
    # Row 1: weights -2 and 2, whose sum vanishes; the numerator form divides by 4 instead.
    calm = linear_attention(q, k, v, rotation=turn, causal=True, feature_map="relu")
    assert calm[0, 0, 1].abs().max() < 1e-12


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_low_precision_is_as_good_as_rounding_the_answer(dtype):
    case = draw(length=70)
    q, k, v = (x.detach().to(dtype) for x in (case.q, case.k, case.v))
    rotation = case.rope(case.positions)
    rounded = draw(length=70)
    rounded.q, rounded.k, rounded.v = (x.double() for x in (q, k, v))
    for causal in (False, True):
        out, state = linear_attention(q, k, v, rotation=rotation, causal=causal, return_state=True)
        assert out.dtype == dtype
        assert state.memory.dtype == state.key_sum.dtype == torch.float32
        expected = rounded.dense("numerator", causal=causal)
        # Sums of signed terms: the rounding is that of float32 terms, not of their sum.
        plain = linear_attention(q.float(), k.float(), v.float(), rotation=rotation, causal=causal)
        assert_matches_reference(out, reference=expected, plain=plain.to(dtype))
        assert_matches_reference(plain, reference=expected, plain=expected.float() * (1 + 4e-6))


def test_half_precision_gradients_are_float32_inside():
    case = draw(length=300, batch=1, heads=2, key_heads=2)
    exact = [x.detach().bfloat16().double().requires_grad_() for x in (case.q, case.k, case.v)]
    rough = [x.detach().bfloat16().requires_grad_() for x in exact]
    cotangent = torch.randn(1, 2, 300, 5).bfloat16()
    rotation = case.rotation
    linear_attention(*exact, rotation=rotation, causal=True).backward(cotangent.double())
    linear_attention(*rough, rotation=rotation, causal=True).backward(cotangent)
    for a, b in zip(rough, exact, strict=True):
        limit = torch.finfo(torch.bfloat16).eps * b.grad.abs().amax(-1, keepdim=True)
        limit = limit + 1e-6 * b.grad.abs().max()  # Where the gradient is zero but for rounding.
        assert ((a.grad.double() - b.grad).abs() <= limit).all()


def test_autocast_does_not_reach_the_sums():
    case = draw(length=200)
    q, k, v = (x.detach().float() for x in (case.q, case.k, case.v))
    rotation = case.rope(case.positions)
    plain = linear_attention(q, k, v, rotation=rotation, causal=True)
    q.requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = linear_attention(q, k, v, rotation=rotation, causal=True)
    assert torch.equal(out, plain)


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")  # By torch's own jvp.
def test_functorch_and_forward_mode():
    case = draw(length=9)
    inputs = tuple(x.detach() for x in (case.q, case.k, case.v))
    tangents = tuple(torch.randn_like(x) for x in inputs)

    def call(q, k, v):
        return linear_attention(q, k, v, rotation=case.rotation, causal=True, chunk_size=2)

    out, tangent = torch.func.jvp(call, inputs, tangents)
    cotangent = torch.randn_like(out)
    gradients = torch.autograd.grad(
        call(case.q, case.k, case.v), (case.q, case.k, case.v), cotangent
    )
    moved = sum((g * t).sum() for g, t in zip(gradients, tangents, strict=True))
    close((tangent * cotangent).sum(), moved)
    transformed = torch.func.grad(lambda q: (call(q, *inputs[1:]) * cotangent).sum())(inputs[0])
    close(transformed, gradients[0])
    batched = torch.func.vmap(call)(*(x.unsqueeze(1) for x in inputs))
    close(batched.squeeze(1), call(*inputs))


def test_inputs_need_not_be_contiguous():
    case = draw()
    q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (case.q, case.k, case.v))
    out = linear_attention(q, k, v, rotation=case.rotation, causal=True, chunk_size=4)
    close(out, case.dense("numerator", causal=True))


@pytest.mark.compiles
def test_compiled_equals_eager():
    case = draw(length=21)
    q, k, v = (x.detach().float().requires_grad_() for x in (case.q, case.k, case.v))
    rotation = case.rope(case.positions)

    def call(q, k, v):
        return linear_attention(q, k, v, rotation=rotation, causal=True, chunk_size=4)

    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    expected, out = call(q, k, v), compiled(q, k, v)
    torch.testing.assert_close(out, expected)
    cotangent = torch.randn_like(out)
    for a, b in zip(
        torch.autograd.grad(out, (q, k, v), cotangent),
        torch.autograd.grad(expected, (q, k, v), cotangent),
        strict=True,
    ):
        torch.testing.assert_close(a, b)


@pytest.mark.slow
@pytest.mark.compiles
@pytest.mark.parametrize("causal", [False, True])
def test_one_graph_serves_many_lengths(causal):
    """One for the first length and one for those of its kind: no length brings its own."""
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    rope = RotaryEmbedding(head_dim=8)

    def call(q, k, v):
        rotation = rope(torch.arange(q.shape[-2]), dtype=torch.float64)
        return linear_attention(q, k, v, rotation=rotation, causal=causal, chunk_size=4)

    compiled = torch.compile(call, fullgraph=True, backend=counter)
    for length in (9, 14, 21, 30, 51):
        case = draw(length=length, offset=0)
        inputs = (case.q, case.k, case.v)
        out, expected = compiled(*inputs), case.dense("numerator", causal=causal)
        close(out, expected)
        cotangent = torch.randn_like(out)
        ours, right = (torch.autograd.grad(x, inputs, cotangent) for x in (out, expected))
        for a, b in zip(ours, right, strict=True):
            close(a, b)
    assert counter.frame_count == 2


@pytest.mark.compiles
@pytest.mark.slow
@pytest.mark.parametrize("form", ["numerator", "cosine", "undivided"])
def test_the_causal_form_is_exported_for_lengths_of_whole_chunks(form):
    class Model(torch.nn.Module):
        def forward(self, q, k, v):
            rotation = RotaryEmbedding(head_dim=8)(torch.arange(q.shape[-2]), dtype=torch.float64)
            return linear_attention(
                q, k, v, rotation=rotation, form=form, causal=True, chunk_size=4
            )

    def inputs(length):
        case = draw(length=length, offset=0)
        return case, tuple(x.detach() for x in (case.q, case.k, case.v))

    lengths = 4 * torch.export.Dim("chunks", min=2, max=64)
    exported = torch.export.export(Model(), inputs(12)[1], dynamic_shapes=({2: lengths},) * 3)
    for length in (8, 40, 256):
        case, tensors = inputs(length)
        close(exported.module()(*tensors), case.dense(form, causal=True).detach())
