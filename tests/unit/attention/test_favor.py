"""FAVOR+: unbiased, causal, frozen in eval, saved, redrawn from (seed, step)."""

import copy
import math

import pytest
import torch

from rotary import RotaryEmbedding
from rotary.attention import FavorFeatures, linear_attention
from rotary.attention.performer import orthogonal_draws
from rotary.errors import ConfigError, ShapeError


def score(favor, q, k):
    return favor.queries(q, is_divided=False) @ favor.keys(k).mT


def test_estimates_of_the_softmax_kernel_are_unbiased():
    """Within five standard errors of exp(q . k / sqrt(d)), the spread being that of the draws."""
    q, k = torch.randn(2, 3, 6, dtype=torch.float64) * 0.5
    draws = torch.stack([score(FavorFeatures(6, 12, seed=s), q, k) for s in range(600)])
    exact = (q @ k.mT / math.sqrt(6)).exp()
    error = draws.std(0) / math.sqrt(len(draws))
    assert ((draws.mean(0) - exact).abs() < 5 * error).all()
    assert (5 * error / exact < 0.25).all()  # So that another kernel would not pass.


def test_draws_are_orthogonal_in_blocks_with_gaussian_lengths():
    draws = orthogonal_draws(20, 8, seed=0).double()
    for block in (draws[:8], draws[8:16], draws[16:]):
        gram = block @ block.mT
        assert (gram - gram.diagonal().diag()).abs().max() < 1e-5
    many = torch.cat([orthogonal_draws(8, 8, seed=s) for s in range(500)])
    assert abs(many.square().sum(-1).mean() - 8) < 0.3
    assert (many.mean(0).abs() < 0.1).all()  # QR without its signs would lean to one side.


def test_rotating_first_is_relative_in_expectation_only():
    rope = RotaryEmbedding(head_dim=16)
    q, k = torch.randn(2, 1, 16, dtype=torch.float64) * 0.5

    def at(offset, favor):
        turned_q = rope(torch.tensor([offset]), dtype=torch.float64)(q)
        turned_k = rope(torch.tensor([offset + 16]), dtype=torch.float64)(k)
        return score(favor, turned_q, turned_k).item()

    one = FavorFeatures(16, 64)
    scores = torch.tensor([at(offset, one) for offset in (0, 100, 1000, 5000)])
    assert scores.std() / scores.mean() > 0.01
    # The mean over draws does not notice the offset: paired draws, five standard errors.
    draws = [FavorFeatures(16, 64, seed=seed) for seed in range(200)]
    difference = torch.tensor([at(0, favor) - at(1000, favor) for favor in draws])
    assert difference.mean().abs() < 5 * difference.std() / math.sqrt(200)


def test_frozen_in_eval_saved_and_loaded():
    favor = FavorFeatures(8, 16, seed=1, redraw_interval=10)
    q = torch.randn(2, 3, 5, 8)
    favor.train()
    favor.at_step(30)
    favor.eval()
    before = linear_attention(q, q, q, feature_map=favor)
    assert torch.equal(linear_attention(q, q, q, feature_map=favor), before)
    with pytest.raises(ConfigError, match="frozen in eval"):
        favor.at_step(40)
    other = FavorFeatures(8, 16, seed=5)
    assert not torch.equal(linear_attention(q, q, q, feature_map=other), before)
    other.load_state_dict(favor.state_dict())
    assert torch.equal(linear_attention(q, q, q, feature_map=other), before)


def test_redraws_are_a_function_of_seed_and_step():
    favor, resumed = (FavorFeatures(8, 16, seed=7, redraw_interval=10) for _ in range(2))
    seen = []
    for step in range(25):
        favor.at_step(step)
        seen.append(favor.projection.clone())
    assert all(torch.equal(seen[0], each) for each in seen[:10])
    assert not torch.equal(seen[9], seen[10])
    torch.manual_seed(99)  # The global generator has no part in it.
    resumed.at_step(17)
    assert torch.equal(resumed.projection, seen[17])
    assert not torch.equal(FavorFeatures(8, 16, seed=8).projection, seen[0])
    fixed = FavorFeatures(8, 16, seed=7)
    fixed.at_step(10_000)
    assert torch.equal(fixed.projection, seen[0])


def test_a_cast_to_half_precision_keeps_the_draws():
    favor = FavorFeatures(8, 16)
    exact = favor.projection.clone()
    assert torch.equal(copy.deepcopy(favor).bfloat16().projection, exact)
    assert favor.half().projection.dtype == torch.float32
    assert favor.double().projection.dtype == torch.float64


def test_an_empty_module_from_meta_has_its_draws_again():
    fresh = FavorFeatures(8, 16, seed=3).projection
    with torch.device("meta"):
        built = FavorFeatures(8, 16, seed=3)
    assert built.projection.is_meta
    for on_meta in (built, FavorFeatures(8, 16, seed=3).to("meta"), copy.deepcopy(built).half()):
        assert torch.equal(on_meta.to_empty(device="cpu").projection, fresh)
    built.at_step(0)
    built.projection.fill_(torch.nan)
    built.reset_parameters()
    assert torch.equal(built.projection, fresh)


