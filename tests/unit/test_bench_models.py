"""The suite `models` at a tiny size: its gate can be red, and it measures what it says."""

import pytest

from rotary.bench import models
from rotary.bench.report import row_line
from rotary.bench.suite import Record
from rotary.rotation import Rotation

TINY = {
    "vocab_size": 50_000,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
}


@pytest.fixture(autouse=True)
def _tiny(monkeypatch):
    monkeypatch.setattr(models, "SMALL", TINY)


def test_the_gate_is_green():
    assert models._gate(Record()) == []


def test_the_gate_is_red_when_nothing_turns(monkeypatch):
    monkeypatch.setattr(Rotation, "__call__", lambda self, *x, **_: x if len(x) > 1 else x[0])
    wrong = models._gate(Record())
    assert any("hidden states differ" in each for each in wrong)


def test_rows_and_bars_of_batches_and_training(monkeypatch):
    monkeypatch.setattr(models, "CMRC_LENGTHS", (5, 3, 9, 4))
    monkeypatch.setattr(models, "STEPS", {(2, 8): 3.0})
    record = Record(repeats=3)
    models._batches(record, 3)
    models._training(record, 3)
    assert [bar.limit for bar in record.bars] == [5.0, 1.4, 1.15, 3.0]
    assert all(bar.measured > 0 for bar in record.bars)
    shown = "\n".join(map(row_line, record.rows))
    assert "ours, sparse logits" in shown
    assert "real tokens/s=" in shown
