"""Benchmarks with their proof beside them: a correctness gate, cases, and bars that must hold.

A suite is a module listed in :data:`~rotary.bench.suite.SUITES` with one object, ``SUITE``, of type
:class:`~rotary.bench.suite.Suite`: a ``gate`` that returns what is wrong (nothing, if all is
well), and a ``measure`` that writes rows and bars into a :class:`~rotary.bench.suite.Record`.
:func:`~rotary.bench.suite.run_suite` runs it, :mod:`~rotary.bench.report` prints it.
"""

from rotary.bench.suite import SUITES, Bar, Record, Row, Suite, load_suite, run_suite
from rotary.bench.timing import Timing, interleave, interleave_with_floor

__all__ = [
    "SUITES",
    "Bar",
    "Record",
    "Row",
    "Suite",
    "Timing",
    "interleave",
    "interleave_with_floor",
    "load_suite",
    "run_suite",
]
