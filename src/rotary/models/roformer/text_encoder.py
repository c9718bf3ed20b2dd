"""One text to the ids of its tokens, and to the spans and words behind them: a pure function.

A :class:`TextEncoder` is never changed once it is made; a tokenizer that learns a token makes a new
one. So what is not asked for at once (spans, words) can be worked out later from the same text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import accumulate, chain
from typing import NamedTuple

from rotary.models.roformer.normalization import Alignment, Normalizer
from rotary.models.roformer.segmentation import Cut
from rotary.models.roformer.word_pieces import Span, WordPieces, WordShapes


class KnownToken(NamedTuple):
    """A token that is found in the text before words are cut, such as [MASK]."""

    content: str
    id: int
    is_special: bool
    is_normalized: bool
    is_single_word: bool
    strips_left: bool
    strips_right: bool


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
        self._ids_of_word = table.__getitem__
        self._shape_of_word = WordShapes(table).__getitem__
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
        pieces = [(0, len(text), None)] if raw is None else raw.pieces(text)
        ids: list[int] = []
        details = Details([], [])
        for start, stop, known in pieces:
            if known is None:
                self._encode_plain(text[start:stop], start, late, ids, details)
            else:
                ids.append(known)
                details.spans.append((start, stop))
                details.counts.append(1)
        return ids, details

    def _encode_plain(
        self, text: str, base: int, late: _Finder | None, ids: list[int], details: Details
    ) -> None:
        normal, alignment = self.normalizer.align(text)
        pieces = [(0, len(normal), None)] if late is None else late.pieces(normal)
        spans: list[Span] = []
        shift = 0 if alignment else base
        for start, stop, known in pieces:
            if known is not None:
                ids.append(known)
                spans.append((start + shift, stop + shift))
                details.counts.append(1)
                continue
            words = self.cut(normal[start:stop] if len(pieces) > 1 else normal)
            entries = list(map(self._ids_of_word, words))
            ids += chain.from_iterable(entries)
            details.counts.extend(map(len, entries))
            spans += self._spans(words, start + shift)
        details.spans.extend(_to_original(spans, alignment, base) if alignment else spans)

    def _spans(self, words: list[str], at: int) -> list[Span]:
        """The spans of the tokens of words that follow each other from ``at`` on."""
        places = list(accumulate(map(len, words), initial=at))
        whole = list(zip(places, places[1:], strict=False))  # As if each word were one token.
        shapes = list(map(self._shape_of_word, words))
        split = [i for i, shape in enumerate(shapes) if shape is not None]
        if not split:
            return whole
        spans: list[Span] = []
        done = 0
        for i in split:
            place = places[i]
            spans += whole[done:i]
            spans += [(place + start, place + stop) for start, stop in shapes[i] or ()]
            done = i + 1
        return spans + whole[done:]

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


def _to_original(spans: list[Span], alignment: Alignment, base: int) -> list[Span]:
    starts, ends = alignment
    return [(base + starts[start], base + ends[stop - 1]) for start, stop in spans]
