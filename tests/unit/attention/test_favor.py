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


def test_no_key_is_too_large_and_the_shift_is_zero_at_ordinary_sizes():
    favor = FavorFeatures(128, 600)
    worst = favor.projection * 128**0.25  # Each draw as a key: the largest exponent there is.
    assert favor.keys(worst).isfinite().all()
    assert favor.keys(worst).max() <= math.exp(40.001)
    assert (favor.keys(torch.zeros(1, 128)) > 0).all()
    assert FavorFeatures(16, 32)._shift() == 0


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
