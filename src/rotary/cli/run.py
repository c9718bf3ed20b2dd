"""``rotary run``: run a script written for Hugging Face models, with ours in the Auto classes."""

from __future__ import annotations

import os
import runpy
import sys

from rotary.errors import RunError

_USAGE = """usage: rotary run SCRIPT [ARGUMENTS ...]
       rotary run -m MODULE [ARGUMENTS ...]

Run a Python script unchanged, after rotary.models.register(): AutoModelForMaskedLM and its kin then
build the RoFormer of this library for folders of model type roformer and rotary_roformer.
With several processes: torchrun --no-python --nproc-per-node 2 rotary run SCRIPT ..."""


def main(arguments: list[str]) -> int:
    """Run the command; return the exit code."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_USAGE)
        return 0 if arguments else 2
    is_module = arguments[0] == "-m"
    rest = arguments[1:] if is_module else arguments
    if not rest:
        raise RunError("-m needs the name of a module; `rotary run --help` shows how.")
    target = rest[0]
    if not is_module and not os.path.isfile(target):
        raise RunError(f"there is no script {target!r}.")
    from rotary.models import register

    register()
    # As `python SCRIPT` would: the script sees its own arguments, and its folder comes first.
    saved_arguments, saved_path = sys.argv, list(sys.path)
    sys.argv = list(rest)
    sys.path.insert(0, os.getcwd() if is_module else os.path.dirname(os.path.abspath(target)))
    try:
        if is_module:
            runpy.run_module(target, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(target, run_name="__main__")
    finally:
        sys.argv, sys.path[:] = saved_arguments, saved_path
    return 0
