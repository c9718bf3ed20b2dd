"""Text to words: by jieba's dictionary for word-level vocabularies, by BERT's rules for others."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from rotary.errors import ConfigError, MissingDependencyError
from rotary.models.roformer.normalization import character_class

Cut = Callable[[str], list[str]]

# The blocks that BERT treats as Chinese characters, each a word of its own.
CJK = (
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\U00020000-\U0002a6df\U0002a700-\U0002b73f\U0002b740-\U0002b81f"
    "\U0002b820-\U0002ceaf\U0002f800-\U0002fa1f"
)
_SURROGATES = re.compile("[\ud800-\udfff]")
# Half of a surrogate pair is no character and cannot be handed to rjieba. This stands in for it: as
# long, never a word, never dropped, so that it becomes [UNK] where it stands.
_STAND_IN = "\uffff"
_is_cjk = re.compile(f"[{CJK}]").match

KEEP, ALONE, SPACE, DROP = range(4)
_kinds: dict[str, int] = {}


def kind(character: str) -> int:
    """What BERT's basic split does with a character: ``KEEP``, ``ALONE``, ``SPACE`` or ``DROP``."""
    known = _kinds.get(character)
    if known is None:
        known = _kinds[character] = _kind(character)
    return known


def _kind(character: str) -> int:
    category = unicodedata.category(character)
    if _is_cjk(character) or category[0] == "P":
        return ALONE
    if (
        character.isascii()
        and character.isprintable()
        and not (character.isalnum() or character == " ")
    ):
        return ALONE  # Signs that Unicode calls symbols, such as $ and +.
    if category == "Zs" or character in "\t\n\r":
        return SPACE
    if category in ("Cc", "Cf") or character == "\ufffd":
        return DROP
    return SPACE if character.isspace() else KEEP  # Line and paragraph separators.


@lru_cache(maxsize=8)
def dictionary_cut(words: tuple[str, ...] = ()) -> Cut:
    """Cut by jieba's dictionary, without its model for unknown words (HMM), as WoBERT does.

    The dictionary is this process's own copy: what other code adds to rjieba's does not change ids.

    Args:
        words: Words to add to the dictionary, in order.

    Returns:
        A function from a text to its words, whose lengths add up to that of the text.

    Raises:
        MissingDependencyError: If rjieba is not installed.
        ConfigError: If a word would still be cut into several.
    """
    jieba = _load_jieba()
    for word in words:
        jieba.add_word(word, None, None)

    def cut(text: str) -> list[str]:
        try:
            return jieba.cut(text, False)
        except UnicodeEncodeError:
            return jieba.cut(_SURROGATES.sub(_STAND_IN, text), False)

    broken = [word for word in words if cut(word) != [word]]
    if broken:
        raise ConfigError(
            f"jieba still cuts {broken[0]!r} into {cut(broken[0])}, so it can never be a word of a "
            "text: a word may hold Chinese characters, ASCII letters and digits, and + # & . _ % "
            "-. For anything else use add_tokens, which finds its text before words are cut."
        )
    return cut


def _load_jieba() -> Any:
    try:
        import rjieba
    except ImportError as error:
        raise MissingDependencyError(
            "a word-level RoFormer tokenizer cuts text with the package 'rjieba', which is not "
            "installed. Install it with: pip install rjieba"
        ) from error
    return rjieba.Jieba()


@lru_cache(maxsize=1)
def basic_cut() -> Cut:
    """Cut as BERT does: at white space, and around every Chinese character and punctuation mark."""
    alone = character_class(lambda c: kind(c) == ALONE, limit=0x20000) + CJK
    space = character_class(lambda c: kind(c) == SPACE)
    return re.compile(f"[^{alone}{space}]+|[{alone}]|[{space}]+").findall
