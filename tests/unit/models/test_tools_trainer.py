"""The Trainer with masked tokens, the fill-mask pipeline, and what is pushed to the hub."""

import functools
import shutil
from pathlib import Path

import pytest
import torch
import transformers
from tiny_tokenizer import WORDS, save_tokenizer
from tools_support import learn_by_heart, ragged, tiny
from transformers import (
    AutoConfig,
    AutoModelForMaskedLM,
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    Trainer,
    TrainingArguments,
    pipeline,
)

from rotary import models
from rotary.models import RoFormerForMaskedLM, RoFormerTokenizer

SENTENCES = ["a small cat sat on the old mat", "the old cat slept on a small mat and sat"]


def same(state, other):
    assert state.keys() == other.keys()
    return all(torch.equal(value, other[name]) for name, value in state.items())


def test_trainer_saves_and_resumes_masked_language_modelling(tmp_path):
    """Three steps, and two more from the checkpoint: weights, optimiser and schedule go on."""
    tokenizer = save_tokenizer(tmp_path / "tokenizer")
    rows = [dict(tokenizer(text)) for text in SENTENCES * 6]
    collator = DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.4)

    def trainer(max_steps):
        arguments = TrainingArguments(
            str(tmp_path / "run"),
            max_steps=max_steps,
            save_steps=3,
            logging_steps=1,
            per_device_train_batch_size=4,
            gradient_accumulation_steps=2,
            learning_rate=1e-2,
            lr_scheduler_type="constant",
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
        )
        model = tiny(RoFormerForMaskedLM, vocab_size=len(WORDS))
        return Trainer(
            model,
            arguments,
            train_dataset=rows,
            data_collator=collator,
            processing_class=tokenizer,
        )

    first = trainer(3)
    before = {name: value.clone() for name, value in first.model.state_dict().items()}
    first.train()
    losses = [entry["loss"] for entry in first.state.log_history if "loss" in entry]
    assert len(losses) == 3
    # The Trainer divides by all labels of the accumulated batches, so a loss is a mean.
    assert all(0.1 < loss < 8 for loss in losses)
    assert not same(first.model.state_dict(), before)
    first.save_model(str(tmp_path / "saved"))
    saved = RoFormerForMaskedLM.from_pretrained(tmp_path / "saved")
    assert same(saved.state_dict(), first.model.state_dict())

    resumed = trainer(5)
    seen = []

    class Watch(transformers.TrainerCallback):
        def on_train_begin(self, args, state, control, model=None, optimizer=None, **kwargs):
            moments = [float(v["step"]) for v in optimizer.state_dict()["state"].values()]
            seen.append((state.global_step, same(model.state_dict(), saved.state_dict()), moments))

    resumed.add_callback(Watch())
    resumed.train(resume_from_checkpoint=True)
    (step, is_same, moments), *_ = seen
    assert (step, is_same, set(moments)) == (3, True, {3.0})
    assert resumed.state.global_step == 5
    assert not same(resumed.model.state_dict(), saved.state_dict())


@pytest.fixture
def folder(tmp_path):
    """A model that knows two sentences, with its tokenizer."""
    tokenizer = save_tokenizer(tmp_path / "model")
    ids = tokenizer(SENTENCES[:1] * 2, return_tensors="pt")["input_ids"]
    model = learn_by_heart(tiny(RoFormerForMaskedLM, vocab_size=len(WORDS)), ids)
    model.save_pretrained(tmp_path / "model")
    return str(tmp_path / "model")


def test_fill_mask_pipeline_guesses_what_was_learnt(folder):
    models.register()
    fill = pipeline("fill-mask", model=folder, tokenizer=folder)
    assert type(fill.model) is RoFormerForMaskedLM
    best, second = fill("a [MASK] cat sat on the old mat", top_k=2)
    assert best["token_str"] == "small"
    assert best["sequence"] == SENTENCES[0]
    assert best["score"] > second["score"]
    masks = fill("a small [MASK] sat on the [MASK] mat", top_k=1)
    assert [guesses[0]["token_str"] for guesses in masks] == ["cat", "old"]
    # Texts padded to one batch get what each gets alone.
    texts = ["a [MASK] cat", "the old [MASK] slept on a small mat and sat", "[MASK] sat on"]
    for alone, padded in zip(
        (fill(text) for text in texts), fill(texts, batch_size=3), strict=True
    ):
        assert [guess["token"] for guess in padded] == [guess["token"] for guess in alone]
        scores = torch.tensor([[guess["score"] for guess in each] for each in (padded, alone)])
        torch.testing.assert_close(scores[0], scores[1], rtol=1e-4, atol=1e-6)


