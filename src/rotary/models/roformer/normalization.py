"""What a text becomes before it is cut into words, and where each character came from.

WoBERT and RoFormer lower-case the whole text, decompose it canonically (NFD) and drop the combining
marks (category Mn). Almost all Chinese text needs none of the last two, so a search for the
characters that do comes first; where each character came from is worked out only if asked for.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from functools import lru_cache
from operator import itemgetter
from typing import NamedTuple

# Beyond the basic plane characters are so rare that all of them take the careful path.
_BEYOND_BASIC_PLANE = "\U00010000-\U0010ffff"
_HANGUL_SYLLABLES = ("\uac00", "\ud7a3")  # Decomposed by rule, not listed in the database.


class Alignment(NamedTuple):
    """For each boundary in the normalised text, where it lies in the original.

    Args:
        starts: Where what begins at this boundary begins in the original.
        ends: Where what ends at this boundary ends in the original.
    """

    starts: list[int]
    ends: list[int]


class Normalizer(NamedTuple):
    """Lower-case a text and take the accents off it; says where each character came from.

    Args:
        lowercase: Lower-case the whole text first.
        strip_accents: Decompose (NFD) and drop the combining marks.

    Example:
        >>> Normalizer()("Ｃafé")
        'ｃafe'
    """

    lowercase: bool = True
    strip_accents: bool = True

    def __call__(self, text: str) -> str:
        """The normalised text."""
        if self.lowercase:
            text = text.lower()
        if self.strip_accents and not text.isascii():
            return decomposable().sub(_strip, text)
        return text

    def align(self, text: str) -> tuple[str, Alignment | None]:
        """The normalised text and where it came from; None where no character moved.

        A mark that was dropped belongs to the character before it. Characters that became several,
        or changed places, all stand for the whole of what they came from.
        """
        lowered = text.lower() if self.lowercase else text
        changes = decomposable()
        is_plain = not self.strip_accents or text.isascii() or not changes.search(lowered)
        if is_plain and len(lowered) == len(text):
            return lowered, None
        characters: list[str] = []
        starts: list[int] = []
        ends: list[int] = []
        runs = [] if is_plain else [run.span() for run in changes.finditer(lowered)]
        at = 0
        for start, stop in [*runs, (len(lowered), len(lowered))]:
            characters.append(lowered[at:start])
            starts += range(at, start)
            ends += range(at + 1, start + 1)
            for character, first, last in _decompose(lowered[start:stop], start):
                if ends:  # What was dropped before it goes to the one before.
                    ends[-1] = max(ends[-1], first)
                characters.append(character)
                starts.append(first)
                ends.append(last)
            if ends:
                ends[-1] = max(ends[-1], stop)
            at = stop
        if len(lowered) != len(text):  # One letter becomes two when it is lower-cased.
            origin = [i for i, c in enumerate(text) for _ in c.lower()]
            starts = [origin[i] for i in starts]
            ends = [origin[i - 1] + 1 for i in ends]
        return "".join(characters), Alignment(starts, [0, *ends])


def _strip(run: re.Match[str]) -> str:
    """Decompose a run and drop its marks. No order reaches beyond it, so it stands alone."""
    decomposed = unicodedata.normalize("NFD", run[0])
    return "".join([c for c in decomposed if unicodedata.category(c) != "Mn"])


def _decompose(run: str, base: int) -> list[tuple[str, int, int]]:
    """Decompose a run, in canonical order, without its marks: characters, start and end of each."""
    result: list[tuple[str, int, int]] = []
    waiting: list[tuple[int, str, int]] = []

    def put_in_order() -> None:
        ordered = sorted(waiting, key=itemgetter(0))
        kept = [entry for entry in ordered if unicodedata.category(entry[1]) != "Mn"]
        places = [place for _, _, place in kept]
        moved = places != sorted(places)
        for _, part, place in kept:
            first, last = (min(places), max(places)) if moved else (place, place)
            result.append((part, first, last + 1))
        waiting.clear()

    for place, character in enumerate(run, base):
        for part in unicodedata.normalize("NFD", character):
            rank = unicodedata.combining(part)
            if rank:
                waiting.append((rank, part, place))
                continue
            put_in_order()
            if unicodedata.category(part) != "Mn":
                result.append((part, place, place + 1))
    put_in_order()
    return result


@lru_cache(maxsize=1)
def decomposable() -> re.Pattern[str]:
    """Runs of characters that NFD changes or moves, or that are combining marks."""

    def changes(character: str) -> bool:
        decomposition = unicodedata.decomposition(character)
        return (
            unicodedata.combining(character) != 0
            or (decomposition != "" and decomposition[0] != "<")
            or unicodedata.category(character) == "Mn"
            or _HANGUL_SYLLABLES[0] <= character <= _HANGUL_SYLLABLES[1]
        )

    return re.compile(f"[{character_class(changes)}{_BEYOND_BASIC_PLANE}]+")


def character_class(belongs: Callable[[str], bool], limit: int = 0x10000) -> str:
    """Ranges, for a regular expression, of the characters below ``limit`` that belong."""
    ranges: list[list[int]] = []
    for code in range(limit):
        if belongs(chr(code)):
            if ranges and ranges[-1][1] == code - 1:
                ranges[-1][1] = code
            else:
                ranges.append([code, code])
    return "".join(f"\\U{first:08x}-\\U{last:08x}" for first, last in ranges)
