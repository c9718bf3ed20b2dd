"""The gate of the suite ``rotate`` lets right code through and nothing else."""

import sys

import pytest

from rotary import Rotation
from rotary.bench import Record, rotate
from rotary.bench.report import bar_line
from rotary.bench.timing import Timing
from rotary.cli.bench import main
from rotary.errors import ConfigError


def test_the_gate_passes_what_is_right_and_names_what_is_wrong(monkeypatch):
    theirs = [peer for peer in rotate.PEERS if peer.name.startswith("transformers")]
    monkeypatch.setattr(rotate, "PEERS", theirs)
    assert rotate.gate(Record()) == []
    call = Rotation.__call__

    def backwards(self, *xs, **options):
        return call(self.transpose(), *xs, **options)

    monkeypatch.setattr(Rotation, "__call__", backwards)
    wrong = rotate.gate(Record())
    assert any("half, torch.float32, tables (L, P) differs" in each for each in wrong)
    assert any(
        each.startswith("transformers Llama, eager computes something else") for each in wrong
    )


def test_sections_write_rows_and_bars(monkeypatch):
    """With a clock that says one second for everything: each ratio is 1."""
    monkeypatch.setattr(rotate, "SHAPE", (1, 2, 16, 64))

    def one_second(cases, **_):
        for case in cases.values():
            case()
        return {name: Timing(1.0, 0.0, 3, 1) for name in cases}

    monkeypatch.setattr(rotate, "interleave", one_second)
    monkeypatch.setattr(rotate, "interleave_with_floor", one_second)
    monkeypatch.setattr(rotate, "_compiled", lambda record: None)
    monkeypatch.setattr(rotate, "PEERS", [p for p in rotate.PEERS if "compiled" not in p.name])
    record = Record()
    rotate.measure(record)
    assert {row.ratio for row in record.rows if row.ratio is not None} == {1.0}
    verdicts = {bar.case: bar_line(bar).split()[-1] for bar in record.bars}
    assert len(verdicts) == 30
    missed = {case for case, verdict in verdicts.items() if verdict == "missed"}
    assert missed == {case for case in verdicts if case.startswith("faster than")} | {
        "making a Rotation for 131072 positions"
    }
    assert record.exit_code == 1


def test_without_transformers_its_rows_are_absent(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.setitem(sys.modules, "transformers.models.llama.modeling_llama", None)
    record = Record()
    rotate._one_token(record)
    rotate._making_tables(record)
    assert [row.is_absent for row in record.rows] == [True, True]
    assert all(row.note.startswith("not installed: ") for row in record.rows)


def test_the_command_refuses_what_it_cannot_do():
    with pytest.raises(ConfigError, match="Did you mean 'rotate'"):
        main(["rotat"])
    with pytest.raises(ConfigError, match="--json names one file"):
        main(["rotate", "linear", "--json", "x.json"])
