"""The pages of docs/theory: their code runs, formulas parse, figures and links exist."""

import doctest
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted((DOCS / "theory").glob("*.md"))

PARSE = """
const katex = require(process.argv[1]);
const bad = [];
for (const [where, tex, display] of JSON.parse(require("fs").readFileSync(0, "utf8"))) {
  try { katex.renderToString(tex, {displayMode: display, throwOnError: true, strict: "error"}); }
  catch (error) { bad.push(`${where}: ${tex}: ${error.message}`); }
}
console.log(JSON.stringify(bad));
"""


def prose(text):
    """The page without its code, where a dollar is a dollar."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.S | re.M)
    return re.sub(r"`[^`\n]*`", "", text)


def formulas(path):
    """Every formula of a page: (page, tex, whether it stands on its own)."""
    text = prose(path.read_text(encoding="utf-8"))
    displayed, inline = r"\$\$(.+?)\$\$", r"\$([^$\n]+?)\$"
    rest = re.sub(displayed, "", text, flags=re.S)
    left = re.sub(inline, "", rest)
    assert "$" not in left, f"{path.name} has an odd dollar sign; does a formula break a line?"
    return [(path.name, tex, True) for tex in re.findall(displayed, text, flags=re.S)] + [
        (path.name, tex, False) for tex in re.findall(inline, rest)
    ]


def parse(entries):
    """What KaTeX says against these formulas."""
    node = shutil.which("node")
    # `make katex` puts it beside the environment that runs the tests.
    katex = Path(sys.prefix) / "katex" / "node_modules" / "katex"
    if node is None:
        pytest.skip("needs node, to parse the formulas with KaTeX")
    if not katex.is_dir():
        pytest.skip("needs KaTeX: run `make katex`, which needs npm")
    done = subprocess.run(
        [node, "-e", PARSE, str(katex)],
        input=json.dumps(entries),
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return json.loads(done.stdout)


@pytest.mark.parametrize("page", [p for p in PAGES if p.stem != "README"], ids=lambda p: p.stem)
def test_code_blocks_run(page):
    blocks = re.findall(r"^```pycon\n(.*?)^```$", page.read_text("utf-8"), flags=re.S | re.M)
    # Blocks of a page share their names, as a reader's session would.
    session = doctest.DocTestParser().get_doctest("\n".join(blocks), {}, page.name, str(page), 0)
    assert len(session.examples) > len(blocks) > 0
    log = []
    failed = doctest.DocTestRunner().run(session, out=log.append).failed
    assert not failed, "".join(log)


def test_formulas_parse():
    entries = [entry for path in sorted(DOCS.rglob("*.md")) for entry in formulas(path)]
    assert sum(display for _, _, display in entries) > 30
    assert parse(entries) == []


def test_a_broken_formula_is_seen():
    entries = [("a", r"\frac{1}{2", True), ("b", r"\nosuchthing", False), ("c", "x^2", False)]
    bad = parse(entries)
    assert [message[0] for message in bad] == ["a", "b"]


def test_links_anchors_and_figures_exist():
    shown = set()
    for page in PAGES:
        text = prose(page.read_text(encoding="utf-8"))
        for target, anchor in re.findall(r"\]\(([^)#]*)#?([^)]*)\)", text):
            linked = page.parent / target if target else page
            assert linked.is_file(), f"{page.name} links to {target}"
            shown.add(target)
            if anchor:
                headings = re.findall(r"^#+ (.+)$", linked.read_text("utf-8"), flags=re.M)
                assert anchor in {heading.lower().replace(" ", "-") for heading in headings}
    figures = {f"figures/{path.name}" for path in (DOCS / "theory" / "figures").iterdir()}
    assert figures == {target for target in shown if target.startswith("figures/")}


def test_every_function_of_the_theory_is_in_its_pages():
    import rotary.theory

    functions = {name for name in rotary.theory.__all__ if name.islower()}
    words = set(re.findall(r"\w+", "\n".join(page.read_text("utf-8") for page in PAGES)))
    assert functions - words == set()
