"""`Rotation`: slices, amplitudes; every shape of the design."""

import copy
import pickle

import numpy as np
import pytest
import torch

from rotary import Frequencies, RotaryEmbedding, Rotation, inverse_power, sequence
from rotary.errors import ConfigError, DtypeError, ShapeError
from rotary.frequencies import (
    axial,
    dynamic_ntk,
    linear,
    longrope,
    mixed,
    per_head,
    xpos,
    yarn,
)
from rotary.kernels.reference import rotate_reference

D, P, L = 8, 4, 5
ROPE = RotaryEmbedding(head_dim=D)
X = torch.randn(2, 3, L, D, dtype=torch.float64, generator=torch.Generator().manual_seed(7))


def tables(positions, rope=ROPE, **keywords):
    return rope(torch.as_tensor(positions), dtype=torch.float64, **keywords)


def close(actual, expected, atol=1e-12):
    torch.testing.assert_close(actual, expected, rtol=0, atol=atol)


def test_is_immutable_and_plain():
    rotation = ROPE(sequence(3))
    assert not hasattr(rotation, "__dict__")
    with pytest.raises(AttributeError, match="immutable"):
        rotation.cos = rotation.sin
    assert torch.utils._pytree.tree_leaves(rotation) == [rotation]
    for again in (copy.deepcopy(rotation), pickle.loads(pickle.dumps(rotation))):
        assert torch.equal(again.cos, rotation.cos)
        assert again.layout == rotation.layout
    assert repr(rotation) == "Rotation((3, 4), torch.float32, cpu, layout='interleaved')"


def test_every_shape_of_tables_and_vectors():
    lone = tables(range(L))
    batched = tables(torch.stack([torch.arange(L), torch.arange(L) + 7]))
    assert lone.cos.shape == (L, P)
    assert batched.cos.shape == (2, L, P)
    close(lone(X[0, 0]), lone(X)[0, 0])  # (L, D)
    close(lone(X[:, 0]), lone(X)[:, 0])  # (B, L, D)
    close(batched(X[:, 0]), batched(X)[:, 0])
    close(batched(X)[0], lone(X)[0])
    swapped = X.transpose(1, 2).contiguous()  # (B, L, H, D)
    close(batched(swapped, length_axis=-3), batched(X).transpose(1, 2))
    close(lone(swapped[0], length_axis=-3), lone(X)[0].transpose(0, 1))  # (tokens, H, D)
    deep = X.expand(4, 2, 3, L, D)
    close(lone(deep), lone(X).expand(4, 2, 3, L, D))


def test_one_key_head_and_several_tensors():
    rotation = tables(range(L))
    q, k = rotation(X, X[:, :1])
    close(q[:, :1], k)
    assert isinstance(rotation(X), torch.Tensor)
    assert isinstance(rotation(X, X, X), tuple)
    q, k = ROPE.rotate(X, X[:, :1])
    close(q, rotation(X))


def test_queries_and_keys_at_different_positions():
    q, k = ROPE.rotate(X[:, :, :2], X, positions=torch.tensor([3, 4]), key_positions=sequence(L))
    close(q, tables([3, 4])(X[:, :, :2]))
    close(k, tables(range(L))(X))
    with pytest.raises(ConfigError, match="positions or offset"):
        ROPE.rotate(X, X, positions=sequence(L), offset=3)


def test_one_query_and_many_cached_keys_are_not_turned_at_one_position():
    q, k = X[:, :, -1:], X
    for given in ({}, {"offset": 5}, {"positions": torch.tensor([5])}):
        with pytest.raises(ShapeError, match=r"q has 1 positions and k has 5.*turn only the new"):
            ROPE.rotate(q, k, **given)
    with pytest.raises(ShapeError, match="q has 4 positions and k has 5"):
        ROPE.rotate(X[:, :, :4].transpose(1, 2), X.transpose(1, 2), length_axis=-3)
    turned, keys = ROPE.rotate(q, k, offset=4, key_positions=sequence(L))
    close(turned, tables([4])(q))
    close(keys, tables(range(L))(k))


