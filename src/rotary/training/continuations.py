"""What a causal model writes where a text of the validation set stops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rotary.data.draws import bits
from rotary.data.text import Document
from rotary.models.writing import continue_text

PREFIX_CHARACTERS = 60  # Cut back to the end of a word.
SHOWN_CHARACTERS = 160


@dataclass(frozen=True)
class Continuation:
    """The beginning of a real text and two ways to go on.

    Attributes:
        prefix: What the model was given.
        written: What it wrote.
        real: How the text really goes on.
    """

    prefix: str
    written: str
    real: str


def continuations(
    model: Any,
    tokenizer: Any,
    documents: Sequence[Document],
    *,
    count: int,
    max_new_tokens: int,
    seed: int,
) -> list[Continuation]:
    """Let the model go on from the beginnings of documents that are drawn, not chosen.

    Tokens are drawn too (the most probable that together have 0.95), as ``rotary generate`` does.

    Args:
        model: A ``RoFormerForCausalLM``.
        tokenizer: Its tokenizer.
        documents: Validation documents.
        count: How many; fewer if there are not so many.
        max_new_tokens: How long each.
        seed: Of the draws.
    """
    order = bits(len(documents), seed=seed, purpose="continuations").argsort(kind="stable")
    found = []
    for number, row in enumerate(order[:count].tolist()):
        prefix, real = cut(documents[row].text)
        whole = continue_text(
            model, tokenizer, prefix, max_new_tokens=max_new_tokens, seed=seed + number
        )
        written = whole.removeprefix(prefix)[:SHOWN_CHARACTERS]
        found.append(Continuation(prefix, written, real[:SHOWN_CHARACTERS]))
    return found


def cut(text: str) -> tuple[str, str]:
    """Cut a text after its first words; a text that short in the middle.

    Example:
        >>> cut("turn and turn")
        ('turn', ' and turn')
    """
    place = min(PREFIX_CHARACTERS, len(text) // 2)
    blank = max(text.rfind(" ", 0, place + 1), text.rfind("\n", 0, place + 1))
    place = blank if blank > 0 and text[:blank].strip() else max(1, place)
    return text[:place], text[place:]