def gradients(favor, q, k, v, cotangent, **options):
    inputs = [x.clone().requires_grad_() for x in (q, k, v)]
    out = linear_attention(*inputs, feature_map=favor, **options)
    return out, torch.autograd.grad(out, inputs, cotangent.to(out.dtype))


@pytest.mark.parametrize("form", ["numerator", "undivided"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("head_dim", "scale"), [(64, 1), (128, 1), (128, 3), (192, 1), (256, 1)])
def test_float32_is_right_at_the_head_sizes_in_use(head_dim, scale, causal, form):
    """Normal vectors, times a scale: once whole rows were zero, or their gradients not finite."""
    favor = FavorFeatures(head_dim)
    q, k, v = torch.randn(3, 1, 2, 70, head_dim)
    q, k = q * scale, k * scale
    cotangent = torch.randn_like(v)
    exact = [x.double() for x in (q, k, v)]
    out, ours = gradients(favor, q, k, v, cotangent, causal=causal, form=form)
    expected, right = gradients(favor, *exact, cotangent, causal=causal, form=form)
    assert (expected.abs().amax(-1) > 0).all()
    # exp turns the rounding of its argument into a relative error, and arguments go up to about 90.
    bound = 100 * torch.finfo(torch.float32).eps * (1 + math.log(favor.num_features))
    for a, b in zip((out, *ours), (expected, *right), strict=True):
        assert ((a - b).abs() <= bound * b.abs().amax()).all()


@pytest.mark.parametrize("head_dim", [64, 256])
def test_features_are_the_kernel_itself_where_nothing_is_divided(head_dim):
    """``exp(w . q') exp(w . k')`` with both norms, averaged over the draws: no scale is left."""
    favor = FavorFeatures(head_dim, 300)
    q, k = torch.randn(2, 5, head_dim, dtype=torch.float64)
    w = favor.projection.double()
    q_exponent, k_exponent = (
        x @ w.mT / head_dim**0.25 - x.square().sum(-1, keepdim=True) / (2 * head_dim**0.5)
        for x in (q, k)
    )
    expected = q_exponent.exp() @ k_exponent.exp().mT / 300
    torch.testing.assert_close(score(favor, q, k), expected)


def test_chunks_and_tokens_share_the_scale_of_the_state_in_float32():
    favor = FavorFeatures(128)
    q, k, v = torch.randn(3, 1, 2, 9, 128)
    whole, last = linear_attention(q, k, v, feature_map=favor, causal=True, return_state=True)
    state, tokens = None, []
    for t in range(9):
        token = [x[:, :, t : t + 1] for x in (q, k, v)]
        out, state = linear_attention(
            *token, feature_map=favor, causal=True, state=state, return_state=True
        )
        tokens.append(out)
    torch.testing.assert_close(torch.cat(tokens, 2), whole, rtol=1e-4, atol=1e-5)
    # A sum of positive terms, so each element is right but for the rounding of its exponents.
    torch.testing.assert_close(state.key_sum, last.key_sum, rtol=1e-4, atol=0)


@pytest.mark.parametrize("head_dim", [16, 64, 128, 256])
@pytest.mark.parametrize("causal", [False, True])
def test_no_input_makes_a_gradient_that_is_not_finite(head_dim, causal):
    """Long queries, and keys that are draws themselves: what any exponent can be at most."""
    favor = FavorFeatures(head_dim)
    for size in (1, 5, 20):
        q, k, v = torch.randn(3, 1, 1, 70, head_dim)
        rows = torch.randint(favor.num_features, (70,))
        along = (favor.projection[rows] * head_dim**0.25).expand(1, 1, -1, -1)
        for keys in (k * size, along, along * torch.arange(70)[:, None].remainder(2) + k * size):
            out, found = gradients(favor, q * size, keys, v, torch.ones_like(v), causal=causal)
            assert out.isfinite().all()
            assert all(each.isfinite().all() for each in found)


def test_no_exponent_is_above_thirty():
    favor = FavorFeatures(128, 600)
    worst = favor.projection * 128**0.25  # Each draw as a key: the largest exponent there is.
    assert favor.keys(worst).max().item() == pytest.approx(math.exp(60), rel=1e-4)
    assert favor.queries(worst, is_divided=False).max().item() <= 1.0001 / 600
    assert (favor.keys(torch.zeros(1, 128)) > 0).all()


def test_sizes():
    assert FavorFeatures(64).num_features == 266
    assert FavorFeatures(64).projection.shape == (266, 64)
    with pytest.raises(ConfigError, match="num_features is 0"):
        FavorFeatures(8, 0)
    with pytest.raises(ShapeError, match="head_dim=8"):
        FavorFeatures(8).keys(torch.zeros(2, 6))
    q = torch.randn(1, 2, 5, 8)
    rotation = RotaryEmbedding(head_dim=8)(torch.arange(5))
    with pytest.raises(ShapeError, match="head_dim=16"):
        linear_attention(q, q, q, feature_map=FavorFeatures(8, 16), rotation=rotation)