def test_an_offset_for_each_sequence():
    starts = torch.tensor([3, 11])
    q, k = ROPE.rotate(X, X, offset=starts)
    close(q, tables(sequence(L, starts))(X))
    close(k, q)
    with pytest.raises(ConfigError, match="positions or offset"):
        ROPE.rotate(X, X, positions=sequence(L), offset=starts)


def test_part_of_the_heads():
    """Some heads turned in place, or a matrix for each head with zeros for the others."""
    rope = RotaryEmbedding(per_head(inverse_power(D), None, linear(inverse_power(D), 2.0)))
    turned = tables(range(L), rope)(X)
    close(turned[:, 0], tables(range(L))(X)[:, 0])
    assert torch.equal(turned[:, 1], X[:, 1])
    close(turned[:, 2], tables(torch.arange(L) / 2)(X)[:, 2])
    part = X.clone()
    tables(range(L))(part[:, 1:], inplace=True)
    assert torch.equal(part[:, 0], X[:, 0])
    close(part[:, 1:], tables(range(L))(X)[:, 1:])


def test_odd_heads_and_partial_rotation():
    x = torch.randn(2, L, 33)
    turned = RotaryEmbedding(head_dim=32)(sequence(L))(x)
    assert torch.equal(turned[..., 32:], x[..., 32:])
    assert turned.shape == x.shape


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("table", [torch.float32, torch.float64])
def test_dtype_and_memory_order_of_the_input(dtype, table):
    rotation = ROPE(sequence(L), dtype=table)
    assert rotation.dtype == table
    x = torch.randn(2, L, 3, D).to(dtype).transpose(1, 2)
    turned = rotation(x)
    assert turned.dtype == dtype
    assert turned.shape == x.shape
    with torch.autocast("cpu", torch.bfloat16):
        assert rotation(x).dtype == dtype
        again = ROPE(sequence(L), dtype=table)
    assert torch.equal(again.cos, rotation.cos)


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_per_head_matrices_of_several_axes(axes):
    frequencies = mixed(12, 3, axes)
    positions = torch.randn(2, L, axes, dtype=torch.float64)
    rope = RotaryEmbedding(frequencies)
    x = torch.randn(2, 3, L, 12, dtype=torch.float64)
    angles = torch.einsum("bla,hap->bhlp", positions, torch.tensor(frequencies.matrix))
    close(rope(positions, dtype=x.dtype)(x), rotate_reference(x, angles, layout="interleaved"))
    lone = positions[0, :, 0] if axes == 1 else positions[0]
    close(rope(lone, dtype=x.dtype)(x)[0], rope(positions, dtype=x.dtype)(x)[0])


def test_amplitude_is_beside_the_rotation():
    rope = RotaryEmbedding(yarn(inverse_power(D), 4.0, 64))
    rotation = tables(range(L), rope)
    amplitude = rotation.amplitude
    assert amplitude == rope.frequencies.amplitude > 1.1
    close(rotation(X).norm(dim=-1), amplitude * X.norm(dim=-1))
    close((rotation.cos**2 + rotation.sin**2), torch.ones(L, P, dtype=torch.float64))
    close(rotation.inverse()(rotation(X)), X)
    close(rotation.transpose()(rotation(X)), amplitude**2 * X)
    assert (rotation @ rotation).amplitude == amplitude**2


def test_slices():
    cache = ROPE(sequence(8))
    part = cache[2:5]
    assert part.cos.data_ptr() == cache.cos[2:].data_ptr()  # A view, nothing copied.
    assert torch.equal(part.cos, ROPE(sequence(3, 2)).cos)
    for rows in ([4, 1], torch.tensor([4, 1])):
        assert torch.equal(cache[rows].sin, ROPE(torch.tensor([4, 1])).sin)
    assert cache[-2:].num_positions == 2
    assert cache[:0].num_positions == 0
    for rows in (slice(0, 9), slice(9, None), slice(-9, None)):
        with pytest.raises(ConfigError, match="hold 8 positions; build longer ones"):
            cache[rows]
    with pytest.raises(ConfigError, match=r"write \[3:4\]"):
        cache[3]
    with pytest.raises(ConfigError, match="no set of rows"):
        cache["a"]


