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
        self.has_gaps = False  # Whether a word was met whose tokens leave some of it out.

    def __missing__(self, word: str) -> tuple[int, ...]:
        known = self.vocabulary.get(word)
        if known is not None:
            return _remember(self, word, (known,))
        tokens = self.split(word)
        if tokens and sum(stop - start for _, start, stop in tokens) != len(word):
            self.has_gaps = True
        return _remember(self, word, tuple(i for i, _, _ in tokens))

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


class WordLengths(dict[str, tuple[int, ...]]):
    """From a word to the lengths of what it falls into, tokens and gaps; they add up to its own."""

    def __init__(self, pieces: WordPieces) -> None:
        super().__init__()
        self.pieces = pieces

    def __missing__(self, word: str) -> tuple[int, ...]:
        return _remember(self, word, tuple(length for length, _ in _stretches(self.pieces, word)))


class WordMarks(dict[str, tuple[bool, ...]]):
    """From a word to whether each of what it falls into is a token, not a gap."""

    def __init__(self, pieces: WordPieces) -> None:
        super().__init__()
        self.pieces = pieces

    def __missing__(self, word: str) -> tuple[bool, ...]:
        return _remember(self, word, tuple(mark for _, mark in _stretches(self.pieces, word)))


def _stretches(pieces: WordPieces, word: str) -> list[tuple[int, bool]]:
    """Tokens, and between them the gaps (space, control characters): length, whether a token."""
    if word in pieces.vocabulary:
        return [(len(word), True)]
    result: list[tuple[int, bool]] = []
    at = 0
    for _, start, stop in pieces.split(word):
        if start > at:
            result.append((start - at, False))
        result.append((stop - start, True))
        at = stop
    if at < len(word):
        result.append((len(word) - at, False))
    return result


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
