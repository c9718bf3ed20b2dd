"""Layout conversion: round trips exact, scores unchanged, values and tails untouched."""

import pytest
import torch
from torch import nn

from rotary import RotaryEmbedding
from rotary.errors import ConfigError, ShapeError
from rotary.layouts import (
    half_to_interleaved,
    interleaved_to_half,
    qkv_half_to_interleaved,
    qkv_interleaved_to_half,
    weight_half_to_interleaved,
    weight_interleaved_to_half,
)

D, H, K, E, L = 12, 4, 2, 20, 5


def scores(q, k):
    return q @ k.repeat_interleave(q.shape[1] // k.shape[1], dim=1).mT


def heads(x, linear, start=0):
    return linear(x).unflatten(-1, (-1, D)).transpose(1, 2)


@pytest.mark.parametrize("rotary_dim", [12, 8, 2])
@pytest.mark.parametrize("start", [0, 4])
def test_scores_do_not_change(rotary_dim, start):
    """Weights and biases converted and the layout changed: the same scores, head by head."""
    rotary_dim = min(rotary_dim, D - start)
    x = torch.randn(2, L, E, dtype=torch.float64)
    query = nn.Linear(E, H * D, dtype=torch.float64)
    key = nn.Linear(E, K * D, dtype=torch.float64)
    span = slice(start, start + rotary_dim)
    sizes = {"rotary_dim": rotary_dim, "start": start}

    def turned(layout):
        rope = RotaryEmbedding(head_dim=rotary_dim, layout=layout)
        rotation = rope(torch.arange(L), dtype=torch.float64)
        found = []
        for linear in (query, key):
            each = heads(x, linear).clone()
            each[..., span] = rotation(each[..., span])
            found.append(each)
        return found

    before = turned("interleaved")
    with torch.no_grad():
        for linear in (query, key):
            linear.weight.copy_(weight_interleaved_to_half(linear.weight, head_dim=D, **sizes))
            linear.bias.copy_(weight_interleaved_to_half(linear.bias, head_dim=D, **sizes))
    after = turned("half")
    torch.testing.assert_close(scores(*after), scores(*before), rtol=0, atol=1e-13)
    # The activations themselves differ by the same permutation, so cached keys convert as well.
    for new, old in zip(after, before, strict=True):
        torch.testing.assert_close(new, interleaved_to_half(old, **sizes), rtol=0, atol=1e-14)
    if rotary_dim > 2:
        assert not torch.allclose(after[0], before[0])


@pytest.mark.parametrize("shape", [(D,), (3, D), (2, 3, 5, D)])
@pytest.mark.parametrize("sizes", [{}, {"rotary_dim": 4}, {"rotary_dim": 6, "start": 3}])
def test_round_trips_are_exact(shape, sizes):
    for dtype in (torch.bfloat16, torch.float64):
        x = torch.randn(shape, dtype=dtype)
        assert torch.equal(half_to_interleaved(interleaved_to_half(x, **sizes), **sizes), x)
        assert torch.equal(interleaved_to_half(half_to_interleaved(x, **sizes), **sizes), x)
    for weight in (torch.randn(H * D, E), torch.randn(H * D), torch.randn(H * D, E, 2)):
        there = weight_interleaved_to_half(weight, head_dim=D, **sizes)
        assert torch.equal(weight_half_to_interleaved(there, head_dim=D, **sizes), weight)
        assert there.shape == weight.shape


@pytest.mark.parametrize("arrangement", ["concatenated", "grouped"])
@pytest.mark.parametrize("bias", [False, True])
def test_fused_is_the_parts_fused(arrangement, bias):
    tail = () if bias else (E,)
    query, key, value = (torch.randn(n, D, *tail) for n in (H, K, K))

    def fuse(query, key, value):
        if arrangement == "concatenated":
            return torch.cat((query, key, value)).flatten(0, 1)
        groups = query.unflatten(0, (K, H // K))
        parts = torch.cat((groups, key.unsqueeze(1), value.unsqueeze(1)), dim=1)
        return parts.flatten(0, 2)

    def turn(each):
        flat = each.flatten(0, 1)
        return weight_interleaved_to_half(flat, head_dim=D, rotary_dim=8).view_as(each)

    sizes = {"head_dim": D, "num_heads": H, "num_key_heads": K, "rotary_dim": 8}
    fused = fuse(query, key, value)
    converted = qkv_interleaved_to_half(fused, arrangement=arrangement, **sizes)
    assert torch.equal(converted, fuse(turn(query), turn(key), value))
    back = qkv_half_to_interleaved(converted, arrangement=arrangement, **sizes)
    assert torch.equal(back, fused)


def test_converts_as_transformers_does():
    """Its own converter for Meta's weights is the same permutation."""
    weight = torch.randn(H * D, E)
    theirs = weight.view(H, D // 2, 2, E).transpose(1, 2).reshape(H * D, E)
    assert torch.equal(weight_interleaved_to_half(weight, head_dim=D), theirs)


WRONG = {
    "odd": (lambda: interleaved_to_half(torch.ones(4), rotary_dim=3), ShapeError, "must be even"),
    "too long": (lambda: interleaved_to_half(torch.ones(4), rotary_dim=6), ShapeError, "within"),
    "heads": (
        lambda: weight_interleaved_to_half(torch.ones(10), head_dim=4),
        ShapeError,
        "whole heads of 4",
    ),
    "rows": (
        lambda: qkv_interleaved_to_half(
            torch.ones(8, 4), head_dim=4, num_heads=1, arrangement="grouped"
        ),
        ShapeError,
        "12 rows",
    ),
    "arrangement": (
        lambda: qkv_interleaved_to_half(
            torch.ones(12), head_dim=4, num_heads=1, arrangement="group"
        ),
        ConfigError,
        "Did you mean 'grouped'",
    ),
    "no channels": (
        lambda: weight_interleaved_to_half(torch.ones(4), head_dim=0),
        ShapeError,
        "head_dim is 0; it must be at least 1",
    ),
    "no channels back": (
        lambda: weight_half_to_interleaved(torch.ones(4), head_dim=0),
        ShapeError,
        "head_dim is 0; it must be at least 1",
    ),
    "groups": (
        lambda: qkv_interleaved_to_half(
            torch.ones(28), head_dim=4, num_heads=3, num_key_heads=2, arrangement="grouped"
        ),
        ConfigError,
        "3 query heads",
    ),
}


@pytest.mark.usefixtures("wrong_types")
@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_said(case):
    make, kind, message = WRONG[case]
    with pytest.raises(kind, match=message):
        make()
