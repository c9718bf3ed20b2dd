"""Words to tokens: a word of the vocabulary is one token, any other is split as BERT does.

The tables remember the words they have seen, so that most words cost one look-up.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from rotary.models.roformer.segmentation import ALONE, DROP, SPACE, kind

LONGEST_WORD = 200  # Longer words are unknown (bert4keras); it keeps the split linear, too.
_REMEMBERED = 1 << 17  # Words in a table before it starts afresh.
_WORTH_REMEMBERING = 32  # Longer words seldom come twice.

Span = tuple[int, int]
_Entry = TypeVar("_Entry")


class WordPieces(dict[str, tuple[int, ...]]):
    """From a word to the ids of its tokens; fills itself.

    Args:
        vocabulary: From tokens to ids.
        unknown: The id of [UNK].

    Example:
        >>> table = WordPieces({"[UNK]": 0, "今天": 1, "天": 2, "##s": 3, "a": 4}, unknown=0)
        >>> table["今天"], table["as"], table["晴天"]
        ((1,), (4, 3), (0, 2))
    """

    def __init__(self, vocabulary: Mapping[str, int], unknown: int) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self.unknown = unknown
        self.longest_piece = max(map(len, vocabulary), default=1)

    def __missing__(self, word: str) -> tuple[int, ...]:
        known = self.vocabulary.get(word)
        ids = (known,) if known is not None else tuple(i for i, _, _ in self.split(word))
        return _remember(self, word, ids)

    def split(self, word: str) -> list[tuple[int, int, int]]:
        """Split a word as BERT does: ids of its tokens, start and end of each within the word."""
        tokens: list[tuple[int, int, int]] = []
        for letters, places in _basic_split(word):
            pieces = self._greedy(letters)
            if pieces is None:
                tokens.append((self.unknown, places[0], places[-1] + 1))
            else:
                tokens += [(i, places[a], places[b - 1] + 1) for i, a, b in pieces]
        return tokens

    def _greedy(self, word: str) -> list[tuple[int, int, int]] | None:
        """The longest piece of the vocabulary first, from the left; None where none matches."""
        if len(word) > LONGEST_WORD:
            return None
        find = self.vocabulary.get
        pieces: list[tuple[int, int, int]] = []
        start = 0
        while start < len(word):
            prefix = "##" if start else ""
            for stop in range(min(len(word), start + self.longest_piece), start, -1):
                known = find(prefix + word[start:stop])
                if known is not None:
                    break
            else:
                return None
            pieces.append((known, start, stop))
            start = stop
        return pieces


class WordShapes(dict[str, tuple[Span, ...] | None]):
    """From a word to the spans of its tokens within it, or None for one that spans all of it."""

    def __init__(self, pieces: WordPieces) -> None:
        super().__init__()
        self.pieces = pieces

    def __missing__(self, word: str) -> tuple[Span, ...] | None:
        spans: tuple[Span, ...] | None = None
        if word not in self.pieces.vocabulary:
            spans = tuple((start, stop) for _, start, stop in self.pieces.split(word))
            if spans == ((0, len(word)),):
                spans = None
        return _remember(self, word, spans)


def _remember(table: dict[str, _Entry], word: str, value: _Entry) -> _Entry:
    if len(word) <= _WORTH_REMEMBERING:
        if len(table) >= _REMEMBERED:
            table.clear()
        table[word] = value
    return value


def _basic_split(word: str) -> list[tuple[str, list[int]]]:
    """Around punctuation and Chinese characters, at white space, without control characters."""
    parts: list[tuple[str, list[int]]] = []
    places: list[int] = []

    def close() -> None:
        if places:
            parts.append(("".join([word[place] for place in places]), places.copy()))
            places.clear()

    for place, character in enumerate(word):
        what = kind(character)
        if what == DROP:
            continue
        if what in (ALONE, SPACE):
            close()
        if what != SPACE:
            places.append(place)
        if what == ALONE:
            close()
    close()
    return parts
