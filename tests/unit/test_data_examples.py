import doctest
import importlib
import pkgutil

import pytest

import rotary.data

MODULES = [f"rotary.data.{module.name}" for module in pkgutil.iter_modules(rotary.data.__path__)]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_in_the_docstrings_run(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_every_module_is_in_the_overview():
    assert {f"rotary.data.{name}" for name in rotary.data.__doc__.split("``")} >= set(MODULES)