def test_rows_by_booleans_or_numbers():
    cache = ROPE(sequence(4))
    rows = [True, False, True, False]
    for given in (rows, torch.tensor(rows), [0, 2], [-4, -2], torch.tensor([0, 2]).byte()):
        assert torch.equal(cache[given].cos, cache.cos[::2])
    assert cache[[]].num_positions == 0
    assert cache[torch.tensor([], dtype=torch.int64)].num_positions == 0
    for given in ([4], [-5], torch.tensor([0, 4]), [True, False, True], torch.ones(5).bool()):
        with pytest.raises(ConfigError, match="hold 4 positions; build longer ones"):
            cache[given]
    no_sets = [[[0, 1]], torch.zeros(2, 2).long(), torch.tensor(1), [0.5], ["a"], [[0], 1]]
    for given in (*no_sets, torch.ones(2), (0, 1), None):
        with pytest.raises(ConfigError, match="is no set of rows"):
            cache[given]
    with pytest.raises(ConfigError, match="step of a slice is -1"):
        cache[::-1]


def test_slices_take_amplitudes_along():
    batched = RotaryEmbedding(longrope(inverse_power(D), [1] * P, [2] * P, 8, amplitude=(1, 2)))
    rotation = tables(range(L), batched, lengths=torch.tensor([4, 40]))
    close(rotation[1:3](X[:, :, 1:3]), rotation(X)[:, :, 1:3])
    keys = tables(range(L), RotaryEmbedding(xpos(inverse_power(D)))).for_keys()
    close(keys[1:3](X[:, :, 1:3]), keys(X)[:, :, 1:3])
    both = tables(range(L), RotaryEmbedding(xpos(inverse_power(D))))[1:3]
    close(both.for_keys()(X[:, :, 1:3]), keys(X)[:, :, 1:3])


def test_to():
    rotation = ROPE(sequence(3))
    assert rotation.to("cpu") is rotation
    assert rotation.to(dtype=torch.float64).cos.dtype == torch.float64
    assert rotation.to("meta").sin.is_meta
    sided = RotaryEmbedding(xpos(inverse_power(D)))(sequence(3)).to("meta")
    assert sided.decay.is_meta
    assert sided.for_keys().amplitude.is_meta
    with pytest.raises(ConfigError, match="Half-precision x needs no cast"):
        rotation.to(dtype=torch.bfloat16)


def test_xpos_scores_fall_with_the_distance_and_do_not_notice_a_shift():
    rope = RotaryEmbedding(xpos(inverse_power(D), 8.0, centre=3.0))

    def scores(shift):
        rotation = tables(sequence(L, shift), rope)
        return rotation.for_queries()(X) @ rotation.for_keys()(X).mT

    close(scores(0), scores(20), atol=1e-9)
    other = RotaryEmbedding(xpos(inverse_power(D), 8.0))
    rotation = tables(sequence(L), other)
    close(rotation.for_queries()(X) @ rotation.for_keys()(X).mT, scores(0))
    # By hand: plane p of query m is scaled by zeta ** (m / 8).
    zeta = (2 * torch.arange(P, dtype=torch.float64) + 0.4 * D) / (1.4 * D)
    scale = zeta ** (torch.arange(L)[:, None] / 8)
    close(rotation.for_queries().amplitude, scale)
    close(rotation.for_keys().amplitude, 1 / scale)
    close(rotation.for_keys().inverse()(rotation.for_keys()(X)), X)
    close(rotation.inverse().for_keys()(rotation.for_keys()(X)), X)
    close((rotation @ rotation).for_queries().amplitude, scale**2)
    with pytest.raises(ConfigError, match="for_queries"):
        rotation(X)
    plain = tables(range(L))
    assert plain.for_queries() is plain.for_keys() is plain


