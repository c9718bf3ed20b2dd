"""A checkpoint is whole or not there, and one flipped bit is found."""

import os
import shutil

import pytest

from rotary.training import checkpoints


def make(folder, step, content=b"weights" * 100):
    staging = checkpoints.staging_path(folder, step)
    (staging / "inner").mkdir(parents=True)
    (staging / "model.bin").write_bytes(content)
    (staging / "inner" / "state.json").write_bytes(b"{}")
    target = checkpoints.checkpoint_path(folder, step)
    checkpoints.publish(staging, target)
    return target


def test_a_published_checkpoint_verifies(tmp_path):
    path = make(tmp_path, 7)
    assert path.name == "step-000000007"
    assert checkpoints.verify(path) is None
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("place", [0, 350, 699])
def test_one_flipped_bit_is_found(tmp_path, place):
    path = make(tmp_path, 1)
    content = bytearray((path / "model.bin").read_bytes())
    content[place] ^= 1
    (path / "model.bin").write_bytes(content)
    assert checkpoints.verify(path) == (
        "model.bin is damaged (its SHA-256 differs from the manifest)"
    )


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (lambda path: os.truncate(path / "model.bin", 10), "model.bin has 10 bytes instead of 700"),
        (lambda path: (path / "inner/state.json").unlink(), "inner/state.json is missing"),
        (lambda path: (path / "manifest.json").unlink(), "manifest.json is missing"),
        (lambda path: (path / "manifest.json").write_text("{}"), "manifest.json cannot be read"),
        (lambda path: (path / "manifest.json").write_text("{"), "manifest.json cannot be read"),
        (lambda path: (path / "extra.bin").write_text(""), "extra.bin is not in the manifest"),
    ],
)
def test_what_is_wrong_is_said(tmp_path, damage, expected):
    path = make(tmp_path, 1)
    damage(path)
    assert checkpoints.verify(path).startswith(expected)


def test_the_newest_that_verifies_is_taken_and_the_others_are_said(tmp_path):
    paths = [make(tmp_path, step) for step in (5, 20, 100)]
    (paths[2] / "model.bin").write_bytes(b"")
    said = []
    found = checkpoints.newest(tmp_path, said.append)
    assert (found.step, found.path) == (20, paths[1])
    assert said == [
        "checkpoint step-000000100 is passed over: model.bin has 0 bytes instead of 700"
    ]
    assert checkpoints.newest(tmp_path / "nowhere", said.append) is None


def test_an_unfinished_writing_is_no_checkpoint_and_is_cleared(tmp_path):
    make(tmp_path, 3)
    staging = checkpoints.staging_path(tmp_path, 4)
    staging.mkdir()
    (staging / "model.bin").write_bytes(b"half")
    assert checkpoints.newest(tmp_path, print).step == 3
    checkpoints.clear_unfinished(tmp_path)
    assert not staging.exists()


def test_the_oldest_go_and_foreign_files_stay(tmp_path):
    for step in (1, 2, 3):
        make(tmp_path, step)
    (tmp_path / "notes.txt").write_text("mine")
    checkpoints.prune(tmp_path, keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "notes.txt",
        "step-000000002",
        "step-000000003",
    ]
    checkpoints.remove_all(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_step_can_be_written_again(tmp_path):
    make(tmp_path, 1, b"old")
    path = make(tmp_path, 1, b"new")
    assert (path / "model.bin").read_bytes() == b"new"
    assert checkpoints.verify(path) is None


@pytest.mark.parametrize(
    "deletes",
    [
        lambda folder: make(folder, 1, b"new"),
        lambda folder: checkpoints.prune(folder, keep=0),
        checkpoints.remove_all,
    ],
    ids=["publish", "prune", "remove_all"],
)
def test_a_kill_while_deleting_leaves_nothing_that_looks_like_a_checkpoint(
    tmp_path, monkeypatch, deletes
):
    make(tmp_path, 1, b"old")

    def killed(path):
        (path / "model.bin").unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            deletes(tmp_path)
    assert not list(tmp_path.glob("step-*"))
    # What was left is no obstacle for the next one.
    for step in (2, 3):
        checkpoints.publish(make(tmp_path, step), checkpoints.checkpoint_path(tmp_path, 1))
    checkpoints.remove_all(tmp_path)
    assert not tmp_path.exists()


def test_a_file_is_replaced_whole(tmp_path, monkeypatch):
    path = tmp_path / "file"
    checkpoints.write_atomically(path, b"old")

    def fail(descriptor):
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        checkpoints.write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
