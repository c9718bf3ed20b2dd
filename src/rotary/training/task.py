"""What is trained, as the trainer sees it: batches, a model, and how its loss is measured.

Stages, checkpoints, resuming, progress and reports know nothing else about the task, so another
objective is another :class:`Task`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from rotary.data.batches import Batch
from rotary.data.packing import IGNORED


@dataclass(frozen=True)
class Measured:
    """Sums over the predicted items of a batch.

    Attributes:
        loss: Summed loss in nats, differentiable.
        correct: Items predicted right.
        count: Items.
    """

    loss: Tensor
    correct: Tensor
    count: Tensor


@runtime_checkable  # For the checks of `make shapes`.
class Task(Protocol):
    """Batches, a model, and how its loss is measured."""

    model: Any

    def train_batch(self, step: int, *, part: int, num_parts: int) -> Batch:
        """The rows of one of ``num_parts`` parts of a step; a pure function of its arguments."""
        ...

    @property
    def num_validation_batches(self) -> int:
        """How many batches the validation set has."""
        ...

    def validation_batch(self, index: int, *, part: int, num_parts: int) -> Batch:
        """One of ``num_parts`` parts of a validation batch; always the same."""
        ...

    def measure(self, model: Any, batch: Batch) -> Measured:
        """Run the model on a batch and sum its loss; ``model`` may be wrapped."""
        ...

    def num_tokens(self, batch: Batch) -> Tensor:
        """Real tokens of a batch: what speed is counted in."""
        ...


@dataclass
class LanguageModeling:
    """Predict masked tokens (BERT's objective, as RoFormer was pre-trained), or each next token.

    In both, labels stand where the token itself stands, and the first token of a row has none; so
    the logits come in the order of the labels, also where they are made one place before.

    Attributes:
        model: A ``RoFormerForMaskedLM`` or ``RoFormerForCausalLM``.
        train: Training batches.
        validation: Validation batches.
    """

    model: Any
    train: Any
    validation: Any

    def train_batch(self, step: int, *, part: int, num_parts: int) -> Batch:
        """See :class:`Task`."""
        batch: Batch = self.train.batch(step, part=part, num_parts=num_parts)
        return batch

    @property
    def num_validation_batches(self) -> int:
        """See :class:`Task`."""
        return len(self.validation)

    def validation_batch(self, index: int, *, part: int, num_parts: int) -> Batch:
        """See :class:`Task`."""
        batch: Batch = self.validation.batch(index, part=part, num_parts=num_parts)
        return batch

    def measure(self, model: Any, batch: Batch) -> Measured:
        """See :class:`Task`."""
        # 1: the sum, not the mean.
        outputs = model(**batch, num_items_in_batch=1, sparse_logits=True)
        labels = batch["labels"]
        wanted = labels[labels != IGNORED]
        with torch.no_grad():
            correct = (outputs.logits.argmax(dim=-1) == wanted).sum()
        return Measured(outputs.loss, correct, (labels != IGNORED).sum())

    def num_tokens(self, batch: Batch) -> Tensor:
        """See :class:`Task`."""
        return (batch["document_ids"] != 0).sum()
