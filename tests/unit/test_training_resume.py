"""A run that was killed and resumed ends exactly as one that was not."""

import json
import os
import shutil
import signal
import time

import pytest
from training_support import (
    MOMENTS,
    TINY,
    TOTAL_STEPS,
    end_of_child,
    read_events,
    run_in_child,
    start_child,
    without_times,
    write_corpus,
)

KILLS = [moment for moment in MOMENTS if moment not in ("Ctrl-C", "SIGTERM", "paused")]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that nobody disturbed: its folder and the arguments that make it."""
    folder = tmp_path_factory.mktemp("whole")
    arguments = [write_corpus(folder / "corpus.jsonl"), *TINY]
    code, output = run_in_child([*arguments, "--output", str(folder / "run")])
    assert code == 0, output
    return folder / "run", arguments


def assert_same_run(resumed, undisturbed):
    weights = (resumed / "model.safetensors").read_bytes()
    assert weights == (undisturbed / "model.safetensors").read_bytes()
    assert without_times(read_events(resumed)) == without_times(read_events(undisturbed))


@pytest.mark.slow
@pytest.mark.parametrize("moment", KILLS)
def test_a_killed_run_resumes_to_the_same_weights(whole, tmp_path, moment):
    undisturbed, arguments = whole
    output = ["--output", str(tmp_path / "run")]
    code, said = run_in_child([*arguments, *output], moment)
    assert code == -signal.SIGKILL, said
    again = arguments if moment == "before the run file" else []
    code, said = run_in_child([*again, *output, "--resume"])
    assert code == 0, said
    assert_same_run(tmp_path / "run", undisturbed)
    expected = "starting from" if "before the" in moment and "first" in moment else "resuming from"
    assert expected in said or moment in ("before the run file", "before the tokenizer")
    assert not list((tmp_path / "run").glob(".writing*"))
    assert not list((tmp_path / "run" / "checkpoints").glob(".writing*"))


@pytest.mark.slow
@pytest.mark.parametrize(("moment", "code"), [("Ctrl-C", 130), ("SIGTERM", 143)])
def test_a_polite_signal_leaves_a_checkpoint_and_says_how_to_resume(whole, tmp_path, moment, code):
    undisturbed, arguments = whole
    output = ["--output", str(tmp_path / "run")]
    got, said = run_in_child([*arguments, *output], moment)
    assert got == code
    assert "Stopped after step 8, with a checkpoint." in said
    assert f"rotary pretrain --output {tmp_path / 'run'} --resume" in said
    got, said = run_in_child([*output, "--resume"])
    assert got == 0
    assert "resuming from checkpoint step-000000008, which verifies" in said
    assert_same_run(tmp_path / "run", undisturbed)


@pytest.mark.slow
def test_a_second_process_on_a_run_is_refused_and_the_first_is_undisturbed(whole, tmp_path):
    undisturbed, arguments = whole
    run = tmp_path / "run"
    first = start_child([*arguments, "--output", str(run)], "paused")
    try:
        patience = time.monotonic() + 120
        while not (run / "checkpoints" / "step-000000006").exists():
            assert time.monotonic() < patience
            time.sleep(0.05)
        for more in (["--resume"], [*arguments, "--overwrite"]):
            code, said = run_in_child([*more, "--output", str(run)])
            assert code == 2
            assert f"--output {run}: another process is writing this run" in said
            assert len(said.splitlines()) == 1
    finally:
        os.kill(first[0].pid, signal.SIGCONT)
    code, said = end_of_child(*first)
    assert code == 0, said
    assert_same_run(run, undisturbed)


@pytest.mark.slow
def test_a_run_inside_its_text_is_resumed_and_replaced_with_the_same_text(
    whole, tmp_path, monkeypatch
):
    """The folder of the text holds the run too, as with `cd books; rotary pretrain .`."""
    undisturbed, (_, *settings) = whole
    write_corpus(tmp_path / "corpus.jsonl")
    monkeypatch.chdir(tmp_path)
    code, said = run_in_child([".", *settings], "Ctrl-C")
    assert code == 130, said
    code, said = run_in_child([".", "--resume"])
    assert code == 0, said
    assert_same_run(tmp_path / "runs" / "pretrain", undisturbed)
    (tmp_path / "runs" / "pretrain" / "notes.txt").write_text("A note of mine on this run.")
    code, said = run_in_child([".", *settings, "--overwrite"])
    assert code == 0, said
    assert_same_run(tmp_path / "runs" / "pretrain", undisturbed)


def test_a_damaged_checkpoint_is_passed_over_aloud(whole, tmp_path):
    undisturbed, _ = whole
    run = tmp_path / "run"
    shutil.copytree(undisturbed, run)
    newest = max((run / "checkpoints").iterdir())
    optimizer = newest / "optimizer.pt"
    optimizer.write_bytes(optimizer.read_bytes()[:-1000])
    lines = (run / "metrics.jsonl").read_text().splitlines()[:-1]
    (run / "metrics.jsonl").write_text("\n".join(lines))
    (run / "model.safetensors").unlink()
    code, said = run_in_child(["--output", str(run), "--resume"])
    assert code == 0, said
    assert f"checkpoint {newest.name} is passed over: optimizer.pt has" in said
    assert_same_run(run, undisturbed)


def test_nothing_in_a_run_folder_is_a_pickle_that_anybody_loads(whole):
    undisturbed, _ = whole
    for file in undisturbed.rglob("*.bin"):
        pytest.fail(f"{file} is a pickle")
    import torch

    for file in undisturbed.rglob("*.pt"):
        torch.load(file, weights_only=True)


def test_the_last_line_is_what_the_design_says(whole):
    undisturbed, _ = whole
    final = json.loads((undisturbed / "metrics.jsonl").read_text().splitlines()[-1])
    assert list(final) == [
        "event",
        "stages",
        "validation_loss",
        "validation_accuracy",
        "unigram_loss",
    ]
    assert [list(stage) for stage in final["stages"]] == [
        ["length", "batch", "steps", "loss", "accuracy"]
    ] * 3
    assert sum(stage["steps"] for stage in final["stages"]) == TOTAL_STEPS
