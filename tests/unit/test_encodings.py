"""The encodings that RoPE is compared with: golden numbers, a dense reference, the laws of each."""

import math

import pytest
import torch

from rotary.attention.encodings import (
    ENCODINGS,
    AlibiBias,
    LearnedPositions,
    NezhaEncoding,
    ShawEncoding,
    SinusoidalPositions,
    T5Bias,
    alibi_slopes,
    make_encoding,
    sinusoidal_table,
    t5_bucket,
)
from rotary.errors import ConfigError

DISTANCES = [
    -200,
    -128,
    -127,
    -64,
    -20,
    -16,
    -9,
    -8,
    -7,
    -1,
    0,
    1,
    7,
    8,
    9,
    16,
    20,
    64,
    127,
    128,
    200,
]
TWO_SIDED = [15, 15, 15, 14, 10, 10, 8, 8, 7, 1, 0, 17, 23, 24, 24, 26, 26, 30, 31, 31, 31]
CAUSAL = [31, 31, 31, 26, 17, 16, 9, 8, 7, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]


def make(name, **changes):
    sizes = {"dim": 12, "head_dim": 6, "num_heads": 2, "num_layers": 3, "max_length": 40}
    return make_encoding(name, **{**sizes, **changes})


def test_golden_t5_buckets():
    distances = torch.tensor(DISTANCES)
    assert t5_bucket(distances).tolist() == TWO_SIDED
    assert t5_bucket(distances, is_causal=True).tolist() == CAUSAL


def test_t5_buckets_are_those_of_transformers():
    t5 = pytest.importorskip("transformers.models.t5.modeling_t5")
    distances = torch.arange(-1000, 1000)
    for is_causal in (False, True):
        theirs = t5.T5Attention._relative_position_bucket(distances, bidirectional=not is_causal)
        assert torch.equal(t5_bucket(distances, is_causal=is_causal), theirs)


