"""``rotary plot``: the figures of the theory, as PNG, SVG or PDF."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from rotary import plots

FIGURES: dict[str, tuple[Callable[..., Any], str]] = {
    "decay": (plots.decay_figure, "the first post's bound on scores, and how it goes on"),
    "wavelengths": (plots.wavelengths_figure, "the wavelength of every plane against a context"),
    "schedules": (plots.schedules_figure, "what context extensions do to each plane"),
    "grid": (plots.grid_figure, "which cells of an image look near, four encodings"),
    "resolution": (plots.resolution_figure, "how far positions stay apart, per dim and dtype"),
}


def main(arguments: list[str]) -> int:
    """Draw one figure and print where it was written."""
    options = vars(_parser().parse_args(arguments))
    name = options.pop("figure")
    output = options.pop("output") or f"{name}.png"
    draw, _ = FIGURES[name]
    # What is not given keeps the default of the function, its only home.
    given = {key: value for key, value in options.items() if value is not None}
    print(plots.save(draw(**given), output))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="rotary plot", description=__doc__)
    figures = parser.add_subparsers(dest="figure", required=True, metavar="FIGURE")
    for name, (_, summary) in FIGURES.items():
        one = figures.add_parser(name, help=summary, description=f"Draw {summary}.")
        one.add_argument(
            "--output", metavar="FILE", help=f".png, .svg or .pdf; {name}.png when left out"
        )
        if name != "resolution":
            one.add_argument("--dim", type=int, help="number of channels that turn")
        if name == "wavelengths":
            one.add_argument("--bases", type=float, nargs="+", help="one line for each base")
        else:
            one.add_argument("--base", type=float, help="base of the frequencies")
        if name in ("decay", "wavelengths", "resolution"):
            one.add_argument("--length", type=int, help="context length, or where distances end")
        if name == "schedules":
            one.add_argument("--factor", type=float, help="new length over original length")
            one.add_argument("--original-length", type=int, help="length of the first training")
        if name == "grid":
            one.add_argument("--size", type=int, help="cells in a row, and rows")
            one.add_argument("--seed", type=int, help="of the mixed frequencies")
        if name == "resolution":
            one.add_argument("--dims", type=int, nargs="+", help="one line for each dim")
    return parser
