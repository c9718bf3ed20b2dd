"""How many steps does a RoFormer need to recover the loss of the BERT that it starts from?

cd experiments/init-from-bert; OMP_NUM_THREADS=1 python run.py --output results.json
"""

import argparse
import json
import multiprocessing
import platform
import tempfile
import time
from pathlib import Path

import torch
from transformers import BertConfig, BertForMaskedLM

from rotary.cli.main import main as rotary
from rotary.data.byte_tokenizer import byte_tokenizer
from rotary.models.roformer import RoFormerConfig, RoFormerForMaskedLM
from rotary.training.corpus import prepare, read_corpus
from rotary.training.initial import read_initial
from rotary.training.run_config import DataOptions, RunConfig, Stage

SIZES = {
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 256,
}
LENGTH, BATCH, RATE, WARMUP = 24, 32, 2e-3, 30
BERT_STEPS, MORE_STEPS, EVERY = 700, 120, 10
DEVIATION = 0.05  # Of the initial weights; with 0.02 nothing this small learns positions so soon.


def config(seed, steps):
    return RunConfig(
        data=DataOptions(validation_fraction=0.005, validation_length=LENGTH),
        stages=(Stage(LENGTH, BATCH, steps),),
        seed=seed,
    )


def inputs(batch):
    """A packed batch as BERT takes it: which token sees which, and its place in its document."""
    documents = batch["document_ids"]
    same = (documents[:, :, None] == documents[:, None, :])[:, None]
    return {
        "input_ids": batch["input_ids"],
        "attention_mask": same,
        "position_ids": batch["position_ids"],
        "labels": batch["labels"],
    }


@torch.no_grad()
def validate(model, corpus, to_inputs):
    """Mean loss over the masked validation tokens, as `rotary pretrain` reports it."""
    model.eval()
    total, count = 0.0, 0
    for index in range(len(corpus.validation)):
        batch = corpus.validation.batch(index)
        number = int((batch["labels"] != -100).sum())
        total += float(model(**to_inputs(batch)).loss) * number
        count += number
    model.train()
    return total / count


def train_bert(model, corpus, *, first, steps, every=0):
    """AdamW with a linear fall, as the command's; the losses on the way, by step."""
    decayed = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": decayed, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=RATE, betas=(0.9, 0.98), eps=1e-6)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda s: min(s / WARMUP, (steps - s) / (steps - WARMUP))
    )
    losses = {}
    for step in range(steps):
        model(**inputs(corpus.train.batch(first + step))).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if every and (step + 1) % every == 0:
            losses[step + 1] = validate(model, corpus, inputs)
    return losses


def pretrain(folder, seed, tokenizer, *more):
    """The command, on the embedded corpus; its validation losses by step."""
    arguments = [
        *("--output", str(folder), "--seed", str(seed), "--tokenizer", str(tokenizer)),
        *("--data.validation_fraction", "0.005", "--data.validation_length", str(LENGTH)),
        *("--stages", json.dumps([{"length": LENGTH, "batch": BATCH, "steps": MORE_STEPS}])),
        *("--training.learning_rate", str(RATE), "--training.warmup_steps", str(WARMUP)),
        *("--training.evaluate_every", str(EVERY), "--training.checkpoint_every", "0"),
        *more,
    ]
    assert rotary(["pretrain", *arguments]) == 0
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    events = [json.loads(line) for line in lines]
    return {e["step"]: e["loss"] for e in events if e["event"] == "evaluation"}


def converted_loss(bert, corpus, encoding):
    """Validation loss right after the conversion, before any step."""
    initial = read_initial(bert)
    model = RoFormerForMaskedLM(
        RoFormerConfig(vocab_size=initial.vocab_size, position_encoding=encoding, **SIZES)
    )
    initial.load_into(model)
    return validate(model, corpus, lambda batch: batch)


def first_at_most(losses, goal):
    return next((step for step, loss in sorted(losses.items()) if loss <= goal), None)


def one_seed(seed, work):
    documents = read_corpus([], "text")
    tokenizer = byte_tokenizer()
    corpus = prepare(documents, config(seed, BERT_STEPS + MORE_STEPS), tokenizer)
    torch.manual_seed(seed)
    bert = BertForMaskedLM(
        BertConfig(
            vocab_size=len(tokenizer),
            max_position_embeddings=LENGTH,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            initializer_range=DEVIATION,
            **SIZES,
        )
    )
    train_bert(bert, corpus, first=0, steps=BERT_STEPS)
    folder = work / f"bert-{seed}"
    bert.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    goal = validate(bert, corpus, inputs)
    print(f"seed {seed}: BERT {goal:.3f}, unigram {corpus.unigram_loss:.3f}", flush=True)
    sizes = [part for key, value in SIZES.items() for part in (f"--model.{key}", str(value))]
    sizes += ["--model.initializer_range", str(DEVIATION)]
    dropout = ["--model.hidden_dropout_prob", "0", "--model.attention_probs_dropout_prob", "0"]
    converted = pretrain(work / f"init-{seed}", seed, folder, "--init", str(folder), *dropout)
    scratch = pretrain(work / f"scratch-{seed}", seed, folder, *sizes, *dropout)
    without = [*dropout, "--init", str(folder), "--model.position_encoding", "none"]
    positionless = pretrain(work / f"none-{seed}", seed, folder, *without)
    continued = train_bert(bert, corpus, first=BERT_STEPS, steps=MORE_STEPS, every=EVERY)
    return {
        "seed": seed,
        "cpu_seconds": time.process_time(),
        "unigram": corpus.unigram_loss,
        "bert": goal,
        "converted_before_training": converted_loss(folder, corpus, "rotary"),
        "without_positions_before_training": converted_loss(folder, corpus, "none"),
        "steps_to_recover": {
            "converted": first_at_most(converted, goal),
            "from scratch": first_at_most(scratch, goal),
            "converted, no positions": first_at_most(positionless, goal),
        },
        "final": {
            "converted": converted[MORE_STEPS],
            "from scratch": scratch[MORE_STEPS],
            "converted, no positions": positionless[MORE_STEPS],
            "bert continued": continued[MORE_STEPS],
        },
        "curves": {
            "converted": converted,
            "from scratch": scratch,
            "converted, no positions": positionless,
            "bert continued": continued,
        },
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--output", type=Path, required=True)
    parsed = parser.parse_args()
    began = time.perf_counter()
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as work, context.Pool(parsed.processes) as pool:
        jobs = [(seed, Path(work)) for seed in range(parsed.seeds)]
        results = pool.starmap(one_seed, jobs, chunksize=1)
    made_with = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "processes": parsed.processes,
        "seconds": round(time.perf_counter() - began),
        "cpu_seconds": round(sum(result.pop("cpu_seconds") for result in results)),
        "bert_steps": BERT_STEPS,
        "more_steps": MORE_STEPS,
        "tokens_in_a_step": LENGTH * BATCH,
    }
    text = json.dumps({"made_with": made_with, "results": results}, indent=1)
    parsed.output.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
