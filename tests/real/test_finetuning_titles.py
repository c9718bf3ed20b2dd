"""Fine-tuning on real Chinese headlines: it learns, and it survives save, load and resume."""

import collections
import gzip

import pytest
import torch
from transformers import DataCollatorWithPadding, Trainer, TrainingArguments

from rotary.models import RoFormerConfig, RoFormerForSequenceClassification, RoFormerTokenizer

pytestmark = pytest.mark.slow
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
STEPS, HALF = 200, 100


def read(path):
    with gzip.open(path, "rt", encoding="utf-8") as file:
        rows = [line.rstrip("\n").rsplit("\t", 1) for line in file if line.strip()]
    return [title for title, _ in rows], [int(label) for _, label in rows]


@pytest.fixture
def titles(shared_data):
    """A tokenizer of the 1,000 commonest characters, rows to train on and rows to be asked."""
    train = read(shared_data("thucnews_titles_dev.tsv.gz"))
    test = read(shared_data("thucnews_titles_test.tsv.gz"))
    counts = collections.Counter(c for title in train[0] for c in title.lower() if not c.isspace())
    common = [character for character, _ in counts.most_common(1000)]
    tokenizer = RoFormerTokenizer(SPECIAL + common, level="character")

    def rows(texts, labels):
        ids = tokenizer(texts, return_token_type_ids=False)["input_ids"]
        return [{"input_ids": i, "labels": n} for i, n in zip(ids, labels, strict=True)]

    seen = set(train[0])
    fresh = [row for row in zip(*test, strict=True) if row[0] not in seen][:500]
    return tokenizer, rows(*train), rows(*zip(*fresh, strict=True))


def trainer_for(titles, folder):
    tokenizer, train, test = titles
    torch.manual_seed(0)
    config = RoFormerConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=128,
        num_labels=10,
    )
    arguments = TrainingArguments(
        str(folder),
        max_steps=STEPS,
        save_steps=HALF,
        logging_steps=20,
        per_device_train_batch_size=32,
        per_device_eval_batch_size=100,
        learning_rate=3e-3,
        warmup_steps=20,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    return Trainer(
        RoFormerForSequenceClassification(config),
        arguments,
        train_dataset=train,
        eval_dataset=test,
        data_collator=DataCollatorWithPadding(tokenizer),
        processing_class=tokenizer,
        compute_metrics=lambda guess: {
            "accuracy": float((guess.predictions.argmax(-1) == guess.label_ids).mean())
        },
    )


def test_200_steps_lower_the_loss_and_survive_save_load_resume(titles, tmp_path):
    straight = trainer_for(titles, tmp_path / "run")
    before = straight.evaluate()
    straight.train()
    after = straight.evaluate()
    assert before["eval_loss"] > 2.2  # ln 10 = 2.30: ten classes, nothing known.
    assert after["eval_loss"] < 1.7
    assert after["eval_accuracy"] > 0.5
    losses = [entry["loss"] for entry in straight.state.log_history if "loss" in entry]
    assert losses[-1] < 0.75 * losses[0]

    straight.save_model(str(tmp_path / "saved"))
    loaded = trainer_for(titles, tmp_path / "other")
    loaded.model = RoFormerForSequenceClassification.from_pretrained(tmp_path / "saved")
    expected = straight.predict(titles[2]).predictions
    assert (loaded.predict(titles[2]).predictions == expected).all()

    # The second half again, from the checkpoint of the first: every weight is the same to the bit,
    # with dropout and shuffling, so the state of both came back.
    resumed = trainer_for(titles, tmp_path / "resumed")
    resumed.train(resume_from_checkpoint=str(tmp_path / "run" / f"checkpoint-{HALF}"))
    assert resumed.state.global_step == STEPS
    weights = straight.model.state_dict()
    for name, value in resumed.model.state_dict().items():
        assert torch.equal(value, weights[name]), name
