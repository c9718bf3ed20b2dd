import numpy as np
import pytest

from rotary import Frequencies, inverse_power
from rotary.errors import ShapeError
from rotary.theory import (
    code_distance,
    exponential,
    flattened,
    generators_of,
    is_lossless,
    is_relative,
    margin,
    mean_cosine,
    quaternion_encoding,
    quaternion_exponential,
    quaternion_matrix,
    quaternion_product,
    random_generators,
    rank,
    relativity_error,
    skew,
    summed,
)


def axial(theta):
    zero = np.zeros_like(theta)
    return Frequencies([np.concatenate([theta, zero]), np.concatenate([zero, theta])])


def test_quaternions_multiply_by_the_posts_table():
    one, i, j, k = np.eye(4)
    table = [
        [one, i, j, k],
        [i, -one, k, -j],
        [j, -k, -one, i],
        [k, j, -i, -one],
    ]
    for left, row in zip((one, i, j, k), table, strict=True):
        for right, expected in zip((one, i, j, k), row, strict=True):
            np.testing.assert_array_equal(quaternion_product(left, right), expected)


def test_quaternion_exponential_is_that_of_its_matrix():
    from rotary.theory import matrix_exponential

    draws = np.random.default_rng(0).normal(size=(5, 4))
    np.testing.assert_allclose(
        quaternion_matrix(quaternion_exponential(draws)),
        matrix_exponential(quaternion_matrix(draws)),
        rtol=0,
        atol=1e-12,
    )
    np.testing.assert_array_equal(quaternion_exponential(np.zeros(4)), [1, 0, 0, 0])


def test_quaternions_are_not_relative(reference):
    group = reference["precision_and_algebra"]["quaternion_counterexample"]
    i, j = np.eye(4)[1], np.eye(4)[2]
    exp_i, exp_j = quaternion_exponential(i), quaternion_exponential(j)
    conjugate = exp_i * [1, -1, -1, -1]
    for got, name in (
        (quaternion_product(exp_i, exp_j), "exp(i)exp(j)"),
        (quaternion_exponential(i + j), "exp(i+j)"),
        (quaternion_product(conjugate, exp_j), "conj(exp(i))*exp(j)"),
        (quaternion_exponential(j - i), "exp(j-i)"),
    ):
        np.testing.assert_allclose(got, group[name], rtol=0, atol=1e-12)
    encode = quaternion_encoding()
    origin, up, right, corner = encode(np.array([[0, 0], [0, 1], [1, 0], [1, 1.0]]))
    from_origin, from_right = origin.T @ up, right.T @ corner
    for got, start in ((from_origin, "(0,0)"), (from_right, "(1,0)")):
        name = f"same displacement (0,1): from {start} first column"
        np.testing.assert_allclose(got[:, 0], group[name], rtol=0, atol=1e-12)
    gap = from_origin - from_right
    assert np.abs(gap).max() == pytest.approx(group["max_abs_diff"], abs=1e-12)
    assert np.linalg.norm(gap) == pytest.approx(group["frobenius_diff"], abs=1e-12)
    assert from_origin[0, 0] == pytest.approx(0.5403023058681398, abs=1e-12)
    assert from_right[0, 0] == pytest.approx(0.6719871948850588, abs=1e-12)
    for theta, expected in group["violation_vs_theta"].items():
        encode = quaternion_encoding(float(theta))
        right, up, across = encode(np.array([[1.0, 0], [0, 1], [-1, 1]]))
        assert np.abs(right.T @ up - across).max() == pytest.approx(expected, abs=1e-12)


def test_the_quaternion_encoding_is_exp_of_noncommuting_generators():
    i, j = quaternion_matrix(np.eye(4)[1]), quaternion_matrix(np.eye(4)[2])
    where = np.random.default_rng(1).normal(size=(4, 2))
    np.testing.assert_allclose(
        quaternion_encoding(0.5)(where), exponential([i / 2, j / 2])(where), rtol=0, atol=1e-12
    )
    assert not is_relative(quaternion_encoding(0.01), num_axes=2)
    # Along one axis they are complex numbers, and relative.
    assert is_relative(lambda x: quaternion_encoding()(np.pad(x, ((0, 0), (0, 1)))))


def test_noncommuting_generators_violate_more_as_they_grow(reference):
    expected = reference["extensions_baselines_costs"]["noncommuting_generators_violation_d8"]
    x = np.array([[1.0, 2.0], [3.0, 1.0], [2.0, -1.0]])
    for scale in (0.01, 0.05, 0.2):
        violations = []
        for seed in range(20):
            # The reference takes M - M^T, whose entries have sqrt(2) times the deviation of M.
            generators = random_generators(8, scale=scale * np.sqrt(2), seed=seed)
            left, right, across = exponential(generators)(x)
            violations.append(np.abs(left.T @ right - across).max())
        assert 0.7 < np.mean(violations) / expected[str(scale)] < 1.4
    # One generator with a multiplier for each axis commutes, and has one axis only.
    single = random_generators(8, 1)[0]
    scaled = np.stack([0.7 * single, -1.3 * single])
    assert relativity_error(exponential(scaled), num_axes=2) < 1e-11
    from rotary.theory import canonical_form

    assert rank(canonical_form(scaled).frequencies) == 1


