"""Causal language modelling as a job: bytes, labels, baselines, a run, and what it writes."""

import itertools
import json
import math
import random
import signal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from training_support import TINY, read_events, run_in_child, without_times, write_corpus
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from rotary.cli.main import main
from rotary.data.baseline import bigram_loss, count_pairs
from rotary.data.batches import ValidationBatches
from rotary.data.byte_tokenizer import byte_tokenizer, is_byte_tokenizer
from rotary.data.packing import PackedRows, tokenize_documents
from rotary.data.text import Document
from rotary.data.vocabulary import Frame, frame, train_wordpiece
from rotary.errors import DataError
from rotary.models.roformer import RoFormerConfig, RoFormerForCausalLM
from rotary.training.task import LanguageModeling

CAUSAL = ["--objective", "causal", "--tokenizer", "bytes"]
LEARNS = [
    *("--model.hidden_size", "48", "--model.num_hidden_layers", "2"),
    *("--model.num_attention_heads", "2", "--model.intermediate_size", "96"),
    *("--data.validation_fraction", "0.2", "--data.validation_length", "64"),
    *("--training.warmup_steps", "10", "--training.learning_rate", "0.01"),
    *("--stages", '[{"length":64,"batch":8,"steps":110}]', "--training.evaluate_every", "0"),
]


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


# ---- Bytes


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    byte_tokenizer().save_pretrained(folder)
    return AutoTokenizer.from_pretrained(folder, trust_remote_code=False)


@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
def test_any_text_comes_back_exactly(saved, text):
    ids = saved(text)["input_ids"]
    assert ids[1:-1] == list(text.encode("utf-8"))
    assert saved.decode(ids, skip_special_tokens=True) == text


def test_special_tokens_spelt_out_are_text_and_spacing_is_left_alone(saved):
    text = "a [MASK] , [CLS][SEP] 's \r\n\t \u00a0[PAD] ."
    ids = saved(text)["input_ids"]
    assert max(ids[1:-1]) < 256
    assert saved.decode(ids, skip_special_tokens=True) == text
    assert saved("[MASK]", split_special_tokens=False)["input_ids"][1] == saved.mask_token_id


def test_it_is_a_tokenizer_of_256_bytes_and_four_special_tokens(saved):
    assert isinstance(saved, PreTrainedTokenizerFast)
    assert len(saved) == 260
    assert is_byte_tokenizer(saved)
    assert not is_byte_tokenizer(train_wordpiece([Document("a", "turn")], vocab_size=50))
    assert frame(saved) == (257, 258, 256)


def test_one_token_may_begin_end_and_pad():
    tokenizer = byte_tokenizer()
    for name in ("cls_token", "sep_token", "pad_token", "mask_token"):
        setattr(tokenizer, name, None)
    with pytest.raises(DataError, match="no token that ends a text"):
        frame(tokenizer)
    tokenizer.eos_token = "[SEP]"
    assert frame(tokenizer) == (258, 258, 258)


# ---- Labels and baselines


DOCUMENTS = [Document(str(n), "ab" * n + "c") for n in (1, 3, 12)] + [Document("none", "")]


@pytest.fixture
def rows():
    return PackedRows(
        tokenize_documents(DOCUMENTS, byte_tokenizer()), byte_tokenizer(), row_length=16
    )


def test_each_byte_and_each_true_end_is_a_label_once(rows):
    batch = next(iter(ValidationBatches(rows, batch_size=99, seed=0, masking=None)))
    labels, ids = batch["labels"], batch["input_ids"]
    assert torch.equal(labels[labels != -100], ids[labels != -100])
    assert (labels[:, 0] == -100).all()
    wanted = labels[labels != -100].tolist()
    text = "".join(document.text for document in DOCUMENTS)
    assert sorted(wanted) == sorted([*text.encode(), 258, 258, 258])
    # The long document is cut into rows; its first piece ends in [SEP] but the text does not.
    assert (ids == 258).sum() == 4


def test_the_bigram_baseline_is_add_one_counts_of_pairs(rows):
    """Against a slow count over the documents and a walk over the rows."""
    random.seed(0)
    train = [Document(str(n), "".join(random.choices("abc", k=n))) for n in range(30)]
    pairs, firsts = {}, {}
    for document in train:
        ids = [257, *document.text.encode(), 258] if document.text else []
        for pair in itertools.pairwise(ids):
            pairs[pair] = pairs.get(pair, 0) + 1
            firsts[pair[0]] = firsts.get(pair[0], 0) + 1
    batches = ValidationBatches(rows, batch_size=2, seed=0, masking=None)
    losses = []
    for batch in batches:
        for ids, labels in zip(batch["input_ids"].tolist(), batch["labels"].tolist(), strict=True):
            for before, label in zip(ids[:-1], labels[1:], strict=True):
                if label != -100:
                    seen = pairs.get((before, label), 0) + 1
                    losses.append(math.log((firsts.get(before, 0) + 260) / seen))
    counts = count_pairs(
        tokenize_documents(train, byte_tokenizer()), vocab_size=260, frame=frame(byte_tokenizer())
    )
    assert bigram_loss(counts, batches) == pytest.approx(np.mean(losses), rel=1e-12)


