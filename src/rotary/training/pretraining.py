"""``rotary pretrain``: from text to a folder with a trained RoFormer, exactly resumable."""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console

from rotary.data.byte_tokenizer import BYTES, byte_tokenizer
from rotary.data.vocabulary import frame, load_tokenizer
from rotary.errors import RunError
from rotary.models.roformer import RoFormerConfig
from rotary.training import checkpoints, picture, record, report
from rotary.training.continuations import Continuation, continuations
from rotary.training.corpus import check_parts, digest, prepare, read_corpus
from rotary.training.folder import (
    METRICS,
    MODEL_FILES,
    PICTURE,
    REPORT,
    TOKENIZER_FILES,
    Mode,
    RunFolder,
)
from rotary.training.guesses import Sample, sample
from rotary.training.initial import Initial, read_initial
from rotary.training.interrupts import StopRequest
from rotary.training.metrics import Event
from rotary.training.objectives import OBJECTIVES
from rotary.training.progress import Progress, say
from rotary.training.quiet import quieten
from rotary.training.run_config import RunConfig
from rotary.training.task import LanguageModeling
from rotary.training.trainer import StagedTrainer, training_arguments

NUM_SAMPLES = 5
NUM_GUESSES = 4
NUM_CONTINUATIONS = 3
# No text shown at the end is longer: a sentence of 140 characters, or 60 and what is written.
SHOWN_LENGTH = 512


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Attributes:
        final: The last line of metrics.jsonl; None if the run was stopped before its end.
        step: Steps done.
        stopped_by: The signal that stopped it.
        is_main: Whether this process speaks for all.
        example: A masked sentence, or a beginning, of the validation set to try the model on.
    """

    final: Event | None
    step: int
    stopped_by: int | None = None
    is_main: bool = True
    example: str | None = None


def pretrain(
    config: RunConfig,
    texts: Sequence[str],
    output: str,
    *,
    mode: Mode,
    command: str,
    console: Console,
) -> Outcome:
    """Pre-train a RoFormer: an encoder on masked tokens, or a decoder on next tokens.

    Everything is checked before anything is written: config, folder, text, that the text is enough
    for every stage, and that a checkpoint to start from fits.

    Args:
        config: The settings.
        texts: Files and folders; the interpreter's own English prose if empty.
        output: The run folder.
        mode: Whether a run in the folder is refused, replaced or resumed.
        command: The command line, for the record.
        console: Where progress and results are printed.

    Raises:
        ConfigError, DataError, RunError: One clear message each; nothing was lost. So where another
            process is writing this run.
    """
    quieten()
    config.check()
    model_config(config, vocab_size=config.data.vocab_size)
    folder = RunFolder(output)
    folder.check(mode, has_texts=bool(texts))
    folder.check_texts(texts)
    arguments = training_arguments(config, folder.checkpoints)
    check_parts(config, arguments.world_size)
    if arguments.process_index > 0:
        console = Console(quiet=True)
    with _numerics(config.training.deterministic), _alone(folder, arguments.process_index == 0):
        checkpoint = _find_checkpoint(folder, mode, console)
        run = _Run(config, folder, arguments, console)
        run.prepare(texts, checkpoint, command)
        return run.train(checkpoint)


@contextlib.contextmanager
def _numerics(is_deterministic: bool) -> Iterator[None]:
    """Numbers too small to matter become 0, and algorithms give the same bits each time."""
    before = torch.are_deterministic_algorithms_enabled()
    fill_before = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    torch.set_flush_denormal(True)  # Before the first thread is started, which inherits it.
    if is_deterministic:
        # cuBLAS asks for this in the environment, before its first use.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # An operation without such an algorithm warns, by name, and runs.
    torch.use_deterministic_algorithms(is_deterministic, warn_only=True)
    # Filling fresh memory guards against reading it before it is written; nothing here does.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    try:
        yield
    finally:
        torch.set_flush_denormal(False)
        torch.use_deterministic_algorithms(before)
        torch.utils.deterministic.fill_uninitialized_memory = fill_before  # type: ignore[attr-defined]


@contextlib.contextmanager
def _alone(folder: RunFolder, is_main: bool) -> Iterator[None]:
    """One process writes to the folder; a folder without a run is locked when the run begins."""
    if is_main and folder.holds_run:
        folder.lock()
    try:
        yield
    finally:
        folder.unlock()


def model_config(config: RunConfig, *, vocab_size: int, **more: Any) -> Any:
    """The model's own config, which checks its values.

    Raises:
        ConfigError: With every problem.
    """
    values = config.as_dict()["model"]
    values["redraw_interval"] = values["redraw_interval"] or None
    more.setdefault("is_decoder", OBJECTIVES[config.objective].is_causal)
    longest = max(stage.length for stage in config.stages)
    if config.model.position_encoding == "learned":  # Where the model can read no further.
        longest = max(longest, config.data.validation_length, SHOWN_LENGTH)
    return RoFormerConfig(
        **values,
        vocab_size=vocab_size,
        max_position_embeddings=longest,
        sparse_logits=True,
        **more,
    )


def _find_checkpoint(
    folder: RunFolder, mode: Mode, console: Console
) -> checkpoints.Checkpoint | None:
    if mode != "resume":
        return None

    found = checkpoints.newest(folder.checkpoints, lambda text: say(console, text))
    if found is not None:
        text = f"resuming from checkpoint {found.path.name}, which verifies"
    elif folder.holds_run:
        text = f"{folder.path} holds a run without a whole checkpoint: starting from its beginning"
    else:
        text = f"{folder.path} holds no run yet: starting from the beginning"
    say(console, text)
    return found


class _Run:
    """The steps of a run, and what they hand to each other."""

    def __init__(
        self, config: RunConfig, folder: RunFolder, arguments: Any, console: Console
    ) -> None:
        self.config, self.folder = config, folder
        self.arguments, self.console = arguments, console
        self.is_main = arguments.process_index == 0
        self.objective = OBJECTIVES[config.objective]

    def say(self, lines: Iterable[record.Line]) -> None:
        for label, text in lines:
            say(self.console, f"{label:<8}{text}")

    def prepare(
        self, texts: Sequence[str], checkpoint: checkpoints.Checkpoint | None, command: str
    ) -> None:
        """Make batches and the model, check them, then write the beginning of the run."""
        before = self.folder.read_run()[1] if checkpoint is not None else None
        initial = None
        if self.config.init is not None and before is None:
            initial = read_initial(self.config.init)
        tokenizer: Any = None if before is not None else self._given_tokenizer(initial)
        if initial is not None:
            initial.check(self.config.model, len(tokenizer))
        documents = read_corpus(texts, self.config.data.text_field)
        if before is not None:
            self._check_same_corpus(digest(documents), before)
            tokenizer = load_tokenizer(self.folder.path, is_causal=self.objective.is_causal)
        self.corpus = prepare(documents, self.config, tokenizer)
        self.say(record.corpus_lines(self.corpus.record, is_embedded=not texts))
        self._make_model(initial, before)
        self.record = before or self._make_record(texts, command, initial)
        # Until all processes have looked at the folder, it stays as it is.
        self.arguments.distributed_state.wait_for_everyone()
        if before is not None:
            self.say(record.change_lines(before, self.arguments))
        elif self.is_main:
            self.folder.begin(self.config, self.record)
            self._save_tokenizer()
        self.say(record.model_lines(self.config, self.record, self.arguments, self.folder.path))

    def _given_tokenizer(self, initial: Initial | None) -> Any:
        """The tokenizer that was asked for, or that of the checkpoint to start from; else None."""
        name = self.config.tokenizer
        if name == BYTES:
            return byte_tokenizer()
        if name is None and initial is None:
            return None
        return load_tokenizer(
            name or initial.path,  # type: ignore[union-attr]
            is_causal=self.objective.is_causal,
        )

    def _make_model(self, initial: Initial | None, before: dict[str, Any] | None) -> None:
        tokenizer = self.corpus.tokenizer
        vocab_size = len(tokenizer)
        if initial is not None:  # Its embedding may have more rows than there are tokens.
            vocab_size = initial.vocab_size
        elif before is not None and "init" in before:
            vocab_size = before["init"]["vocab_size"]
        ids: dict[str, Any] = {"pad_token_id": tokenizer.pad_token_id}
        if self.objective.is_causal:
            ids |= {"bos_token_id": frame(tokenizer).begin, "eos_token_id": frame(tokenizer).end}
        torch.manual_seed(self.config.seed)
        self.model = self.objective.model_class(
            model_config(self.config, vocab_size=vocab_size, **ids)
        )
        if initial is not None:
            notes = initial.load_into(self.model)
            text = f"weights of {initial.path} ({initial.model_type})"
            self.say([("init", f"{text}; {notes}" if notes else text)])

    def train(self, checkpoint: checkpoints.Checkpoint | None) -> Outcome:
        """Run all stages, or go on with them; then evaluate, draw and report."""
        task = LanguageModeling(self.model, self.corpus.train, self.corpus.validation)
        progress = Progress(self.config.stages, self.console)
        with StopRequest() as request:
            trainer = StagedTrainer(
                task, self.config, self.folder, self.arguments, progress, request
            )
            resume_from = trainer.start_from(checkpoint)
            with progress:
                trainer.train(resume_from_checkpoint=resume_from)
        step = trainer.state.global_step
        if request.signal is not None and step < self.config.total_steps:
            return Outcome(None, step, int(request.signal), self.is_main)
        final, samples = self._finish(trainer)
        trainer.accelerator.wait_for_everyone()
        return Outcome(final, step, is_main=self.is_main, example=self._example(samples))

    def _example(self, samples: Sequence[Sample] | Sequence[Continuation]) -> str | None:
        first = next(iter(samples), None)
        if isinstance(first, Sample):
            return f"{first.before}{self.corpus.tokenizer.mask_token}{first.after}"
        return first.prefix if isinstance(first, Continuation) else None

    def _finish(
        self, trainer: StagedTrainer
    ) -> tuple[Event | None, Sequence[Sample] | Sequence[Continuation]]:
        self.model.config.sparse_logits = False  # A reader of the model expects all logits.
        staging = self.folder.path / ".writing-model"
        with checkpoints.full_disk_said(self.folder.path):
            trainer.save_model(str(staging))
        if not self.is_main:
            return None, []
        self.folder.adopt(staging, MODEL_FILES)
        shutil.rmtree(staging)
        final = self._final_event(trainer)
        samples = self._samples()
        self._write_report(trainer, final, samples)
        trainer.metrics.append(final)
        report.print_results(self.console, final, samples)
        return final, samples

    def _samples(self) -> Sequence[Sample] | Sequence[Continuation]:
        model, corpus = self.model.eval(), self.corpus
        if self.objective.is_causal:
            return continuations(
                model,
                corpus.tokenizer,
                corpus.validation_documents,
                count=NUM_CONTINUATIONS,
                max_new_tokens=120 if corpus.labels_per_byte else 40,
                seed=self.config.seed,
            )
        return sample(
            model,
            corpus.tokenizer,
            corpus.validation_documents,
            count=NUM_SAMPLES,
            top=NUM_GUESSES,
            seed=self.config.seed,
        )

    def _final_event(self, trainer: StagedTrainer) -> Event:
        keys = ("length", "batch", "steps", "loss", "accuracy")
        stages = [{key: event[key] for key in keys} for event in trainer.metrics.of_kind("stage")]
        validation = trainer.metrics.of_kind("evaluation")[-1]
        event = {
            "event": "final",
            "stages": stages,
            "validation_loss": validation["loss"],
            "validation_accuracy": validation["accuracy"],
            "unigram_loss": self.corpus.unigram_loss,
        }
        if self.objective.is_causal:
            event |= {"objective": self.objective.name, "bigram_loss": self.corpus.bigram_loss}
            if self.corpus.labels_per_byte is not None:
                bits = self.corpus.labels_per_byte / math.log(2.0)
                event |= {
                    f"{name}_bits_per_byte": event[f"{name}_loss"] * bits
                    for name in ("validation", "unigram", "bigram")
                }
        return event

    def _write_report(
        self,
        trainer: StagedTrainer,
        final: Event,
        samples: Sequence[Sample] | Sequence[Continuation],
    ) -> None:
        size = record.parameters_in_words(self.record["parameters"])
        image = picture.draw(
            trainer.metrics.events,
            trainer.stages.places,
            report.baseline(final),
            f"RoFormer, {size}, {self.objective.title}",
            objective=self.objective,
        )
        self.folder.write(PICTURE, image)
        seconds = trainer.window.total_seconds
        text = report.markdown(final, samples, self.record, seconds, str(self.folder.path))
        self.folder.write(REPORT, text.encode("utf-8"))

    # ---- What is kept

    def _check_same_corpus(self, found: str, before: dict[str, Any]) -> None:
        if before["corpus"]["sha256"] != found:
            raise RunError(
                f"--resume: the text is not the one that the run in {self.folder.path} began with "
                f"(SHA-256 {found[:12]}..., then {before['corpus']['sha256'][:12]}...). Give the "
                "same text, or another --output."
            )

    def _save_tokenizer(self) -> None:
        staging = self.folder.path / ".writing-tokenizer"
        with checkpoints.full_disk_said(self.folder.path):
            self.corpus.tokenizer.save_pretrained(staging)
        self.folder.adopt(staging, TOKENIZER_FILES)
        shutil.rmtree(staging)

    def _make_record(
        self, texts: Sequence[str], command: str, initial: Initial | None
    ) -> dict[str, Any]:
        return {
            "command": command,
            "texts": list(texts),
            "parameters": sum(parameter.numel() for parameter in self.model.parameters()),
            **record.surroundings(self.arguments),
            "corpus": self.corpus.record,
            **({} if initial is None else {"init": initial.record()}),
            "versions": record.versions(),
        }


def is_finished(folder: RunFolder) -> bool:
    """Whether the run in a folder has come to its end."""
    try:
        lines = folder.file(METRICS).read_text(encoding="utf-8").splitlines()
        return bool(lines) and json.loads(lines[-1])["event"] == "final"
    except (OSError, ValueError, KeyError, TypeError):
        return False
