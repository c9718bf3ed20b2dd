"""Two processes see the data of one, each its part, and come to the same numbers."""

import os
import subprocess
import sys

import pytest
from training_support import TINY, read_events, run_in_child, write_corpus

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("world", [2])
def test_several_processes_train_like_one(tmp_path, world):
    """Without dropout, which draws for each process, only the order of sums differs."""
    corpus = write_corpus(tmp_path / "corpus.jsonl")
    arguments = [corpus, *TINY, "--model.hidden_dropout_prob", "0"]
    code, said = run_in_child([*arguments, "--output", str(tmp_path / "one")])
    assert code == 0, said
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(world), "-m", "rotary", "pretrain", *arguments]
    done = subprocess.run(
        [*command, "--output", str(tmp_path / "many")],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Sentences from the validation set") == 1  # One process speaks.
    assert f"({world} processes, each 1 threads)" in done.stdout
    one, many = read_events(tmp_path / "one"), read_events(tmp_path / "many")
    assert len(one) == len(many)
    for alone, together in zip(one[:-1], many[:-1], strict=True):
        for key in ("event", "step", "tokens"):
            assert alone.get(key) == together.get(key)
        for key in ("loss", "accuracy"):
            assert together[key] == pytest.approx(alone[key], rel=2e-4)
    assert many[-1]["unigram_loss"] == one[-1]["unigram_loss"]
