"""What the docstrings show is what happens, in every module of the library."""

import doctest
import importlib
import pkgutil

import pytest
import torch

import rotary

MODULES = [
    "rotary",
    *(
        module.name
        for module in pkgutil.walk_packages(rotary.__path__, "rotary.")
        if not module.name.rpartition(".")[2].startswith("_")
    ),
]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_run(name):
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] == "rotary":
            raise
        pytest.skip(f"needs the package {error.name}")
    # What a reader has typed before: the import that every example of this library shares.
    result = doctest.testmod(module, extraglobs={"torch": torch})
    assert result.failed == 0
    if name.startswith("rotary.theory."):  # A statement without numbers is not shown.
        assert result.attempted > 0


def test_all_rooms_are_visited():
    rooms = {name.split(".")[1] for name in MODULES if name != "rotary"}
    assert {"attention", "bench", "cli", "data", "frequencies", "kernels", "models"} <= rooms
    assert {"theory", "training", "plots", "rotation"} <= rooms
