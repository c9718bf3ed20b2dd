"""``rotary pretrain``: from text to a folder with a trained RoFormer, exactly resumable."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import torch
from rich.console import Console

from rotary import __version__
from rotary.data.vocabulary import load_tokenizer
from rotary.errors import RunError
from rotary.models.roformer import RoFormerConfig, RoFormerForMaskedLM
from rotary.training import checkpoints, picture, report
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
from rotary.training.interrupts import StopRequest
from rotary.training.metrics import Event
from rotary.training.progress import Progress, say
from rotary.training.quiet import quieten
from rotary.training.run_config import RunConfig
from rotary.training.task import MaskedLanguageModeling
from rotary.training.trainer import StagedTrainer, training_arguments

NUM_SAMPLES = 5
NUM_GUESSES = 4


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Attributes:
        final: The last line of metrics.jsonl; None if the run was stopped before its end.
        step: Steps done.
        stopped_by: The signal that stopped it.
        is_main: Whether this process speaks for all.
        example: A masked sentence of the validation set, to try the model on.
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
    """Pre-train a RoFormer encoder with the masked-language-model loss.

    Everything is checked before anything is written: config, folder, text, and that the text is
    enough for every stage.

    Args:
        config: The settings.
        texts: Files and folders; the interpreter's own English prose if empty.
        output: The run folder.
        mode: Whether a run in the folder is refused, replaced or resumed.
        command: The command line, for the record.
        console: Where progress and results are printed.

    Raises:
        ConfigError, DataError, RunError: One clear message each; nothing was lost.
    """
    quieten()
    config.check()
    model_config(config, vocab_size=config.data.vocab_size)
    folder = RunFolder(output)
    folder.check(mode)
    arguments = training_arguments(config, folder.checkpoints)
    check_parts(config, arguments.world_size)
    if arguments.process_index > 0:
        console = Console(quiet=True)
    with _numerics(config.training.deterministic):
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


def model_config(config: RunConfig, *, vocab_size: int, **more: Any) -> Any:
    """The model's own config, which checks its values.

    Raises:
        ConfigError: With every problem.
    """
    values = config.as_dict()["model"]
    longest = max(stage.length for stage in config.stages)
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

    def say(self, label: str, text: str) -> None:
        say(self.console, f"{label:<8}{text}")

    def prepare(
        self, texts: Sequence[str], checkpoint: checkpoints.Checkpoint | None, command: str
    ) -> None:
        """Make batches and the model, check them, then write the beginning of the run."""
        tokenizer = None
        if self.config.tokenizer is not None and checkpoint is None:
            tokenizer = load_tokenizer(self.config.tokenizer)
        documents = read_corpus(texts, self.config.data.text_field)
        if self.folder.holds_run and checkpoint is not None:
            self._check_same_corpus(digest(documents))
            tokenizer = load_tokenizer(self.folder.path)
        self.corpus = prepare(documents, self.config, tokenizer)
        self._say_corpus(texts)
        torch.manual_seed(self.config.seed)
        self.model = RoFormerForMaskedLM(
            model_config(
                self.config,
                vocab_size=len(self.corpus.tokenizer),
                pad_token_id=self.corpus.tokenizer.pad_token_id,
            )
        )
        self.record = self._make_record(texts, command)
        # Until all processes have looked at the folder, it stays as it is.
        self.arguments.distributed_state.wait_for_everyone()
        if checkpoint is not None:
            _, self.record = self.folder.read_run()
            self._say_changes()
        elif self.is_main:
            self.folder.begin(self.config, self.record)
            self._save_tokenizer()
        self._say_model()

    def train(self, checkpoint: checkpoints.Checkpoint | None) -> Outcome:
        """Run all stages, or go on with them; then evaluate, draw and report."""
        task = MaskedLanguageModeling(self.model, self.corpus.train, self.corpus.validation)
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
        mask = self.corpus.tokenizer.mask_token
        example = f"{samples[0].before}{mask}{samples[0].after}" if samples else None
        return Outcome(final, step, is_main=self.is_main, example=example)

    def _finish(self, trainer: StagedTrainer) -> tuple[Event | None, list[Sample]]:
        self.model.config.sparse_logits = False  # A reader of the model expects all logits.
        staging = self.folder.path / ".writing-model"
        trainer.save_model(str(staging))
        if not self.is_main:
            return None, []
        self.folder.adopt(staging, MODEL_FILES)
        shutil.rmtree(staging)
        final = self._final_event(trainer)
        samples = sample(
            self.model.eval(),
            self.corpus.tokenizer,
            self.corpus.validation_documents,
            count=NUM_SAMPLES,
            top=NUM_GUESSES,
            seed=self.config.seed,
        )
        self._write_report(trainer, final, samples)
        trainer.metrics.append(final)
        report.print_results(self.console, final, samples)
        return final, samples

    def _final_event(self, trainer: StagedTrainer) -> Event:
        keys = ("length", "batch", "steps", "loss", "accuracy")
        stages = [{key: event[key] for key in keys} for event in trainer.metrics.of_kind("stage")]
        validation = trainer.metrics.of_kind("evaluation")[-1]
        return {
            "event": "final",
            "stages": stages,
            "validation_loss": validation["loss"],
            "validation_accuracy": validation["accuracy"],
            "unigram_loss": self.corpus.unigram_loss,
        }

    def _write_report(
        self, trainer: StagedTrainer, final: Event, samples: Sequence[Sample]
    ) -> None:
        size = self.record["parameters"] / 1e6
        title = f"RoFormer, {size:.1f} M parameters, masked language modelling"
        image = picture.draw(
            trainer.metrics.events, trainer.stages.places, self.corpus.unigram_loss, title
        )
        self.folder.write(PICTURE, image)
        seconds = trainer.window.total_seconds
        text = report.markdown(final, samples, self.record, seconds, str(self.folder.path))
        self.folder.write(REPORT, text.encode("utf-8"))

    # ---- What is said and kept

    def _check_same_corpus(self, found: str) -> None:
        _, record = self.folder.read_run()
        if record["corpus"]["sha256"] != found:
            raise RunError(
                f"--resume: the text is not the one that the run in {self.folder.path} began with "
                f"(SHA-256 {found[:12]}..., then {record['corpus']['sha256'][:12]}...). Give the "
                "same text, or another --output."
            )

    def _save_tokenizer(self) -> None:
        staging = self.folder.path / ".writing-tokenizer"
        self.corpus.tokenizer.save_pretrained(staging)
        self.folder.adopt(staging, TOKENIZER_FILES)
        shutil.rmtree(staging)

    def _make_record(self, texts: Sequence[str], command: str) -> dict[str, Any]:
        packages = ("torch", "transformers", "tokenizers", "accelerate", "datasets")
        return {
            "command": command,
            "texts": list(texts),
            "parameters": sum(parameter.numel() for parameter in self.model.parameters()),
            "processes": self.arguments.world_size,
            "threads": torch.get_num_threads(),
            "device": _device_name(self.arguments.device),
            "corpus": self.corpus.record,
            "versions": {
                "rotary": __version__,
                "python": platform.python_version(),
                **{name: version(name) for name in packages},
            },
        }

    def _say_changes(self) -> None:
        now = {
            "processes": self.arguments.world_size,
            "threads": torch.get_num_threads(),
            "device": _device_name(self.arguments.device),
            **self._make_record((), "")["versions"],
        }
        before = {**self.record, **self.record["versions"]}
        for name, value in now.items():
            if before.get(name) != value:
                self.say(
                    "note",
                    f"{name} was {before.get(name)} and is {value} now: the data stay the same, "
                    "the last bits of the weights may not",
                )

    def _say_corpus(self, texts: Sequence[str]) -> None:
        numbers = self.corpus.record
        source = "" if texts else ", Python's own help and docstrings"
        self.say(
            "corpus",
            f"{numbers['train_documents'] + numbers['validation_documents']:,} documents, "
            f"{numbers['characters'] / 1e6:.2f} million characters{source}; "
            f"{numbers['validation_documents']:,} are kept for validation",
        )
        self.say(
            "tokens",
            f"{numbers['train_tokens']:,} to train on, {numbers['validation_tokens']:,} to "
            f"validate on, vocabulary {numbers['vocabulary']:,}",
        )

    def _say_model(self) -> None:
        options = self.config.model
        self.say(
            "model",
            f"RoFormer, {self.record['parameters'] / 1e6:.1f} million parameters "
            f"({options.num_hidden_layers} layers, width {options.hidden_size}, "
            f"{options.num_attention_heads} heads)",
        )
        processes = self.arguments.world_size
        share = f"{processes} processes, each {torch.get_num_threads()} threads"
        where = share if processes > 1 else f"{torch.get_num_threads()} threads"
        self.say(
            "run",
            f"{self.config.total_steps:,} steps in {len(self.config.stages)} stages on "
            f"{_device_name(self.arguments.device)} ({where}), written to {self.folder.path}",
        )
        if torch.cuda.is_available() and torch.cuda.device_count() > processes:
            self.say(
                "note",
                f"{torch.cuda.device_count()} GPUs are here, {processes} in use; to use all: "
                f"torchrun --nproc-per-node {torch.cuda.device_count()} -m rotary pretrain ...",
            )


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def is_finished(folder: RunFolder) -> bool:
    """Whether the run in a folder has come to its end."""
    try:
        lines = folder.file(METRICS).read_text(encoding="utf-8").splitlines()
        return bool(lines) and json.loads(lines[-1])["event"] == "final"
    except (OSError, ValueError, KeyError, TypeError):
        return False
