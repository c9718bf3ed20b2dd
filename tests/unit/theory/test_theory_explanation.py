import numpy as np
import pytest

from rotary import Frequencies, inverse_power
from rotary.errors import ShapeError
from rotary.frequencies import linear, llama3, ntk, proportional, sections, yarn
from rotary.theory import explain, wavelengths

PLAIN = inverse_power(128, 500000.0)


def spans(frequencies, original, length=4096):
    found = explain(frequencies, length, original=original)
    return [(group.first, group.last, group.change) for group in found.groups]


def test_llama_3_keeps_blends_and_divides():
    scaled = llama3(PLAIN, 8.0, 8192)
    assert spans(scaled, PLAIN) == [(0, 28, "kept"), (29, 34, "blended"), (35, 63, "divided")]
    kept, blended, divided = explain(scaled, 131072, original=PLAIN).groups
    assert kept.divisors == pytest.approx((1, 1))
    assert divided.divisors == pytest.approx((8, 8))
    ratios = PLAIN.matrix[0, 29:35] / scaled.matrix[0, 29:35]
    assert blended.divisors == pytest.approx((ratios.min(), ratios.max()), rel=1e-12)
    waves = wavelengths(scaled)[0, 29:35]
    assert blended.wavelengths == pytest.approx((waves.min(), waves.max()), rel=1e-12)


def test_other_schedules():
    plain = inverse_power(128)
    assert spans(plain, None) == [(0, 63, "kept")]
    assert spans(linear(plain, 4.0), plain) == [(0, 63, "divided")]
    assert spans(ntk(plain, 4.0), plain) == [(0, 0, "kept"), (1, 63, "blended")]
    assert spans(yarn(plain, 16.0, 4096), plain) == [
        (0, 20, "kept"),
        (21, 45, "blended"),
        (46, 63, "divided"),
    ]
    partly = proportional(64, 0.25)
    assert spans(partly, None) == [(0, 7, "kept"), (8, 31, "still")]
    raised = Frequencies(plain.matrix * 2)
    assert spans(raised, plain) == [(0, 63, "raised")]


def test_two_divisors_in_a_row_are_two_groups():
    plain = Frequencies(np.ones(6))
    scaled = Frequencies([0.5, 0.5, 0.5, 0.25, 0.25, 0.2])
    assert spans(scaled, plain) == [(0, 2, "divided"), (3, 4, "divided"), (5, 5, "blended")]


def test_planes_that_never_complete_a_turn():
    found = explain(inverse_power(128), 4096)
    assert found.incomplete == list(range(46, 64))
    assert found.still == []
    assert found.first_negative == 1707
    resting = explain(proportional(64, 0.25), 100)
    assert resting.still == list(range(8, 32))
    assert not set(resting.incomplete) & set(resting.still)


def test_several_axes():
    matrix = Frequencies([[1.0, 0.1, 0.0, 0.0], [0.0, 0.0, 1.0, 0.1]])
    found = explain(matrix, 10)
    assert [(group.axis, group.first, group.last) for group in found.groups] == [
        (0, 0, 1),
        (0, 2, 3),
        (1, 0, 1),
        (1, 2, 3),
    ]
    assert [group.change for group in found.groups] == ["kept", "still", "still", "kept"]
    assert found.still == []
    assert found.incomplete == [1, 3]


def test_text_positions_are_equal_on_all_axes():
    """Sections deal planes out to axes; for text the condition is that of the planes together."""
    plain = inverse_power(128)
    dealt = sections(plain, [16, 24, 24])
    assert explain(dealt, 4096).first_negative == explain(plain, 4096).first_negative == 1707


def test_errors():
    with pytest.raises(ShapeError, match=r"shape \(1, 4\) and the original ones \(1, 8\)"):
        explain(inverse_power(8), 10, original=inverse_power(16))
