"""The text of a run as batches: read, split, tokenised, packed for every length, labelled."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rotary.data.baseline import bigram_loss, count_pairs, count_tokens, unigram_loss
from rotary.data.batches import Batch, TrainingBatches, ValidationBatches
from rotary.data.byte_tokenizer import NUM_BYTES, is_byte_tokenizer
from rotary.data.draws import derive_seed
from rotary.data.masking import Masking
from rotary.data.packing import IGNORED, PackedRows, tokenize_documents
from rotary.data.split import split_documents
from rotary.data.text import Document, embedded_corpus, read_documents
from rotary.data.vocabulary import check_special_tokens, frame, train_wordpiece
from rotary.errors import ConfigError
from rotary.training.run_config import RunConfig
from rotary.training.stages import StageTable

VALIDATION_TOKENS = 8192  # In a batch; small enough for a laptop, and no step depends on it.


class StagedBatches:
    """The training batches of all stages, by the number of the step.

    Args:
        tokens: Tokens of the training documents.
        tokenizer: The tokenizer.
        config: Stages, masking and seed.

    Raises:
        DataError: If there is not a full batch for some stage.
    """

    def __init__(self, tokens: Any, tokenizer: Any, config: RunConfig) -> None:
        self.table = StageTable(config.stages)
        masking = _masking(tokenizer, config)
        lengths = sorted({stage.length for stage in config.stages})
        rows = {length: PackedRows(tokens, tokenizer, row_length=length) for length in lengths}
        self._stages = [
            TrainingBatches(
                rows[stage.length],
                batch_size=stage.batch,
                seed=derive_seed(config.seed, f"stage {index}"),
                masking=masking,
            )
            for index, stage in enumerate(config.stages)
        ]

    def batch(self, step: int, *, part: int = 0, num_parts: int = 1) -> Batch:
        """The rows of one part of a step; a pure function of (seed, step)."""
        place = self.table.stage_of(step)
        stage = self._stages[place.number - 1]
        return stage.batch(step - place.begin, part=part, num_parts=num_parts)


class ValidationParts:
    """Validation batches cut into parts for several processes.

    Args:
        batches: The whole batches.
    """

    def __init__(self, batches: ValidationBatches) -> None:
        self.batches = batches

    def __len__(self) -> int:
        return len(self.batches)

    def batch(self, index: int, *, part: int = 0, num_parts: int = 1) -> Batch:
        """Every ``num_parts``-th row; a part without rows gets one that asks for nothing."""
        whole = self.batches[index]
        if part < len(whole["labels"]):
            return {name: value[part::num_parts] for name, value in whole.items()}
        batch = {name: value[:1].clone() for name, value in whole.items()}
        batch["labels"].fill_(IGNORED)
        return batch


@dataclass
class Corpus:
    """A corpus ready for training.

    Attributes:
        tokenizer: Given or trained.
        train: Training batches.
        validation: Validation batches.
        validation_documents: The documents behind them.
        unigram_loss: What guessing by frequency costs on the validation labels, in nats.
        bigram_loss: What guessing by the token before costs there; None where tokens are masked.
        labels_per_byte: Validation labels, ends of documents among them, for each byte; None where
            tokens are not bytes.
        record: Numbers and the SHA-256 of the text, to be kept with the run.
    """

    tokenizer: Any
    train: StagedBatches
    validation: ValidationParts
    validation_documents: list[Document]
    unigram_loss: float
    bigram_loss: float | None
    labels_per_byte: float | None
    record: dict[str, Any]


def read_corpus(texts: Sequence[str], text_field: str) -> list[Document]:
    """The documents of these files and folders, or of the interpreter if none is given."""
    return read_documents(texts, text_field=text_field) if texts else embedded_corpus()


def digest(documents: Sequence[Document]) -> str:
    """SHA-256 of the texts in their order; names do not count, so files may move."""
    total = hashlib.sha256()
    for document in documents:
        data = document.text.encode("utf-8")
        total.update(len(data).to_bytes(8, "big"))
        total.update(data)
    return total.hexdigest()


def prepare(documents: Sequence[Document], config: RunConfig, tokenizer: Any = None) -> Corpus:
    """Make batches of documents; everything that can be wrong with them is found here.

    Args:
        documents: The corpus.
        config: The run config.
        tokenizer: A ready tokenizer; one is trained on the training documents if None.

    Raises:
        DataError: If the documents are not enough, or the tokenizer lacks a special token.
    """
    train, validation = split_documents(
        documents, validation_fraction=config.data.validation_fraction, seed=config.seed
    )
    if tokenizer is None:
        tokenizer = train_wordpiece(train, vocab_size=config.data.vocab_size)
    check_special_tokens(tokenizer, place="the tokenizer", is_causal=config.objective == "causal")
    tokens = tokenize_documents(train, tokenizer)
    validation_tokens = tokenize_documents(validation, tokenizer)
    length = config.data.validation_length
    held_out = ValidationBatches(
        PackedRows(validation_tokens, tokenizer, row_length=length),
        batch_size=max(1, VALIDATION_TOKENS // length),
        seed=derive_seed(config.seed, "validation"),
        masking=_masking(tokenizer, config),
    )
    counts = count_tokens(tokens, vocab_size=len(tokenizer))
    num_tokens, bigram = int(counts.sum()), None
    unknown = tokenizer.unk_token_id
    num_unknown = 0 if unknown is None else int(counts[unknown])
    if config.objective == "causal":
        bounds = frame(tokenizer)
        pairs = count_pairs(tokens, vocab_size=len(tokenizer), frame=bounds)
        bigram = bigram_loss(pairs, held_out)
        counts[bounds.end] += pairs.first[bounds.begin]  # Ends of documents are predicted too.
    record = {
        "sha256": digest(documents),
        "characters": sum(len(document.text) for document in documents),
        "train_documents": len(train),
        "train_tokens": num_tokens,
        "validation_documents": len(validation),
        "validation_tokens": int(count_tokens(validation_tokens, vocab_size=len(tokenizer)).sum()),
        "vocabulary": len(tokenizer),
        "unknown_tokens": num_unknown,
    }
    return Corpus(
        tokenizer=tokenizer,
        train=StagedBatches(tokens, tokenizer, config),
        validation=ValidationParts(held_out),
        validation_documents=validation,
        unigram_loss=unigram_loss(counts, held_out),
        bigram_loss=bigram,
        labels_per_byte=_labels_per_byte(held_out) if is_byte_tokenizer(tokenizer) else None,
        record=record,
    )


def _masking(tokenizer: Any, config: RunConfig) -> Masking | None:
    """The rule of masked language modelling; nothing is masked in causal language modelling."""
    if config.objective == "causal":
        return None
    return Masking(tokenizer, fraction=config.data.mask_fraction)


def _labels_per_byte(batches: ValidationBatches) -> float:
    """Ends of documents are predicted too, and paid for by the bytes."""
    labels = np.concatenate([batch["labels"].numpy().ravel() for batch in batches])
    labels = labels[labels != IGNORED]
    return len(labels) / max(1, int((labels < NUM_BYTES).sum()))


def check_parts(config: RunConfig, num_processes: int) -> None:
    """Refuse stages whose rows do not share out evenly over processes and passes.

    Raises:
        ConfigError: Naming the stage and a batch that would do.
    """
    parts = num_processes * config.training.passes
    for index, stage in enumerate(config.stages):
        if stage.batch % parts:
            fitting = max(1, round(stage.batch / parts)) * parts
            raise ConfigError(
                f"stages[{index}].batch is {stage.batch}; it must share out evenly over "
                f"{num_processes} processes x {config.training.passes} passes, for instance "
                f"{fitting}."
            )
