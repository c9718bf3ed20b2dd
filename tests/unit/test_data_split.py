from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rotary.data.split import split_documents
from rotary.data.text import Document
from rotary.errors import ConfigError, DataError

TEXTS = [f"document number {n}" for n in range(2000)]


def documents(texts):
    return [Document(f"{n}.txt", text) for n, text in enumerate(texts)]


def split(texts, fraction=0.05, seed=0):
    train, validation = split_documents(documents(texts), validation_fraction=fraction, seed=seed)
    return [document.text for document in train], [document.text for document in validation]


@given(
    texts=st.lists(st.sampled_from([*"abcdefgh"]), min_size=2, max_size=20).filter(
        lambda texts: len(set(texts)) > 1
    ),
    fraction=st.floats(0.01, 0.99),
    seed=st.integers(-5, 2**70),
    order=st.randoms(use_true_random=False),
)
def test_both_sides_whole_disjoint_and_without_regard_to_order(texts, fraction, seed, order):
    train, validation = split(texts, fraction, seed)
    assert train
    assert validation
    assert not set(train) & set(validation)
    assert sorted(train + validation) == sorted(texts)
    shuffled = list(texts)
    order.shuffle(shuffled)
    again = split(shuffled, fraction, seed)
    assert (set(again[0]), set(again[1])) == (set(train), set(validation))
    assert train == [text for text in texts if text in set(train)]


def test_the_share_is_as_asked_and_the_seed_matters():
    for fraction in (0.05, 0.3):
        sizes = [len(split(TEXTS, fraction, seed)[1]) for seed in range(5)]
        # Six standard deviations of a binomial.
        assert all(
            abs(size - 2000 * fraction) < 6 * (2000 * fraction * (1 - fraction)) ** 0.5
            for size in sizes
        )
    chosen = [set(split(TEXTS, 0.3, seed)[1]) for seed in range(2)]
    assert abs(len(chosen[0] & chosen[1]) - 2000 * 0.09) < 6 * (2000 * 0.09) ** 0.5


def test_a_growing_corpus_does_not_move_documents():
    before = split(TEXTS[:1000])[1]
    assert set(before) == set(split(TEXTS)[1]) & set(TEXTS[:1000])


def test_a_larger_fraction_only_adds_to_validation():
    sides = [set(split(TEXTS[:6], fraction / 50)[1]) for fraction in range(1, 50)]
    assert [len(sides[0]), len(sides[-1])] == [1, 5]
    assert all(one <= other for one, other in pairwise(sides))


def test_the_hash_is_the_same_on_every_machine():
    # Python's own hash() would differ from process to process.
    assert split(TEXTS[:20], 0.2)[1] == [f"document number {n}" for n in (1, 4, 5, 14, 18, 19)]


def test_one_document_is_cut_at_a_line_end():
    text = "".join(f"line {n}\n" for n in range(100))
    train, validation = split_documents(
        [Document("book.txt", text)], validation_fraction=0.1, seed=0
    )
    assert [train[0].name, validation[0].name] == ["book.txt (beginning)", "book.txt (end)"]
    assert train[0].text + validation[0].text == text
    assert validation[0].text.startswith("line ")
    assert 0.08 < len(validation[0].text) / len(text) < 0.12
    twice = split_documents(documents([text, text]), validation_fraction=0.1, seed=0)
    assert [len(side) for side in twice] == [2, 1]


@pytest.mark.parametrize("text", ["one line", "one line\n", "\n\none line\n\n"])
def test_one_line_cannot_be_split(text):
    with pytest.raises(DataError, match=r"^0\.txt: the corpus is one document of one line"):
        split([text, text])


def test_bad_arguments():
    for fraction in (0.0, 1.0, -0.1, 5.0, float("nan")):
        with pytest.raises(ConfigError, match=r"validation_fraction is .* between 0 and 1"):
            split(["a", "b"], fraction)
    with pytest.raises(DataError, match="the corpus is empty"):
        split([])
