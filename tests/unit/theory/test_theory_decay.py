import numpy as np
import pytest

from rotary import Frequencies, inverse_power
from rotary.errors import ConfigError, ShapeError
from rotary.theory import (
    abel_bound,
    code_distance,
    decay,
    final_sum,
    mean_cosine,
    partial_sums,
    score,
    wavelengths,
)

GOLDEN = {0: 32.5, 1: 31.538166142658085, 2: 28.955988473564467, 256: 6.54309732297895}
ROPE = inverse_power(128)


def test_the_first_posts_numbers():
    np.testing.assert_allclose(decay(ROPE, list(GOLDEN)), list(GOLDEN.values()), rtol=0, atol=1e-10)


def test_the_first_posts_mathematica_line():
    """The post sums j = 0 .. d/2 - 1 with the inner sum up to and including j."""
    d, m = 16, 5
    theta = [10000 ** (-2 * t / d) for t in range(d // 2)]
    total = 0.0
    for j in range(d // 2):
        total += abs(sum(np.exp(1j * m * theta[i]) for i in range(j + 1)))
    assert decay(inverse_power(d), m) == pytest.approx(total / (d / 2), abs=1e-12)


@pytest.mark.parametrize(
    "name", ["d128_base10000", "d64_base10000", "d128_base500000", "d128_base1000000"]
)
def test_three_curves(reference, name):
    dim, base = (int(part.lstrip("dbase")) for part in name.split("_"))
    tables = reference["theory"]["abel_decay"][name]
    frequencies = inverse_power(dim, float(base))
    for table, curve, tolerance in (
        ("B", decay, 1e-10),
        ("abs_S_last_over_half", final_sum, 1e-12),
        ("cos_mean", mean_cosine, 1e-12),
    ):
        distances = np.array([int(m) for m in tables[table]])
        expected = np.array(list(tables[table].values()))
        got = curve(frequencies, distances)
        # Beyond 2^14 an angle is known to 1e-11 only: float64 frequencies differ by a rounding.
        near = distances <= 1 << 14
        np.testing.assert_allclose(got[near], expected[near], rtol=0, atol=tolerance)
        np.testing.assert_allclose(got, expected, rtol=0, atol=max(tolerance, 2e-12))


def test_shape_of_the_bound(reference):
    group = reference["theory"]["abel_decay"]["d128_base10000_shape"]
    values = decay(ROPE, np.arange(257))
    np.testing.assert_allclose(values[:11], group["first_10_B"], rtol=0, atol=1e-10)
    rises = np.flatnonzero(np.diff(values) > 0)
    assert len(rises) == group["n_increasing_steps_0_256"] == 115
    assert rises[0] == group["first_increase_at_m"] == 18
    assert values.argmin() == group["argmin_0_256"]
    assert values.min() == pytest.approx(group["min_0_256"], abs=1e-10)


def test_it_is_no_monotone_decay():
    values = decay(ROPE, np.arange(257))
    assert (np.diff(values) > 0).sum() == 115
    beyond = decay(ROPE, [4096, 131072])
    assert beyond[1] > 1.7 * beyond[0]  # Past the longest wavelength it has risen again.


def test_the_bound_holds_and_is_loose(reference):
    group = reference["theory"]["abel_bound_random_gaussian"]
    distances = np.array([1, 4, 16, 64, 256])
    ratios = []
    for seed in range(200):
        query, key = np.random.default_rng(seed).normal(size=(2, 128))
        bound = abel_bound(ROPE, query, key, distances)
        ratios.append(np.abs(score(ROPE, query, key, distances)) / bound)
    assert np.max(ratios) <= 1.0
    assert np.mean(ratios) < 0.01
    assert np.max(ratios) < 3 * group["max_actual_over_bound"]


def test_the_bound_is_reached_by_its_own_h():
    """With one plane the bound is |h| and so is the score: it cannot be made smaller in general."""
    one = inverse_power(2)
    assert abel_bound(one, [1.0, 0.0], [1.0, 0.0], [0]) == score(one, [1.0, 0.0], [1.0, 0.0], [0])


def test_slack_for_equal_planes(reference):
    for distance, group in reference["theory"]["abel_slack_constant_h"].items():
        ones = np.ones(128)
        # |sum h e^{i m theta}| with h = 2: the modulus, of which the score is the real part.
        modulus = 2 * 64 * final_sum(ROPE, int(distance))
        assert modulus == pytest.approx(group["actual_abs"], abs=1e-10)
        assert abel_bound(ROPE, ones, ones, int(distance)) == pytest.approx(
            group["bound"], abs=1e-8
        )
        assert score(ROPE, ones, ones, int(distance)) <= modulus + 1e-12


def test_single_scores_need_not_decay(reference):
    """A query turned by 100 positions peaks at distance 100 while the bound has fallen."""
    group = reference["theory"]["abel_counterexample"]
    theta = ROPE.matrix[0]
    query = np.stack([np.cos(-100 * theta), np.sin(-100 * theta)], axis=-1).reshape(-1)
    key = np.tile([1.0, 0.0], 64)
    got = score(ROPE, query, key, [0, 100, 200])
    expected = [group["score_m0"], group["score_m100"], group["score_m200"]]
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-10)
    assert got[1] == pytest.approx(64.0, abs=1e-10)
    assert abel_bound(ROPE, query, key, 100) == pytest.approx(group["bound_at_100"], abs=1e-8)


@pytest.mark.parametrize(
    "theta",
    [
        np.linspace(1, 1 / 64, 64),
        np.linspace(1, 0.05, 64) ** 2,
        np.exp(-np.linspace(0, 4, 64)),
        1 / np.arange(1, 65),
        np.sqrt(np.linspace(1, 1 / 64, 64)),
    ],
    ids=["linear", "quadratic", "exponential", "harmonic", "root"],
)
def test_almost_any_monotone_theta_decays_at_first(theta):
    values = decay(Frequencies(theta), np.arange(1, 129))
    assert values[31] < 0.6 * 32.5
    assert values[96:].mean() < values[:32].mean()


def test_one_shared_theta_repeats_and_has_no_decay():
    theta = 0.25
    shared = Frequencies(np.full(8, theta))
    period = wavelengths(shared)[0, 0]
    assert period == pytest.approx(2 * np.pi / theta, abs=1e-12)
    distances = np.array([0.0, 1.0, 5.5, 100.0])
    np.testing.assert_allclose(decay(shared, distances), (8 + 1) / 2, rtol=0, atol=1e-12)
    for curve in (mean_cosine, code_distance):
        np.testing.assert_allclose(
            curve(shared, distances + period), curve(shared, distances), rtol=0, atol=1e-12
        )
    assert code_distance(shared, period) == pytest.approx(0, abs=1e-12)
    assert code_distance(inverse_power(16), period) > 0.5


def test_scores_are_those_of_turned_vectors():
    from rotary.theory import elementwise_form

    query, key = np.random.default_rng(0).normal(size=(2, 16))
    theta = inverse_power(16).matrix[0]
    direct = elementwise_form(query, 9 * theta) @ elementwise_form(key, 4 * theta)
    assert score(inverse_power(16), query, key, 5) == pytest.approx(direct, abs=1e-12)
    assert score(inverse_power(16), query, key, -5) != pytest.approx(direct, abs=1e-3)


def test_many_distances_are_the_same_in_chunks():
    distances = np.arange(70_000).reshape(2, -1)
    values = decay(inverse_power(4), distances)
    assert values.shape == distances.shape
    np.testing.assert_array_equal(values[1, -3:], decay(inverse_power(4), distances[1, -3:]))
    plane = Frequencies([[1.0, 0.0], [0.0, 1.0]])
    grid = np.stack(np.meshgrid(np.arange(200.0), np.arange(201.0)), axis=-1)
    values = mean_cosine(plane, grid)
    assert values.shape == (201, 200)
    assert values[3, 5] == pytest.approx((np.cos(5) + np.cos(3)) / 2, abs=1e-12)


def test_partial_sums_are_what_is_averaged():
    sums = partial_sums(ROPE, [3, 7])
    assert sums.shape == (2, 64)
    np.testing.assert_allclose(np.abs(sums).mean(axis=-1), decay(ROPE, [3, 7]), atol=1e-12)


def test_errors():
    with pytest.raises(ShapeError, match=r"differ from head to head \(2 heads\)"):
        decay(Frequencies(np.ones((2, 1, 3))), [1])
    with pytest.raises(ShapeError, match=r"with 2 position axes expected \(\.\.\., 2\)"):
        decay(Frequencies(np.ones((2, 3))), [1, 2, 3])
    with pytest.raises(ConfigError, match="not finite"):
        decay(ROPE, [np.nan])
    with pytest.raises(ShapeError, match=r"for 64 planes expected \(128,\) each"):
        score(ROPE, np.ones(64), np.ones(128), 1)
