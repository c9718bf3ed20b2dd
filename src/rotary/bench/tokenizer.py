"""Suite ``tokenizer``: RoFormer's words on real passages, beside jieba's segmentation alone."""

from __future__ import annotations

import gzip
import json
import logging
import multiprocessing
from array import array
from collections.abc import Sequence
from functools import partial
from typing import Any

from rotary.bench.suite import Record, Suite
from rotary.bench.timing import Case, interleave
from rotary.models.roformer import RoFormerTokenizer
from rotary.models.roformer.normalization import Normalizer
from rotary.models.roformer.segmentation import dictionary_cut

VOCABULARY = "roformer_chinese_base_vocab.txt.gz"
PASSAGES = "cmrc2018_contexts.jsonl.gz"
GOLDEN_TEXT = "永和服装饰品有限公司,今天天气非常好"
GOLDEN_IDS = [22943, 21332, 34431, 45904, 117, 306, 1231, 1231, 2653, 33994, 1266]
SECTION = "CMRC2018 passages, one core"
_PYTHON_PASSAGES = 60  # Python's jieba is slow: it gets fewer, and rates are compared.


def _gate(record: Record) -> list[str]:
    """The golden sentence, spans that spell the tokens, and Python jieba's cut of the passages."""
    loaded = _load(record)
    if loaded is None:
        return []
    tokenizer, texts = loaded
    wrong = []
    golden = tokenizer(GOLDEN_TEXT, add_special_tokens=False)["input_ids"]
    if golden != GOLDEN_IDS:
        wrong.append(f"the golden sentence gives {golden}")
    options = {"add_special_tokens": False}
    ids = tokenizer(texts, **options)["input_ids"]
    encoded = tokenizer(texts, return_offsets_mapping=True, **options)
    if ids != encoded["input_ids"]:
        wrong.append("ids with offsets are other ids")
    normalize = Normalizer()
    for text, its_ids, spans in zip(texts, ids, encoded["offset_mapping"], strict=True):
        tokens = tokenizer.convert_ids_to_tokens(its_ids)
        for token, (start, stop) in zip(tokens, spans, strict=True):
            if token != "[UNK]" and normalize(text[start:stop]) != token.removeprefix("##"):
                wrong.append(f"{token!r} points at {text[start:stop]!r}")
    jieba = _python_jieba()
    if jieba is not None:
        cut = dictionary_cut()
        wrong += [
            f"jieba in Python cuts {text[:20]!r}... otherwise"
            for text in texts[:_PYTHON_PASSAGES]
            if cut(text) != jieba.lcut(text, HMM=False)
        ]
    return wrong[:10]


def _load(record: Record) -> tuple[RoFormerTokenizer, list[str]] | None:
    """The word tokenizer and the passages, or None where the data is not there."""
    vocabulary = record.find_data(SECTION, VOCABULARY)
    passages = record.find_data(SECTION, PASSAGES)
    if vocabulary is None or passages is None:
        return None
    with gzip.open(vocabulary) as file:
        tokens = file.read().decode("utf-8").split("\n")[:-1]
    with gzip.open(passages, "rt", encoding="utf-8") as file:
        texts = [json.loads(line)["text"] for line in file]
    return RoFormerTokenizer(tokens), texts


def _python_jieba() -> Any:
    try:
        import jieba
    except ImportError:
        return None
    jieba.setLogLevel(logging.ERROR)
    return jieba


def _measure(record: Record) -> None:
    loaded = _load(record)
    if loaded is None:
        return
    tokenizer, texts = loaded
    size = sum(map(len, texts))
    cut = dictionary_cut()
    few = texts[:_PYTHON_PASSAGES]
    share = sum(map(len, few)) / size
    cases: dict[str, Case] = {
        "segmentation alone (rjieba)": lambda: [cut(text) for text in texts],
        "ids": lambda: tokenizer(texts),
        "ids and offsets": lambda: tokenizer(texts, return_offsets_mapping=True),
        "ids, one call a text": lambda: [tokenizer(text) for text in texts],
    }
    jieba = _python_jieba()
    python = {
        "Python jieba's segmentation": True,
        "the same without HMM, as here": False,
    }
    if jieba is not None:
        for name, uses_hmm in python.items():
            cases[name] = partial(_cut_all, jieba, few, uses_hmm)
    times = interleave(cases, repeats=min(record.repeats, 15))
    seconds = {
        name: timing.seconds / (share if name in python else 1.0) for name, timing in times.items()
    }
    floor = seconds["segmentation alone (rjieba)"]
    for name, timing in times.items():
        rate = round(size / seconds[name] / 1e6, 3)
        record.row(
            SECTION,
            name,
            timing,
            ratio=seconds[name] / floor,
            million_characters_per_second=rate,
        )
    if jieba is None:
        record.absent(SECTION, "Python jieba's segmentation", "jieba is not installed")
    record.at_most("ids, over segmentation alone", seconds["ids"] / floor, 2.7)
    record.at_most("ids and offsets, over it", seconds["ids and offsets"] / floor, 4.5)
    slow = seconds.get("Python jieba's segmentation")
    faster = slow / seconds["ids"] if slow is not None else None
    record.at_least("ids, speed over Python jieba's segmentation", faster, 10.0)
    _two_processes(record, tokenizer, texts * 4)


def _cut_all(jieba: Any, texts: list[str], uses_hmm: bool) -> None:
    for text in texts:
        jieba.lcut(text, HMM=uses_hmm)


def _two_processes(record: Record, tokenizer: RoFormerTokenizer, texts: list[str]) -> None:
    """The same work by one worker and by two that share it."""
    section = "CMRC2018 passages, four times, in workers"
    context = multiprocessing.get_context()
    with context.Pool(2, initializer=_start_worker, initargs=(tokenizer, texts)) as pool:
        step = -(-len(texts) // 64)
        slices = [(at, at + step) for at in range(0, len(texts), step)]

        def by(workers: int) -> object:
            return pool.map(_work, [slices[i::workers] for i in range(workers)], 1)

        times = interleave(
            {"one process": partial(by, 1), "two processes": partial(by, 2)},
            repeats=min(record.repeats, 9),
        )
    one = times["one process"].seconds
    for name, timing in times.items():
        record.row(section, name, timing, ratio=timing.seconds / one)
    record.at_least("two processes, speed over one", one / times["two processes"].seconds, 1.7)


_worker: list[Any] = []


def _start_worker(tokenizer: RoFormerTokenizer, texts: list[str]) -> None:
    _worker[:] = [tokenizer, texts]
    tokenizer(texts[:8])


def _work(slices: Sequence[tuple[int, int]]) -> list[bytes]:
    """The ids of some texts, packed, as a worker that prepares data would send them."""
    tokenizer, texts = _worker
    return [
        array("i", ids).tobytes()
        for start, stop in slices
        for ids in tokenizer(texts[start:stop])["input_ids"]
    ]


SUITE = Suite(
    name="tokenizer",
    summary="RoFormer's word tokenizer against jieba's segmentation alone.",
    gate=_gate,
    measure=_measure,
)
