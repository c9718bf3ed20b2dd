"""The errors of the library: names, values, what is accepted and what to do next, once.

Every error is a :class:`RotaryError` and also the built-in that callers already expect, so
``except ValueError`` keeps working. :func:`nearest` finds the word that somebody meant.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class RotaryError(Exception):
    """Base of every error that this library raises on purpose."""


class ShapeError(RotaryError, ValueError):
    """Shapes that do not belong together."""


class DtypeError(RotaryError, TypeError, ValueError):
    """A dtype that the operation does not take."""


class ConfigError(RotaryError, ValueError):
    """A value that cannot be right: out of range, unknown, missing or contradictory."""


class BackendError(RotaryError, RuntimeError):
    """A backend that was named and cannot serve the call."""


class DataError(RotaryError, ValueError):
    """Text that cannot be read or is not enough."""


class RunError(RotaryError, RuntimeError):
    """A run folder that cannot be used as asked."""


class MissingDependencyError(RotaryError, ImportError, RuntimeError):
    """An optional package that this feature needs and that is not installed."""


def missing(user: str, package: str | None, extra: str) -> MissingDependencyError:
    """The error for a package that an extra brings: who needs it, and how the extra is installed.

    Example:
        >>> print(missing("rotary.plots", "matplotlib", "train"))
        rotary.plots needs the package 'matplotlib', which is not installed. In a checkout of \
rotary, install the extra that brings it: pip install --no-build-isolation -e '.[train]' \
-c constraints.txt
    """
    return MissingDependencyError(
        f"{user} needs the package {package!r}, which is not installed. In a checkout of rotary, "
        f"install the extra that brings it: pip install --no-build-isolation -e '.[{extra}]' "
        "-c constraints.txt"
    )


def nearest(name: str, known: Iterable[str]) -> str:
    """Say which of the known names was meant: ``" Did you mean 'x'?"``, or nothing.

    Example:
        >>> nearest("interleved", ["interleaved", "half"])
        " Did you mean 'interleaved'?"
    """
    match = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f" Did you mean {match[0]!r}?" if match else ""


def one_of(argument: str, value: object, accepted: Iterable[str]) -> str:
    """The message for a value outside a fixed set of names, with the nearest of them."""
    names = list(accepted)
    listed = ", ".join(repr(name) for name in names)
    return f"{argument} is {value!r}; accepted are {listed}.{nearest(str(value), names)}"