def test_schedules_go_by_sequence():
    schedule = dynamic_ntk(inverse_power(D), 4.0, 8)
    rope = RotaryEmbedding(schedule)
    rotation = tables(range(L), rope, lengths=torch.tensor([5, 32]))
    close(rotation(X)[0], tables(range(L), rope, lengths=5)(X)[0])
    close(rotation(X)[1], tables(range(L), rope, lengths=32)(X)[1])
    close(
        tables(range(L), rope, lengths=32)(X), tables(range(L), RotaryEmbedding(schedule.at(32)))(X)
    )
    with pytest.raises(ConfigError, match="give lengths="):
        tables(range(L), rope)
    with pytest.raises(ShapeError, match="one length for each of the 2"):
        tables(torch.zeros(2, L, dtype=int), rope, lengths=torch.tensor([1, 2, 3]))
    q, _ = rope.rotate(X, X, offset=27)
    close(q, tables(sequence(L, 27), rope, lengths=27 + L)(X))


WRONG = {
    "bfloat16": (lambda: ROPE(torch.zeros(3, dtype=torch.bfloat16)), DtypeError, "neighbouring"),
    "float16": (lambda: ROPE(torch.zeros(3, dtype=torch.float16)), DtypeError, "neighbouring"),
    "bool": (lambda: ROPE(torch.zeros(3, dtype=torch.bool)), DtypeError, "no positions"),
    "complex": (lambda: ROPE(torch.zeros(3, dtype=torch.cfloat)), DtypeError, "no positions"),
    "a list": (lambda: ROPE([1, 2, 3]), DtypeError, r"of type list.*torch.tensor\(positions\)"),
    "NumPy's": (
        lambda: ROPE(np.arange(3)),
        DtypeError,
        r"of type ndarray; give a tensor of PyTorch's, torch.from_numpy\(positions\)",
    ),
    "scalar": (lambda: ROPE(torch.tensor(3)), ShapeError, r"\(length,\), \(batch, length\)"),
    "three axes": (
        lambda: ROPE(torch.zeros(3, 2, 7, dtype=int)),
        ShapeError,
        r"\(3, 2, 7\).*one|\(batch, length, 1\)",
    ),
    "flat": (
        lambda: RotaryEmbedding(axial(8))(sequence(4)),
        ShapeError,
        r"\(length, 2\) or \(batch, length, 2\)",
    ),
    "tables": (lambda: ROPE(sequence(3), dtype=torch.bfloat16), DtypeError, "float32 or float64"),
    "neither": (lambda: RotaryEmbedding(), ConfigError, "one of the two"),
    "both": (lambda: RotaryEmbedding(inverse_power(8), head_dim=8), ConfigError, "one of the two"),
    "a base": (lambda: RotaryEmbedding(inverse_power(8), base=2.0), ConfigError, "their own"),
    "a number": (lambda: RotaryEmbedding(64), ConfigError, "head_dim=64"),
    "layout": (lambda: RotaryEmbedding(head_dim=8, layout="neox"), ConfigError, "'half'"),
    "learned": (
        lambda: RotaryEmbedding(dynamic_ntk(inverse_power(8), 2, 8), is_learnable=True),
        ConfigError,
        "cannot be learned",
    ),
    "no positions": (
        lambda: RotaryEmbedding(axial(8)).rotate(X, X),
        ConfigError,
        "positions must be given",
    ),
    "length": (lambda: ROPE(sequence(3))(X), ShapeError, "5 positions and the tables 3"),
    "axis": (lambda: ROPE.rotate(X, X, length_axis=-5), ConfigError, "length_axis is -5"),
    "no axis": (lambda: ROPE.rotate(X[0, 0], X[0, 0], length_axis=-3), ShapeError, "no axis -3"),
}


@pytest.mark.usefixtures("wrong_types")
@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_said(case):
    make, kind, message = WRONG[case]
    with pytest.raises(kind, match=message):
        make()


def test_a_rotation_is_made_of_tables():
    angles = torch.tensor([[0.5, 1.0]])
    rotation = Rotation(angles.cos(), angles.sin(), "half")
    made = RotaryEmbedding(Frequencies([0.5, 1.0]), layout="half")(torch.tensor([1]))
    torch.testing.assert_close(rotation(torch.ones(1, 4)), made(torch.ones(1, 4)))
