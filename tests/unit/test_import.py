"""`import rotary` is quick and light, and each of its functions shows an example."""

import subprocess
import sys

import pytest

import rotary


def test_every_public_function_shows_an_example():
    for module in (rotary, rotary.frequencies, rotary.layouts, rotary.positions):
        for name in module.__all__:
            value = getattr(module, name)
            if callable(value) and not isinstance(value, type):
                assert ">>>" in (value.__doc__ or ""), f"{name} has no example"
                assert (
                    "Args:" in value.__doc__
                    or "the same arguments" in value.__doc__
                    or (name in ("from_recipe", "yarn_mscale"))
                ), f"{name} does not say what its arguments are"


HEAVY = ("transformers", "tokenizers", "datasets", "matplotlib", "scipy", "pandas", "triton")


def run(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_import_loads_nothing_heavy():
    loaded = run("import sys, torch; before = set(sys.modules); import rotary\n"
                 "print(*sorted(set(sys.modules) - before))")  # fmt: skip
    assert "rotary" in loaded.split()
    assert not [name for name in loaded.split() if name.split(".")[0] in HEAVY]


@pytest.mark.slow
def test_import_costs_little_more_than_torch():
    """At most 1.1 times: the time of ours after PyTorch's, in one process, best of three."""
    code = (
        "import time\nstart = time.perf_counter()\nimport torch\nmiddle = time.perf_counter()\n"
        "import rotary\nend = time.perf_counter()\nprint((end - start) / (middle - start))"
    )
    ratios = [float(run(code)) for _ in range(3)]
    assert min(ratios) <= 1.1, ratios
