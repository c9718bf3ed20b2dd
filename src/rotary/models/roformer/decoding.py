"""Tokens back to readable text: Chinese without spaces, Latin words with one between them."""

from __future__ import annotations

from collections.abc import Collection, Iterable

_OPENING = "([{$#"
_CLOSING = ",.;:!?)]}%"
_JOINING = "-/_'@+=&*^~|\\<>`"


def join_tokens(tokens: Iterable[str], special: Collection[str] = ()) -> str:
    """Join tokens to a text; what the tokenizer dropped (case, accents, spaces) is not guessed.

    Args:
        tokens: Tokens; those that begin with ``##`` continue the one before.
        special: Tokens that stand apart.

    Example:
        >>> join_tokens(["今", "天", "play", "##ing", "a", "game", ",", "3", ".", "5", "元", "。"])
        '今天playing a game, 3.5元。'
    """
    parts: list[str] = []
    before = ""  # The token before, without ##.
    number_before = False  # Whether a digit stands before it, as in the 3 of 3.5.
    is_quoting = False
    for token in tokens:
        continues = token.startswith("##") and len(token) > 2 and bool(parts)
        text = token[2:] if continues else token
        if parts and not continues:
            if token in special or before in special:
                parts.append(" ")
            elif number_before and before in ".,:" and text[:1].isdigit():
                pass
            elif _has_space(before[-1:], text[:1], is_quoting):
                parts.append(" ")
        parts.append(text)
        is_quoting ^= text == '"'
        number_before = before[-1:].isdigit()
        before = text
    return "".join(parts)


def _has_space(last: str, first: str, is_quoting: bool) -> bool:
    """Whether a space stands between two tokens that end and begin so."""
    if not last or not first or _is_dense(last) or _is_dense(first):
        return False
    if first == '"':
        return not is_quoting
    if last == '"':
        return not is_quoting and first not in _CLOSING
    if last in _OPENING or last in _JOINING:
        return False
    return first not in _CLOSING and first not in _JOINING


def _is_dense(character: str) -> bool:
    """Whether a script writes without spaces: East Asian ones and general punctuation."""
    return (
        character >= "\u2e80"
        or "\u1100" <= character <= "\u11ff"
        or "\u2010" <= character <= "\u206f"
    )
