"""`rotary.testing`: what it must let through, and what it must not."""

import math

import pytest
import torch

from rotary.errors import ShapeError
from rotary.testing import assert_matches_reference

INF, NAN = math.inf, math.nan


def check(actual, reference, plain=None, dtype=torch.float16):
    kind = torch.float64
    plain = None if plain is None else torch.tensor(plain, dtype=dtype)
    assert_matches_reference(
        torch.tensor(actual, dtype=dtype),
        reference=torch.tensor(reference, dtype=kind),
        plain=plain,
    )


@pytest.mark.parametrize(
    ("actual", "reference"),
    [
        ([INF, 1.0], [1e6, 1.0]),  # The one number that float16 has for it.
        ([-INF, 1.0], [-INF, 1.0]),
        ([1.0, 2.0], [1.0, 2.0005]),
        (3.0, 3.0),
        ([], []),
    ],
)
def test_lets_through_what_is_right(actual, reference):
    check(actual, reference)


@pytest.mark.parametrize(
    ("actual", "reference", "plain"),
    [
        ([1.0, 5.0], [1e6, 1.0], None),
        ([INF, 5.0], [1e6, 1.0], None),
        ([INF, 5.0], [INF, 1.0], None),
        ([1.0, 1.0], [INF, 1.0], None),
        ([1.0, 1.0], [INF, 1.0], [1.0, 1.0]),
        ([-INF, 1.0], [INF, 1.0], None),
        ([INF, 1.0], [2.0, 1.0], None),
        ([NAN, 1.0], [NAN, 1.0], None),
        ([NAN, 1.0], [1.0, 1.0], [NAN, 1.0]),
        ([1.0, 5.0], [1.0, 1.0], [INF, 1.0]),
        ([1.0, 2.01], [1.0, 2.0], None),
    ],
)
def test_stops_what_is_wrong_also_beside_an_overflow(actual, reference, plain):
    with pytest.raises(AssertionError, match="differs from the reference in"):
        check(actual, reference, plain)


def test_plain_arithmetic_widens_the_tolerance():
    check([1.0, 2.01], [1.0, 2.0], plain=[1.0, 2.006])
    with pytest.raises(AssertionError, match="differs from the reference in 1 of 2"):
        check([1.0, 2.02], [1.0, 2.0], plain=[1.0, 2.006])


def test_wants_a_float64_reference_of_the_same_shape():
    with pytest.raises(ShapeError, match=r"not float64"):
        assert_matches_reference(torch.ones(2), reference=torch.ones(2))
    with pytest.raises(ShapeError, match=r"has shape \(2,\), the reference \(3,\)"):
        check([1.0, 2.0], [1.0, 2.0, 3.0])
