"""The shape of the library: small files, a small public surface, nothing loaded in secret."""

import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import rotary.data

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "rotary"


def test_library_files_stay_under_400_lines():
    lengths = {p: len(p.read_text("utf-8").splitlines()) for p in SOURCE.rglob("*.py")}
    assert {str(p): n for p, n in lengths.items() if n > 400} == {}


def test_import_loads_none_of_the_heavy_packages():
    code = "import rotary, sys; print(sorted({m.split('.')[0] for m in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(eval(done.stdout))
    assert (
        loaded & {"transformers", "tokenizers", "datasets", "matplotlib", "rich", "triton"} == set()
    )


def test_every_module_of_data_is_in_its_overview():
    modules = {module.name for module in pkgutil.iter_modules(rotary.data.__path__)}
    assert set(rotary.data.__doc__.split("``")) >= modules


def test_contributing_lists_the_modules_in_the_order_that_imports_are_held_to():
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    layers = re.search(r'"Imports point one way".*?layers = \[(.*?)\]', project, re.S)[1]
    contract = [set(re.findall(r"\w+", line)) for line in layers.splitlines() if line.strip()]
    page = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    rows = [set(re.findall(r"`(\w+)`", row)) for row in re.findall(r"^\| (`.*?) \|", page, re.M)]
    there = {path.stem for path in SOURCE.iterdir()}
    assert rows == [layer & there for layer in reversed(contract)]
    assert set.union(*rows) == {name for name in there if not name.startswith("_")} - {"py"}
