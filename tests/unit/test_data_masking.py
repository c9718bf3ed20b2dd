import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rotary.data.draws import bits, derive_seed, permutation
from rotary.data.masking import IGNORED, Masking
from rotary.data.text import Document
from rotary.data.vocabulary import train_wordpiece
from rotary.errors import ConfigError, DataError

TEXT = Document("a", "turning planes by angles of many frequencies, and back again " * 3)


@pytest.fixture(scope="module")
def tokenizer():
    return train_wordpiece([TEXT], vocab_size=70)


@pytest.fixture(scope="module")
def masking(tokenizer):
    return Masking(tokenizer)


def apply(masking, input_ids, seed=0, epoch=0, rows=None):
    rows = np.arange(len(input_ids)) if rows is None else np.asarray(rows)
    return masking.apply(input_ids, rows=rows, epochs=np.full(len(rows), epoch), seed=seed)


def ordinary(shape, seed=0, top=50):
    return np.random.default_rng(seed).integers(5, top, shape)


def within(count, trials, share, sigmas=5):
    return abs(count - trials * share) <= sigmas * (trials * share * (1 - share)) ** 0.5


def test_fifteen_percent_of_which_80_10_10(masking):
    rows, length = 400, 130
    tokens = ordinary((rows, length))
    masked, labels = apply(masking, tokens)
    chosen = labels != IGNORED
    # 19.5 a row: 19 or 20 at random, so the total is a binomial around it.
    per_row = chosen.sum(axis=1)
    assert set(per_row.tolist()) == {19, 20}
    assert within(int((per_row == 20).sum()), rows, 0.5)
    assert np.array_equal(labels[chosen], tokens[chosen])
    assert np.array_equal(masked[~chosen], tokens[~chosen])
    number = int(chosen.sum())
    same = 0.1 / len(masking.ordinary_ids)  # A random token may be the old one.
    assert within(int((masked[chosen] == 4).sum()), number, 0.8)
    assert within(int((masked[chosen] == tokens[chosen]).sum()), number, 0.1 + same)
    # Every place is chosen equally often.
    counts = chosen.sum(axis=0)
    assert all(within(int(count), rows, 0.15) for count in counts)
    # And whether a place is chosen says nothing about its neighbour.
    pairs = chosen[:, 1:] & chosen[:, :-1]
    assert within(int(pairs.sum()), pairs.size, 0.15 * 18.5 / 129, sigmas=6)


def test_the_share_is_of_the_ordinary_tokens(masking):
    tokens = np.where(np.arange(200) % 2, ordinary((20, 200)), 2)
    assert set((apply(masking, tokens)[1] != IGNORED).sum(axis=1).tolist()) == {15}


def test_random_tokens_are_every_ordinary_one_and_no_special_one(tokenizer):
    masking = Masking(tokenizer, fraction=1.0, mask_share=0.0, random_share=1.0)
    masked, labels = apply(masking, ordinary((50, 200), top=6))
    assert (labels == 5).all()
    assert np.unique(masked).tolist() == list(range(5, len(tokenizer)))
    assert all(
        within(int(count), masked.size, 1 / (len(tokenizer) - 5))
        for count in np.bincount(masked.ravel())[5:]
    )


@given(
    tokens=st.lists(st.integers(0, 20), min_size=1, max_size=30),
    seed=st.integers(-(2**65), 2**65),
    epoch=st.integers(0, 2**40),
)
def test_special_tokens_stay_and_at_least_one_other_is_chosen(masking, tokens, seed, epoch):
    tokens = np.array([tokens])
    before = tokens.copy()
    masked, labels = apply(masking, tokens, seed=seed, epoch=epoch)
    assert np.array_equal(tokens, before)
    special = tokens < 5
    number = (~special).sum()
    assert (labels[special] == IGNORED).all()
    assert np.array_equal(masked[special], tokens[special])
    count = int((labels != IGNORED).sum())
    assert max(min(number, 1), np.floor(0.15 * number)) <= count <= max(1, np.ceil(0.15 * number))
    assert (count > 0) == (number > 0)


def test_a_row_is_masked_by_seed_epoch_and_its_number_alone(masking):
    tokens = ordinary((12, 64))
    whole = apply(masking, tokens, seed=3, epoch=5)
    some = [7, 2, 11]
    part = apply(masking, tokens[some], seed=3, epoch=5, rows=some)
    assert all(np.array_equal(a[some], b) for a, b in zip(whole, part, strict=True))
    one = np.repeat(tokens[:1], 4, axis=0)
    drawn = [
        apply(masking, one[:1], seed=seed, epoch=epoch, rows=[row])[1].tobytes()
        for seed in (0, 1)
        for epoch in (0, 1, 2)
        for row in (0, 1)
    ]
    assert len(set(drawn)) == 12


def test_draws_are_the_same_bits_on_every_machine():
    assert bits(3, seed=0, purpose="m", epoch=1, row=2).tolist() == [
        14393604649216607978,
        5463623241219739544,
        10635963982388599376,
    ]
    assert permutation(10, seed=1, purpose="x", epoch=0).tolist() == [6, 1, 8, 2, 3, 9, 5, 7, 0, 4]
    assert derive_seed(-1, "stage 3") != derive_seed(1, "stage 3") != derive_seed(1, "stage 2")


def test_bad_rules(tokenizer):
    for fraction in (0.0, 1.1, float("nan")):
        with pytest.raises(ConfigError, match=f"fraction is {fraction}, mask_share 0.8"):
            Masking(tokenizer, fraction=fraction)
    with pytest.raises(ConfigError, match=r"mask_share 0\.8 and random_share 0\.3 are more than 1"):
        Masking(tokenizer, random_share=0.3)
    with pytest.raises(ConfigError, match=r"mask_share -0\.1"):
        Masking(tokenizer, mask_share=-0.1)


def test_a_tokenizer_without_mask():
    tokenizer = train_wordpiece([TEXT], vocab_size=70)
    tokenizer.mask_token = None
    with pytest.raises(DataError, match="this tokenizer has no mask token"):
        Masking(tokenizer)
