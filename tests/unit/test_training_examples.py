import doctest
import importlib
import pkgutil

import pytest

import rotary.training

MODULES = [
    f"rotary.training.{module.name}" for module in pkgutil.iter_modules(rotary.training.__path__)
]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_in_the_docstrings_run(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0
