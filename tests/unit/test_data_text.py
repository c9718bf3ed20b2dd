import codecs
import gzip
import json
import os
import re
import sys
import warnings

import pytest

from rotary.data import text as module
from rotary.data.text import Document, embedded_corpus, read_documents
from rotary.errors import DataError


def write(path, content):
    data = content if isinstance(content, bytes) else content.encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def lines(*records):
    return "".join(json.dumps(record) + "\n" for record in records)


def test_every_kind_of_file_in_the_order_of_paths(tmp_path):
    write(tmp_path / "b" / "z.txt", "first line\r\nsecond\rthird")
    write(tmp_path / "b" / "a.md", codecs.BOM_UTF8 + "# Überschrift".encode())
    write(
        tmp_path / "a.jsonl",
        b"\xef\xbb\xbf" + lines({"text": "一"}).encode() + b"\n \n" + b'{"text": "two"}',
    )
    write(tmp_path / "c.txt.gz", "packed")
    write(tmp_path / "D.JSONL.GZ", b"")
    (tmp_path / "d.jsonl.gz").write_bytes(gzip.compress(lines({"n": 1, "text": "x"}).encode()))
    write(tmp_path / "picture.png", b"\x89PNG")
    write(tmp_path / ".git" / "x.txt", "hidden")
    write(tmp_path / ".x.txt", "hidden")
    (tmp_path / "D.JSONL.GZ").write_bytes(gzip.compress(b""))
    found = read_documents(tmp_path)
    assert [(os.path.relpath(name, tmp_path), text) for name, text in found] == [
        ("a.jsonl:1", "一"),
        ("a.jsonl:4", "two"),
        ("c.txt.gz", "packed"),
        ("d.jsonl.gz:1", "x"),
        (os.path.join("b", "a.md"), "# Überschrift"),
        (os.path.join("b", "z.txt"), "first line\nsecond\nthird"),
    ]


def test_a_file_reached_twice_is_read_once_and_links_are_followed(tmp_path):
    file = write(tmp_path / "corpus" / "a.txt", "text")
    outside = write(tmp_path / "elsewhere" / "b.txt", "more")
    (tmp_path / "corpus" / "link").symlink_to(outside.parent)
    for name in ("circle", "ring"):  # Walked without memory, two are 2^40 paths.
        (tmp_path / "corpus" / name).symlink_to(tmp_path / "corpus")
    roundabout = os.path.join(tmp_path, "corpus", "..", "corpus", "a.txt")
    found = read_documents([file, tmp_path / "corpus", roundabout])
    assert sorted(document.text for document in found) == ["more", "text"]


def test_folders_of_runs_are_passed_over_and_settings_are_no_run(tmp_path):
    write(tmp_path / "a.txt", "text")
    write(tmp_path / "settings" / "run.toml", "seed = 0\n")
    write(tmp_path / "settings" / "b.txt", "more")
    write(tmp_path / "runs" / "one" / "run.toml", "seed = 0\n\n[record]\nparameters = 1\n")
    write(tmp_path / "runs" / "one" / "report.md", "# A report")
    write(tmp_path / "runs" / "one" / "checkpoints" / "notes.md", "A note")
    assert [text for _, text in read_documents(tmp_path)] == ["text", "more"]
    with pytest.raises(DataError, match=r"one: this folder holds a run, and what a run writes is"):
        read_documents(tmp_path / "runs" / "one")


def test_text_field_is_ours_to_name(tmp_path):
    path = write(tmp_path / "a.jsonl", lines({"body": "this", "text": "not this"}))
    assert read_documents(path, text_field="body") == [Document(f"{path}:1", "this")]


