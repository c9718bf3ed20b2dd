"""What the trainer is made of: batches over stages, parts for processes, metrics, picture."""

import json
import math
import signal

import pytest
import torch
from training_support import write_corpus

from rotary.errors import ConfigError
from rotary.training import picture
from rotary.training.corpus import check_parts, digest, prepare, read_corpus
from rotary.training.interrupts import StopRequest
from rotary.training.metrics import MetricsLog, Window
from rotary.training.progress import Progress
from rotary.training.run_config import DataOptions, RunConfig, Stage, TrainingOptions
from rotary.training.stages import StageTable

CONFIG = RunConfig(
    data=DataOptions(vocab_size=120, validation_fraction=0.2, validation_length=32),
    training=TrainingOptions(warmup_steps=0),
    stages=(Stage(16, 4, 6), Stage(32, 2, 4), Stage(16, 4, 5)),
)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    path = write_corpus(tmp_path_factory.mktemp("corpus") / "corpus.jsonl")
    return prepare(read_corpus([path], "text"), CONFIG)


def test_stages_change_the_shape_and_a_batch_needs_no_history(corpus):
    shapes = [tuple(corpus.train.batch(step)["input_ids"].shape) for step in (14, 0, 6, 9, 5, 10)]
    assert shapes == [(4, 16), (4, 16), (2, 32), (2, 32), (4, 16), (4, 16)]
    before = corpus.train.batch(7)
    corpus.train.batch(2)
    assert all(torch.equal(before[name], value) for name, value in corpus.train.batch(7).items())


def test_equal_stages_do_not_repeat_each_other(corpus):
    first, third = corpus.train.batch(0), corpus.train.batch(10)
    assert not torch.equal(first["input_ids"], third["input_ids"])


@pytest.mark.parametrize("num_parts", [2, 4])
def test_the_parts_of_a_step_are_the_step(corpus, num_parts):
    whole = corpus.train.batch(3)
    parts = [corpus.train.batch(3, part=part, num_parts=num_parts) for part in range(num_parts)]
    for name, value in whole.items():
        assert torch.equal(torch.cat([part[name] for part in parts]), value)


@pytest.mark.parametrize("num_parts", [1, 2, 5])
def test_validation_parts_ask_for_every_label_once(corpus, num_parts):
    for index in range(len(corpus.validation)):
        whole = corpus.validation.batch(index)["labels"]
        parts = [
            corpus.validation.batch(index, part=part, num_parts=num_parts)["labels"]
            for part in range(num_parts)
        ]
        assert all(len(part) for part in parts)
        together = torch.cat(parts)
        assert torch.equal(
            together[together != -100].sort().values, whole[whole != -100].sort().values
        )


def test_rows_must_share_out_evenly():
    check_parts(CONFIG, num_processes=2)
    with pytest.raises(ConfigError, match=r"stages\[1\]\.batch is 2; it must share out evenly"):
        check_parts(CONFIG, num_processes=4)


def test_the_digest_sees_every_character_and_no_name(corpus, tmp_path):
    one = read_corpus([write_corpus(tmp_path / "a.jsonl")], "text")
    two = read_corpus([write_corpus(tmp_path / "b.jsonl")], "text")
    assert digest(one) == digest(two)
    assert digest(one) != digest(one[::-1])
    moved = [one[0]._replace(text=one[0].text + one[1].text[:1])]
    moved += [one[1]._replace(text=one[1].text[1:]), *one[2:]]
    assert digest(moved) != digest(one)


def test_a_window_is_a_mean_over_tokens_and_begins_anew():
    window = Window()
    window.add(loss=6.0, correct=1.0, count=3.0, tokens=20.0)
    window.add(loss=2.0, correct=1.0, count=1.0, tokens=10.0)
    window.count_step(0.5)
    window.count_step(1.0)
    event = window.take(step=2, stage=1, learning_rate=0.1)
    assert (event["loss"], event["accuracy"], event["tokens_per_second"]) == (2.0, 0.5, 20)
    assert (window.steps, window.count, window.total_tokens, window.total_seconds) == (
        0,
        0,
        30,
        1.5,
    )
    assert Window(**json.loads(json.dumps(window.state()))) == window


