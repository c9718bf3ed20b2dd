"""The folder of a run belongs to one process at a time."""

import pytest

from rotary.errors import RunError
from rotary.training.folder import RunFolder
from rotary.training.run_config import RunConfig, Stage

CONFIG = RunConfig(stages=(Stage(64, 8, 10),))


def test_the_first_to_begin_in_a_new_folder_has_it(tmp_path):
    """Both looked when there was nothing; the later one would take the files of the other away."""
    first, second = RunFolder(tmp_path / "run"), RunFolder(tmp_path / "run")
    first.begin(CONFIG, {})
    for _ in range(2):  # While it is written, and when that is done.
        with pytest.raises(RunError, match="another process is writing this run; wait for its end"):
            second.begin(CONFIG, {})
        second.unlock()
        assert first.holds_run
        first.unlock()


def test_whoever_has_the_folder_may_begin_anew(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.begin(CONFIG, {})
    folder.file("metrics.jsonl").write_text("{}")
    folder.begin(CONFIG, {})
    assert not folder.file("metrics.jsonl").exists()
    folder.unlock()