def test_the_end_of_a_document_and_the_beginning_of_the_next_are_no_pair():
    """Of weight where one token is both."""
    counts = count_pairs(
        tokenize_documents(DOCUMENTS, byte_tokenizer()), vocab_size=260, frame=Frame(258, 258, 258)
    )
    assert counts.first[258] == 3
    assert 258 * 260 + 258 not in counts.pair.tolist()


def test_a_document_does_not_see_its_neighbours_in_a_row(rows):
    batch = next(iter(ValidationBatches(rows, batch_size=99, seed=0, masking=None)))
    row = int((batch["document_ids"].max(dim=1).values > 1).nonzero()[0])
    batch = {name: value[row : row + 1] for name, value in batch.items()}
    model = RoFormerForCausalLM(
        RoFormerConfig(
            vocab_size=260,
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=32,
            is_decoder=True,
            sparse_logits=True,
        )
    ).eval()
    task = LanguageModeling(model, None, None)

    def loss_of(document, ids):
        labels = torch.where(batch["document_ids"] == document, batch["labels"], -100)
        return task.measure(model, {**batch, "labels": labels, "input_ids": ids}).loss.item()

    first = batch["document_ids"] == 1
    changed = torch.where(first & (batch["input_ids"] < 256), 122, batch["input_ids"])
    assert loss_of(2, changed) == loss_of(2, batch["input_ids"])
    assert loss_of(1, changed) != loss_of(1, batch["input_ids"])


def test_loss_and_accuracy_are_those_of_each_next_token(rows):
    """Against all logits, shifted here by hand, padding and first tokens left out."""
    batch = next(iter(ValidationBatches(rows, batch_size=99, seed=0, masking=None)))
    config = RoFormerConfig(
        vocab_size=260,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        is_decoder=True,
    )
    model = RoFormerForCausalLM(config).eval()
    inputs = {name: value for name, value in batch.items() if name != "labels"}
    logits = model(**inputs).logits[:, :-1]
    wanted = batch["labels"][:, 1:]
    chosen = wanted != -100
    loss = torch.nn.functional.cross_entropy(logits[chosen], wanted[chosen], reduction="sum")
    correct = (logits.argmax(-1)[chosen] == wanted[chosen]).sum()
    measured = LanguageModeling(model, None, None).measure(model, batch)
    assert measured.loss.item() == pytest.approx(loss.item(), rel=1e-5)
    assert measured.correct == correct
    assert measured.count == chosen.sum()


