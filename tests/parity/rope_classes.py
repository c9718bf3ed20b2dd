"""Find transformers' rotary classes and run them without importing its two hundred model files.

A rotary class needs little of its module. So the source is parsed, the classes that go through
``ROPE_INIT_FUNCTIONS`` or a ``compute_*`` of their own are cut out, and run on what they name;
only the configurations, which are light, are imported.
"""

import ast
import functools
import importlib
import math
from pathlib import Path

import torch
import transformers
from torch import nn
from transformers import modeling_rope_utils

MODELS = Path(transformers.__file__).parent / "models"
COMPUTE = ("compute_default_rope_parameters", "compute_axial_rope_parameters", "compute_ntk")


def _is_rotary(node):
    if not isinstance(node, ast.ClassDef):
        return False
    methods = [m.name for m in node.body if isinstance(m, ast.FunctionDef)]
    return any(name.startswith(COMPUTE) for name in methods) or any(
        isinstance(n, ast.Name) and n.id == "ROPE_INIT_FUNCTIONS" for n in ast.walk(node)
    )


@functools.lru_cache(maxsize=1)
def rotary_classes():
    """(model folder, class name, config class name) of every rotary class, sorted."""
    found = []
    for file in sorted(MODELS.glob("*/modeling_*.py")):
        text = file.read_text(encoding="utf-8")
        if not any(word in text for word in ("ROPE_INIT_FUNCTIONS", *COMPUTE)):
            continue
        found += [
            (file, node)
            for node in ast.parse(text).body
            if _is_rotary(node) and "PreTrainedModel" not in node.name
        ]
    return found


def config_name(node):
    """The annotation of the config in ``__init__`` or in ``compute_*``."""
    for method in node.body:
        if isinstance(method, ast.FunctionDef):
            for argument in method.args.args:
                if argument.arg == "config" and argument.annotation is not None:
                    return ast.unparse(argument.annotation).strip("'\"")
    return None


def build_class(node):
    """The class itself, run on the few names that such classes use."""
    space = {
        "torch": torch,
        "nn": nn,
        "math": math,
        "pi": math.pi,
        "Callable": object,
        "ROPE_INIT_FUNCTIONS": modeling_rope_utils.ROPE_INIT_FUNCTIONS,
        "dynamic_rope_update": modeling_rope_utils.dynamic_rope_update,
        "maybe_autocast": torch.autocast,
        "Tensor": torch.Tensor,
    }
    node.decorator_list = []
    tree = ast.Module(
        [ast.parse("from __future__ import annotations").body[0], node], type_ignores=[]
    )
    exec(compile(ast.fix_missing_locations(tree), node.name, "exec"), space)
    return space[node.name]


def config_class(file, name):
    """The configuration class of that name in the same folder."""
    for path in sorted(file.parent.glob("configuration_*.py")):
        module = importlib.import_module(f"transformers.models.{file.parent.name}.{path.stem}")
        if hasattr(module, name):
            return getattr(module, name)
    return getattr(transformers, name)
