"""Vocabularies: reading a file, learning one from text, and the embeddings of words added later."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import torch

from rotary.errors import ConfigError, DataError
from rotary.models.roformer.normalization import Normalizer
from rotary.models.roformer.segmentation import ALONE, CJK, KEEP, basic_cut, dictionary_cut, kind
from rotary.models.roformer.word_pieces import LONGEST_WORD

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_SPARE_ROWS = 1024  # A table may be rounded up beyond the tokens.
_CHINESE_WORD = re.compile(f"[{CJK}]{{2,}}")


def read_vocabulary(path: str | Path) -> dict[str, int]:
    r"""Read a vocabulary: ``vocab.txt``, one token a line, or the one inside a ``tokenizer.json``.

    Lines end with ``\n`` (or ``\r\n``) and nothing else: other line separators are tokens of some
    vocabularies.

    Raises:
        DataError: If the file cannot be read as a vocabulary.
    """
    path = Path(path)
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error  # The path is named already.
        raise DataError(f"{path} cannot be read as a vocabulary: {reason}") from error
    if path.suffix == ".json":
        return _from_json(path, text)
    tokens = text.split("\n")
    if tokens[-1] == "":
        tokens.pop()
    if tokens and all(token.endswith("\r") for token in tokens):
        tokens = [token[:-1] for token in tokens]
    return check_vocabulary(tokens, where=str(path))


def _from_json(path: Path, text: str) -> dict[str, int]:
    try:
        tokens = json.loads(text)["model"]["vocab"]
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} holds no vocabulary at model.vocab: {error!r}") from error
    return check_vocabulary(tokens, where=str(path))


def check_vocabulary(tokens: Mapping[str, int] | Sequence[str], where: str) -> dict[str, int]:
    """The vocabulary as a dictionary, whose ids are 0, 1, 2, ..., each for one token.

    Raises:
        DataError: If ids are missing or double, or a token could not be saved as a line.
    """
    if not isinstance(tokens, Mapping):
        seen = Counter(tokens)
        double = [token for token, count in seen.items() if count > 1]
        if double:
            raise DataError(
                f"{where} names {double[0]!r} {seen[double[0]]} times; a token has one id"
            )
        tokens = {token: i for i, token in enumerate(tokens)}
    vocabulary = dict(sorted(tokens.items(), key=lambda entry: entry[1]))
    if list(vocabulary.values()) != list(range(len(vocabulary))):
        raise DataError(
            f"the ids of {where} are not 0 to {len(vocabulary) - 1}, each once; an id may be "
            "neither left out nor used twice, because vocab.txt counts lines"
        )
    broken = [token for token in vocabulary if "\n" in token]
    if broken:
        raise DataError(
            f"{where}: the token {broken[0]!r} holds a line end; vocab.txt has one a line"
        )
    return vocabulary


def load_vocabulary(
    vocabulary: str | PathLike[str] | Mapping[str, int] | Sequence[str] | None,
) -> dict[str, int]:
    """The vocabulary from whatever a tokenizer was given: a file, tokens, or tokens to ids."""
    if vocabulary is None:
        raise DataError(
            "there is no vocabulary: the folder has neither vocab.txt nor tokenizer.json, or "
            "RoFormerTokenizer(vocab) was called without one"
        )
    if isinstance(vocabulary, (str, PathLike)):
        return read_vocabulary(Path(vocabulary))
    return check_vocabulary(vocabulary, where="vocab")


def require_special(
    special: Mapping[str, Any], vocabulary: Mapping[str, int], added: Iterable[str]
) -> None:
    """Refuse a vocabulary without the special tokens, most likely the wrong file.

    Args:
        special: From names such as ``"mask_token"`` to tokens, or None for those that are not used.
        vocabulary: The vocabulary.
        added: Tokens that are kept beside it.
    """
    if special["unk_token"] is None:
        raise ConfigError("unk_token is None; words that the vocabulary cannot spell need one")
    known = {*vocabulary, *added}
    missing = [f"{name}={str(t)!r}" for name, t in special.items() if t and str(t) not in known]
    if missing:
        raise ConfigError(
            f"the vocabulary of {len(vocabulary):,} tokens does not hold {', '.join(missing)}. Is "
            "it the right file? Otherwise name the token that the vocabulary has, or give None."
        )


def has_words(vocabulary: Iterable[str]) -> bool:
    """Whether a vocabulary holds Chinese words, not only characters."""
    return any(_CHINESE_WORD.fullmatch(token) for token in vocabulary)


def train_vocabulary(
    corpus: Iterable[str],
    size: int,
    *,
    do_lower_case: bool = True,
    coverage: float = 1.0,
    special_tokens: Sequence[str] = SPECIAL_TOKENS,
) -> list[str]:
    """Learn a vocabulary from text: its characters and pieces, then its most frequent words.

    The special tokens come first, then every character (as itself, and as ``##`` piece where it
    stands inside a word of letters), so that no word of the corpus is unknown; what is left goes to
    the most frequent words. Equal counts are ordered by code point: the same corpus, in any order,
    gives the same vocabulary.

    Args:
        corpus: Texts; read once.
        size: Number of tokens.
        do_lower_case: Normalise as the tokenizer will.
        coverage: Share of the characters of the corpus, counted as often as they occur, that must
            be tokens; below 1 the rarest characters become [UNK].
        special_tokens: The tokens that come first.

    Returns:
        The tokens in the order of their ids; at most ``size``, fewer where the corpus has no more.

    Raises:
        ConfigError: If ``size`` cannot hold the characters, or ``coverage`` is not in (0, 1].

    Example:
        >>> train_vocabulary(["今天天气好", "天气好"], size=10)[5:]
        ['天', '好', '气', '今', '今天天气']
    """
    if not 0 < coverage <= 1:
        raise ConfigError(f"coverage is {coverage}; accepted is a share above 0 and up to 1")
    words = _count_words(corpus, Normalizer(do_lower_case, do_lower_case))
    characters, pieces = _count_characters(words)
    needed = _most_frequent(characters, coverage)
    kept = set(needed)
    needed += [f"##{piece}" for piece in _in_order(pieces) if piece in kept]
    tokens = list(dict.fromkeys([*special_tokens, *needed]))
    if len(tokens) > size:
        raise ConfigError(
            f"size is {size}, but the corpus needs {len(tokens)} tokens: {len(special_tokens)} "
            f"special ones, {len(kept)} characters and {len(needed) - len(kept)} ## pieces. Give a "
            "larger size, or leave out the rarest characters with coverage, for example 0.9995"
        )
    known = set(tokens)
    candidates = Counter({word: n for word, n in words.items() if _can_be_token(word, known)})
    return tokens + _in_order(candidates)[: size - len(tokens)]


def _count_words(corpus: Iterable[str], normalizer: Normalizer) -> Counter[str]:
    if isinstance(corpus, str):
        raise ConfigError("corpus is one string; accepted is an iterable of texts, such as [text]")
    cut = dictionary_cut()
    words: Counter[str] = Counter()
    for text in corpus:
        words.update(cut(normalizer(text)))
    return words


def _count_characters(words: Mapping[str, int]) -> tuple[Counter[str], Counter[str]]:
    """How often each character is seen, and how often it continues a run of letters."""
    characters: Counter[str] = Counter()
    pieces: Counter[str] = Counter()
    split = basic_cut()
    for word, count in words.items():
        for part in split(word):
            letters = [c for c in part if kind(c) in (KEEP, ALONE) and c.isprintable()]
            for place, letter in enumerate(letters):
                characters[letter] += count
                if place:
                    pieces[letter] += count
    return characters, pieces


def _in_order(counts: Mapping[str, int]) -> list[str]:
    return sorted(counts, key=lambda token: (-counts[token], token))


def _most_frequent(counts: Counter[str], coverage: float) -> list[str]:
    wanted, seen = coverage * counts.total(), 0
    result: list[str] = []
    for token in _in_order(counts):
        if seen >= wanted:
            break
        result.append(token)
        seen += counts[token]
    return result


def _can_be_token(word: str, known: set[str]) -> bool:
    """Whether a word is worth an id: several characters, all of them seen, none of them space."""
    return (
        1 < len(word) <= LONGEST_WORD
        and word not in known
        and all(character in known for character in word)
    )


def check_fits(tokenizer: Any, model: Any) -> None:
    """Refuse a tokenizer that is not the model's, as far as their sizes show it.

    A word-level RoFormer has 50,000 tokens and a character-level one 12,000: the wrong tokenizer
    gives ids that are out of range, or in range and meaningless.

    Args:
        tokenizer: Any Hugging Face tokenizer.
        model: A model, or its config.

    Raises:
        ConfigError: If the model has fewer rows than there are tokens, or more than a table that is
            rounded up could have.
    """
    rows = getattr(model, "config", model).vocab_size
    size = len(tokenizer)
    if size <= rows <= size + _SPARE_ROWS:
        return
    level = getattr(tokenizer, "level", None)
    what = f"{level}-level tokenizer" if level else "tokenizer"
    raise ConfigError(
        f"this {what} has {size:,} tokens, but the vocabulary of the model has {rows:,} rows: its "
        "ids would mean other tokens there. Load the tokenizer from the folder of the model; the "
        "Chinese RoFormers have 50,000 tokens (words) or 12,000 (characters)."
    )


def grow_embeddings(model: Any, pieces: Sequence[Sequence[int]], first: int) -> None:
    """Give a model rows for new tokens, each the mean of the rows of its pieces (WoBERT).

    Input and output embeddings and the output bias are treated alike; the table grows only where
    it has too few rows.

    Args:
        model: A Hugging Face model.
        pieces: For each new token the ids of its pieces.
        first: The id of the first new token.
    """
    needed = first + len(pieces)
    if needed > model.get_input_embeddings().weight.shape[0]:
        model.resize_token_embeddings(needed, mean_resizing=False)
    tables = [model.get_input_embeddings().weight]
    head = model.get_output_embeddings()
    if head is not None:
        tables += [
            table for table in (head.weight, getattr(head, "bias", None)) if table is not None
        ]
    distinct = {id(table): table for table in tables}.values()  # Tied tables are one.
    with torch.no_grad():
        for table in distinct:
            for token, its_pieces in enumerate(pieces, first):
                rows = table[torch.tensor(its_pieces, device=table.device)]
                table[token] = rows.float().mean(0).to(table.dtype)