# ---- The job


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished run, and what it printed."""
    import contextlib
    import io

    folder = tmp_path_factory.mktemp("runs")
    corpus = write_corpus(folder / "corpus.jsonl", documents=200)
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(["pretrain", corpus, *CAUSAL, *LEARNS, "--output", str(folder / "run")])
    assert code == 0, err.getvalue()
    assert err.getvalue() == ""
    return folder / "run", out.getvalue()


def test_a_tiny_byte_model_beats_its_bigram_baseline(run):
    final = read_events(run[0])[-1]
    assert final["objective"] == "causal"
    assert final["validation_loss"] < final["bigram_loss"] - 0.2
    assert final["bigram_loss"] < final["unigram_loss"] - 0.5


def test_bits_per_byte_pay_for_the_ends_of_documents_too(run):
    """One end for each validation document, divided over its bytes."""
    record = (run[0] / "run.toml").read_text()
    numbers = dict(line.split(" = ") for line in record.splitlines() if " = " in line)
    num_bytes, ends = int(numbers["validation_tokens"]), int(numbers["validation_documents"])
    final = read_events(run[0])[-1]
    for name in ("validation", "bigram", "unigram"):
        bits = final[f"{name}_loss"] * (num_bytes + ends) / num_bytes / math.log(2)
        assert final[f"{name}_bits_per_byte"] == pytest.approx(bits, rel=1e-12)


def test_it_says_baselines_bits_and_continuations(run):
    folder, out = run
    report = (folder / "report.md").read_text()
    for text in (out, report):
        assert "bigram baseline" in text
        assert "unigram baseline" in text
        assert "bits per byte" in text
        assert "nats per token" in text
        assert "The model beats the bigram baseline by " in text
        assert "mask" not in text.replace("--", "").lower() or text is report
    assert "rotary generate " in out
    assert report.count("\n- ") == 3
    assert "masked" not in report
    assert (folder / "loss.png").read_bytes().startswith(b"\x89PNG")
    config = json.loads((folder / "config.json").read_text())
    assert (config["is_decoder"], config["sparse_logits"]) == (True, False)
    assert (config["bos_token_id"], config["eos_token_id"], config["pad_token_id"]) == (
        257,
        258,
        256,
    )


def generate(capsys, *arguments):
    assert main(["generate", *map(str, arguments)]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out.removesuffix("\n")


@torch.no_grad()
def test_it_writes_on_from_a_prompt_as_it_stands(run, capsys):
    """Greedy writing against a loop over the whole text, without a cache."""
    ids = [257, *b"The queue "]
    model = RoFormerForCausalLM.from_pretrained(run[0]).eval()
    for _ in range(30):
        logits = model(torch.tensor([ids])).logits[0, -1]
        logits[[256, 257, 259]] = -torch.inf
        if int(logits.argmax()) == 258:
            break
        ids.append(int(logits.argmax()))
    text = generate(capsys, run[0], "The queue ", "--greedy", "--max-new-tokens", 30)
    assert text == bytes(ids[1:]).decode()
    assert len(text) > 15


def test_any_prompt_is_kept_and_none_is_needed(run, capsys):
    prompt = "[MASK] \u4e2d , \u00e9"
    assert generate(capsys, run[0], prompt, "--max-new-tokens", 5).startswith(prompt)
    assert len(generate(capsys, run[0], "", "--max-new-tokens", 20)) > 0


@pytest.mark.parametrize(
    "option", ["--temperature=1e-6", "--temperature=1e6", f"--seed={2**64 - 1}"]
)
def test_the_ends_of_what_is_accepted_work(run, capsys, option):
    assert generate(capsys, run[0], "The ", "--max-new-tokens", 3, option).startswith("The ")


def test_a_masked_byte_model_fills_masks(tmp_path, capsys):
    corpus = write_corpus(tmp_path / "corpus.jsonl")
    arguments = [corpus, *TINY, "--tokenizer", "bytes", "--output", str(tmp_path / "run")]
    assert main(["pretrain", *arguments]) == 0
    capsys.readouterr()
    assert main(["fill-mask", str(tmp_path / "run"), "The que[MASK]e holds", "--top", "2"]) == 0
    assert capsys.readouterr().out.count("%") == 2


@pytest.mark.slow
def test_causal_models_of_words_are_trained_too_and_resume_to_the_same_weights(tmp_path):
    corpus = write_corpus(tmp_path / "corpus.jsonl")
    arguments = [corpus, *TINY, "--objective", "causal"]
    code, said = run_in_child([*arguments, "--output", str(tmp_path / "whole")])
    assert code == 0, said
    output = ["--output", str(tmp_path / "killed")]
    code, said = run_in_child([*arguments, *output], "inside a stage")
    assert code == -signal.SIGKILL, said
    code, said = run_in_child([*output, "--resume"])
    assert code == 0, said
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    weights = (killed / "model.safetensors").read_bytes()
    assert weights == (whole / "model.safetensors").read_bytes()
    events = read_events(whole)
    assert without_times(read_events(killed)) == without_times(events)
    assert "validation_bits_per_byte" not in events[-1]
    assert events[-1]["bigram_loss"] > 0


@pytest.mark.parametrize("name", ["performer", "performer-none"])
def test_the_shipped_performer_trains_and_writes_when_it_is_small(name, tmp_path, capsys):
    corpus = write_corpus(tmp_path / "corpus.jsonl")
    small = [
        *("--model.hidden_size", "16", "--model.num_hidden_layers", "2"),
        *("--model.num_attention_heads", "2", "--model.intermediate_size", "32"),
        *("--training.passes", "1", "--training.workers", "0", "--training.precision", "float32"),
        *("--stages", '[{"length":48,"batch":4,"steps":6}]', "--data.validation_length", "48"),
        *("--training.learning_rate", "0.01", "--training.log_every", "1"),
        *(
            "--model.num_features",
            "24",
            "--model.redraw_interval",
            "0",
            "--model.feature_seed",
            "3",
        ),
    ]
    output = tmp_path / "run"
    assert main(["pretrain", corpus, "--config", name, *small, "--output", str(output)]) == 0
    losses = [event["loss"] for event in read_events(output) if event["event"] == "step"]
    assert losses[-1] < losses[0] - 0.5
    made = json.loads((output / "config.json").read_text())
    assert made["attention_form"] == "performer"
    assert (made["num_features"], made["redraw_interval"], made["feature_seed"]) == (24, None, 3)
    capsys.readouterr()
    assert generate(capsys, output, "The ", "--max-new-tokens", 8).startswith("The ")
