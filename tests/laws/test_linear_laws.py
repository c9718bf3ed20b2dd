"""Laws of rotary linear attention: relative, causal, split anywhere, whatever the chunk."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rotary import RotaryEmbedding
from rotary.attention import FavorFeatures, linear_attention, walk

CLAIM_RELATIVE = ["numerator", "cosine", "both", "undivided"]


@st.composite
def problems(draw, max_length=24):
    """Sizes, unequal more often than not; float64 tensors and integer or real positions."""
    batch, key_heads, repeats = (draw(st.integers(1, 3)) for _ in range(3))
    length, planes, value_dim = (draw(st.integers(1, top)) for top in (max_length, 4, 5))
    seed = draw(st.integers(0, 2**31))
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    q = normal(batch, key_heads * repeats, length, 2 * planes)
    k = normal(batch, key_heads, length, 2 * planes)
    v = normal(batch, key_heads, length, value_dim)
    positions = normal(batch, length) * 30
    if draw(st.booleans()):
        positions = positions.round().to(torch.int64)
    layout = draw(st.sampled_from(["interleaved", "half"]))
    return q, k, v, positions, RotaryEmbedding(head_dim=2 * planes, layout=layout)


def attend(problem, shift=0, **options):
    q, k, v, positions, rope = problem
    rotation = rope(positions + shift, dtype=torch.float64)
    return linear_attention(q, k, v, rotation=rotation, **options)


@pytest.mark.parametrize("form", CLAIM_RELATIVE)
@given(problem=problems(), shift=st.integers(-5_000, 5_000), causal=st.booleans())
@settings(max_examples=25)
def test_outputs_do_not_notice_a_common_shift(form, problem, shift, causal):
    # Undivided: where "both" may divide by nearly nothing, its numerator tells the same.
    form = "undivided" if form == "both" else form
    still = attend(problem, form=form, causal=causal)
    moved = attend(problem, shift, form=form, causal=causal)
    assert ((still - moved).abs() <= 1e-9 * (1 + still.abs().max())).all()


def test_rotating_first_does_notice_a_common_shift():
    """FAVOR+ on turned vectors is relative in expectation: one draw is not."""
    rope = RotaryEmbedding(head_dim=8)
    q, k, v = torch.randn(3, 1, 2, 12, 8, dtype=torch.float64)
    problem = (q, k, v, torch.arange(12), rope)
    favor = FavorFeatures(8, 16)
    options = {"form": "rotate_first", "feature_map": favor}
    moved = attend(problem, 1000, **options) - attend(problem, **options)
    assert moved.abs().max() > 0.01


@given(
    problem=problems(),
    form=st.sampled_from(["numerator", "cosine", "undivided"]),
    data=st.data(),
)
def test_split_and_resumed_equals_whole(problem, form, data):
    q, k, v, positions, rope = problem
    length = q.shape[-2]
    cut = data.draw(st.integers(0, length))
    chunk = data.draw(st.integers(1, 9))
    mask = torch.rand(q.shape[0], length, generator=torch.Generator().manual_seed(cut)) > 0.3
    rotation = rope(positions, dtype=torch.float64)
    options = {"form": form, "causal": True, "return_state": True}
    whole, last = linear_attention(
        q, k, v, rotation=rotation, key_padding_mask=mask, chunk_size=64, **options
    )
    state, pieces = None, []
    for a, b in ((0, cut), (cut, length)):
        turn = rope(positions[:, a:b], dtype=torch.float64)
        out, state = linear_attention(
            q[:, :, a:b], k[:, :, a:b], v[:, :, a:b], rotation=turn,
            key_padding_mask=mask[:, a:b], chunk_size=chunk, state=state, **options,
        )  # fmt: skip
        pieces.append(out)
    torch.testing.assert_close(torch.cat(pieces, 2), whole, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(state.memory, last.memory, rtol=1e-9, atol=1e-9)
    assert torch.equal(state.position, mask.sum(-1))
    assert torch.equal(last.position, mask.sum(-1))


@given(problem=problems(), data=st.data())
def test_the_future_moves_no_earlier_output(problem, data):
    """Bit by bit: a later key, value or position has no part in an earlier row."""
    q, k, v, positions, rope = problem
    length = q.shape[-2]
    when = data.draw(st.integers(0, length - 1))
    feature_map = data.draw(
        st.sampled_from(["elu+1", "relu", "exp", "softmax", "softmax_exp", "favor"])
    )
    if feature_map == "favor":
        feature_map = FavorFeatures(q.shape[-1], q.shape[-1])
    options = {"feature_map": feature_map, "causal": True, "chunk_size": 4}
    before = attend(problem, **options)
    k, v, positions = k.clone(), v.clone(), positions.clone()
    k[:, :, when] = k[:, :, when] * 4 + 1
    v[:, :, when] -= 3
    positions[:, when] += 7
    # The query of that position turns as well; only earlier rows are compared.
    after = attend((q, k, v, positions, rope), **options)
    assert torch.equal(before[:, :, :when], after[:, :, :when])


@given(problem=problems(), chunk=st.integers(1, 30), elements=st.integers(1, 4000))
def test_chunks_and_blocks_change_nothing(problem, chunk, elements):
    whole = attend(problem, causal=True)
    kept = walk.CPU_ELEMENTS_PER_THREAD
    walk.CPU_ELEMENTS_PER_THREAD = elements
    try:
        cut = attend(problem, causal=True, chunk_size=chunk)
    finally:
        walk.CPU_ELEMENTS_PER_THREAD = kept
    torch.testing.assert_close(cut, whole, rtol=1e-10, atol=1e-10)


@given(problem=problems())
def test_without_causality_the_order_of_keys_is_nothing(problem):
    q, k, v, positions, rope = problem
    order = torch.randperm(q.shape[-2], generator=torch.Generator().manual_seed(1))
    rotation = rope(positions, dtype=torch.float64)
    shuffled = linear_attention(
        q, k[:, :, order], v[:, :, order], rotation=rotation,
        key_rotation=rope(positions[:, order], dtype=torch.float64),
    )  # fmt: skip
    torch.testing.assert_close(shuffled, attend(problem), rtol=1e-9, atol=1e-9)


@given(problem=problems())
def test_zero_angles_are_plain_linear_attention(problem):
    q, k, v, positions, rope = problem
    still = attend((q, k, v, positions * 0, rope), causal=True)
    torch.testing.assert_close(still, linear_attention(q, k, v, causal=True))
