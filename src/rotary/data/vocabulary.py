"""A WordPiece vocabulary, trained or loaded: the same text gives the same ids, every time."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers.trainers import WordPieceTrainer
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from rotary.data.text import Document
from rotary.errors import ConfigError, DataError
from rotary.models import register

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_FILES = ("tokenizer.json", "vocab.txt", "*.model")
_NAMES = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")


def train_wordpiece(documents: Sequence[Document], *, vocab_size: int) -> PreTrainedTokenizerFast:
    """Train a lower-casing WordPiece vocabulary, as BERT's uncased models have.

    Text is cleaned, lower-cased and stripped of accents, cut at blanks and punctuation, and
    characters of Chinese stand alone. The vocabulary begins with ``SPECIAL_TOKENS`` (ids 0 to 4),
    then come the characters, each as a beginning and, where it can be inside a word, as a
    continuation (``##``), then what the merges add. Characters take at most half of the vocabulary,
    the most frequent ones first; a word with another one is ``[UNK]``.

    The result depends on the documents and their order alone, not on threads or the process.

    Args:
        documents: The training documents.
        vocab_size: Upper bound on the number of entries; a small corpus may give fewer.

    Returns:
        A tokenizer that puts ``[CLS]`` and ``[SEP]`` around a text and knows no maximal length.

    Raises:
        ConfigError: If the size leaves no room for characters.
        DataError: If there is no text.

    Example:
        >>> tokenizer = train_wordpiece([Document("a", "turn and turn and turn")], vocab_size=100)
        >>> tokenizer.tokenize("Turn and turn")
        ['turn', 'and', 'turn']
    """
    if vocab_size < 2 * len(SPECIAL_TOKENS):
        raise ConfigError(
            f"train_wordpiece: vocab_size is {vocab_size}; at least {2 * len(SPECIAL_TOKENS)} are "
            f"needed for the {len(SPECIAL_TOKENS)} special tokens and some characters; 4000 to "
            "30000 is usual."
        )
    normalizer = normalizers.BertNormalizer(lowercase=True)
    pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    counts: Counter[str] = Counter()
    for document in documents:
        counts.update(normalizer.normalize_str(document.text))
    room = (vocab_size - len(SPECIAL_TOKENS)) // 2
    characters, rare = _alphabet(counts, room, normalizer, pre_tokenizer)
    if not characters:
        raise DataError("the corpus is empty: there is no text to train a vocabulary on.")
    blank = str.maketrans(dict.fromkeys(rare, " "))
    texts = (normalizer.normalize_str(document.text).translate(blank) for document in documents)
    trainer = WordPieceTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        show_progress=False,
        # The trainer numbers unseen pieces in the order of a hash map, which differs from run to
        # run and then decides ties between merges; pieces that are given are numbered as given.
        special_tokens=[*SPECIAL_TOKENS, *characters],
    )
    trained = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    trained.pre_tokenizer = pre_tokenizer  # The texts are normalised already.
    trained.train_from_iterator(texts, trainer)
    return _assemble(trained.get_vocab(with_added_tokens=True), normalizer, pre_tokenizer)


def _alphabet(
    counts: Counter[str],
    room: int,
    normalizer: normalizers.Normalizer,
    pre_tokenizer: pre_tokenizers.PreTokenizer,
) -> tuple[list[str], list[str]]:
    """Entries for the characters, sorted, and the characters there is no room for."""
    ranked = sorted(counts, key=lambda character: (-counts[character], character))
    beginnings: list[str] = []
    continuations: list[str] = []
    rare: list[str] = []
    for character in ranked:
        if not character.strip():
            continue
        around = pre_tokenizer.pre_tokenize_str(normalizer.normalize_str(f"a{character}a"))
        entries = 2 if len(around) == 1 else 1  # Punctuation and Chinese always stand alone.
        if len(beginnings) + len(continuations) + entries > room:
            rare.append(character)
            continue
        beginnings.append(character)
        if entries == 2:
            continuations.append(f"##{character}")
    return sorted(beginnings) + sorted(continuations), rare


def _assemble(
    vocabulary: dict[str, int],
    normalizer: normalizers.Normalizer,
    pre_tokenizer: pre_tokenizers.PreTokenizer,
) -> PreTrainedTokenizerFast:
    backend = Tokenizer(
        models.WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=100)
    )
    backend.normalizer, backend.pre_tokenizer = normalizer, pre_tokenizer
    backend.decoder = decoders.WordPiece(prefix="##")
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(token, vocabulary[token]) for token in ("[CLS]", "[SEP]")],
    )
    names = dict(zip(_NAMES, SPECIAL_TOKENS, strict=True))
    return PreTrainedTokenizerFast(tokenizer_object=backend, **names)


def load_tokenizer(
    path: str | os.PathLike[str], *, is_causal: bool = False
) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a folder for training; never code, never pickles.

    Args:
        path: A folder that ``save_pretrained`` wrote, of a tokenizer or of a model with one.
        is_causal: Whether it is to serve causal language modelling, which masks nothing.

    Returns:
        Whatever ``transformers.AutoTokenizer`` makes of the folder.

    Raises:
        DataError: If there is no such folder, no tokenizer in it, or it lacks a special token that
            training needs; see :func:`check_special_tokens`.
    """
    folder = Path(path)
    if not folder.is_dir():
        kind = "is a file, not a folder" if folder.exists() else "no such folder"
        raise DataError(
            f"{folder}: {kind}; a tokenizer is a folder that tokenizer.save_pretrained wrote."
        )
    if not any(any(folder.glob(pattern)) for pattern in _FILES):
        raise DataError(
            f"{folder}: there is no tokenizer in it; expected is one of {', '.join(_FILES)}, as "
            "tokenizer.save_pretrained writes them."
        )
    register()  # transformers' own RoFormer tokenizer reads vocab.txt as characters, silently.
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # Whatever transformers and its Rust part raise on bad files.
        reason = " ".join(str(error).split())
        raise DataError(f"{folder}: its tokenizer cannot be loaded ({reason}).") from error
    check_special_tokens(tokenizer, place=str(folder), is_causal=is_causal)
    return tokenizer


def check_special_tokens(
    tokenizer: PreTrainedTokenizerBase, *, place: str, is_causal: bool = False
) -> None:
    """Raise a ``DataError`` that names the special tokens which training misses.

    Masked language modelling needs a padding, beginning, separating and mask token; causal language
    modelling a token that begins and one that ends a text; see :func:`frame`.
    """
    if is_causal:
        frame(tokenizer, place=place)
        return
    needed = ("mask_token", "cls_token", "sep_token", "pad_token")
    missing = [name for name in needed if getattr(tokenizer, name) is None]
    if missing:
        raise DataError(
            f"{place}: this tokenizer has no {', '.join(missing)}; masked-language-model training "
            "needs them (for instance [MASK], [CLS], [SEP], [PAD]). Leave --tokenizer out to train "
            "a vocabulary on the corpus."
        )


class Frame(NamedTuple):
    """The tokens around a piece of text, and the one that fills up a row."""

    begin: int
    end: int
    pad: int


def frame(tokenizer: PreTrainedTokenizerBase, *, place: str = "frame") -> Frame:
    """The ids that begin and end a text, and padding.

    A text begins with the classifying or else the beginning token, and ends with the separating or
    else the ending one; GPT-2's one token does both, and pads: what is padding, rows say otherwise.

    Raises:
        DataError: If the tokenizer has neither.

    Example:
        >>> frame(train_wordpiece([Document("a", "turn")], vocab_size=50))
        Frame(begin=2, end=3, pad=0)
    """
    end = _first_of(tokenizer.sep_token_id, tokenizer.eos_token_id)
    begin = _first_of(tokenizer.cls_token_id, tokenizer.bos_token_id, end)
    pad = _first_of(tokenizer.pad_token_id, end)
    if begin is None or end is None or pad is None:
        raise DataError(
            f"{place}: this tokenizer has no token that ends a text (sep_token or eos_token); "
            "training needs one between documents. Leave --tokenizer out to train a vocabulary on "
            "the corpus, or take --tokenizer bytes."
        )
    return Frame(begin, end, pad)


def _first_of(*ids: int | None) -> int | None:
    return next((token for token in ids if token is not None), None)
