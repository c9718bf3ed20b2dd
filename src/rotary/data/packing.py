"""Documents into rows of one length, so that hardly any of the computation is spent on padding.

A document of ``n`` tokens becomes the piece ``[CLS] tokens [SEP]``, ``n + 2`` long; one that is
longer than a row becomes several such pieces in several rows. Pieces are laid into rows by
best-fit-decreasing: longest first, each into the fullest row that still has room for it. No token
is dropped, none is there twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import datasets
import numpy as np
import pyarrow as pa
from transformers import PreTrainedTokenizerBase

from rotary._shapes import Integer
from rotary.data.text import Document
from rotary.data.vocabulary import frame
from rotary.errors import ConfigError

IGNORED = -100
"""The label of a position that is not predicted; PyTorch's cross entropy passes it over."""

_CHARACTERS_AT_ONCE = 4_000_000  # Tokens are Python integers for a moment; this bounds how many.


def tokenize_documents(
    documents: Iterable[Document], tokenizer: PreTrainedTokenizerBase
) -> datasets.Dataset:
    """Turn documents into token ids, without special tokens; what looks like one is plain text.

    Args:
        documents: Any number; they are read once, so an iterator will do.
        tokenizer: Of Hugging Face.

    Returns:
        A data set in memory with the column ``input_ids`` (lists of int32), a row a document.

    Example:
        >>> from rotary.data.vocabulary import train_wordpiece
        >>> documents = [Document("a", "turn and turn"), Document("b", "and")]
        >>> tokens = tokenize_documents(documents, train_wordpiece(documents, vocab_size=50))
        >>> [len(ids) for ids in tokens["input_ids"]]
        [3, 1]
    """
    batches = (_tokenize(texts, tokenizer) for texts in _some_at_once(documents))
    return datasets.Dataset(pa.Table.from_batches(batches, schema=_SCHEMA))


_SCHEMA = pa.schema([("input_ids", pa.list_(pa.int32()))])


def _some_at_once(documents: Iterable[Document]) -> Iterator[list[str]]:
    texts: list[str] = []
    characters = 0
    for document in documents:
        texts.append(document.text)
        characters += len(document.text)
        if characters >= _CHARACTERS_AT_ONCE:
            yield texts
            texts, characters = [], 0
    if texts:
        yield texts


def _tokenize(texts: list[str], tokenizer: PreTrainedTokenizerBase) -> pa.RecordBatch:
    encoded = tokenizer(
        texts,
        add_special_tokens=False,
        # A text about BERT says "[MASK]" and means the word.
        split_special_tokens=True,
        return_attention_mask=False,
        return_token_type_ids=False,
        verbose=False,
    )
    return pa.record_batch([pa.array(encoded["input_ids"], pa.list_(pa.int32()))], schema=_SCHEMA)


@dataclass(frozen=True, eq=False)
class Placement:
    """Where each piece goes; the arrays are int64, one entry a piece, sorted by row and column.

    Attributes:
        document: Number of the document that the piece is of.
        start: Number of the piece's first token in its document.
        length: How many tokens it has, special tokens not counted.
        row: Its row.
        column: Where in the row it begins, that is, its ``[CLS]``.
        num_rows: How many rows there are.
        row_length: How long each is.
    """

    document: Integer[np.ndarray, " pieces"]
    start: Integer[np.ndarray, " pieces"]
    length: Integer[np.ndarray, " pieces"]
    row: Integer[np.ndarray, " pieces"]
    column: Integer[np.ndarray, " pieces"]
    num_rows: int
    row_length: int

    @property
    def fill(self) -> float:
        """Share of the positions that hold a token or one of the special tokens around a piece."""
        used = int(self.length.sum()) + 2 * len(self.length)
        return used / max(1, self.num_rows * self.row_length)


