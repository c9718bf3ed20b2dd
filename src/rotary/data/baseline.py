"""What a masked language model has to beat: guessing by how often each token occurs."""

from __future__ import annotations

from collections.abc import Iterable

import datasets
import numpy as np

from rotary._shapes import Integer
from rotary.data.batches import Batch
from rotary.data.masking import IGNORED
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
    """Score the masked positions by add-one smoothed frequencies.

    The mean of ``-ln((count + 1) / (total + vocab_size))`` over the labels that are not -100.

    Args:
        counts: Of the training tokens; see :func:`count_tokens`.
        batches: Of the validation set.

    Returns:
        Nats per masked position.

    Raises:
        DataError: If no position is masked.

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
        raise DataError("unigram_loss: no position of these batches is masked.")
    return total / number
