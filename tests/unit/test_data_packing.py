from itertools import chain

import datasets
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rotary.data.packing import PackedRows, pack, tokenize_documents
from rotary.data.text import Document
from rotary.data.vocabulary import train_wordpiece
from rotary.errors import ConfigError

DOCUMENTS = [Document(str(n), f"turn {n} and " * (n + 1) + "[SEP] [MASK]") for n in range(7)]


@pytest.fixture(scope="module")
def tokenizer():
    return train_wordpiece(DOCUMENTS, vocab_size=80)


cases = st.tuples(st.lists(st.integers(0, 70), max_size=40), st.integers(3, 40))


@given(case=cases)
def test_every_token_is_laid_exactly_once_and_pieces_do_not_overlap(case):
    lengths, row_length = case
    placement = pack(np.array(lengths, dtype=np.int64), row_length)
    seen = [np.zeros(length, dtype=int) for length in lengths]
    taken = np.zeros((placement.num_rows, row_length), dtype=int)
    pieces = zip(
        placement.document,
        placement.start,
        placement.length,
        placement.row,
        placement.column,
        strict=True,
    )
    for document, start, length, row, column in pieces:
        assert length > 0
        assert column + length + 2 <= row_length
        assert start + length <= lengths[document]
        seen[document][start : start + length] += 1
        taken[row, column : column + length + 2] += 1
    assert all((count == 1).all() for count in seen)
    assert taken.max(initial=0) <= 1
    used = taken.sum(axis=1)
    assert (used > 0).all()
    assert placement.fill == taken.sum() / max(1, taken.size)
    # A row is opened only where nothing else has room, so any two are more than one row full.
    least = np.sort(used)[:2]
    assert len(least) < 2 or least.sum() > row_length
    # Pieces lie without gaps from the left: padding is at the end.
    assert (np.diff(taken, axis=1) <= 0).all()
    # A document is not cut more often than its length demands.
    counts = np.bincount(placement.document, minlength=len(lengths))
    assert counts.tolist() == [-(-length // (row_length - 2)) for length in lengths]


@given(case=cases)
def test_rows_give_back_the_documents(tokenizer, case):
    lengths, row_length = case
    ends = 1000 + np.cumsum(lengths)
    texts = [list(range(int(e) - n, int(e))) for e, n in zip(ends, lengths, strict=True)]
    tokens = datasets.Dataset.from_dict(
        {"input_ids": texts},
        features=datasets.Features({"input_ids": datasets.List(datasets.Value("int32"))}),
    )
    rows = PackedRows(tokens, tokenizer, row_length)
    input_ids, document_ids, position_ids = rows.assemble(np.arange(len(rows)))
    assert input_ids.shape == (len(rows), row_length)
    pieces = []
    for row in range(len(rows)):
        for number in range(1, document_ids[row].max() + 1):
            where = np.flatnonzero(document_ids[row] == number)
            assert np.array_equal(where, np.arange(where[0], where[-1] + 1))
            piece = input_ids[row][where].tolist()
            assert (piece[0], piece[-1]) == (tokenizer.cls_token_id, tokenizer.sep_token_id)
            assert position_ids[row][where].tolist() == list(range(len(where)))
            pieces.append(piece[1:-1])
    is_padding = document_ids == 0
    assert (input_ids[is_padding] == tokenizer.pad_token_id).all()
    assert (position_ids[is_padding] == 0).all()
    # Every token has a number of its own, so sorting the pieces joins the documents again.
    assert list(chain(*sorted(pieces))) == list(chain(*texts))


def test_a_hard_example_by_hand():
    # Room 10: 25 tokens are two full rows and 5; then sizes 8, 7, 4 and 3 go best-fit.
    placement = pack(np.array([6, 25, 1, 0, 2]), row_length=12)
    assert placement.document.tolist() == [1, 1, 0, 4, 1, 2]
    assert placement.start.tolist() == [0, 10, 0, 0, 20, 0]
    assert placement.row.tolist() == [0, 1, 2, 2, 3, 3]
    assert placement.column.tolist() == [0, 0, 0, 8, 0, 7]
    assert placement.fill == (12 + 12 + 12 + 10) / 48


def test_little_is_wasted_on_documents_as_they_come():
    lengths = np.random.default_rng(0).lognormal(5, 1, 3000).astype(int)
    assert min(pack(lengths, length).fill for length in (128, 256, 512)) > 0.995


def test_rows_too_short():
    with pytest.raises(ConfigError, match="row_length is 2; at least 3 are needed"):
        pack(np.array([5]), 2)


def test_tokens_are_those_of_the_text_and_its_special_tokens_are_plain_text(tokenizer):
    tokens = tokenize_documents(iter(DOCUMENTS), tokenizer)
    assert tokens.column_names == ["input_ids"]
    assert len(tokens) == len(DOCUMENTS)
    for ids, document in zip(tokens["input_ids"], DOCUMENTS, strict=True):
        plain = document.text.replace("[SEP]", "[ sep ]").replace("[MASK]", "[ mask ]")
        assert ids == tokenizer(plain, add_special_tokens=False)["input_ids"]
        assert not set(ids) & {0, 2, 3, 4}
    # The tokenizer itself still knows them.
    assert tokenizer("[MASK]")["input_ids"] == [2, 4, 3]


def test_many_chunks_give_the_same_rows(tokenizer, monkeypatch):
    documents = [*DOCUMENTS, Document("nothing", "\u200b")]
    whole = tokenize_documents(documents, tokenizer)
    monkeypatch.setattr("rotary.data.packing._CHARACTERS_AT_ONCE", 60)
    chunks = tokenize_documents(documents, tokenizer)
    assert chunks.data.column("input_ids").num_chunks > 2
    selected = datasets.concatenate_datasets([whole, whole]).select(range(8, 16))
    expected = PackedRows(whole, tokenizer, 16).assemble(np.array([2, 0, 1]))
    for tokens in (chunks, selected):
        assert tokens["input_ids"][:] == whole["input_ids"][:]
        got = PackedRows(tokens, tokenizer, 16).assemble(np.array([2, 0, 1]))
        assert all(np.array_equal(one, other) for one, other in zip(got, expected, strict=True))
