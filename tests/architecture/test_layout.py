"""The shape of the library: small files, a small public surface, nothing loaded in secret."""

import pkgutil
import subprocess
import sys
from pathlib import Path

import rotary.data

SOURCE = Path(__file__).parents[2] / "src" / "rotary"


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
