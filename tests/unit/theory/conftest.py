"""The reference numbers of the theory, where the checkout has them beside it."""

import json
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def reference():
    """The groups of ../shared/reference/theory_reference.json, or a visible skip."""
    path = Path(__file__).parents[4] / "shared" / "reference" / "theory_reference.json"
    if not path.exists():
        pytest.skip("needs ../shared/reference/theory_reference.json")
    return json.loads(path.read_text(encoding="utf-8"))
