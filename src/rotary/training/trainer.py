"""Hugging Face's Trainer over stages of different shapes, with checkpoints that are whole.

One Trainer, one optimiser and one learning-rate schedule serve all stages; a stage changes the
shape of the batches only. A batch is a pure function of its step, so resuming is a jump. What runs
on several devices is Accelerate's work: each process takes its part of a step.
"""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments

from rotary.data.batches import Batch
from rotary.errors import RunError
from rotary.training import checkpoints
from rotary.training.folder import METRICS, RunFolder
from rotary.training.interrupts import StopRequest
from rotary.training.metrics import MetricsLog, Window, mean
from rotary.training.progress import Progress
from rotary.training.run_config import RunConfig, TrainingOptions
from rotary.training.stages import StageTable
from rotary.training.task import Measured, Task

WINDOW = "window.json"


class StepBatches(Dataset[Batch]):
    """The parts of all steps in order: item ``step * passes + pass`` for this process."""

    def __init__(
        self, task: Task, *, num_steps: int, passes: int, process: int, num_processes: int
    ) -> None:
        self.task, self.num_steps, self.passes = task, num_steps, passes
        self.process, self.num_processes = process, num_processes

    def __len__(self) -> int:
        return self.num_steps * self.passes

    def __getitem__(self, index: int) -> Batch:
        step, turn = divmod(index, self.passes)
        return self.task.train_batch(
            step,
            part=self.process * self.passes + turn,
            num_parts=self.num_processes * self.passes,
        )


