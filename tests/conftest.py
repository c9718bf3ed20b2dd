"""What every test run shares: shape enforcement on demand, a fixed profile for drawn examples."""

import os

import pytest
import torch
from hypothesis import settings

settings.register_profile("rotary", deadline=None, derandomize=True, max_examples=60)
settings.load_profile("rotary")


def pytest_addoption(parser):
    parser.addoption(
        "--enforce-shapes",
        action="store_true",
        help="check the shapes in the library's annotations at run time",
    )


def pytest_configure(config):
    if config.getoption("--enforce-shapes"):
        from jaxtyping import install_import_hook

        install_import_hook("rotary", "shape_checks.checked")


def pytest_collection_modifyitems(config, items):
    """Leave out what passes values that the annotations forbid, where those are enforced."""
    if config.getoption("--enforce-shapes"):
        skip = pytest.mark.skip(reason="passes what the annotations forbid, on purpose")
        for item in items:
            if item.get_closest_marker("wrong_types"):
                item.add_marker(skip)


@pytest.fixture(autouse=True)
def _same_draws():
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def shared_data():
    """A function that gives the path of a file of ../shared/data, or skips visibly."""
    root = os.path.join(os.path.dirname(__file__), "..", "..", "shared", "data")

    def path(name):
        full = os.path.join(root, name)
        if not os.path.exists(full):
            pytest.skip(f"needs ../shared/data/{name}")
        return full

    return path
