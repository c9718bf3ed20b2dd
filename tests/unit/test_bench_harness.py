"""The benchmark harness: a bar that is not met fails, a red gate refuses, absence is said."""

import json
import time

import pytest

from rotary.bench import Record, Suite, interleave, interleave_with_floor, load_suite, run_suite
from rotary.bench.memory import IS_MEASURED, peak_rise
from rotary.bench.report import Table, bar_line, write_json
from rotary.bench.suite import Bar
from rotary.bench.timing import Timing
from rotary.errors import ConfigError, RunError


def test_interleaving_ranks_cases_and_calls_short_ones_often():
    timings = interleave(
        {"nothing": lambda: None, "nap": lambda: time.sleep(2e-3)}, repeats=3, sample_seconds=2e-3
    )
    assert timings["nap"].seconds > 100 * timings["nothing"].seconds
    assert timings["nothing"].calls > timings["nap"].calls == 1


def test_a_cold_allocator_is_refused():
    cold = {"clone": lambda: time.sleep(4e-3), "copy_": lambda: time.sleep(1e-3)}
    with pytest.raises(RunError, match="fresh pages"):
        interleave_with_floor(cold, tries=2, repeats=3)


@pytest.mark.parametrize(
    ("bar", "word"),
    [
        (Bar("a", 1.1, 1.2), "holds"),
        (Bar("a", 1.3, 1.2), "missed"),
        (Bar("a", 1.3, 1.2, at_least=True), "holds"),
        (Bar("a", 1.1, 1.2, at_least=True), "missed"),
        (Bar("a", None, 1.2), "missed"),
        (Bar("a", float("nan"), 1.2), "missed"),
    ],
)
def test_the_last_word_of_a_bar_is_its_verdict(bar, word):
    assert bar_line(bar).split()[-1] == word


def test_a_red_gate_refuses_to_time():
    def measure(record):
        raise AssertionError("was timed")

    suite = Suite("red", "a suite", gate=lambda record: ["q is wrong"], measure=measure)
    with pytest.raises(RunError, match="q is wrong"):
        run_suite(suite, Record())


def test_exit_code_and_table_tell_of_missing_data_and_missed_bars(tmp_path, capsys):
    record = Record(data=tmp_path, show=Table())
    record.row("times", "ours", Timing(1.5e-3, 0.1, 5, 1), ratio=1.25, tokens=7)
    record.absent("times", "peer", "not installed")
    record.at_most("ours against clone", 1.25, 1.3)
    assert record.exit_code == 0
    assert record.find_data("times", "novel.txt") is None
    assert record.exit_code == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["", "times"]
    assert lines[2].split() == ["ours", "1.5", "ms", "±", "10%", "1.25", "x", "tokens=7"]
    lines += map(bar_line, record.bars)
    assert [line.split()[0] for line in lines if "absent" in line] == ["peer", "novel.txt"]
    verdicts = [line for line in lines if "holds" in line or "missed" in line]
    assert verdicts == ["ours against clone: 1.25 x (at most 1.3) holds"]

    record = Record()
    record.at_least("speed", 1.0, 2.0)
    assert record.exit_code == 1


def test_json_has_machine_versions_and_commit(tmp_path):
    record = Record()
    record.at_most("ours", 1.0, 2.0)
    write_json(tmp_path / "new" / "x.json", "x", record)
    saved = json.loads((tmp_path / "new" / "x.json").read_text("utf-8"))
    assert saved["bars"][0]["is_met"] is True
    assert saved["machine"]["threads"] >= 1
    assert saved["versions"]["torch"]
    assert "commit" in saved


def test_unknown_suite_names_the_nearest():
    with pytest.raises(ConfigError, match="Did you mean 'rotate'"):
        load_suite("rotat")


@pytest.mark.skipif(not IS_MEASURED, reason="measured on Linux")
def test_peak_rise_is_that_of_the_call_alone():
    script = """
before = bytearray(200 << 20)
del before
held = bytearray(20 << 20)
rise(lambda: bytearray(40 << 20))
"""
    assert 40 << 20 <= peak_rise(script) < 45 << 20
