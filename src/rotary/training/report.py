"""What a finished run says: the table and the sentences for the terminal, report.md for later."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rotary.training.continuations import Continuation
from rotary.training.guesses import Guess, Sample
from rotary.training.metrics import Event
from rotary.training.objectives import OBJECTIVES, Objective
from rotary.training.progress import clock
from rotary.training.record import parameters_in_words

COLUMNS = ("stage", "length", "batch", "steps", "loss", "accuracy")
Samples = Sequence[Sample] | Sequence[Continuation]

_MASKED_INTRODUCTION = "Sentences from the validation set, drawn at random, one word masked:"
_CAUSAL_INTRODUCTION = "Beginnings from the validation set, drawn at random, and what was written:"


def print_results(console: Console, final: Event, samples: Samples) -> None:
    """Print the table of stages, validation beside the baselines, and what the model says."""
    table = Table(header_style="bold")
    for name in COLUMNS:
        table.add_column(name, justify="right")
    for row in _stage_rows(final):
        table.add_row(*row)
    console.print()
    console.print(table)
    console.print(_caption(final), style="dim", soft_wrap=True)
    console.print()
    for name, loss, accuracy, *bits in _comparison(final):
        tail = f"{accuracy:<6} bits per byte {bits[0]}" if bits else accuracy
        console.print(f"{name:<18}loss {loss:>6}  accuracy {tail}", highlight=False)
    console.print(_verdict(final), highlight=False, style="bold")
    if samples:
        introduction = _CAUSAL_INTRODUCTION if _is_causal(final) else _MASKED_INTRODUCTION
        console.print(f"\n{introduction}\n")
    for sample in samples:
        if isinstance(sample, Continuation):
            _print_continuation(console, sample)
        else:
            _print_sample(console, sample)


def _print_continuation(console: Console, sample: Continuation) -> None:
    line = Text("  ")
    line.append(_one_line(sample.prefix))
    line.append(f"[{_one_line(sample.written)}]", style="bold cyan")
    console.print(line, soft_wrap=True)
    console.print(
        Text(f"      really: {_one_line(sample.real.strip())}", style="dim"), soft_wrap=True
    )


def _one_line(text: str) -> str:
    return re.sub(r"\s*\n\s*", " / ", text)


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
            *(
                ("-", "-")  # Nothing was predicted.
                if stage["loss"] is None
                else (f"{stage['loss']:.3f}", f"{stage['accuracy']:.1%}")
            ),
        ]
        for number, stage in enumerate(final["stages"], start=1)
    ]


def objective_of(final: Event) -> Objective:
    """What a run that ended so was trained on."""
    return OBJECTIVES[final.get("objective", "masked")]


def _is_causal(final: Event) -> bool:
    return objective_of(final).is_causal


def _caption(final: Event) -> str:
    unit = objective_of(final).unit
    return f"Loss ({unit}) and accuracy are means over the last fifth of a stage."


def baseline(final: Event) -> tuple[str, float]:
    """The baseline that is hardest to beat: its name, and its loss in nats."""
    names = [name for name in ("bigram", "unigram") if f"{name}_loss" in final]
    best = min(names, key=lambda name: final[f"{name}_loss"])
    return best, final[f"{best}_loss"]


def _comparison(final: Event) -> list[tuple[str, ...]]:
    """Names, losses, accuracies and, where tokens are bytes, bits per byte."""
    rows = [("validation", "validation", f"{final['validation_accuracy']:.1%}")]
    rows += [
        (name, f"{name} baseline", "-") for name in ("bigram", "unigram") if f"{name}_loss" in final
    ]
    return [
        (
            title,
            f"{final[f'{name}_loss']:.3f}",
            accuracy,
            *(f"{final[key]:.3f}" for key in (f"{name}_bits_per_byte",) if key in final),
        )
        for name, title, accuracy in rows
    ]


def _verdict(final: Event) -> str:
    name, loss = baseline(final)
    gain = loss - final["validation_loss"]
    if gain < 0:
        return f"The model is {-gain:.2f} nats worse than the {name} baseline."
    return f"The model beats the {name} baseline by {gain:.2f} nats."


def markdown(
    final: Event, samples: Samples, record: dict[str, Any], seconds: float, folder: str
) -> str:
    """The text of report.md.

    Args:
        final: The last line of metrics.jsonl.
        samples: Sentences with guesses, or beginnings with continuations.
        record: What the run ran on.
        seconds: Time of all training steps.
        folder: The run folder as the user named it.
    """
    corpus, versions = record["corpus"], record["versions"]
    lines = [
        "# Pre-training report",
        "",
        f"RoFormer, {parameters_in_words(record['parameters'])}, trained on "
        f"{corpus['train_documents']:,} documents ({corpus['train_tokens']:,} tokens) and "
        f"validated on {corpus['validation_documents']:,}, in {clock(seconds)} of training steps.",
        "",
        "![Loss over the stages](loss.png)",
        "",
        f"| {' | '.join(COLUMNS)} |",
        "|" + "---:|" * len(COLUMNS),
        *(f"| {' | '.join(row)} |" for row in _stage_rows(final)),
        "",
        _caption(final),
        "",
        *_comparison_table(final),
        "",
        _verdict(final),
        *_explanation(final),
        *_sample_lines(final, samples),
        "",
        "## Again",
        "",
        "```",
        record["command"],
        f'rotary generate {folder} "beginning of a text"'
        if _is_causal(final)
        else f'rotary fill-mask {folder} "text with [MASK]"',
        "```",
        "",
        "All settings are in `run.toml`. "
        + ", ".join(f"{name} {version}" for name, version in versions.items())
        + ".",
    ]
    return "\n".join(lines) + "\n"


def _comparison_table(final: Event) -> list[str]:
    columns = ["loss", "accuracy"]
    if "validation_bits_per_byte" in final:
        columns.append("bits per byte")
    return [
        f"| | {' | '.join(columns)} |",
        "|---|" + "---:|" * len(columns),
        *(f"| {' | '.join(row)} |" for row in _comparison(final)),
    ]


def _explanation(final: Event) -> list[str]:
    if not _is_causal(final):
        return [
            "The baseline guesses by how often each token occurs in the training documents "
            "(add-one counts), scored on the same masked positions."
        ]
    lines = [
        "The baselines guess by how often each token occurs in the training documents, and by how "
        "often it follows the one before (add-one counts), scored on the same tokens."
    ]
    if "validation_bits_per_byte" in final:
        lines.append("The end of each document is predicted too, and counted in its bits.")
    return lines


def _sample_lines(final: Event, samples: Samples) -> list[str]:
    if not samples:
        return []
    lines = ["", "## Sentences from the validation set", "", "Drawn at random, one word masked:"]
    if _is_causal(final):
        lines = [
            *("", "## Continuations", "", "Beginnings from the validation set, drawn at random; "),
        ]
        lines[-1] += "in brackets what the model wrote, below how the text really goes on:"
    for sample in samples:
        if isinstance(sample, Continuation):
            prefix, written, real = (
                _plain(_one_line(text))
                for text in (sample.prefix, sample.written, sample.real.strip())
            )
            lines += ["", f"- {prefix}**[{written}]**  ", f"  {real}"]
            continue
        sentence = f"{_plain(sample.before)}**[{sample.word}]**{_plain(sample.after)}"
        lines += ["", f"- {sentence}  ", f"  {_plain(' · '.join(map(_shown, sample.guesses)))}"]
    return lines


def _plain(text: str) -> str:
    """Text without meaning to Markdown."""
    return re.sub(r"([\\`*_{}\[\]<>#|~])", r"\\\1", text)