def test_a_window_without_a_prediction_gives_no_line_and_begins_anew():
    window = Window()
    window.add(loss=0.0, correct=0.0, count=0.0, tokens=20.0)
    window.count_step(0.5)
    assert window.take(step=1, stage=1, learning_rate=0.1) is None
    assert (window.steps, window.tokens, window.seconds, window.total_tokens) == (0, 0, 0, 20)


def test_a_stage_is_summed_up_over_its_last_fifth(tmp_path):
    log = MetricsLog(tmp_path / "metrics.jsonl")
    log.start()
    for step in range(1, 21):
        stage = 1 if step <= 10 else 2
        log.append({"event": "step", "step": step, "stage": stage, "loss": step, "accuracy": 0.5})
    assert log.stage_summary(1, length=8, batch=1, steps=10)["loss"] == 9.5
    assert log.stage_summary(2, length=8, batch=1, steps=10)["loss"] == 19.5


def test_metrics_go_on_from_a_copy(tmp_path):
    log = MetricsLog(tmp_path / "metrics.jsonl")
    log.start()
    log.append({"event": "step", "step": 1})
    copy = log.path.read_bytes()
    log.append({"event": "step", "step": 2})
    log.path.write_bytes(log.path.read_bytes() + b'{"event": "st')
    again = MetricsLog(log.path)
    again.restore(copy)
    again.append({"event": "step", "step": 2, "new": True})
    lines = [json.loads(line) for line in log.path.read_text().splitlines()]
    assert (
        lines
        == again.events
        == [{"event": "step", "step": 1}, {"event": "step", "step": 2, "new": True}]
    )


def test_a_second_signal_acts_as_always():
    with StopRequest() as request:
        signal.raise_signal(signal.SIGINT)
        assert request.signal == signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


EVENTS = [
    {"event": "step", "step": 2 * n, "loss": 6 - 0.1 * n, "accuracy": 0.01 * n}
    for n in range(1, 20)
] + [{"event": "evaluation", "step": step, "loss": 5.0, "accuracy": 0.1} for step in (20, 38)]


def test_the_same_run_gives_the_same_picture():
    places = StageTable([Stage(64, 8, 20), Stage(128, 4, 18)]).places
    images = [picture.draw(EVENTS, places, ("unigram", 6.2), "title") for _ in range(2)]
    assert images[0] == images[1]
    assert images[0].startswith(b"\x89PNG")
    assert picture.draw(EVENTS, places, ("unigram", 5.9), "title") != images[0]


def test_a_picture_passes_over_what_was_not_measured():
    places = StageTable([Stage(64, 8, 20), Stage(128, 4, 18)]).places
    empty = {"event": "step", "step": 19, "loss": math.nan, "accuracy": math.nan}
    images = [
        picture.draw(events, places, ("unigram", 6.2), "title")
        for events in (EVENTS, [*EVENTS, empty])
    ]
    assert images[0] == images[1]


def test_progress_is_live_on_a_terminal_with_validation_above_it():
    import io

    from rich.console import Console

    stages = [Stage(64, 8, 4)]
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=100, color_system=None)
    line = {"stage": 1, "loss": 5.5, "accuracy": 0.25, "tokens_per_second": 1234}
    with Progress(stages, console) as progress:
        progress.measured(line)
        progress.stepped(1, StageTable(stages).places[0], 2.0)
        progress.evaluated({"step": 1000, "loss": 5.25, "accuracy": 0.5})
    shown = file.getvalue()
    for piece in (
        "stage 1/1 (64 x 8)",
        "1/4",
        "loss 5.500",
        "accuracy 0.250",
        "1,234 tokens/s",
        "0:06 left",
        "validation at step 1,000  loss 5.250  accuracy 0.500\n",
    ):
        assert piece in shown
