"""Timing that can be compared: interleaved repeats in one process, medians, a warm allocator.

A case is a function without arguments. All cases of a comparison take turns, so that whatever else
the machine does falls on all of them alike, and only ratios between them are read.
"""

from __future__ import annotations

import ctypes
import gc
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from rotary.errors import ConfigError, RunError

Case = Callable[[], object]

COLD = 1.3
"""A run whose ``clone`` takes more than this many times its ``copy_`` paid for fresh pages.

One in which ``copy_`` is that much slower was disturbed: it only ever does less.
"""


@dataclass(frozen=True)
class Timing:
    """What a case took.

    Attributes:
        seconds: Median over the repeats, for one call.
        spread: Distance between the quartiles, as a part of the median.
        repeats: Number of samples.
        calls: Number of calls in each sample.
    """

    seconds: float
    spread: float
    repeats: int
    calls: int


@contextmanager
def _quiet_collector() -> Iterator[None]:
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def warm_allocator() -> bool:
    """Keep freed memory in the process, so that a large result does not pay for fresh pages.

    Under glibc a tensor of some megabytes is otherwise given back to the system when it dies, and
    filling the next one costs a page fault every 4 KiB: several times the work that is measured.

    Returns:
        Whether the C library offered the switch.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    trim_threshold, mmap_max = -1, -4
    return bool(mallopt(mmap_max, 0)) and bool(mallopt(trim_threshold, 2**31 - 1))


def interleave(
    cases: Mapping[str, Case],
    *,
    repeats: int = 25,
    sample_seconds: float = 1e-3,
    synchronize: Case | None = None,
) -> dict[str, Timing]:
    """Time all cases in turns: each repeat takes one sample of every case.

    Args:
        cases: Name and function; a function's result is dropped before the next call.
        repeats: Samples of each case, at least 3.
        sample_seconds: A case shorter than this is called several times in one sample.
        synchronize: Waits for the device, for instance ``torch.cuda.synchronize``.

    Returns:
        The timing of each case, under its name.

    Raises:
        ConfigError: If there are fewer than 3 repeats.

    Example:
        >>> timings = interleave({"sum": lambda: sum(range(100))}, repeats=3)
        >>> timings["sum"].seconds > 0
        True
    """
    if repeats < 3:
        raise ConfigError(f"interleave: repeats is {repeats}; a median needs at least 3.")
    wait = synchronize or (lambda: None)

    def sample(case: Case, calls: int) -> float:
        wait()
        start = time.perf_counter_ns()
        for _ in range(calls):
            case()
        wait()
        return (time.perf_counter_ns() - start) * 1e-9 / calls

    with _quiet_collector():
        calls = {}
        for name, case in cases.items():
            sample(case, 2)  # Warms caches, allocators and compilers.
            once = min(sample(case, 1) for _ in range(3))
            calls[name] = max(1, min(10_000, round(sample_seconds / max(once, 1e-9))))
        samples: dict[str, list[float]] = {name: [] for name in cases}
        names = list(cases)
        order = random.Random(0)
        for _ in range(repeats):
            order.shuffle(names)  # Nobody always finds in the cache what the same neighbour left.
            for name in names:
                samples[name].append(sample(cases[name], calls[name]))
    return {name: _summary(samples[name], calls[name]) for name in cases}


def interleave_with_floor(
    cases: Mapping[str, Case],
    *,
    clone: str = "clone",
    copy: str = "copy_",
    tries: int = 8,
    repeats: int = 25,
    sample_seconds: float = 0.0,
    synchronize: Case | None = None,
) -> dict[str, Timing]:
    """Time cases beside the two floors, and repeat a run in which these two disagree.

    Every sample is a single call unless told otherwise. Where a case fits the last cache, calls of
    it in a row would find there what they themselves left, and most of all ``copy_``, whose results
    always lie at the same place.

    Args:
        cases: All cases, the two floors among them.
        clone: Name of the floor that allocates its result.
        copy: Name of the floor that copies the same tensors into ready ones.
        tries: Runs before giving up.
        repeats: See :func:`interleave`.
        sample_seconds: See :func:`interleave`; 0 makes every sample a single call.
        synchronize: See :func:`interleave`.

    Raises:
        RunError: If one of the two stays above 1.3 times the other: no ratio to them means
            anything then, and with a slow ``clone`` every one would look good.
    """
    seen = []
    for _ in range(tries):
        timings = interleave(
            cases, repeats=repeats, sample_seconds=sample_seconds, synchronize=synchronize
        )
        seen.append(timings[clone].seconds / timings[copy].seconds)
        if 1 / COLD <= seen[-1] <= COLD:
            return timings
    listed = ", ".join(f"{ratio:.2f}" for ratio in seen)
    raise RunError(
        f"benchmark: in {tries} runs {clone} took {listed} times {copy}; above {COLD} the memory "
        "allocator hands out fresh pages, far below 1 the machine is busy, and no ratio to a clone "
        "means anything. Run it again on a quiet machine."
    )


def _summary(samples: list[float], calls: int) -> Timing:
    low, middle, high = statistics.quantiles(samples, n=4)
    return Timing(statistics.median(samples), (high - low) / middle, len(samples), calls)