def pack(lengths: Integer[np.ndarray, " documents"], row_length: int) -> Placement:
    """Lay documents of these lengths into rows (best-fit-decreasing; Johnson 1974).

    A document longer than a row fills as many rows as it can; what is left of it is laid like any
    other. Documents without tokens have no piece. The order depends on the lengths alone.
    Time: a sort, and for each piece one search in a bit set of ``row_length`` bits.

    Args:
        lengths: Tokens of each document, special tokens not counted.
        row_length: Length of a row, special tokens counted; at least 3.

    Returns:
        Where every piece goes.

    Raises:
        ConfigError: If a row has no room for a token between its two special tokens.

    Example:
        >>> placement = pack(np.array([6, 2, 25]), row_length=12)
        >>> placement.num_rows, placement.row.tolist(), round(placement.fill, 3)
        (4, [0, 1, 2, 2, 3], 0.896)
    """
    if row_length < 3:
        raise ConfigError(
            f"pack: row_length is {row_length}; at least 3 are needed for one token between [CLS] "
            "and [SEP]."
        )
    room = row_length - 2
    lengths = np.asarray(lengths, dtype=np.int64)
    num_full, rest = np.divmod(lengths, room)
    full_document = np.repeat(np.arange(len(lengths)), num_full)
    first = np.repeat(np.cumsum(num_full) - num_full, num_full)
    full_start = (np.arange(len(full_document)) - first) * room
    rest_document = np.flatnonzero(rest)
    rest_document = rest_document[np.argsort(-rest[rest_document], kind="stable")]
    rest_row, rest_column, num_rest_rows = _best_fit((rest[rest_document] + 2).tolist(), row_length)

    document = np.concatenate([full_document, rest_document])
    start = np.concatenate([full_start, num_full[rest_document] * room])
    length = np.concatenate([np.full(len(full_document), room), rest[rest_document]])
    row = np.concatenate([np.arange(len(full_document)), rest_row + len(full_document)])
    column = np.concatenate([np.zeros(len(full_document), np.int64), rest_column])
    order = np.lexsort((column, row))
    return Placement(
        document[order],
        start[order],
        length[order],
        row[order],
        column[order],
        num_rows=len(full_document) + num_rest_rows,
        row_length=row_length,
    )


def _best_fit(
    sizes: list[int], row_length: int
) -> tuple[Integer[np.ndarray, " pieces"], Integer[np.ndarray, " pieces"], int]:
    """Rows and columns for pieces that come longest first."""
    rows = np.zeros(len(sizes), dtype=np.int64)
    columns = np.zeros(len(sizes), dtype=np.int64)
    with_room: list[list[int]] = [[] for _ in range(row_length + 1)]  # Rows by free positions.
    available = 0  # Bit r is set where with_room[r] is not empty.
    num_rows = 0
    for index, size in enumerate(sizes):
        fitting = available >> size
        if fitting:
            free = size + (fitting & -fitting).bit_length() - 1
            row = with_room[free].pop()
            if not with_room[free]:
                available ^= 1 << free
        else:
            free, row = row_length, num_rows
            num_rows += 1
        rows[index], columns[index] = row, row_length - free
        left = free - size
        with_room[left].append(row)
        available |= 1 << left
    return rows, columns, num_rows


