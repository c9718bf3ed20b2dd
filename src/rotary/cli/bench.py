"""``rotary bench``: run a benchmark suite, print its table and bars, write its JSON."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from rotary.bench import SUITES, Record, load_suite, run_suite
from rotary.bench.report import Table, bar_line, write_json
from rotary.errors import ConfigError


def main(arguments: list[str]) -> int:
    """Run the suites that were named, all of them by default; 1 if a bar is not met."""
    options = _parser().parse_args(arguments)
    names = options.suite or list(SUITES)
    if options.json is not None and len(names) > 1:
        raise ConfigError(f"--json names one file, but {len(names)} suites would write to it.")
    if options.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("--device is 'cuda', but PyTorch sees no GPU; leave it out for the CPU.")
    if options.threads:
        torch.set_num_threads(options.threads)
    code = 0
    # All of them first: what one lacks is said before another has taken its minutes.
    for name, suite in [(name, load_suite(name)) for name in names]:
        print(f"{suite.name}: {suite.summary}", flush=True)
        record = Record(
            data=options.data, device=options.device, repeats=options.repeats, show=Table()
        )
        run_suite(suite, record)
        print("", *map(bar_line, record.bars), sep="\n")
        path = options.json or Path("benchmarks", "results", f"{name}.json")
        write_json(path, name, record)
        print(f"written to {path}")
        code = max(code, record.exit_code)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="rotary bench",
        description="Time the library beside its floors and peers. Each suite first checks that "
        "what it is about to time is right. Exit code 1 if a bar is not met or data is absent.",
    )
    parser.add_argument(
        "suite",
        nargs="*",
        metavar="SUITE",
        help=f"which to run, all by default: {', '.join(SUITES)}",
    )
    parser.add_argument(
        "--data",
        type=Path,
        default=Path("../shared/data"),
        help="folder with real text for the suites that need it (default: %(default)s)",
    )
    parser.add_argument(
        "--json",
        type=Path,
        default=None,
        help="where to write the record (default: benchmarks/results/SUITE.json)",
    )
    parser.add_argument(
        "--repeats", type=int, default=25, help="samples for each case (default: %(default)s)"
    )
    parser.add_argument(
        "--threads", type=int, default=0, help="threads for PyTorch (default: its own choice)"
    )
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), default="cpu", help="(default: %(default)s)"
    )
    return parser
