"""The examples in the docstrings of the theory and of the figures run."""

import doctest
import importlib
import pkgutil

import pytest

import rotary.theory

MODULES = [
    "rotary.plots",
    *(
        f"rotary.theory.{module.name}"
        for module in pkgutil.iter_modules(rotary.theory.__path__)
        if not module.name.startswith("_")
    ),
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name):
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted > 0
    assert result.failed == 0
