"""From the arguments of a tokenizer's call to examples: samples, lengths, windows, columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from typing import Any

from transformers.utils import PaddingStrategy

from rotary.errors import ConfigError
from rotary.models.roformer.encodings import Encoding, Frame, Source, share, windows
from rotary.models.roformer.text_encoder import Details, TextEncoder

Text = str | Sequence[str]
Stretch = tuple[int, int]


def read_samples(
    text: Any, text_pair: Any, is_split_into_words: bool
) -> tuple[list[tuple[Text, Text | None]], bool]:
    """The texts of a call, each with a second one or None, and whether they were a batch.

    A batch is a list (or tuple) of texts, with ``text_pair`` a list as long, or of pairs. A text is
    a string, or a list of words if ``is_split_into_words``.

    Raises:
        ConfigError: If anything else comes.
    """
    is_list = isinstance(text, (list, tuple))
    is_batch = is_list and (
        not is_split_into_words or (len(text) > 0 and isinstance(text[0], (list, tuple)))
    )
    if not is_batch:
        samples = [(text, text_pair)]
    elif text_pair is None:
        samples = [_pair(sample, is_split_into_words) for sample in text]
    elif not isinstance(text_pair, (list, tuple)) or len(text_pair) != len(text):
        what = len(text_pair) if isinstance(text_pair, (list, tuple)) else type(text_pair).__name__
        raise ConfigError(
            f"text is a batch of {len(text)}, text_pair is {what}; give a list of the same length"
        )
    else:
        samples = list(zip(text, text_pair, strict=True))
    for number, (first, second) in enumerate(samples):
        for one in (first,) if second is None else (first, second):
            if not _is_text(one, is_split_into_words):
                raise ConfigError(_refusal(one, number, is_batch, is_split_into_words))
    return samples, is_batch


def _pair(sample: Any, is_split_into_words: bool) -> tuple[Any, Any]:
    """A sample of a batch may itself be a pair."""
    part = (list, tuple) if is_split_into_words else str
    if (
        isinstance(sample, (list, tuple))
        and len(sample) == 2
        and isinstance(sample[0], part)
        and isinstance(sample[1], part)
    ):
        return sample[0], sample[1]
    return sample, None


def _is_text(value: Any, is_split_into_words: bool) -> bool:
    if not is_split_into_words:
        return isinstance(value, str)
    return isinstance(value, (list, tuple)) and all(isinstance(word, str) for word in value)


def _refusal(value: Any, number: int, is_batch: bool, is_split_into_words: bool) -> str:
    place = f"number {number} of the batch" if is_batch else "the text"
    accepted = "a list of words" if is_split_into_words else "a string"
    shown = repr(value)
    shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
    hint = ""
    if not is_split_into_words and isinstance(value, (list, tuple)):
        hint = "; for words that are cut already set is_split_into_words=True"
    return f"{place} is {shown} ({type(value).__name__}); accepted is {accepted}, or a pair{hint}"


def reader(
    encoder: TextEncoder, *, is_split_into_words: bool, split_special: bool, with_details: bool
) -> Callable[[Any], Source]:
    """How one text is read: its ids, and the details now or when somebody asks for them."""
    encode: Callable[[Any], tuple[list[int], Details]]
    if is_split_into_words:
        encode = partial(encoder.encode_words, split_special=split_special)
        return lambda words: Source(*encode(words))
    encode = partial(encoder.encode, split_special=split_special)
    if with_details:
        return lambda text: Source(*encode(text))
    ids = encoder.ids
    return lambda text: Source(
        ids(text, split_special=split_special), explain=lambda: encode(text)[1]
    )


def cut_to_length(
    lengths: Sequence[int],
    limit: int,
    frame: Frame,
    *,
    strategy: str,
    side: str,
    stride: int | None,
) -> list[tuple[Stretch, ...]]:
    """Which stretch of each text goes into each example.

    Args:
        lengths: Tokens of one or two texts.
        limit: The most tokens of an example, its frame included.
        frame: What surrounds the texts.
        strategy: ``"longest_first"``, ``"only_first"`` or ``"only_second"``.
        side: Where text is cut off, ``"right"`` or ``"left"``.
        stride: Tokens that neighbouring windows share; None where what is cut off is dropped.

    Raises:
        ConfigError: If the limit leaves no room, or the text that may be cut is too short for it.
    """
    whole = tuple((0, length) for length in lengths)
    budget = limit - (0 if frame.begin is None else 1 + len(lengths))
    if budget < 0:
        raise ConfigError(
            f"max_length is {limit}, but the special tokens alone take {limit - budget}"
        )
    over = sum(lengths) - budget
    if over <= 0:
        return [whole]
    limits = _limits(lengths, budget, over, strategy)
    stretches: list[list[Stretch]] = []
    for length, most in zip(lengths, limits, strict=True):
        if stride is None:
            kept = min(length, most)
            stretches.append([(0, kept) if side == "right" else (length - kept, length)])
        elif most < length and stride >= most:
            raise ConfigError(
                f"stride is {stride}, but a window holds only {most} tokens of the text; give "
                "a smaller stride or a larger max_length"
            )
        else:
            stretches.append(windows(length, most, stride, side))
    if len(stretches) == 1:
        return [(stretch,) for stretch in stretches[0]]
    firsts, seconds = stretches
    # The order of transformers' fast tokenizers: what is kept, then each further window of the
    # first text with all of the second, then the first window with the rest of the second.
    further = [*product(firsts[1:], seconds), *product(firsts[:1], seconds[1:])]
    return [(firsts[0], seconds[0]), *further]


def _limits(lengths: Sequence[int], budget: int, over: int, strategy: str) -> list[int]:
    """The most tokens of each text."""
    if strategy == "longest_first":
        return [budget] if len(lengths) == 1 else list(share(lengths[0], lengths[1], budget))
    which = 0 if strategy == "only_first" else 1
    if which >= len(lengths):
        raise ConfigError(
            "truncation is 'only_second', but there is no second text; use 'only_first'"
        )
    limits = list(lengths)
    limits[which] -= over
    if limits[which] <= 0:
        raise ConfigError(
            f"truncation is {strategy!r}, but that text has {lengths[which]} tokens and {over} "
            "would have to go; use 'longest_first' or a larger max_length"
        )
    return limits


def pad_all(
    encodings: Sequence[Encoding],
    *,
    strategy: PaddingStrategy,
    max_length: int | None,
    multiple: int | None,
    side: str,
) -> None:
    """Pad examples to a common length, if so asked."""
    if strategy == PaddingStrategy.DO_NOT_PAD or not encodings:
        return
    if strategy == PaddingStrategy.MAX_LENGTH and max_length is not None:
        length = max_length
    else:
        length = max(map(len, encodings))
    if multiple:
        length += -length % multiple
    for encoding in encodings:
        encoding.pad(length, side)


def collect(
    encodings: Sequence[Encoding],
    names: Sequence[str],
    *,
    return_token_type_ids: bool | None = None,
    return_attention_mask: bool | None = None,
    return_special_tokens_mask: bool = False,
    return_offsets_mapping: bool = False,
    return_length: bool = False,
    **unknown: Any,
) -> dict[str, list[Any]]:
    """The columns of a batch: ``input_ids`` and what else is asked for, or usual (``names``)."""
    surplus = sorted(key for key, value in unknown.items() if value)
    if surplus:
        raise ConfigError(f"RoFormerTokenizer takes no argument {', '.join(surplus)}")
    columns: dict[str, list[Any]] = {"input_ids": [e.ids for e in encodings]}
    if "token_type_ids" in names if return_token_type_ids is None else return_token_type_ids:
        columns["token_type_ids"] = [e.type_ids for e in encodings]
    if "attention_mask" in names if return_attention_mask is None else return_attention_mask:
        columns["attention_mask"] = [e.attention_mask for e in encodings]
    if return_special_tokens_mask:
        columns["special_tokens_mask"] = [e.special_tokens_mask for e in encodings]
    if return_offsets_mapping:
        columns["offset_mapping"] = [e.offsets for e in encodings]
    if return_length:
        columns["length"] = [len(e) for e in encodings]
    return columns
