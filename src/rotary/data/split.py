"""Train and validation documents, told apart by a hash of their text."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from rotary.data.text import Document
from rotary.errors import ConfigError, DataError


def split_documents(
    documents: Iterable[Document], *, validation_fraction: float, seed: int
) -> tuple[list[Document], list[Document]]:
    """Split documents into train and validation, the same way every time.

    A document's side depends on the seed and its own text alone: not on the order, not on the
    others, so a corpus may grow and nothing changes sides; equal texts always land together. Where
    that would leave a side empty, the distinct text that is nearest to it goes there. A corpus of
    one distinct text is cut in two at a line end instead, its last part being for validation.

    Args:
        documents: At least one.
        validation_fraction: Share of the distinct documents for validation, between 0 and 1.
        seed: Any integer.

    Returns:
        Train and validation documents, each in the order given; neither is empty.

    Raises:
        DataError: If there is one distinct text, of one line.
        ConfigError: If the fraction is not between 0 and 1.

    Example:
        >>> documents = [Document(str(n), f"text {n}") for n in range(100)]
        >>> train, validation = split_documents(documents, validation_fraction=0.1, seed=0)
        >>> len(train) + len(validation)
        100
    """
    if not 0 < validation_fraction < 1:
        raise ConfigError(
            f"split_documents: validation_fraction is {validation_fraction}; accepted is a number "
            "between 0 and 1, for instance 0.05."
        )
    documents = list(documents)
    if not documents:
        raise DataError("the corpus is empty: there is no document to split.")
    draws = {document.text: _draw(document.text, seed) for document in documents}
    if len(draws) == 1:
        return _cut(documents, validation_fraction)
    held_out = {text for text, draw in draws.items() if draw < validation_fraction}
    if not held_out:
        held_out = {min(draws, key=lambda text: (draws[text], text))}
    elif len(held_out) == len(draws):
        held_out.remove(max(draws, key=lambda text: (draws[text], text)))
    train = [document for document in documents if document.text not in held_out]
    validation = [document for document in documents if document.text in held_out]
    return train, validation


def _draw(text: str, seed: int) -> float:
    """A number in [0, 1) that depends on the text and the seed."""
    key = hashlib.sha256(str(seed).encode()).digest()
    digest = hashlib.blake2b(text.encode(), key=key, digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 11) / 2.0**53


def _cut(documents: list[Document], fraction: float) -> tuple[list[Document], list[Document]]:
    name, text = documents[0]
    goal = round(len(text) * (1 - fraction))
    ends = [place for place in (text.rfind("\n", 0, goal), text.find("\n", goal)) if place >= 0]
    halves = [(text[: place + 1], text[place + 1 :]) for place in ends]
    halves = [(head, tail) for head, tail in halves if head.strip() and tail.strip()]
    if not halves:
        raise DataError(
            f"{name}: the corpus is one document of one line, which leaves nothing to validate on; "
            "give more documents, for instance JSONL with one a line."
        )
    head, tail = min(halves, key=lambda pair: abs(len(pair[0]) - goal))
    train = [Document(f"{document.name} (beginning)", head) for document in documents]
    return train, [Document(f"{name} (end)", tail)]
