"""What the README shows is what happens."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from rotary.errors import missing

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCKS = [
    pytest.param(
        block,
        id=f"{page.relative_to(ROOT)}-{index}",
        marks=[pytest.mark.slow] if page.name == "how-to.md" else [],
    )
    for page in PAGES
    for index, block in enumerate(re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.S))
]


@pytest.mark.parametrize("block", BLOCKS)
def test_python_block_runs_in_an_empty_folder(block, tmp_path):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", block], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_readme_has_its_ten_lines_of_python():
    assert "```python" in (ROOT / "README.md").read_text("utf-8")


def test_what_a_missing_extra_says_is_what_the_readme_says():
    command = str(missing("a command", "a package", "train")).split(": ", 1)[1]
    assert f"\n{command}\n" in (ROOT / "README.md").read_text("utf-8")


def test_every_relative_link_leads_somewhere():
    missing = [
        f"{page.relative_to(ROOT)} -> {target}"
        for page in PAGES
        for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text("utf-8"))
        if "://" not in target and not (page.parent / target).exists()
    ]
    assert not missing
