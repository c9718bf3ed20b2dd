"""A Performer's random features in a run: new every so many steps, the same after a resume."""

from itertools import pairwise

import pytest
import torch
from rich.console import Console

from rotary.models import RoFormerConfig, RoFormerForMaskedLM
from rotary.training import checkpoints
from rotary.training.folder import RunFolder
from rotary.training.interrupts import StopRequest
from rotary.training.progress import Progress
from rotary.training.run_config import RunConfig, Stage, TrainingOptions
from rotary.training.task import LanguageModeling
from rotary.training.trainer import StagedTrainer, training_arguments

OPTIONS = TrainingOptions(
    learning_rate=1e-2, warmup_steps=0, schedule="constant", checkpoint_every=3, evaluate_every=2
)


class Rows:
    """Tokens of a step, all of them to be predicted."""

    def __len__(self):
        return 1

    def batch(self, step, *, part, num_parts):
        generator = torch.Generator().manual_seed(step)
        ids = torch.randint(1, 20, (4, 8), generator=generator)
        return {"input_ids": ids, "labels": ids, "document_ids": torch.ones_like(ids)}


def draws_of(model):
    return torch.cat([buffer.flatten() for buffer in model.buffers()]).clone()


def run(folder, *, until, resume=False, redraw_interval=2):
    """Train to a step; return the model and the draws that each step was made with."""
    config = RunConfig(training=OPTIONS, stages=(Stage(length=8, batch=4, steps=until),))
    torch.manual_seed(0)
    model = RoFormerForMaskedLM(
        RoFormerConfig(
            vocab_size=20,
            hidden_size=8,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=8,
            attention_form="performer",
            redraw_interval=redraw_interval,
            sparse_logits=True,
        )
    )
    seen = []

    class Watched(LanguageModeling):
        def measure(self, model, batch):
            if torch.is_grad_enabled():
                seen.append(draws_of(self.model))
            return super().measure(model, batch)

    folder = RunFolder(folder)
    folder.path.mkdir(exist_ok=True)
    found = checkpoints.newest(folder.checkpoints, print) if resume else None
    with StopRequest() as request:
        trainer = StagedTrainer(
            Watched(model.eval(), Rows(), Rows()),  # As a loaded model would come.
            config,
            folder,
            training_arguments(config, folder.path),
            Progress(config.stages, Console(quiet=True)),
            request,
        )
        trainer.train(resume_from_checkpoint=trainer.start_from(found))
    return model, seen


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return run(tmp_path_factory.mktemp("whole"), until=7)


def test_the_draws_change_when_it_is_time_and_not_between(whole):
    _, seen = whole
    assert len(seen) == 7
    same = [torch.equal(a, b) for a, b in pairwise(seen)]
    assert same == [True, False, True, False, True, False]


def test_a_resumed_run_has_the_same_draws_and_ends_with_the_same_weights(whole, tmp_path):
    model, seen = whole
    run(tmp_path, until=3)  # In the middle of the life of a draw.
    again, later = run(tmp_path, until=7, resume=True)
    assert len(later) == 4
    assert all(torch.equal(a, b) for a, b in zip(seen[3:], later, strict=True))
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, again.state_dict()[name]), name


def test_a_run_that_never_redraws_keeps_its_first_draws(tmp_path):
    model, seen = run(tmp_path, until=3, redraw_interval=None)
    assert all(torch.equal(draws, seen[0]) for draws in [*seen, draws_of(model)])
