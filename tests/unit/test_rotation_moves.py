"""Moved keys and composed rotations."""

import pytest
import torch

from rotary import Frequencies, RotaryEmbedding, Rotation, inverse_power, sequence
from rotary.errors import ConfigError, ShapeError
from rotary.frequencies import linear, longrope, mixed, per_head, xpos, yarn

D, P, L = 8, 4, 5
ROPE = RotaryEmbedding(head_dim=D)
X = torch.randn(2, 3, L, D, dtype=torch.float64, generator=torch.Generator().manual_seed(7))


def tables(positions, rope=ROPE, **keywords):
    return rope(torch.as_tensor(positions), dtype=torch.float64, **keywords)


def close(actual, expected, atol=1e-12):
    torch.testing.assert_close(actual, expected, rtol=0, atol=atol)


MOVES = {
    "plain": inverse_power(D),
    "with an amplitude": yarn(inverse_power(D), 4.0, 64),
    "xpos": xpos(inverse_power(D), 64.0),
}


@pytest.mark.parametrize("name", MOVES)
def test_moved_keys_are_as_if_new(name):
    rope = RotaryEmbedding(MOVES[name])
    old, new = sequence(L, 3), torch.tensor([0, 0, 7, -2, 100])
    cached = tables(old, rope).for_keys()(X)
    close(rope.move(cached, old, new), tables(new, rope).for_keys()(X))
    batched = torch.stack((new, old))
    moved = rope.move(cached, old, batched)
    close(moved[0], tables(new, rope).for_keys()(X)[0])
    close(moved[1], cached[1])


def test_moved_keys_when_the_frequencies_change():
    """An amplitude is counted once: the old one taken off, the new one put on."""
    before, after = yarn(inverse_power(D), 4.0, 64), yarn(inverse_power(D), 16.0, 64)
    rope = RotaryEmbedding(after)
    cached = tables(range(L), RotaryEmbedding(before))(X)
    moved = rope.move(cached, sequence(L), sequence(L, 2), old_frequencies=before)
    close(moved, tables(sequence(L, 2), rope)(X))
    schedule = longrope(inverse_power(D), [1] * P, [2, 3, 4, 5], 8, amplitude=(1.0, 1.5))
    rope = RotaryEmbedding(schedule)
    cached = tables(range(L), rope, lengths=8)(X)
    long = {"lengths": 9, "old_lengths": 8}
    close(rope.move(cached, sequence(L), sequence(L), **long), tables(range(L), rope, lengths=9)(X))
    back = {"lengths": torch.tensor([8, 9]), "old_lengths": torch.tensor([8, 8])}
    moved = rope.move(cached, sequence(L), sequence(L), **back)
    close(moved[0], cached[0])
    close(moved[1], tables(range(L), rope, lengths=9)(X)[1])


CHANGES = {
    "shared to per head": (inverse_power(D), per_head(*[linear(inverse_power(D), 2.0)] * 3)),
    "per head to shared": (mixed(D, 3, 1), inverse_power(D)),
    "an amplitude a sequence to per head": (
        longrope(inverse_power(D), [1] * P, [2] * P, 8, amplitude=(1.0, 1.5)),
        mixed(D, 3, 1),
    ),
    "xpos to per head": (xpos(inverse_power(D), 64.0), mixed(D, 3, 1)),
}


@pytest.mark.parametrize("name", CHANGES)
def test_moves_line_the_heads_up_by_rank_where_batch_and_heads_are_equal(name):
    """B == H == 3: aligned from the right this would run, and turn sequence b as head b."""
    before, after = CHANGES[name]
    old = torch.stack([sequence(L, start) for start in (0, 7, 20)])
    new = old - torch.tensor([[0], [5], [11]])
    x = torch.randn(3, 3, L, D, dtype=torch.float64)
    lengths = torch.tensor([4, 40, 5])
    cached = tables(old, RotaryEmbedding(before), lengths=lengths).for_keys()(x)
    rope = RotaryEmbedding(after)
    moved = rope.move(cached, old, new, old_frequencies=before, lengths=lengths)
    close(moved, tables(new, rope).for_keys()(x))


def test_rotations_compose_by_rank_where_batch_and_heads_are_equal():
    x = torch.randn(3, 3, L, D, dtype=torch.float64)
    rows = torch.stack([sequence(L, start) for start in (0, 7, 20)])
    shared, heads = tables(rows), tables(sequence(L), RotaryEmbedding(mixed(D, 3, 1)))
    right = shared(heads(x))
    close((shared @ heads)(x), right)
    close((heads @ shared)(x), right)
    sides = [tables(rows, RotaryEmbedding(xpos(inverse_power(D)))), heads]
    close((sides[0] @ sides[1]).for_keys()(x), sides[0].for_keys()(heads(x)))
    close((sides[1] @ sides[0]).for_keys()(x), sides[0].for_keys()(heads(x)))


def test_tables_that_cannot_belong_to_the_same_vectors_are_refused():
    one_plane = tables(sequence(L), RotaryEmbedding(Frequencies([0.5])))
    deep = Rotation(*(t.expand(2, 2, 2, L, P) for t in (tables(sequence(L)).cos,) * 2), "half")
    rows = Rotation(*(t.expand(2, L, P) for t in (tables(sequence(L)).cos,) * 2), "half")
    for make in (
        lambda: tables(sequence(L)) @ one_plane,
        lambda: tables(sequence(L)) @ tables(sequence(L - 1)),
        lambda: deep @ rows,
        lambda: ROPE.move(X, sequence(L), sequence(L), old_frequencies=Frequencies([0.5])),
    ):
        with pytest.raises(ShapeError, match="cannot belong to the same vectors"):
            make()


def test_composition():
    a, b = tables(sequence(L)), tables(sequence(L, 3))
    close((a @ b)(X), a(b(X)))
    close((a.inverse() @ b)(X), tables([3] * L)(X))
    with pytest.raises(ConfigError, match="pair different channels"):
        a @ tables(sequence(L), RotaryEmbedding(head_dim=D, layout="half"))
    with pytest.raises(TypeError):
        a @ 3