class InOrder:
    """A batch sampler of one item each, in order; resuming skips items without making them."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[list[int]]:
        return ([index] for index in range(self.count))


def _first(items: Sequence[Batch]) -> Batch:
    return items[0]


class StagedTrainer(Trainer):  # type: ignore[misc]
    """A Trainer for a :class:`Task` and a table of stages.

    Args:
        task: What is trained.
        config: The run config.
        folder: Where checkpoints and metrics go.
        arguments: What :func:`training_arguments` gives.
        progress: What shows the user how it goes.
        request: Set by a signal; training then stops after the step, with a checkpoint.
    """

    def __init__(
        self,
        task: Task,
        config: RunConfig,
        folder: RunFolder,
        arguments: Any,
        progress: Progress,
        request: StopRequest,
    ) -> None:
        self.task, self.config, self.folder = task, config, folder
        self.stages = StageTable(config.stages)
        self.metrics = MetricsLog(folder.file(METRICS))
        self.window = Window()
        self.progress = progress
        self.request = request
        self._sums: Tensor | None = None
        self.control: Any  # The Trainer's own; the checker cannot see it.
        super().__init__(
            model=task.model,
            args=arguments,
            train_dataset=StepBatches(
                task,
                num_steps=config.total_steps,
                passes=config.training.passes,
                process=arguments.process_index,
                num_processes=arguments.world_size,
            ),
            callbacks=[StageCallback(self)],
        )
        self.remove_callback(PrinterCallback)
        # The Trainer then counts the predicted items of a whole step, over passes and processes.
        self.model_accepts_loss_kwargs = True

    # ---- Data and loss

    def get_train_dataloader(self) -> DataLoader[Batch]:
        """Batches in the order of the steps; each process makes its own part."""
        return DataLoader(
            self.train_dataset,
            batch_sampler=InOrder(len(self.train_dataset)),
            collate_fn=_first,
            num_workers=self.config.training.workers,
            pin_memory=self.args.device.type == "cuda",
            # Not the global generator, whose state belongs to dropout.
            generator=torch.Generator().manual_seed(self.config.seed),
        )

    def compute_loss(
        self,
        model: Any,
        inputs: Batch,
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Tensor:
        """The part of this pass in the mean over all predicted items of the step."""
        if num_items_in_batch is None or return_outputs:
            raise RuntimeError("StagedTrainer measures whole steps of its task only.")
        measured = self.task.measure(model, inputs)
        sums = self._stack(measured, self.task.num_tokens(inputs))
        self._sums = sums if self._sums is None else self._sums + sums
        # Gradients are averaged over processes afterwards; the factor makes that a sum.
        return measured.loss * (self.args.world_size / num_items_in_batch)

    def take_sums(self) -> list[float]:
        """Loss, right, predicted and real tokens since the last call, over all processes."""
        if self._sums is None:
            return [0.0, 0.0, 0.0, 0.0]
        total, self._sums = self._sums, None
        return self.accelerator.reduce(total, reduction="sum").tolist()

    def _stack(self, measured: Measured, num_tokens: Tensor) -> Tensor:
        """Four sums that stay on the device until a line needs them."""
        # In float64 the sum of some thousand float32 values is exact, however it is grouped, so a
        # resumed run writes the same numbers. Apple's GPUs have no float64.
        wide = torch.float32 if self.args.device.type == "mps" else torch.float64
        parts = (measured.loss.detach(), measured.correct, measured.count, num_tokens)
        return torch.stack([part.to(wide) for part in parts])

    @torch.no_grad()
    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Loss and accuracy on all validation batches; each process takes its part of each."""
        model = self.model_wrapped if self.is_fsdp_enabled else self.model
        was_training = model.training
        model.eval()
        totals: Tensor | float = 0.0
        for index in range(self.task.num_validation_batches):
            batch = self.task.validation_batch(
                index, part=self.args.process_index, num_parts=self.args.world_size
            )
            with self.accelerator.autocast():
                measured = self.task.measure(model, self._prepare_inputs(batch))
            totals = totals + self._stack(measured, self.task.num_tokens(batch))
        model.train(was_training)
        loss, correct, count, _ = self.accelerator.reduce(totals, reduction="sum").tolist()
        self.refuse_infinite(loss, self.state.global_step)
        event = {
            "event": "evaluation",
            "step": self.state.global_step,
            "loss": mean(loss, count),
            "accuracy": mean(correct, count),
        }
        if self.is_world_process_zero():
            self.metrics.append(event)
            self.progress.evaluated(event)
        metrics = {"eval_loss": event["loss"], "eval_accuracy": event["accuracy"]}
        self.control = self.callback_handler.on_evaluate(
            self.args, self.state, self.control, metrics
        )
        return metrics

    def refuse_infinite(self, loss: float, step: int) -> None:
        """Stop where the loss is not a number any more; none of what follows would be."""
        if not math.isfinite(loss):
            options = self.config.training
            raise RunError(
                f"the loss is {loss} at step {step}. Try a lower training.learning_rate (now "
                f"{options.learning_rate}), more training.warmup_steps or a training.max_grad_norm."
            )

    # ---- Checkpoints

    def _get_output_dir(self, trial: Any) -> str:
        """Where the Trainer writes a checkpoint: aside, until it is whole."""
        return str(checkpoints.staging_path(self.folder.checkpoints, self.state.global_step))

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Let the Trainer write its checkpoint aside; add our numbers; publish it."""
        step = self.state.global_step
        staging = Path(self._get_output_dir(trial))
        if self.is_world_process_zero() and staging.exists():
            shutil.rmtree(staging)
        self.accelerator.wait_for_everyone()
        with checkpoints.full_disk_said(self.folder.path):
            super()._save_checkpoint(model, trial)
        self.accelerator.wait_for_everyone()
        if self.is_world_process_zero():
            inner = staging / f"checkpoint-{step}"
            (inner / WINDOW).write_text(json.dumps(self.window.state()), encoding="utf-8")
            shutil.copyfile(self.metrics.path, inner / METRICS)
            checkpoints.publish(inner, checkpoints.checkpoint_path(self.folder.checkpoints, step))
            checkpoints.prune(self.folder.checkpoints, self.config.training.keep_checkpoints)
        self.accelerator.wait_for_everyone()

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        """Save weights and config; not the pickled arguments, which nobody should load."""
        super()._save(output_dir, state_dict)
        if output_dir is not None and self.args.should_save:
            (Path(output_dir) / "training_args.bin").unlink(missing_ok=True)

    def start_from(self, checkpoint: checkpoints.Checkpoint | None) -> str | None:
        """Take metrics and sums from a checkpoint, or begin; return what ``train`` resumes from."""
        if checkpoint is None:
            if self.is_world_process_zero():
                self.metrics.start()
            return None
        if self.is_world_process_zero():
            self.metrics.restore((checkpoint.path / METRICS).read_bytes())
        state = json.loads((checkpoint.path / WINDOW).read_text(encoding="utf-8"))
        self.window = Window(**state)
        return str(checkpoint.path)


class StageCallback(TrainerCallback):  # type: ignore[misc]
    """What happens between steps: sums, lines, ends of stages, requests to stop."""

    def __init__(self, trainer: StagedTrainer) -> None:
        self.trainer = trainer
        self._began = 0.0
        self._rate = 0.0
        self._has_draws = False

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Start the clock."""
        self._began = time.perf_counter()
        self._has_draws = False

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Put a Performer's random features of this step in place, also where a run goes on."""
        model = self.trainer.model
        every = getattr(model.config, "redraw_interval", None)
        if every is None or (self._has_draws and state.global_step % every):
            return
        model.train()  # As the Trainer does next; the features are frozen in eval mode.
        model.set_training_step(state.global_step)
        self._has_draws = True

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Validation is not part of the time of a step."""
        self._began = time.perf_counter()

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Nor is the writing of a checkpoint."""
        self._began = time.perf_counter()

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Note the learning rate that this step is made with."""
        self._rate = float(self.trainer._get_learning_rate())

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Add up, write a line when it is time, end a stage, stop when asked to."""
        trainer, step = self.trainer, state.global_step
        options = trainer.config.training
        now = time.perf_counter()
        seconds, self._began = now - self._began, now
        trainer.window.count_step(seconds)
        stage = trainer.stages.stage_of(step - 1)
        is_end = step == stage.end
        control.should_evaluate = is_end or _is_due(step, options.evaluate_every)
        control.should_save = is_end or _is_due(step, options.checkpoint_every)
        self._stop_if_asked(control)
        has_line = is_end or _is_due(step, options.log_every)
        if has_line or control.should_save:  # Only then is the device waited for.
            self._add_sums(step)
        if has_line:
            self._write_line(step, stage.number)
        trainer.progress.stepped(step, stage, seconds)
        if is_end:
            self._end_stage(step, stage.number)

    def _add_sums(self, step: int) -> None:
        sums = self.trainer.take_sums()
        self.trainer.window.add(*sums)
        self.trainer.refuse_infinite(sums[0], step)

    def _write_line(self, step: int, stage: int) -> None:
        event = self.trainer.window.take(step, stage, self._rate)
        if event is not None and self.trainer.is_world_process_zero():
            self.trainer.metrics.append(event)
            self.trainer.progress.measured(event)

    def _end_stage(self, step: int, number: int) -> None:
        if not self.trainer.is_world_process_zero():
            return
        stage = self.trainer.config.stages[number - 1]
        summary = self.trainer.metrics.stage_summary(
            number, length=stage.length, batch=stage.batch, steps=stage.steps
        )
        self.trainer.metrics.append({"event": "stage", "step": step, "stage": number, **summary})

    def _stop_if_asked(self, control: Any) -> None:
        request = self.trainer.request
        number = 0 if request.signal is None else int(request.signal)
        if self.trainer.args.world_size > 1:  # A signal may reach one process only.
            shared = torch.tensor([number], device=self.trainer.args.device)
            number = int(self.trainer.accelerator.gather(shared).max())
        if number:
            request.note(number)
            control.should_save = control.should_training_stop = True