def test_x_plus_y_is_relative_and_lossy():
    lossy = summed(inverse_power(8))
    encode = exponential(generators_of(lossy))
    assert is_relative(encode, num_axes=2)
    first, second = encode(np.array([[2.0, 3.0], [4.0, 1.0]]))
    np.testing.assert_allclose(first, second, rtol=0, atol=1e-12)
    assert rank(lossy) == 1
    assert not is_lossless(lossy)
    assert not is_lossless(lossy, [[2, 3], [4, 1]])
    assert is_lossless(lossy, [[2, 3], [4, 2]])


def test_axial_is_relative_and_lossless():
    both = axial(inverse_power(8).matrix[0])
    assert is_relative(exponential(generators_of(both)), num_axes=2)
    assert is_lossless(both)
    grid = np.stack(np.meshgrid(np.arange(14), np.arange(14)), axis=-1).reshape(-1, 2)
    assert margin(both, grid) == pytest.approx(margin(inverse_power(8), np.arange(14)), abs=1e-12)


def test_rank_without_margin():
    """a x + b y, a / b irrational: integers never coincide, and come as near as you like."""
    generic = Frequencies([[1.0], [np.sqrt(2)]])
    small = np.stack(np.meshgrid(np.arange(4), np.arange(4)), axis=-1).reshape(-1, 2)
    large = np.stack(np.meshgrid(np.arange(40), np.arange(40)), axis=-1).reshape(-1, 2)
    assert not is_lossless(generic)
    assert is_lossless(generic, small)
    assert margin(generic, large) < 0.02 * margin(generic, small)


def test_full_rank_can_still_lose_positions_globally():
    turn = Frequencies([2 * np.pi / 10, 2 * np.pi / 5])
    assert is_lossless(turn)
    assert is_lossless(turn, np.arange(10))
    assert not is_lossless(turn, np.arange(11))


def test_ranks_of_axes_in_very_different_units():
    assert rank(Frequencies([[1e-9, 0.0], [0.0, 1e9]])) == 2
    assert rank(Frequencies([[0.0, 0.0], [0.0, 1.0]])) == 1


def test_flattening_a_grid(reference):
    group = reference["precision_and_algebra"]["flattening_h14_d64"]
    flat = flattened(inverse_power(64), width=14)
    down, right, wrap = mean_cosine(flat, [[1, 0], [0, 1], [1, -13]])
    assert down == pytest.approx(group["score_mean_cos_for_dx=1 (delta=h=14)"], abs=1e-12)
    assert right == pytest.approx(group["score_for_dy=1 (delta=1)"], abs=1e-12)
    assert wrap == pytest.approx(group["wraparound: (x,h-1)->(x+1,0) delta=1"], abs=1e-12)
    assert not is_lossless(flat)
    assert code_distance(flat, [1, -14]) == pytest.approx(0, abs=1e-12)
    side = axial(inverse_power(32).matrix[0])
    expected = reference["precision_and_algebra"]["axial_2d_d64"]
    both = mean_cosine(side, [[1, 0], [0, 1]])
    np.testing.assert_allclose(both, list(expected.values()), rtol=0, atol=1e-12)


def test_flattening_by_known_numbers():
    down, right = mean_cosine(flattened(inverse_power(64), width=14), [[1, 0], [0, 1]])
    assert down == pytest.approx(0.631261780891289, abs=1e-12)
    assert right == pytest.approx(0.9661509894255946, abs=1e-12)


def test_code_distance_is_the_frobenius_distance_of_the_matrices():
    frequencies = inverse_power(6)
    turned = exponential(generators_of(frequencies)[0])(np.array([2.0, 9.5]))
    distance = np.linalg.norm(turned[0] - turned[1])
    assert distance == pytest.approx(np.sqrt(2) * code_distance(frequencies, 7.5), abs=1e-12)


def test_margin_is_the_smallest_of_all_pairs():
    where = np.random.default_rng(0).normal(size=(40, 2)) * 20
    frequencies = Frequencies(np.random.default_rng(1).normal(size=(2, 3)))
    pairs = [
        float(code_distance(frequencies, where[a] - where[b])) for a in range(40) for b in range(a)
    ]
    assert margin(frequencies, where) == pytest.approx(min(pairs), abs=1e-12)
    repeated = np.concatenate([where, where[:1]])
    assert margin(frequencies, repeated) == 0
    assert margin(inverse_power(2), np.arange(45)) == pytest.approx(
        float(code_distance(inverse_power(2), 44)), abs=1e-12
    )


def test_errors_name_shapes():
    with pytest.raises(ShapeError, match="at least two"):
        margin(inverse_power(4), [1])
    with pytest.raises(ShapeError, match=r"real, i, j, k"):
        quaternion_product([1, 2, 3], [1, 2, 3, 4])
    with pytest.raises(ShapeError, match="expected one axis"):
        summed(summed(inverse_power(4)))
    assert not is_relative(lambda x: np.stack([skew([1.0])] * len(x)))
