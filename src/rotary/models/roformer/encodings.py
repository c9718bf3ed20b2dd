"""What a tokenizer gives back for one example: ids, and behind them spans, words and sequences.

:class:`Encoding` answers what ``tokenizers.Encoding`` answers, so that ``BatchEncoding``, pipelines
and data collators of transformers work with it. All but the ids is worked out when it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from rotary.models.roformer.text_encoder import Details
from rotary.models.roformer.word_pieces import Span

_Value = TypeVar("_Value")


class Source:
    """The tokens of one text; the details behind them are worked out once, when asked for."""

    __slots__ = ("_details", "_explain", "ids")

    def __init__(
        self,
        ids: list[int],
        details: Details | None = None,
        explain: Callable[[], Details] | None = None,
    ) -> None:
        self.ids = ids
        self._details = details
        self._explain = explain

    @property
    def details(self) -> Details:
        """Spans and words of the tokens."""
        if self._details is None:
            assert self._explain is not None
            self._details, self._explain = self._explain(), None
        return self._details

    def __getstate__(self) -> tuple[list[int], Details]:
        return self.ids, self.details

    def __setstate__(self, state: tuple[list[int], Details]) -> None:
        self.ids, self._details = state
        self._explain = None


class Window(NamedTuple):
    """A stretch of the tokens of one text."""

    source: Source
    start: int
    stop: int


class Frame(NamedTuple):
    """What surrounds the texts of an example: [CLS] first [SEP] second [SEP], and padding.

    ``begin`` and ``separate`` are both None where no special tokens are asked for.
    """

    begin: int | None
    separate: int | None
    pad: int
    pad_type: int
    has_second_type: bool
    token_of: Callable[[list[int]], list[str]]


class Encoding:
    """One example: one or two texts in their frame, perhaps padded."""

    def __init__(self, parts: Sequence[Window], frame: Frame) -> None:
        self._parts = tuple(parts)
        self._frame = frame
        self._left = self._right = 0
        self.overflowing: list[Encoding] = []
        ids: list[int] = [] if frame.begin is None else [frame.begin]
        for source, start, stop in parts:
            ids += source.ids[start:stop]
            if frame.separate is not None:
                ids.append(frame.separate)
        self.ids = ids

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        return f"Encoding(tokens={len(self.ids)}, sequences={self.n_sequences})"

    def __getstate__(self) -> dict[str, Any]:
        # The frame holds a method of the tokenizer: the tokens go along instead.
        tokens = dict(zip(self.ids, self.tokens, strict=True))
        return {**self.__dict__, "_frame": self._frame._replace(token_of=_Lookup(tokens))}

    def pad(self, length: int, side: str) -> None:
        """Pad on the ``"left"`` or the ``"right"``; what is long enough stays as it is."""
        missing = length - len(self.ids)
        if missing <= 0:
            return
        padding = [self._frame.pad] * missing
        if side == "left":
            self._left += missing
            self.ids = padding + self.ids
        else:
            self._right += missing
            self.ids = self.ids + padding

    @property
    def n_sequences(self) -> int:
        """How many texts it holds."""
        return len(self._parts)

    @property
    def tokens(self) -> list[str]:
        """The tokens as strings."""
        return self._frame.token_of(self.ids)

    @property
    def type_ids(self) -> list[int]:
        """0 for the first text and its frame, 1 for the second (0 where the frame says so)."""
        pad = self._frame.pad_type
        if self.n_sequences == 1:
            types = [0] * (len(self.ids) - self._left - self._right)
        else:
            extra = 0 if self._frame.begin is None else 1
            first, second = (part.stop - part.start for part in self._parts)
            types = [0] * (first + 2 * extra) + [int(self._frame.has_second_type)] * (
                second + extra
            )
        return [pad] * self._left + types + [pad] * self._right if self._is_padded else types

    @property
    def attention_mask(self) -> list[int]:
        """1 for tokens, 0 for padding."""
        if not self._is_padded:
            return [1] * len(self.ids)
        real = len(self.ids) - self._left - self._right
        return [0] * self._left + [1] * real + [0] * self._right

    @property
    def special_tokens_mask(self) -> list[int]:
        """1 for the frame and the padding, 0 for tokens of the texts."""
        return self._per_token(lambda part, _: [0] * (part.stop - part.start), 1)

    @property
    def offsets(self) -> list[Span]:
        """Start and end of each token in its text; (0, 0) for the frame and the padding."""
        return self._per_token(
            lambda part, _: part.source.details.spans[part.start : part.stop], (0, 0)
        )

    @property
    def word_ids(self) -> list[int | None]:
        """The number of the word of each token in its text; None for the frame and the padding."""
        return self._per_token(
            lambda part, _: list[int | None](part.source.details.words[part.start : part.stop]),
            None,
        )

    @property
    def sequence_ids(self) -> list[int | None]:
        """The number of the text of each token; None for the frame and the padding."""
        return self._per_token(lambda part, number: [number] * (part.stop - part.start), None)

    def token_to_sequence(self, token_index: int) -> int | None:
        """The text that a token belongs to."""
        return self.sequence_ids[token_index]

    def token_to_word(self, token_index: int) -> int | None:
        """The word that a token belongs to."""
        return self.word_ids[token_index]

    def token_to_chars(self, token_index: int) -> Span | None:
        """The span of a token in its text."""
        return None if self.sequence_ids[token_index] is None else self.offsets[token_index]

    def char_to_token(self, char_pos: int, sequence_index: int = 0) -> int | None:
        """The first token that covers a character of a text."""
        for index, (start, stop) in self._tokens_of(sequence_index):
            if start <= char_pos < stop:
                return index
        return None

    def char_to_word(self, char_pos: int, sequence_index: int = 0) -> int | None:
        """The word that covers a character of a text."""
        token = self.char_to_token(char_pos, sequence_index)
        return None if token is None else self.token_to_word(token)

    def word_to_tokens(self, word_index: int, sequence_index: int = 0) -> Span | None:
        """The first and one past the last token of a word."""
        words = self.word_ids
        inside = [i for i, _ in self._tokens_of(sequence_index) if words[i] == word_index]
        return (inside[0], inside[-1] + 1) if inside else None

    def word_to_chars(self, word_index: int, sequence_index: int = 0) -> Span | None:
        """The span of a word in its text."""
        tokens = self.word_to_tokens(word_index, sequence_index)
        if tokens is None:
            return None
        offsets = self.offsets
        return offsets[tokens[0]][0], offsets[tokens[1] - 1][1]

    @property
    def _is_padded(self) -> bool:
        return bool(self._left or self._right)

    def _tokens_of(self, sequence_index: int) -> list[tuple[int, Span]]:
        sequences, offsets = self.sequence_ids, self.offsets
        return [(i, offsets[i]) for i, number in enumerate(sequences) if number == sequence_index]

    def _per_token(
        self, values: Callable[[Window, int], list[_Value]], outside: _Value
    ) -> list[_Value]:
        frame = [] if self._frame.begin is None else [outside]
        real = frame.copy()
        for number, part in enumerate(self._parts):
            real += values(part, number)
            real += frame
        if not self._is_padded:
            return real
        return [outside] * self._left + real + [outside] * self._right


class _Lookup:
    """Names the tokens of an example that has left its tokenizer."""

    def __init__(self, tokens: dict[int, str]) -> None:
        self.tokens = tokens

    def __call__(self, ids: list[int]) -> list[str]:
        return [self.tokens[i] for i in ids]


def windows(length: int, limit: int, stride: int, side: str) -> list[tuple[int, int]]:
    """Cut ``length`` tokens into stretches of at most ``limit`` that share ``stride`` tokens.

    Args:
        length: Number of tokens.
        limit: Longest stretch, more than ``stride``.
        stride: Tokens that neighbours have in common.
        side: Where the text is cut off: ``"right"`` starts with its beginning, ``"left"`` its end.

    Returns:
        Start and end of each; the first is what remains if only one is kept.

    Example:
        >>> windows(7, limit=4, stride=1, side="right"), windows(7, limit=4, stride=1, side="left")
        ([(0, 4), (3, 7)], [(3, 7), (0, 4)])
    """
    if limit >= length:
        return [(0, length)]
    result: list[tuple[int, int]] = []
    for at in range(0, length, limit - stride):
        start, stop = (at, min(at + limit, length))
        result.append((start, stop) if side == "right" else (length - stop, length - start))
        if stop == length:
            break
    return result


def share(first: int, second: int, budget: int) -> tuple[int, int]:
    """Lengths of two texts of which the longer gives way until both fit into the budget.

    Example:
        >>> share(3, 10, 8), share(10, 10, 7)
        ((3, 5), (3, 4))
    """
    short = min(first, second, budget // 2)
    return (short, budget - short) if first <= second else (budget - short, short)
