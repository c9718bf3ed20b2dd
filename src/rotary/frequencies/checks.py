"""Checks that the schedules share: one error, with the name, the value and what is accepted."""

from __future__ import annotations

import math
import operator

from rotary.errors import ConfigError


def integer(function: str, name: str, value: object, *, least: int = 1) -> int:
    """A whole number not below ``least``, or an error."""
    try:
        whole = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise ConfigError(f"{function}: {name} is {value!r}; it must be an integer.") from None
    if isinstance(value, bool) or whole < least:
        raise ConfigError(f"{function}: {name} is {value!r}; it must be an integer >= {least}.")
    return whole


def number(function: str, name: str, value: object, *, above: float = 0.0) -> float:
    """A finite number greater than ``above``, or an error."""
    if isinstance(value, (bool, str)) or value is None:
        raise ConfigError(f"{function}: {name} is {value!r}; it must be a number > {above:g}.")
    try:
        real = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise ConfigError(
            f"{function}: {name} is {value!r}; it must be a number > {above:g}."
        ) from None
    if not (math.isfinite(real) and real > above):
        raise ConfigError(
            f"{function}: {name} is {value!r}; it must be a finite number > {above:g}."
        )
    return real


def even_dim(function: str, name: str, value: object) -> int:
    """A number of channels that turn in pairs, or an error."""
    try:
        dim = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise ConfigError(f"{function}: {name} is {value!r}; it must be an integer.") from None
    if dim < 2 or dim % 2:
        raise ConfigError(
            f"{function}: {name} is {dim}; it is the number of channels that turn in pairs, so it "
            "must be even and at least 2. For a head of odd size choose fewer channels: "
            f"{name}={max(2, dim - dim % 2)}."
        )
    return dim