def test_trainer_evaluates_a_model_that_trains_with_sparse_logits(tmp_path):
    """Metrics get a logit for each token; only training leaves out those nobody asked for."""
    tokenizer = save_tokenizer(tmp_path / "tokenizer")
    rows = [dict(tokenizer(text)) for text in SENTENCES * 3]
    seen = []

    def metrics(predictions):
        logits, labels = predictions
        wanted = labels != -100
        seen.append((logits.shape[:2] == labels.shape, wanted.sum()))
        return {"accuracy": (logits.argmax(-1)[wanted] == labels[wanted]).mean()}

    arguments = TrainingArguments(
        str(tmp_path / "run"), max_steps=1, report_to=[], use_cpu=True, disable_tqdm=True
    )
    trainer = Trainer(
        tiny(RoFormerForMaskedLM, vocab_size=len(WORDS), sparse_logits=True),
        arguments,
        train_dataset=rows,
        eval_dataset=rows,
        data_collator=DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.4),
        compute_metrics=metrics,
    )
    trainer.train()
    found = trainer.evaluate()
    assert 0 <= found["eval_accuracy"] <= 1
    assert len(seen) == 1
    assert seen[0][0]
    assert seen[0][1] > 0


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """A folder in the place of the hub's server; everything before the network is the real code."""
    from huggingface_hub.utils import EntryNotFoundError
    from transformers.utils import hub

    root = tmp_path / "hub"

    def create_repo(self, repo_id, **kwargs):
        (root / repo_id).mkdir(parents=True, exist_ok=True)
        return type("RepoUrl", (), {"repo_id": repo_id})

    def create_commit(self, repo_id, operations, **kwargs):
        for operation in operations:
            shutil.copy(operation.path_or_fileobj, root / repo_id / operation.path_in_repo)

    def load(repo_id, **kwargs):
        raise EntryNotFoundError("no model card yet")

    for name, stand_in in (("create_repo", create_repo), ("create_commit", create_commit)):
        monkeypatch.setattr(f"huggingface_hub.HfApi.{name}", stand_in)
        if hasattr(hub, name):  # Older transformers hold the bound methods.
            monkeypatch.setattr(hub, name, functools.partial(stand_in, None))
    monkeypatch.setattr(hub.ModelCard, "load", load)
    return root


@pytest.mark.parametrize("config", [{}, {"norm_position": "pre"}], ids=["stock", "ours"])
def test_push_to_hub_layout(config, hub):
    models.register()
    tokenizer = RoFormerTokenizer(WORDS, level="character")
    model = tiny(RoFormerForMaskedLM, vocab_size=len(WORDS), **config)
    model.push_to_hub("someone/model", tags=["rope"])
    tokenizer.push_to_hub("someone/model")
    pushed = hub / "someone" / "model"
    assert sorted(path.name for path in pushed.iterdir()) == [
        "README.md",
        "config.json",
        "model.safetensors",
        "tokenizer_config.json",
        "vocab.txt",
    ]
    kind = "rotary_roformer" if config else "roformer"
    assert AutoConfig.from_pretrained(pushed).model_type == kind
    ids, mask = ragged(2, 6, vocab_size=len(WORDS))
    found = AutoModelForMaskedLM.from_pretrained(pushed).eval()
    assert type(found) is RoFormerForMaskedLM
    with torch.no_grad():
        assert torch.equal(found(ids, mask).logits, model(ids, mask).logits)
    again = AutoTokenizer.from_pretrained(pushed)
    assert type(again) is RoFormerTokenizer
    assert again(SENTENCES[0])["input_ids"] == tokenizer(SENTENCES[0])["input_ids"]


def test_sharded_weights(tmp_path):
    """Files of at most 20 kB: all weights once, the tied ones not twice, and it loads."""
    models.register()
    model = tiny(RoFormerForMaskedLM)
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    names = sorted(path.name for path in Path(tmp_path).iterdir())
    shards = [name for name in names if name.endswith(".safetensors")]
    assert len(shards) > 2
    others = set(names) - set(shards)
    assert others == {"config.json", "model.safetensors.index.json"}
    found = AutoModelForMaskedLM.from_pretrained(tmp_path)
    assert same(found.state_dict(), model.state_dict())
    decoder, embedding = found.get_output_embeddings(), found.get_input_embeddings()
    assert decoder.weight is embedding.weight
