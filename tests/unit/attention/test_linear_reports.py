"""What users of other libraries reported, as tests named after the upstream issue."""

import math

import pytest
import torch
from linear_cases import draw

from rotary import RotaryEmbedding
from rotary.attention import FavorFeatures, linear_attention, walk
from rotary.attention.feature_maps import elu_plus_one
from rotary.errors import ConfigError, DtypeError, ShapeError


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    monkeypatch.setattr(walk, "CPU_ELEMENTS_PER_THREAD", 4096)


def ones(*shape, dtype=torch.float32):
    return torch.ones(*shape, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("causal", [False, True])
def test_fast_transformers_32_half_precision_sums_do_not_overflow(dtype, causal):
    """100,000 keys of ones: a running sum stops at 2048 in float16 and at 256 in bfloat16."""
    q, v = ones(1, 1, 100_000, 2, dtype=dtype), ones(1, 1, 100_000, 1, dtype=dtype)
    v[:, :, 50_000:] = 3.0
    out, state = linear_attention(q, q, v, causal=causal, return_state=True)
    # Features of 1 are 2: the sums are 200,000 and 2 * (50,000 + 150,000).
    assert state.key_sum.tolist() == [[[200_000.0, 200_000.0]]]
    assert state.memory.flatten().tolist() == [400_000.0, 400_000.0]
    assert out.isfinite().all()
    assert abs(out[0, 0, -1].item() - 2.0) < 0.01


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_performer_pytorch_44_half_precision_trains(dtype):
    q = torch.randn(1, 2, 150, 8).to(dtype).requires_grad_()
    for feature_map in ("elu+1", FavorFeatures(8, 16)):
        out = linear_attention(q, q, q, feature_map=feature_map, causal=True)
        assert out.dtype == dtype
        (gradient,) = torch.autograd.grad(out.float().square().sum(), q)
        assert gradient.isfinite().all()


def test_performer_pytorch_40_the_causal_output_is_divided():
    """Equal values come out as they went in, at every row."""
    v = ones(1, 2, 50, 3) * 7.0
    q, k = torch.randn(2, 1, 2, 50, 8)
    for feature_map in ("elu+1", "exp", "softmax", FavorFeatures(8, 32)):
        torch.testing.assert_close(
            linear_attention(q, k, v, feature_map=feature_map, causal=True), v
        )


def test_performer_pytorch_10_evaluation_is_deterministic():
    favor = FavorFeatures(8, 16).eval()
    q = torch.randn(1, 2, 50, 8)
    once, twice = (linear_attention(q, q, q, feature_map=favor) for _ in range(2))
    assert torch.equal(once, twice)


def test_performer_pytorch_45_no_maximum_over_keys_leaks_the_future():
    """Upstream, scaling key 200 by 4 moved earlier rows by 0.28."""
    q, k, v = torch.randn(3, 1, 2, 300, 16)
    favor = FavorFeatures(16, 32)
    before = linear_attention(q, k, v, feature_map=favor, causal=True)
    k = k.clone()
    k[:, :, 200] *= 4
    after = linear_attention(q, k, v, feature_map=favor, causal=True)
    assert torch.equal(after[:, :, :200], before[:, :, :200])
    assert not torch.equal(after[:, :, 200:], before[:, :, 200:])


def test_google_research_1461_the_mask_is_on_the_features_of_keys():
    """Masked means removed. A mask on the values alone halves the output here."""
    q, k, v = torch.randn(3, 2, 3, 40, 8, dtype=torch.float64)
    mask = torch.arange(40) < 20
    masked = linear_attention(q, k, v, key_padding_mask=mask)
    removed = linear_attention(q, k[:, :, :20], v[:, :, :20])
    torch.testing.assert_close(masked, removed)
    on_values = linear_attention(q, k, v * mask[:, None])
    assert 0.4 < (on_values.norm() / removed.norm()).item() < 0.6


@pytest.mark.parametrize("shape", [(40, 40), (1, 1, 40, 40), (1, 3, 40)])
def test_fast_transformers_22_and_105_arbitrary_masks_are_refused(shape, request):
    if request.config.getoption("--enforce-shapes"):
        pytest.skip("the annotations refuse these before the library does")
    q = torch.randn(1, 3, 40, 8)
    mask = ones(*shape, dtype=torch.bool)
    with pytest.raises(ShapeError, match="arbitrary mask over query-key pairs is impossible"):
        linear_attention(q, q, q, key_padding_mask=mask)


@pytest.mark.parametrize("feature_map", ["exp", "softmax_exp"])
def test_linear_attention_transformer_6_large_keys_give_no_nan(feature_map):
    q, k, v = torch.randn(3, 1, 2, 60, 8)
    k = (k * 200).requires_grad_()
    out = linear_attention(q * 200, k, v, feature_map=feature_map, causal=True)
    out.square().sum().backward()
    assert out.isfinite().all()
    assert k.grad.isfinite().all()


def test_gpt_neo_192_and_205_the_first_tokens_are_stable():
    """One key: its value, however small its features are."""
    q, k, v = torch.randn(3, 1, 2, 5, 8)
    out = linear_attention(q - 20, k - 20, v, causal=True)
    torch.testing.assert_close(out[:, :, 0], v[:, :, 0])


def test_x_transformers_34_the_map_comes_before_the_rotation():
    """Map, then rotate, is relative. The other order is not, and is refused."""
    rope = RotaryEmbedding(head_dim=64)
    q, k = torch.randn(2, 1, 64, dtype=torch.float64)

    def at(offset, *, mapped_first):
        turn_q = rope(torch.tensor([offset]), dtype=torch.float64)
        turn_k = rope(torch.tensor([offset + 16]), dtype=torch.float64)
        if mapped_first:
            return (turn_q(elu_plus_one(q)) @ turn_k(elu_plus_one(k)).mT).item()
        return (elu_plus_one(turn_q(q)) @ elu_plus_one(turn_k(k)).mT).item()

    offsets = range(0, 3000, 250)
    after = torch.tensor([at(o, mapped_first=True) for o in offsets], dtype=torch.float64)
    before = torch.tensor([at(o, mapped_first=False) for o in offsets])
    assert after.std() < 1e-9
    assert before.std() / before.mean() > 0.03
    with pytest.raises(ConfigError, match="not relative"):
        linear_attention(q, k, k, rotation=rope(torch.tensor([3])), form="rotate_first")


def test_flash_linear_attention_875_the_denominator_has_its_gradient():
    case = draw(batch=1, heads=2, key_heads=2, length=30, dim=4)
    out = linear_attention(case.q, case.k, case.v, rotation=case.rotation, causal=True)
    expected = case.dense("numerator", causal=True)
    cotangent = torch.randn_like(out)
    (ours,) = torch.autograd.grad(out, case.k, cotangent)
    (right,) = torch.autograd.grad(expected, case.k, cotangent)
    torch.testing.assert_close(ours, right)


def test_flash_linear_attention_594_and_851_sums_run_along_the_length():
    """Equal sizes on all axes; keys that differ on every one of them."""
    q = ones(4, 4, 4, 4, dtype=torch.float64)
    k = torch.randn(4, 4, 4, 4, dtype=torch.float64)
    out = linear_attention(q, k, k, causal=True)
    features = elu_plus_one(k)
    weights = 2 * features.sum(-1)
    expected = (weights.unsqueeze(-1) * k).cumsum(2) / weights.cumsum(2).unsqueeze(-1)
    torch.testing.assert_close(out, expected)


def test_flash_linear_attention_267_decoding_carries_the_denominator():
    case = draw(length=20)
    whole = linear_attention(case.q, case.k, case.v, rotation=case.rotation, causal=True)
    state = None
    for t in range(20):
        rows = slice(t, t + 1)
        out, state = linear_attention(
            case.q[:, :, rows], case.k[:, :, rows], case.v[:, :, rows],
            rotation=case.rotation[rows], causal=True, state=state, return_state=True,
        )  # fmt: skip
        torch.testing.assert_close(out, whole[:, :, rows])


def test_flash_linear_attention_1261_elu_plus_one_in_bfloat16():
    x = torch.tensor([-8.0, 0.0, 8.0], dtype=torch.bfloat16, requires_grad=True)
    y = elu_plus_one(x)
    assert torch.nn.functional.elu(x)[0] + 1 == 0  # What it is written against.
    assert y[0].item() == pytest.approx(math.exp(-8), rel=2**-8)
    y.sum().backward()
    assert x.grad[0].item() == pytest.approx(math.exp(-8), rel=2**-8)
    assert x.grad[1:].tolist() == [1.0, 1.0]


@pytest.mark.compiles
def test_flash_linear_attention_52_compiled_values_are_right():
    case = draw(length=9)
    rotation = case.rotation
    call = torch.compile(
        lambda q, k, v: linear_attention(q, k, v, rotation=rotation, causal=True, chunk_size=2),
        backend="aot_eager",
        fullgraph=True,
    )
    inputs = [x.detach() for x in (case.q, case.k, case.v)]
    torch.testing.assert_close(call(*inputs), case.dense("numerator", causal=True).detach())


def test_flash_linear_attention_92_one_token_has_the_same_signature():
    case = draw()
    for length in (1, 2):
        out, state = linear_attention(
            case.q[:, :, :length], case.k[:, :, :length], case.v[:, :, :length],
            causal=True, return_state=True,
        )  # fmt: skip
        assert out.shape == (2, 6, length, 5)
        assert state.memory.shape == (2, 3, 8, 5)
        assert state.position.tolist() == [length, length]


@pytest.mark.parametrize("length", [63, 64, 65, 129, 500])
def test_flash_linear_attention_98_any_length_with_chunks_of_64(length):
    case = draw(batch=1, heads=1, key_heads=1, length=length)
    out = linear_attention(case.q, case.k, case.v, rotation=case.rotation, causal=True)
    torch.testing.assert_close(out, case.dense("numerator", causal=True))


def test_flash_linear_attention_494_three_modes_agree():
    """Dense, in chunks, and token by token: one test over all three (also RetNet#10)."""
    case = draw(length=70)
    dense = case.dense("numerator", causal=True)
    chunked = linear_attention(
        case.q, case.k, case.v, rotation=case.rotation, causal=True, chunk_size=16
    )
    state, tokens = None, []
    for t in range(70):
        q, k, v = (x[:, :, t : t + 1] for x in (case.q, case.k, case.v))
        out, state = linear_attention(
            q, k, v, rotation=case.rotation[t : t + 1], causal=True, state=state, return_state=True
        )
        tokens.append(out)
    torch.testing.assert_close(chunked, dense)
    torch.testing.assert_close(torch.cat(tokens, 2), dense)


def test_flash_linear_attention_29_the_state_is_float32():
    q = torch.randn(1, 2, 3000, 8, dtype=torch.bfloat16)
    exact = linear_attention(*[q.double()] * 3, causal=True, return_state=True)[1]
    state = linear_attention(q, q, q, causal=True, return_state=True)[1]
    assert state.memory.dtype == torch.float32
    torch.testing.assert_close(state.memory.double(), exact.memory, rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize("batch", [1, 2])
def test_flash_linear_attention_313_left_padding_stays_out_of_the_state(batch):
    """A batch of one is masked as well (also mamba#66, transformers#46773)."""
    case = draw(batch=batch, length=30)
    mask = (torch.arange(30) >= 12).expand(batch, 30)
    _, state = linear_attention(
        case.q, case.k, case.v, rotation=case.rotation, causal=True, key_padding_mask=mask,
        return_state=True,
    )  # fmt: skip
    _, alone = linear_attention(
        case.q[:, :, 12:], case.k[:, :, 12:], case.v[:, :, 12:], rotation=case.rotation[12:],
        causal=True, return_state=True,
    )  # fmt: skip
    torch.testing.assert_close(state.memory, alone.memory)
    torch.testing.assert_close(state.key_sum, alone.key_sum)
    assert state.position.tolist() == [18] * batch


def test_google_research_subtracting_back_drifts_and_we_do_not():
    """Upstream's backward undoes the sums and is 5e-4 off after 16,384 steps; ours recomputes."""
    q, k, v = torch.randn(3, 1, 1, 4000, 8)
    rough = [x.clone().requires_grad_() for x in (q, k, v)]
    exact = [x.double().requires_grad_() for x in (q, k, v)]
    cotangent = torch.randn(1, 1, 4000, 8)
    linear_attention(*rough, causal=True).backward(cotangent)
    linear_attention(*exact, causal=True).backward(cotangent.double())
    for a, b in zip(rough, exact, strict=True):
        scale = b.grad.abs().amax(-1, keepdim=True) + b.grad.abs().mean()
        assert ((a.grad.double() - b.grad).abs() / scale).max() < 1e-4


def test_masks_of_numbers_are_refused_with_the_way_out(request):
    if request.config.getoption("--enforce-shapes"):
        pytest.skip("the annotations refuse these before the library does")
    q = torch.randn(1, 2, 4, 8)
    with pytest.raises(DtypeError, match=r"mask\.bool\(\)"):
        linear_attention(q, q, q, key_padding_mask=torch.ones(1, 4, dtype=torch.int64))
