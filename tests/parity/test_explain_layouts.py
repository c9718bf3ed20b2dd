"""The layouts that `rotary explain` names are those of transformers' own code."""

import importlib.util
import re
from pathlib import Path

import pytest

from rotary.theory.model_config import HALF, INTERLEAVED

PAIRED = (r"::2\]", r"rotate_every_two", r"view_as_complex", r"unflatten\(-1, \(-1, 2\)\)")
SPLIT = (r"shape\[-1\] // 2", r"chunk\(\w+, 2, dim=-1\)", r"\.chunk\(2, dim=-1\)")


def source(model_type):
    from transformers.models.auto.configuration_auto import model_type_to_module_name

    name = model_type_to_module_name(model_type)
    folder = Path(importlib.util.find_spec("transformers").submodule_search_locations[0])
    path = folder / "models" / name / f"modeling_{name}.py"
    if not path.exists():  # Our constraints give Python 3.10 an older transformers.
        pytest.skip(f"this transformers has no {model_type}")
    return path.read_text(encoding="utf-8")


def turning_code(text):
    """The functions that turn: their bodies are where channels are paired."""
    pattern = r"^( *)def (?:rotate_\w+|_?apply_rotary_\w+)\(.*?(?=^\1(?:def|class|@)|\Z)"
    bodies = [match.group(0) for match in re.finditer(pattern, text, re.S | re.M)]
    assert bodies
    return "\n".join(bodies)


@pytest.mark.parametrize("model_type", INTERLEAVED)
def test_interleaved(model_type):
    code = turning_code(source(model_type))
    assert any(re.search(pattern, code) for pattern in PAIRED)


@pytest.mark.parametrize("model_type", HALF)
def test_half(model_type):
    code = turning_code(source(model_type))
    assert any(re.search(pattern, code) for pattern in SPLIT)
    assert not any(re.search(pattern, code) for pattern in PAIRED)