def _is_due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


def training_arguments(config: RunConfig, output: Path) -> Any:
    """The Trainer's arguments for a run config."""
    options: TrainingOptions = config.training
    arguments = TrainingArguments(
        output_dir=str(output),
        max_steps=config.total_steps,
        gradient_accumulation_steps=options.passes,
        learning_rate=options.learning_rate,
        lr_scheduler_type={"constant": "constant_with_warmup"}.get(
            options.schedule, options.schedule
        ),
        warmup_steps=options.warmup_steps,
        weight_decay=options.weight_decay,
        adam_beta1=options.adam_beta1,
        adam_beta2=options.adam_beta2,
        adam_epsilon=options.adam_epsilon,
        max_grad_norm=options.max_grad_norm,
        bf16=options.precision == "bfloat16",
        seed=config.seed,
        # When to log, evaluate and save is said by StageCallback alone.
        logging_strategy="no",
        save_strategy="no",
        eval_strategy="no",
        report_to="none",
        disable_tqdm=True,
        remove_unused_columns=False,
        ddp_find_unused_parameters=False,
        use_cpu=not torch.cuda.is_available() and not torch.backends.mps.is_available(),
    )
    # Without a launcher one process uses one device; never the slow and inexact DataParallel.
    if arguments.n_gpu > 1:
        arguments._n_gpu = 1
    return arguments
