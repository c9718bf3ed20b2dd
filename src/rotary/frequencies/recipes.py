"""Recipes: values written as plain JSON and made again from it, exactly."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from rotary.errors import ConfigError, nearest, one_of
from rotary.frequencies.axial import axial
from rotary.frequencies.base import Frequencies
from rotary.frequencies.dynamic_ntk import dynamic_ntk
from rotary.frequencies.inverse_power import inverse_power
from rotary.frequencies.length_schedule import LengthSchedule
from rotary.frequencies.linear import linear
from rotary.frequencies.llama3 import llama3
from rotary.frequencies.longrope import longrope
from rotary.frequencies.mixed import mixed
from rotary.frequencies.ntk import ntk
from rotary.frequencies.per_head import per_head
from rotary.frequencies.proportional import proportional
from rotary.frequencies.sections import assign_axes, sections
from rotary.frequencies.xpos import XPos, xpos
from rotary.frequencies.yarn import yarn


def explicit(matrix: Any, amplitude: float = 1.0) -> Frequencies:
    """Frequencies given as numbers."""
    return Frequencies(matrix, amplitude)


def _per_head(heads: list[Any]) -> Frequencies:
    return per_head(*heads)


MAKERS: dict[str, Callable[..., Frequencies | LengthSchedule | XPos]] = {
    "explicit": explicit,
    "inverse_power": inverse_power,
    "proportional": proportional,
    "axial": axial,
    "mixed": mixed,
    "sections": sections,
    "assign_axes": assign_axes,
    "per_head": _per_head,
    "linear": linear,
    "ntk": ntk,
    "yarn": yarn,
    "llama3": llama3,
    "dynamic_ntk": dynamic_ntk,
    "longrope": longrope,
    "xpos": xpos,
}


def from_recipe(recipe: Mapping[str, Any]) -> Frequencies | LengthSchedule | XPos:
    """Make a value again from its recipe, ``{"type": "ntk", "factor": 8, "frequencies": {...}}``.

    ``type`` is the name of a function of :mod:`rotary.frequencies` (or ``"explicit"``), the other
    keys are its arguments, and an argument that is itself frequencies is a recipe again. This is
    what ``rotary_parameters`` in a model's config holds.

    Raises:
        ConfigError: With every missing, unknown or misspelt key, and the nearest known.

    Example:
        >>> from rotary import inverse_power
        >>> from_recipe(inverse_power(8).recipe) == inverse_power(8)
        True
    """
    if not isinstance(recipe, Mapping):
        raise ConfigError(
            f"rotary_parameters: {recipe!r} is no dict; expected for instance "
            '{"type": "inverse_power", "dim": 64, "base": 10000.0}.'
        )
    if "type" not in recipe:
        raise ConfigError(
            f"rotary_parameters: the key 'type' is missing from {sorted(map(str, recipe))}; it "
            f"names one of {', '.join(MAKERS)}."
        )
    kind = recipe["type"]
    if kind not in MAKERS:
        raise ConfigError(f"rotary_parameters: {one_of('type', kind, MAKERS)}")
    parameters = inspect.signature(MAKERS[kind]).parameters
    given = {key: value for key, value in recipe.items() if key != "type"}
    problems = [
        f"unknown key {key!r}.{nearest(key, parameters)}" for key in given if key not in parameters
    ]
    problems += [
        f"the key {name!r} is missing."
        for name, parameter in parameters.items()
        if parameter.default is inspect.Parameter.empty and name not in given
    ]
    if problems:
        raise ConfigError(
            f"rotary_parameters of type {kind!r}: {' '.join(problems)} "
            f"Known keys are {', '.join(parameters)}."
        )
    arguments = {key: _argument(key, value) for key, value in given.items()}
    return MAKERS[kind](**arguments)


def _argument(key: str, value: Any) -> Any:
    if key == "frequencies":
        return from_recipe(value)
    if key == "heads" and isinstance(value, (list, tuple)):
        return [None if head is None else from_recipe(head) for head in value]
    return value
