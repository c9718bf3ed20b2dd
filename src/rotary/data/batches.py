"""Batches for masked or causal language modelling: each is a pure function of (seed, step).

So a resumed run jumps to its step, and 1, 2 or 4 processes that take their slices see together
exactly what one process sees.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from rotary._shapes import Integer
from rotary.data.draws import permutation
from rotary.data.masking import Masking
from rotary.data.packing import PackedRows
from rotary.errors import ConfigError, DataError

Batch = dict[str, Tensor]
"""``input_ids``, ``labels`` (by the place of the token itself; -100: not predicted),
``document_ids`` (0: padding; 1, 2, ...: the documents of a row, which do not see each other) and
``position_ids`` (from 0 in each document), all int64, (batch, length)."""


class TrainingBatches:
    """An endless sequence of training batches over packed rows.

    The rows of each epoch come in an order drawn from (seed, epoch), masked anew from (seed, epoch,
    row). One epoch follows the other without a gap, so a batch may hold the end of one and the
    beginning of the next, and every row is seen exactly once in every epoch.

    Args:
        rows: Packed documents. For a stage of another length, pack the same tokens anew.
        batch_size: Rows in a batch of all processes together.
        seed: Any integer. Stages of one run take seeds of their own, for instance
            ``derive_seed(seed, "stage 3")``, or equal stages would repeat each other.
        masking: The rule; None for causal language modelling, where every token is asked for.

    Raises:
        DataError: If there are fewer rows than a batch holds.
        ConfigError: If the batch size is not positive.

    Example:
        >>> from rotary.data.packing import tokenize_documents
        >>> from rotary.data.text import Document
        >>> from rotary.data.vocabulary import train_wordpiece
        >>> documents = [Document(str(n), f"{n} turns and a half") for n in range(9)]
        >>> tokenizer = train_wordpiece(documents, vocab_size=100)
        >>> rows = PackedRows(tokenize_documents(documents, tokenizer), tokenizer, row_length=16)
        >>> batches = TrainingBatches(rows, batch_size=4, seed=0, masking=Masking(tokenizer))
        >>> batches.batch(1000)["input_ids"].shape
        torch.Size([4, 16])
    """

    def __init__(
        self, rows: PackedRows, *, batch_size: int, seed: int, masking: Masking | None
    ) -> None:
        _check_batch_size("TrainingBatches", batch_size)
        if len(rows) < batch_size:
            raise DataError(
                f"the corpus is too small for one batch: it fills {len(rows)} "
                f"row{'' if len(rows) == 1 else 's'} of length {rows.row_length}, and a batch "
                f"takes {batch_size}. Give more text, a smaller batch or a smaller length."
            )
        self.rows = rows
        self.batch_size = batch_size
        self.seed = seed
        self.masking = masking
        self._orders: dict[int, Integer[np.ndarray, " rows"]] = {}

    def batch(self, step: int, *, part: int = 0, num_parts: int = 1) -> Batch:
        """Make one batch, or the slice of it that one process takes.

        Args:
            step: From 0; any step, in any order.
            part: Which slice, from 0.
            num_parts: How many equal slices there are; divides the batch size.

        Returns:
            New tensors on the CPU; see :data:`Batch`. The slices of all parts, one after the
            other, are the whole batch.

        Raises:
            ConfigError: If the parts do not divide the batch, or step or part is out of range.
        """
        if step < 0:
            raise ConfigError(f"TrainingBatches.batch: step is {step}; steps count from 0.")
        if num_parts < 1 or self.batch_size % num_parts or not 0 <= part < num_parts:
            raise ConfigError(
                f"TrainingBatches.batch: part {part} of {num_parts}; the number of parts has to "
                f"divide the batch size {self.batch_size}, and parts count from 0."
            )
        size = self.batch_size // num_parts
        first = step * self.batch_size + part * size
        epochs, places = np.divmod(np.arange(first, first + size), len(self.rows))
        orders = {epoch: self._order(epoch) for epoch in np.unique(epochs).tolist()}
        self._orders = orders  # Kept, by epoch, so that the next step need not sort again.
        rows = np.array(
            [orders[epoch][place] for epoch, place in zip(epochs.tolist(), places, strict=True)]
        )
        return _labelled(self.rows, self.masking, rows, epochs, self.seed)

    def _order(self, epoch: int) -> Integer[np.ndarray, " rows"]:
        if epoch in self._orders:
            return self._orders[epoch]
        return permutation(len(self.rows), seed=self.seed, purpose="order", epoch=epoch)


class ValidationBatches:
    """Every row once, in order, with masks that never change; the last batch may be smaller.

    Args:
        rows: Packed validation documents.
        batch_size: Rows in a batch.
        seed: Of the masks, any integer.
        masking: The rule; None for causal language modelling.

    Raises:
        DataError: If there is no row.
        ConfigError: If the batch size is not positive.

    Example:
        >>> from rotary.data.packing import tokenize_documents
        >>> from rotary.data.text import Document
        >>> from rotary.data.vocabulary import train_wordpiece
        >>> documents = [Document(str(n), f"{n} turns and a half") for n in range(9)]
        >>> tokenizer = train_wordpiece(documents, vocab_size=100)
        >>> rows = PackedRows(tokenize_documents(documents, tokenizer), tokenizer, row_length=16)
        >>> batches = ValidationBatches(rows, batch_size=4, seed=0, masking=Masking(tokenizer))
        >>> [len(batch["labels"]) for batch in batches]
        [4, 1]
    """

    def __init__(
        self, rows: PackedRows, *, batch_size: int, seed: int, masking: Masking | None
    ) -> None:
        _check_batch_size("ValidationBatches", batch_size)
        if len(rows) == 0:
            raise DataError(
                "there is nothing to validate on: the validation documents hold no token. Give "
                "more text or a larger validation fraction."
            )
        self.rows = rows
        self.batch_size = batch_size
        self.seed = seed
        self.masking = masking

    def __len__(self) -> int:
        return -(-len(self.rows) // self.batch_size)

    def __getitem__(self, index: int) -> Batch:
        if not 0 <= index < len(self):
            raise IndexError(f"ValidationBatches: there is no batch {index} of {len(self)}.")
        first = index * self.batch_size
        rows = np.arange(first, min(first + self.batch_size, len(self.rows)))
        return _labelled(self.rows, self.masking, rows, np.zeros_like(rows), self.seed)

    def __iter__(self) -> Iterator[Batch]:
        return (self[index] for index in range(len(self)))


def _labelled(
    packed: PackedRows,
    masking: Masking | None,
    rows: Integer[np.ndarray, " batch"],
    epochs: Integer[np.ndarray, " batch"],
    seed: int,
) -> Batch:
    input_ids, document_ids, position_ids = packed.assemble(rows)
    if masking is None:
        labels = packed.next_labels(rows, input_ids)
    else:
        input_ids, labels = masking.apply(input_ids, rows=rows, epochs=epochs, seed=seed)
    return {
        "input_ids": torch.from_numpy(input_ids),
        "labels": torch.from_numpy(labels),
        "document_ids": torch.from_numpy(document_ids),
        "position_ids": torch.from_numpy(position_ids),
    }


def _check_batch_size(where: str, batch_size: int) -> None:
    if batch_size < 1:
        raise ConfigError(f"{where}: batch_size is {batch_size}; at least 1 row is needed.")