@pytest.mark.parametrize("is_causal", [False, True])
def test_t5_buckets_that_leave_nothing_to_count_are_refused(is_causal):
    least = 2 if is_causal else 4
    for wrong in (-1, 0, 1, least - 1):
        with pytest.raises(ConfigError, match=f"num_buckets is {wrong};.*at least {least}"):
            t5_bucket(torch.arange(3), num_buckets=wrong, is_causal=is_causal)
        with pytest.raises(ConfigError, match=f"num_buckets is {wrong}"):
            T5Bias(2, num_buckets=wrong, is_causal=is_causal)
    with pytest.raises(ConfigError, match=r"max_distance is 8;.*above 8"):
        t5_bucket(torch.arange(3), num_buckets=8 * least, max_distance=8, is_causal=is_causal)
    far = torch.arange(-300, 301)
    for enough in (least, least + 1, 8 * least):
        found = t5_bucket(far, num_buckets=enough, max_distance=9, is_causal=is_causal)
        assert found.min() == 0
        assert found[0] == (enough if is_causal else enough // 2) - 1
        assert found.max() < enough


def test_golden_alibi_slopes():
    eight = [2.0**-h for h in range(1, 9)]
    assert alibi_slopes(8).tolist() == eight
    between = [0.7071067811865476, 0.35355339059327384, 0.17677669529663692, 0.08838834764831849]
    torch.testing.assert_close(
        alibi_slopes(12), torch.tensor(eight + between, dtype=torch.float64), rtol=1e-15, atol=0
    )
    assert alibi_slopes(1).tolist() == [2.0**-8]


def test_golden_sinusoids():
    expected = torch.tensor(
        [
            [0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0],
            [
                0.8414709848078965,
                0.5403023058681398,
                0.09983341664682815,
                0.9950041652780258,
                0.009999833334166664,
                0.9999500004166653,
                0.0009999998333333417,
                0.9999995000000417,
            ],
        ],
        dtype=torch.float64,
    )
    torch.testing.assert_close(sinusoidal_table(torch.arange(2), 8), expected, rtol=0, atol=1e-15)
    with pytest.raises(ConfigError, match="dim is 7; it must be even"):
        sinusoidal_table(torch.arange(2), 7)


def test_golden_shaw_index():
    encoding = ShawEncoding(1, 4, max_distance=4)
    index = encoding.relate(torch.tensor([0]), torch.tensor([-6, -4, -1, 0, 1, 4, 6]))
    assert index.tolist() == [[[0, 0, 3, 4, 5, 8, 8]]]


def dense_shaw(q, k, v, key_table, value_table, queries, keys, limit):
    """Equations 3 and 4 of Shaw et al., one query and one key at a time."""
    out = torch.zeros(q.shape[0], q.shape[1], v.shape[2], dtype=torch.float64)
    for h in range(q.shape[0]):
        for i, m in enumerate(queries.tolist()):
            rows = [max(-limit, min(limit, n - m)) + limit for n in keys.tolist()]
            scores = torch.stack([q[h, i] @ (k[h, j] + key_table[r]) for j, r in enumerate(rows)])
            weights = (scores / math.sqrt(q.shape[-1])).softmax(0)
            out[h, i] = sum(weights[j] * (v[h, j] + value_table[r]) for j, r in enumerate(rows))
    return out


@pytest.mark.parametrize("kind", [ShawEncoding, NezhaEncoding])
def test_shaw_and_nezha_against_the_equations(kind):
    encoding = kind(2, 6, max_distance=3).double()
    q, k, v = (torch.randn(2, n, 6, dtype=torch.float64) for n in (4, 7, 7))
    queries, keys = torch.tensor([3, 9, 0, 4]), torch.tensor([0, 1, 5, 3, 8, 2, 20])
    relation = encoding.relate(queries, keys)
    got = encoding.attend(q[None], k[None], v[None], relation, layer=1)[0]
    tables = encoding.tables(1, q)
    torch.testing.assert_close(
        got, dense_shaw(q, k, v, *tables, queries, keys, 3), rtol=0, atol=1e-12
    )


def test_nezha_is_fixed_and_the_same_in_every_layer():
    encoding = NezhaEncoding(2, 6)
    assert list(encoding.parameters()) == []
    assert encoding.max_distance == 64
    first, second = encoding.tables(0, torch.zeros(1)), encoding.tables(1, torch.zeros(1))
    assert torch.equal(first[0], second[1])


@pytest.mark.parametrize("kind", ["t5", "alibi"])
def test_a_bias_is_added_to_the_scores(kind):
    encoding = make(kind).double()
    q, k, v = (torch.randn(1, 2, n, 6, dtype=torch.float64) for n in (3, 5, 5))
    queries, keys = torch.tensor([4, 0, 40]), torch.arange(5)
    relation = encoding.relate(queries, keys)
    assert relation.shape == (2, 3, 5)
    got = encoding.attend(q, k, v, relation)
    weights = (q @ k.mT / math.sqrt(6) + relation.double()).softmax(-1)
    torch.testing.assert_close(got, weights @ v, rtol=0, atol=1e-12)


def test_t5_and_alibi_by_hand():
    bias = make("t5")
    relation = bias.relate(torch.tensor([10]), torch.tensor([9, 13]))
    expected = bias.table.weight[torch.tensor([1, 16 + 3])].T[:, None]
    assert torch.equal(relation, expected)
    relation = AlibiBias(2).relate(torch.tensor([10]), torch.tensor([9, 13]))
    torch.testing.assert_close(
        relation,
        -torch.tensor([[[1.0, 3.0]], [[1.0, 3.0]]])
        * torch.tensor([2.0**-4, 2.0**-8])[:, None, None],
    )


@pytest.mark.parametrize("name", [n for n in ENCODINGS if n not in ("learned", "sinusoidal")])
def test_a_query_without_a_valid_key_gives_zeros_and_no_nan(name):
    encoding = make(name)
    q, k, v = (torch.randn(2, 2, 5, 6, requires_grad=True) for _ in range(3))
    mask = torch.ones(2, 1, 5, 5, dtype=torch.bool).tril()
    mask[1, :, 2] = False
    relation = encoding.relate(torch.arange(5), torch.arange(5))
    out = encoding.attend(q, k, v, relation, mask=mask)
    assert torch.equal(out[1, :, 2], torch.zeros(2, 6))
    out.sum().backward()
    assert all(x.grad.isfinite().all() for x in (q, k, v))


@pytest.mark.parametrize("name", [n for n in ENCODINGS if n not in ("learned", "sinusoidal")])
def test_a_masked_key_has_no_influence(name):
    encoding = make(name).double()
    q, k, v = (torch.randn(1, 2, 5, 6, dtype=torch.float64) for _ in range(3))
    mask = torch.tensor([True, True, False, True, False]).expand(1, 1, 1, 5)
    kept = mask[0, 0, 0]
    positions = torch.tensor([0, 3, 1, 30, 7])
    got = encoding.attend(q, k, v, encoding.relate(positions, positions), mask=mask)
    alone = encoding.attend(
        q, k[:, :, kept], v[:, :, kept], encoding.relate(positions, positions[kept])
    )
    torch.testing.assert_close(got, alone, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", [n for n in ENCODINGS if n not in ("learned", "sinusoidal")])
def test_positions_per_row_and_a_common_shift(name):
    """Relative encodings see differences alone, and each row of a batch its own positions."""
    encoding = make(name).double()
    q, k, v = (torch.randn(3, 2, 5, 6, dtype=torch.float64) for _ in range(3))
    positions = torch.randint(0, 30, (3, 5))
    together = encoding.attend(q, k, v, encoding.relate(positions, positions))
    for row in range(3):
        moved = positions[row] + 1000
        alone = encoding.attend(
            q[row : row + 1], k[row : row + 1], v[row : row + 1], encoding.relate(moved, moved)
        )
        torch.testing.assert_close(together[row], alone[0], rtol=0, atol=1e-12)


def test_what_is_added_to_the_input():
    embeddings = torch.zeros(2, 3, 12)
    positions = torch.tensor([[0, 1, 2], [5, 0, 39]])
    learned = make("learned")
    assert torch.equal(learned.add_to(embeddings, positions), learned.table(positions))
    sinusoidal = make("sinusoidal").add_to(embeddings, positions)
    torch.testing.assert_close(sinusoidal, sinusoidal_table(positions, 12).float())
    for name in set(ENCODINGS) - {"learned", "sinusoidal"}:
        assert make(name).add_to(embeddings, positions) is embeddings


def test_learned_positions_say_where_they_end():
    with pytest.raises(
        ConfigError, match="positions run from 0 to 40; there are vectors for 0 to 39"
    ):
        make("learned").add_to(torch.zeros(1, 41, 12), torch.arange(41))


def test_dropout_reaches_the_weights_of_shaw():
    encoding = make("shaw")
    q, k, v = (torch.randn(1, 2, 5, 6) for _ in range(3))
    relation = encoding.relate(torch.arange(5), torch.arange(5))
    assert torch.equal(encoding.attend(q, k, v, relation), encoding.attend(q, k, v, relation))
    dropped = encoding.attend(q, k, v, relation, dropout=0.5)
    assert not torch.allclose(dropped, encoding.attend(q, k, v, relation))


def test_each_name_builds_its_encoding():
    kinds = {
        "learned": LearnedPositions,
        "sinusoidal": SinusoidalPositions,
        "shaw": ShawEncoding,
        "nezha": NezhaEncoding,
        "t5": T5Bias,
        "alibi": AlibiBias,
    }
    for name, kind in kinds.items():
        assert type(make(name)) is kind
    with pytest.raises(ConfigError, match=r"position_encoding is 'alibbi'.*Did you mean 'alibi'"):
        make("alibbi")