SURROGATE = r"holds half of a surrogate pair (\ud800 at character 1), which is no text."
NO_OBJECT = "a line has to be a JSON object with the field 'text'; this one is of type list."
BLANK = "the corpus is empty: there is no text but blanks in it"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "x", ": files that end in '.csv' are not read; accepted are .txt, .md, .jsonl,"),
        ("a.b.csv.gz", "x", ": files that end in '.csv.gz' are not read; accepted are .txt,"),
        ("a", "x", ": files without an ending are not read; accepted are"),
        ("a.txt", b"ab\xff\xfec", ": not UTF-8 at byte 2 (0xff, invalid start byte); convert"),
        ("a.txt", "ü".encode("utf-16"), ": not UTF-8 at byte 0 (it looks like UTF-16)"),
        ("a.txt", b"\xef\xbb\xbfabc\xe4", ": not UTF-8 at byte 6 (0xe4, unexpected end of data)"),
        ("a.jsonl", b'{"text": "x"}\n{"text": "\xe9"}\n', ": not UTF-8 at byte 24 (0xe9"),
        ("a.txt.gz", b"ab\xff", ": not UTF-8 at byte 2 of the unpacked text (0xff"),
        ("a.jsonl", '{"text": "x"}\n{"text": \n', ":2: broken JSON (Expecting value, column "),
        ("a.jsonl", "[" * 200_000, ":1: broken JSON ("),
        ("a.jsonl", '["x"]\n', ":1: " + NO_OBJECT),
        ("a.jsonl", '{"id": 1, "txet": ""}', ":1: there is no field 'text'; the fields are 'id', "),
        ("a.jsonl", '{"id": 1, "txet": ""}', "'txet'. Did you mean 'txet'?"),
        ("a.jsonl", "\n{}\n", ":2: there is no field 'text'; the fields are none."),
        ("a.jsonl", '{"text": 7}', ":1: the field 'text' is of type int; it has to be a string."),
        ("a.jsonl", '{"text": null}', ":1: the field 'text' is of type NoneType; it has"),
        ("a.jsonl", r'{"text": "a\ud800"}', ":1: the field 'text' " + SURROGATE),
        ("a.txt", "", BLANK),
        ("a.txt", " \n\t\u3000", BLANK),
        ("a.jsonl", lines({"text": ""}, {"text": "\n"}), BLANK),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_cannot_be_read_is_one_line_with_file_and_place(tmp_path, name, content, message):
    path = write(tmp_path / name, content)
    with pytest.raises(DataError, match=re.escape(message)) as caught:
        read_documents([path])
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_paths(tmp_path):
    for path in (tmp_path / "none.txt", tmp_path / "none", tmp_path / ("x" * 5000 + ".txt")):
        with pytest.raises(DataError, match=r": no such file or folder\.$"):
            read_documents([path])
    with pytest.raises(DataError, match="no path was given"):
        read_documents([])


def test_a_folder_without_text(tmp_path):
    write(tmp_path / "a.png", b"")
    with pytest.raises(DataError, match="this folder holds no file that can be read; accepted"):
        read_documents(tmp_path)


def test_a_link_that_leads_nowhere(tmp_path):
    write(tmp_path / "a.txt", "text")
    (tmp_path / "b.txt").symlink_to(tmp_path / "gone.txt")
    with pytest.raises(DataError, match=r"b\.txt: cannot be read: No such file"):
        read_documents(tmp_path)


@pytest.mark.parametrize("name", ["a.txt.gz", "a.jsonl.gz"])
def test_damaged_gzip(tmp_path, name):
    path = tmp_path / name
    whole = gzip.compress(lines({"text": "some text " * 100}).encode() * 20)
    for data in (
        whole[: len(whole) // 2],
        b"no gzip",
        whole[:-8] + bytes(8),
        whole[:30] + b"\xff" * 40 + whole[70:],
    ):
        path.write_bytes(data)
        with pytest.raises(DataError, match=r"gz: this gzip file is truncated or damaged \("):
            read_documents(path)  # fmt: skip


def test_the_embedded_corpus_is_english_prose_of_this_interpreter():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        documents = embedded_corpus()
    texts = dict(documents)
    assert len(texts) == len(documents) > 450
    assert 1_700_000 < sum(map(len, texts.values())) < 2_200_000
    assert "conditional execution" in texts["topics:if"]
    queue = texts["docstrings:queue"]
    assert queue.startswith("A multi-producer, multi-consumer queue.")
    assert "Remove and return an item from the queue." in queue
    assert "self.mutex" not in queue  # Code is not prose.
    assert not [name for name in texts if re.search(r"\btests?\.|site-packages", name)]
    topics = [name for name, _ in documents if name.startswith("topics:")]
    assert topics == sorted(topics)
    words = " ".join(texts.values()).lower().split()
    assert words.count("the") / len(words) > 0.04


def test_an_interpreter_without_sources_or_topics(tmp_path, monkeypatch):
    monkeypatch.setattr(module.sysconfig, "get_path", lambda name: str(tmp_path / "python.zip"))
    with pytest.raises(
        DataError, match=r"this Python has no sources of its library in .*zip; give"
    ):
        embedded_corpus()
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    with pytest.raises(DataError, match=r"this Python has no pydoc_data\.topics; give text files"):
        embedded_corpus()


def test_docstrings_come_without_importing_in_the_order_of_the_source(tmp_path, monkeypatch):
    write(
        tmp_path / "pack" / "mod.py",
        '"""One."""\nraise SystemExit("a module that is read is not run")\n'
        'if x:\n    class A:\n        """Two."""\n        def f(self):\n'
        '            """Three\\d\n\n            dedented.\n            """\n'
        'try:\n    pass\nexcept E:\n    async def g():\n        """Four."""\n"no docstring"\n',
    )
    write(tmp_path / "broken.py", "def (")
    write(tmp_path / "test" / "a.py", '"""No."""')
    monkeypatch.setattr(module.sysconfig, "get_path", lambda name: str(tmp_path))
    found = [document for document in embedded_corpus() if document.name.startswith("docstrings")]
    assert found == [
        Document("docstrings:pack.mod", "One.\n\nTwo.\n\nThree\\d\n\ndedented.\n\nFour.")
    ]
