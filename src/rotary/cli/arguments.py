"""What several commands ask of their arguments."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

from rotary.errors import ConfigError


def check_utf8(arguments: Sequence[str]) -> None:
    """Refuse bytes that are no text: no tokenizer and no file of ours takes them.

    Raises:
        ConfigError: With the first such argument.
    """
    for argument in arguments:
        if any("\ud800" <= character <= "\udfff" for character in argument):
            raise ConfigError(f"the argument {argument!r} is not UTF-8.")


def whole_number(least: int, most: int | None = None) -> Callable[[str], int]:
    """The type of an option that is a whole number from ``least`` to ``most``."""
    accepted = f"{least} or more" if most is None else f"from {least} to {most}"

    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if number < least or (most is not None and number > most):
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number, {accepted}")
        return number

    return parse


def number(least: float, most: float) -> Callable[[str], float]:
    """The type of an option that is a number from ``least`` to ``most``."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = most + 1
        if not least <= value <= most:  # Also where it is not a number.
            raise argparse.ArgumentTypeError(f"{text!r} is not a number from {least:g} to {most:g}")
        return value

    return parse