class PackedRows:
    """Rows of packed documents, assembled when asked for; tokens stay where the data set has them.

    Args:
        tokens: What :func:`tokenize_documents` gives.
        tokenizer: For the ids of its special tokens.
        row_length: Length of a row, special tokens counted.

    Raises:
        DataError: If the tokenizer has no token that ends a text.
        ConfigError: If the row length is less than 3.

    Example:
        >>> from rotary.data.vocabulary import train_wordpiece
        >>> documents = [Document("a", "turn and turn"), Document("b", "and")]
        >>> tokenizer = train_wordpiece(documents, vocab_size=50)
        >>> rows = PackedRows(tokenize_documents(documents, tokenizer), tokenizer, row_length=12)
        >>> len(rows), rows.placement.fill
        (1, 0.6666666666666666)
    """

    def __init__(
        self, tokens: datasets.Dataset, tokenizer: PreTrainedTokenizerBase, row_length: int
    ) -> None:
        self.frame = frame(tokenizer, place="PackedRows")
        self._documents = _Lists(tokens)
        self.placement = pack(self._documents.lengths, row_length)
        self._first = np.searchsorted(self.placement.row, np.arange(self.placement.num_rows + 1))

    def __len__(self) -> int:
        return self.placement.num_rows

    @property
    def row_length(self) -> int:
        """Length of each row."""
        return self.placement.row_length

    def assemble(
        self, rows: Integer[np.ndarray, " batch"]
    ) -> tuple[
        Integer[np.ndarray, "batch length"],
        Integer[np.ndarray, "batch length"],
        Integer[np.ndarray, "batch length"],
    ]:
        """Put rows together.

        Args:
            rows: Their numbers, in any order.

        Returns:
            Token ids; document numbers, 0 for padding and 1, 2, ... for the pieces of a row; and
            positions, which restart at each piece and are 0 for padding. All new int64 arrays.
        """
        shape = (len(rows), self.row_length)
        input_ids = np.full(shape, self.frame.pad, dtype=np.int64)
        document_ids = np.zeros(shape, dtype=np.int64)
        position_ids = np.zeros(shape, dtype=np.int64)
        count = np.arange(self.row_length)
        place = self.placement
        for index, row in enumerate(rows):
            pieces = range(self._first[row], self._first[row + 1])
            for number, piece in enumerate(pieces, start=1):
                begin, length = int(place.column[piece]), int(place.length[piece])
                end = begin + length + 2
                start = int(place.start[piece])
                tokens = self._documents.part(int(place.document[piece]), start, length)
                input_ids[index, begin] = self.frame.begin
                input_ids[index, begin + 1 : end - 1] = tokens
                input_ids[index, end - 1] = self.frame.end
                document_ids[index, begin:end] = number
                position_ids[index, begin:end] = count[: length + 2]
        return input_ids, document_ids, position_ids

    def next_labels(
        self,
        rows: Integer[np.ndarray, " batch"],
        input_ids: Integer[np.ndarray, "batch length"],
    ) -> Integer[np.ndarray, "batch length"]:
        """The tokens that a causal model is asked for: each by its own place, and -100 elsewhere.

        Nothing comes before the token that begins a piece, so it is not asked for; nor is the end
        of a piece after which its document goes on elsewhere, since the text does not end there.

        Args:
            rows: Their numbers.
            input_ids: What :meth:`assemble` gives for them.
        """
        labels = np.full_like(input_ids, IGNORED)
        place = self.placement
        for index, row in enumerate(rows):
            for piece in range(self._first[row], self._first[row + 1]):
                length = int(place.length[piece])
                is_last = (
                    place.start[piece] + length == self._documents.lengths[place.document[piece]]
                )
                begin = int(place.column[piece]) + 1
                end = begin + length + int(is_last)
                labels[index, begin:end] = input_ids[index, begin:end]
        return labels


class _Lists:
    """The lists of a column as NumPy views of the data set's own memory."""

    def __init__(self, tokens: datasets.Dataset) -> None:
        table = tokens.with_format("arrow")[:]  # Without a copy, unless rows were selected.
        chunks = table.column("input_ids").chunks
        self._values = [chunk.values.to_numpy() for chunk in chunks]
        self._offsets = [chunk.offsets.to_numpy().astype(np.int64) for chunk in chunks]
        self._first = np.cumsum([0, *(len(chunk) for chunk in chunks)])
        lengths = [np.diff(offsets) for offsets in self._offsets]
        self.lengths = np.concatenate([np.zeros(0, np.int64), *lengths])

    def part(self, index: int, start: int, length: int) -> Integer[np.ndarray, " length"]:
        chunk = int(np.searchsorted(self._first, index, side="right")) - 1
        begin = self._offsets[chunk][index - self._first[chunk]] + start
        return self._values[chunk][begin : begin + length]
