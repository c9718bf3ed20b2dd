"""What a finished run says: the table and the sentences for the terminal, report.md for later."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rotary.training.guesses import Guess, Sample
from rotary.training.metrics import Event
from rotary.training.progress import clock

COLUMNS = ("stage", "length", "batch", "steps", "loss", "accuracy")
CAPTION = "Loss (nats per masked token) and accuracy are means over the last fifth of a stage."


def print_results(console: Console, final: Event, samples: Sequence[Sample]) -> None:
    """Print the table of stages, validation beside the baseline, and sentences with guesses."""
    table = Table(header_style="bold")
    for name in COLUMNS:
        table.add_column(name, justify="right")
    for row in _stage_rows(final):
        table.add_row(*row)
    console.print()
    console.print(table)
    console.print(CAPTION, style="dim", soft_wrap=True)
    console.print()
    for name, loss, accuracy in _comparison(final):
        console.print(f"{name:<18}loss {loss:>6}  accuracy {accuracy}", highlight=False)
    console.print(_verdict(final), highlight=False, style="bold")
    if samples:
        console.print("\nSentences from the validation set, drawn at random, one word masked:\n")
    for sample in samples:
        _print_sample(console, sample)


def _print_sample(console: Console, sample: Sample) -> None:
    line = Text("  ")
    line.append(sample.before)
    line.append(f"[{sample.word}]", style="bold cyan")
    line.append(sample.after)
    console.print(line, soft_wrap=True)
    guesses = Text("      ")
    for index, guess in enumerate(sample.guesses):
        is_right = guess.token.casefold() == sample.word.casefold()
        guesses.append(" · " if index else "")
        guesses.append(_shown(guess), style="bold green" if is_right else "dim")
    console.print(guesses, soft_wrap=True)


def _shown(guess: Guess) -> str:
    return f"{guess.token} {guess.probability:.0%}"


def _stage_rows(final: Event) -> list[list[str]]:
    return [
        [
            str(number),
            str(stage["length"]),
            str(stage["batch"]),
            f"{stage['steps']:,}",
            f"{stage['loss']:.3f}",
            f"{stage['accuracy']:.1%}",
        ]
        for number, stage in enumerate(final["stages"], start=1)
    ]


def _comparison(final: Event) -> list[tuple[str, str, str]]:
    return [
        ("validation", f"{final['validation_loss']:.3f}", f"{final['validation_accuracy']:.1%}"),
        ("unigram baseline", f"{final['unigram_loss']:.3f}", "-"),
    ]


def _verdict(final: Event) -> str:
    gain = final["unigram_loss"] - final["validation_loss"]
    if gain < 0:
        return f"The model is {-gain:.2f} nats worse than the unigram baseline."
    return f"The model beats the unigram baseline by {gain:.2f} nats."


def markdown(
    final: Event, samples: Sequence[Sample], record: dict[str, Any], seconds: float, folder: str
) -> str:
    """The text of report.md.

    Args:
        final: The last line of metrics.jsonl.
        samples: Sentences with guesses.
        record: What the run ran on.
        seconds: Time of all training steps.
        folder: The run folder as the user named it.
    """
    corpus, versions = record["corpus"], record["versions"]
    lines = [
        "# Pre-training report",
        "",
        f"RoFormer, {record['parameters'] / 1e6:.1f} million parameters, trained on "
        f"{corpus['train_documents']:,} documents ({corpus['train_tokens']:,} tokens) and "
        f"validated on {corpus['validation_documents']:,}, in {clock(seconds)} of training steps.",
        "",
        "![Loss over the stages](loss.png)",
        "",
        f"| {' | '.join(COLUMNS)} |",
        "|" + "---:|" * len(COLUMNS),
        *(f"| {' | '.join(row)} |" for row in _stage_rows(final)),
        "",
        CAPTION,
        "",
        "| | loss | accuracy |",
        "|---|---:|---:|",
        *(f"| {name} | {loss} | {accuracy} |" for name, loss, accuracy in _comparison(final)),
        "",
        _verdict(final),
        "The baseline guesses by how often each token occurs in the training documents (add-one "
        "counts), scored on the same masked positions.",
    ]
    if samples:
        lines += [
            "",
            "## Sentences from the validation set",
            "",
            "Drawn at random, one word masked:",
        ]
    for sample in samples:
        sentence = f"{_plain(sample.before)}**[{sample.word}]**{_plain(sample.after)}"
        lines += ["", f"- {sentence}  ", f"  {_plain(' · '.join(map(_shown, sample.guesses)))}"]
    lines += [
        "",
        "## Again",
        "",
        "```",
        record["command"],
        f'rotary fill-mask {folder} "text with [MASK]"',
        "```",
        "",
        "All settings are in `run.toml`. "
        + ", ".join(f"{name} {version}" for name, version in versions.items())
        + ".",
    ]
    return "\n".join(lines) + "\n"


def _plain(text: str) -> str:
    """Text without meaning to Markdown."""
    return re.sub(r"([\\`*_{}\[\]<>#|~])", r"\\\1", text)
