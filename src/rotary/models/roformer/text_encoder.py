"""One text to the ids of its tokens, and to the spans and words behind them: a pure function.

A :class:`TextEncoder` is never changed once it is made; a tokenizer that learns a token makes a new
one. So what is not asked for at once (spans, words) can be worked out later from the same text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import accumulate, chain, compress, pairwise
from typing import Any, NamedTuple

from rotary.models.roformer.normalization import Alignment, Normalizer
from rotary.models.roformer.segmentation import Cut
from rotary.models.roformer.word_pieces import Span, WordLengths, WordMarks, WordPieces


class KnownToken(NamedTuple):
    """A token that is found in the text before words are cut, such as [MASK]."""

    content: str
    id: int
    is_special: bool
    is_normalized: bool
    is_single_word: bool
    strips_left: bool
    strips_right: bool

    @classmethod
    def of(cls, token: Any, i: int) -> KnownToken:
        """From an ``AddedToken`` and its id."""
        return cls(
            content=token.content,
            id=i,
            is_special=token.special,
            is_normalized=bool(token.normalized),
            is_single_word=token.single_word,
            strips_left=token.lstrip,
            strips_right=token.rstrip,
        )


class Details(NamedTuple):
    """What is behind the tokens of a text.

    Args:
        spans: Start and end of each token in the original text.
        counts: Number of tokens of each word, in order.
        numbers_empty: Whether a word without tokens has a number of its own.
    """

    spans: list[Span]
    counts: list[int]
    numbers_empty: bool = False

    @property
    def words(self) -> list[int]:
        """The number of the word of each token."""
        counts = self.counts if self.numbers_empty else filter(None, self.counts)
        return [number for number, count in enumerate(counts) for _ in range(count)]


class _Finder(NamedTuple):
    """Finds known tokens: the longest that begins first."""

    pattern: re.Pattern[str]
    tokens: Mapping[str, KnownToken]

    def pieces(self, text: str) -> list[tuple[int, int, int | None]]:
        """Cut a text at the tokens: start, end and id, or None for the text between them."""
        result: list[tuple[int, int, int | None]] = []
        at = 0
        for match in self.pattern.finditer(text):
            start, stop = match.span()
            if start < at:  # White space that the token before took.
                continue
            token = self.tokens[match.group()]
            if token.strips_left:
                start = at + len(text[at:start].rstrip())
            if token.strips_right:
                stop = _end_of_space(text, stop)
            if start > at:
                result.append((at, start, None))
            result.append((start, stop, token.id))
            at = stop
        if at < len(text):
            result.append((at, len(text), None))
        return result


_SHORT = 2048  # Words of a text.
_SPACE = re.compile(r"\s*")


def _end_of_space(text: str, start: int) -> int:
    match = _SPACE.match(text, start)
    assert match is not None
    return match.end()


def _finder(tokens: Sequence[KnownToken]) -> _Finder | None:
    if not tokens:
        return None
    longest_first = sorted(tokens, key=lambda token: (-len(token.content), token.content))
    alternatives = [
        rf"(?<!\w){re.escape(token.content)}(?!\w)"
        if token.is_single_word
        else re.escape(token.content)
        for token in longest_first
    ]
    return _Finder(re.compile("|".join(alternatives)), {t.content: t for t in tokens})


class TextEncoder:
    """From a text to the ids of its tokens, their spans and their words.

    Args:
        vocabulary: From tokens to ids.
        unknown: The id of [UNK].
        normalizer: What is done to the whole text first.
        cut: From a normalised text to words whose lengths add up to its own.
        tokens: What is found in the text before words are cut. Normalised tokens are looked for in
            the normalised text, the others before.
    """

    def __init__(
        self,
        vocabulary: Mapping[str, int],
        *,
        unknown: int,
        normalizer: Normalizer,
        cut: Cut,
        tokens: Sequence[KnownToken] = (),
    ) -> None:
        self.normalizer = normalizer
        self.cut = cut
        table = WordPieces(vocabulary, unknown)
        self._table = table
        self._ids_of_word = table.__getitem__
        self._lengths_of_word = WordLengths(table).__getitem__
        self._marks_of_word = WordMarks(table).__getitem__
        raw = [token for token in tokens if not token.is_normalized]
        late = [
            token._replace(content=normalizer(token.content))
            for token in tokens
            if token.is_normalized and normalizer(token.content)
        ]
        # By whether special tokens are text like any other.
        self._finders = {
            False: (_finder(raw), _finder(late)),
            True: (
                _finder([token for token in raw if not token.is_special]),
                _finder([token for token in late if not token.is_special]),
            ),
        }

    def ids(self, text: str, *, split_special: bool = False) -> list[int]:
        """The ids of the tokens of a text."""
        raw, late = self._finders[split_special]
        if raw is None or raw.pattern.search(text) is None:
            return self._plain_ids(text, late)
        ids: list[int] = []
        for start, stop, known in raw.pieces(text):
            ids += self._plain_ids(text[start:stop], late) if known is None else [known]
        return ids

    def _plain_ids(self, text: str, late: _Finder | None) -> list[int]:
        text = self.normalizer(text)
        if late is None or late.pattern.search(text) is None:
            return list(chain.from_iterable(map(self._ids_of_word, self.cut(text))))
        ids: list[int] = []
        for start, stop, known in late.pieces(text):
            if known is None:
                words = self.cut(text[start:stop])
                ids += chain.from_iterable(map(self._ids_of_word, words))
            else:
                ids.append(known)
        return ids

    def encode(self, text: str, *, split_special: bool = False) -> tuple[list[int], Details]:
        """The ids of the tokens of a text, with the span and the word of each."""
        raw, late = self._finders[split_special]
        if raw is None or raw.pattern.search(text) is None:
            return self._encode_plain(text, late, 0)
        result: tuple[list[int], Details] = [], Details([], [])
        for start, stop, known in raw.pieces(text):
            if known is None:
                _append(result, self._encode_plain(text[start:stop], late, start))
            else:
                _append(result, ([known], Details([(start, stop)], [1])))
        return result

    def _encode_plain(
        self, text: str, late: _Finder | None, base: int
    ) -> tuple[list[int], Details]:
        normal, alignment = self.normalizer.align(text)
        if alignment and base:
            alignment = Alignment(*([base + place for place in side] for side in alignment))
        at = 0 if alignment else base  # Where the normalised text begins, as far as it is counted.
        if late is None or late.pattern.search(normal) is None:
            return self._encode_words(self.cut(normal), at, alignment)
        result: tuple[list[int], Details] = [], Details([], [])
        for start, stop, known in late.pieces(normal):
            if known is None:
                words = self.cut(normal[start:stop])
                _append(result, self._encode_words(words, at + start, alignment))
            else:
                span = _place([at + start, at + stop], alignment)
                _append(result, ([known], Details(span, [1])))
        return result

    def _encode_words(
        self, words: list[str], at: int, alignment: Alignment | None
    ) -> tuple[list[int], Details]:
        """Words that follow each other from ``at`` on, in the normalised text."""
        entries = list(map(self._ids_of_word, words))
        ids = list(chain.from_iterable(entries))
        counts = list(map(len, entries))
        # Putting a few in place, or taking a few out, is fast where the list is short.
        is_simple = not self._table.has_gaps and len(words) <= _SHORT
        if not is_simple:
            lengths = list(chain.from_iterable(map(self._lengths_of_word, words)))
        else:
            lengths = list(map(len, words))
            for i in reversed([i for i, count in enumerate(counts) if count > 1]):
                lengths[i : i + 1] = self._lengths_of_word(words[i])
        spans = _place(list(accumulate(lengths, initial=at)), alignment)
        if len(spans) == len(ids):
            pass
        elif is_simple:
            _drop_empty_words(spans, counts)
        else:
            spans = list(compress(spans, chain.from_iterable(map(self._marks_of_word, words))))
        return ids, Details(spans, counts)

    def encode_words(
        self, words: Sequence[str], *, split_special: bool = False
    ) -> tuple[list[int], Details]:
        """The same for a text that was cut before: a span is within its word, as given."""
        ids: list[int] = []
        details = Details([], [], numbers_empty=True)
        for word in words:
            its_ids, its_details = self.encode(word, split_special=split_special)
            ids += its_ids
            details.spans.extend(its_details.spans)
            details.counts.append(len(its_ids))
        return ids, details


def _append(result: tuple[list[int], Details], more: tuple[list[int], Details]) -> None:
    result[0].extend(more[0])
    result[1].spans.extend(more[1].spans)
    result[1].counts.extend(more[1].counts)


def _place(boundaries: list[int], alignment: Alignment | None) -> list[Span]:
    """The spans between boundaries of the normalised text, in the original."""
    if alignment is None:
        return list(pairwise(boundaries))
    starts, ends = alignment
    first = map(starts.__getitem__, boundaries[:-1])
    return list(zip(first, map(ends.__getitem__, boundaries[1:]), strict=True))


def _drop_empty_words(spans: list[Span], counts: list[int]) -> None:
    """Drop the spans of words without tokens, which have one span each."""
    done = kept = 0
    for _ in range(counts.count(0)):
        empty = counts.index(0, done)
        kept += sum(counts[done:empty])
        del spans[kept]
        done = empty + 1
