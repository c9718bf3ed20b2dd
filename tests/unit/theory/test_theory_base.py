import numpy as np
import pytest

from rotary import inverse_power
from rotary.errors import ConfigError
from rotary.theory import (
    base_for_length,
    first_negative_distance,
    is_base_sufficient,
    mean_cosine,
)


@pytest.mark.parametrize(
    ("base", "length", "holds"),
    [
        (4300, 1024, True),
        (10000, 1024, True),
        (16000, 2048, True),
        (84000, 8192, True),
        (500000, 8192, True),
        (10000, 2048, False),
        (12000, 2048, False),
        (10000, 4096, False),
        (27000, 4096, False),
        (230000, 16384, False),
    ],
)
def test_su_condition(base, length, holds):
    assert is_base_sufficient(128, base, length) is holds


@pytest.mark.parametrize(("base", "first"), [(1e4, 1707), (1e5, 7757), (5e5, 18438), (1e6, 27115)])
def test_first_negative_distance(base, first):
    assert first_negative_distance(inverse_power(128, base), first + 1) == first
    assert first_negative_distance(inverse_power(128, base), first) is None
    assert mean_cosine(inverse_power(128, base), [first]) < 0


def test_the_condition_is_not_monotone_in_the_base():
    """A rounded value of Su's table fails where a smaller base holds: no bisection."""
    bases = 4294 * 1.002 ** np.arange(-20, 60)
    holds = np.array([is_base_sufficient(128, float(base), 1024) for base in bases])
    assert holds.any()
    assert (np.diff(holds.astype(int)) == -1).any()


@pytest.mark.parametrize(("length", "smallest"), [(1024, 4294), (2048, 11590)])
def test_search_finds_the_known_smallest_bases(length, smallest):
    base = base_for_length(128, length)
    assert is_base_sufficient(128, base, length)
    assert smallest * 0.999 <= base <= smallest * 1.003


def test_the_search_tests_every_distance():
    """The window around the last failure is a short cut for rejecting, never for accepting."""
    for length in (2, 3, 17, 300):
        base = base_for_length(16, length, ratio=1.01)
        assert (mean_cosine(inverse_power(16, base), np.arange(length)) >= 0).all()
        grid = 1.01 ** np.arange(round(np.log(base) / np.log(1.01)))
        assert not any(is_base_sufficient(16, float(each), length) for each in grid)


def test_longer_contexts_need_larger_bases():
    found = [base_for_length(64, length, ratio=1.01) for length in (128, 512, 2048, 8192)]
    assert found == sorted(found)
    assert found[-1] > 1.62 * 8192


def test_errors():
    with pytest.raises(ConfigError, match=r"no base up to 1e15 .* turn more channels"):
        base_for_length(2, 10, ratio=2)
    with pytest.raises(ConfigError, match=r"ratio is 1\.0; it must be greater than 1"):
        base_for_length(64, 10, ratio=1.0)
    with pytest.raises(ConfigError, match=r"length is 0; it must be an integer >= 1"):
        base_for_length(64, 0)
    with pytest.raises(ConfigError, match="dim is 7"):
        is_base_sufficient(7, 10000, 10)
