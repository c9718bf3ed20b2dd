"""The package builds from a clean copy with a compiler and without one, and works elsewhere."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(command, **options):
    done = subprocess.run(command, capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("has_compiler", [True, False])
def test_wheel_from_a_clean_copy_passes_unit_tests_outside_it(tmp_path, has_compiler):
    copy, wheels, target, elsewhere = (
        tmp_path / name for name in ("copy", "wheels", "target", "elsewhere")
    )
    built = shutil.ignore_patterns("*.so", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT / "src", copy / "src", ignore=built)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    environment = dict(os.environ)
    environment.pop("PYTHONPATH", None)
    if not has_compiler:
        environment |= {"CC": str(tmp_path / "no-compiler"), "CXX": str(tmp_path / "no-compiler")}
    pip = [sys.executable, "-m", "pip"]
    options = ["--no-deps", "--no-build-isolation"]
    said = run([*pip, "wheel", "-v", *options, "-w", str(wheels), str(copy)], env=environment)
    (wheel,) = wheels.glob("rotary-*.whl")
    assert ("the CPU extension was not built" in said) is not has_compiler
    run([*pip, "install", "-q", "--no-deps", "--target", str(target), str(wheel)], env=environment)
    assert bool(list(target.rglob("_cpu*.so"))) is has_compiler

    tests = elsewhere / "tests" / "unit"
    tests.mkdir(parents=True)
    shutil.copy(ROOT / "tests" / "conftest.py", tests.parent)
    shutil.copy(ROOT / "pyproject.toml", elsewhere)
    names = ["test_embedding.py", *(["test_kernels_cpu.py"] if has_compiler else [])]
    for name in names:
        shutil.copy(ROOT / "tests" / "unit" / name, tests)
    environment["PYTHONPATH"] = str(target)
    code = (
        "import rotary.kernels as k, torch; print(k.__file__); print(k.explain(torch.ones(1, 2)))"
    )
    seen = run([sys.executable, "-c", code], cwd=elsewhere, env=environment).splitlines()
    assert seen[0].startswith(str(target))
    assert seen[-1 if not has_compiler else 1].split(":")[1].startswith(" serves")
    chosen = ["-k", "embedding or golden or sizes or in_place or public"]
    run([sys.executable, "-m", "pytest", *chosen, "tests"], cwd=elsewhere, env=environment)
