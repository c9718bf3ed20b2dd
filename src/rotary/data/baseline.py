"""What a language model has to beat: guessing by how often tokens and pairs of tokens occur."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import datasets
import numpy as np

from rotary._shapes import Integer
from rotary.data.batches import Batch
from rotary.data.packing import IGNORED
from rotary.data.vocabulary import Frame
from rotary.errors import DataError


def count_tokens(
    tokens: datasets.Dataset, *, vocab_size: int
) -> Integer[np.ndarray, " vocab_size"]:
    """Count each token of a data set.

    Args:
        tokens: What :func:`rotary.data.packing.tokenize_documents` gives.
        vocab_size: Number of entries of the vocabulary, ``len(tokenizer)``.

    Returns:
        Counts, int64.
    """
    counts = np.zeros(vocab_size, dtype=np.int64)
    for chunk in tokens.with_format("arrow")[:].column("input_ids").chunks:
        counts += np.bincount(chunk.flatten().to_numpy(), minlength=vocab_size)
    return counts


def unigram_loss(counts: Integer[np.ndarray, " vocab_size"], batches: Iterable[Batch]) -> float:
    """Score the predicted tokens by add-one smoothed frequencies.

    The mean of ``-ln((count + 1) / (total + vocab_size))`` over the labels that are not -100.

    Args:
        counts: Of the training tokens; see :func:`count_tokens`.
        batches: Of the validation set.

    Returns:
        Nats per predicted token.

    Raises:
        DataError: If no token is predicted.

    Example:
        >>> import torch
        >>> batches = [{"labels": torch.tensor([[1, -100]])}]
        >>> round(unigram_loss(np.array([0, 2, 0, 0]), batches), 6)  # ln 2
        0.693147
    """
    losses = np.log(counts.sum() + len(counts)) - np.log(counts + 1.0)
    total, number = 0.0, 0
    for batch in batches:
        labels = batch["labels"].numpy()
        chosen = labels[labels != IGNORED]
        total += float(losses[chosen].sum())
        number += len(chosen)
    if number == 0:
        raise DataError("unigram_loss: no token of these batches is predicted.")
    return total / number


class PairCounts(NamedTuple):
    """How often one token follows another, for the pairs that occur.

    Attributes:
        pair: ``first * vocab_size + second``, sorted, int64.
        times: How often, int64.
        first: How often each token is the first of a pair, int64.
    """

    pair: Integer[np.ndarray, " pairs"]
    times: Integer[np.ndarray, " pairs"]
    first: Integer[np.ndarray, " vocab_size"]


def count_pairs(tokens: datasets.Dataset, *, vocab_size: int, frame: Frame) -> PairCounts:
    """Count neighbours in a data set, with the tokens that begin and end each document.

    Args:
        tokens: What :func:`rotary.data.packing.tokenize_documents` gives.
        vocab_size: Number of entries of the vocabulary, ``len(tokenizer)``.
        frame: The tokens that begin and end a text.
    """
    pair, times = np.zeros(0, np.int64), np.zeros(0, np.int64)
    for chunk in tokens.with_format("arrow")[:].column("input_ids").chunks:
        lengths = np.diff(chunk.offsets.to_numpy())
        lengths = lengths[lengths > 0]  # A document without tokens is in no row.
        values = chunk.flatten().to_numpy().astype(np.int64)
        ends = np.cumsum(lengths)
        begins = ends - lengths
        ids = np.insert(values, begins, frame.begin)
        ids = np.insert(ids, ends + np.arange(1, len(ends) + 1), frame.end)
        keys = ids[:-1] * vocab_size + ids[1:]
        inside = np.ones(len(keys), dtype=bool)
        inside[(ends + 2 * np.arange(1, len(ends) + 1) - 1)[:-1]] = False  # Across documents.
        found, new = np.unique(keys[inside], return_counts=True)
        pair, back = np.unique(np.concatenate([pair, found]), return_inverse=True)
        times = np.bincount(back, np.concatenate([times, new]), len(pair)).astype(np.int64)
    first = np.bincount(pair // vocab_size, times, vocab_size).astype(np.int64)
    return PairCounts(pair, times, first)


def bigram_loss(pairs: PairCounts, batches: Iterable[Batch]) -> float:
    """Score the labels of causal batches by add-one smoothed frequencies of pairs.

    The mean of ``-ln((count(a, b) + 1) / (count(a) + vocab_size))`` over the labels ``b`` that are
    not -100, ``a`` being the token before.

    Args:
        pairs: Of the training tokens; see :func:`count_pairs`.
        batches: Of the validation set.

    Returns:
        Nats per predicted token.

    Raises:
        DataError: If no token is predicted.

    Example:
        >>> import torch
        >>> pairs = PairCounts(np.array([1]), np.array([2]), np.array([2, 0]))  # 1 after 0, twice
        >>> batch = {"input_ids": torch.tensor([[0, 1]]), "labels": torch.tensor([[-100, 1]])}
        >>> round(bigram_loss(pairs, [batch]), 6)  # ln 4/3
        0.287682
    """
    vocab_size = len(pairs.first)
    total, number = 0.0, 0
    for batch in batches:
        labels = batch["labels"][:, 1:].numpy()
        is_wanted = labels != IGNORED
        before, wanted = batch["input_ids"][:, :-1].numpy()[is_wanted], labels[is_wanted]
        keys = before * vocab_size + wanted
        place = np.minimum(np.searchsorted(pairs.pair, keys), len(pairs.pair) - 1)
        seen = np.where(pairs.pair[place] == keys, pairs.times[place], 0)
        total += float((np.log(pairs.first[before] + vocab_size) - np.log(seen + 1.0)).sum())
        number += len(wanted)
    if number == 0:
        raise DataError("bigram_loss: no token of these batches is predicted.")
    return total / number
