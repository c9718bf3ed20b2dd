import numpy as np
import pytest
import torch

from rotary.errors import ConfigError, ShapeError
from rotary.theory import (
    centraliser,
    commutator_norm,
    exponential,
    is_relative,
    matrix_exponential,
    orthogonal_power,
    relativity_error,
    skew,
    skew_logarithm,
)


def random_orthogonal(dim, seed=0, determinant=1):
    draw = np.random.default_rng(seed).normal(size=(dim, dim))
    matrix, _ = np.linalg.qr(draw)
    if np.linalg.det(matrix) * determinant < 0:
        matrix[:, 0] *= -1
    return matrix


def random_skew(dim, seed=0):
    return skew(np.random.default_rng(seed).normal(size=dim * (dim - 1) // 2))


@pytest.mark.parametrize("dim", [2, 3, 6])
def test_exp_of_a_skew_matrix_is_relative_and_orthogonal_of_determinant_one(dim):
    encode = exponential(random_skew(dim))
    assert is_relative(encode)
    turned = encode(np.array([0.0, -3.25, 7.0]))
    np.testing.assert_allclose(turned[0], np.eye(dim), rtol=0, atol=1e-12)
    product = turned.transpose(0, 2, 1) @ turned
    np.testing.assert_allclose(product, np.broadcast_to(np.eye(dim), product.shape), atol=1e-12)
    np.testing.assert_allclose(np.linalg.det(turned), 1.0, atol=1e-12)


def test_a_generator_that_is_not_skew_is_not_relative():
    bent = random_skew(4)
    bent[0, 0] = 0.01
    assert not is_relative(exponential(bent), extent=2.0)


def test_the_two_by_two_solution_is_rope():
    theta, n = 0.3, 5.0
    turned = exponential([[0, -theta], [theta, 0]])(np.array([n]))[0]
    cos, sin = np.cos(n * theta), np.sin(n * theta)
    np.testing.assert_allclose(turned, [[cos, -sin], [sin, cos]], rtol=0, atol=1e-12)


def test_powers_of_any_orthogonal_matrix_are_relative_on_the_integers():
    for determinant in (1, -1):
        encode = orthogonal_power(random_orthogonal(5, determinant=determinant))
        assert relativity_error(encode, positions="integer") < 1e-12
        with pytest.raises(ConfigError, match="whole numbers only"):
            encode(np.array([0.5]))


def test_eigenvalue_minus_one_is_relative_on_integers_only():
    flip = np.diag([1.0, -1.0])
    assert is_relative(orthogonal_power(flip), positions="integer")
    with pytest.raises(ConfigError, match=r"odd number of times .* whole-numbered positions only"):
        skew_logarithm(flip)
    # An even number of times it is a half turn, which does continue.
    half_turn = skew_logarithm(-np.eye(2))
    np.testing.assert_allclose(matrix_exponential(half_turn), -np.eye(2), atol=1e-12)
    assert np.linalg.norm(half_turn, ord=2) == pytest.approx(np.pi, abs=1e-12)


def blocks(*angles):
    matrix = np.zeros((2 * len(angles),) * 2)
    for index, angle in enumerate(angles):
        cos, sin = np.cos(angle), np.sin(angle)
        matrix[2 * index : 2 * index + 2, 2 * index : 2 * index + 2] = [[cos, -sin], [sin, cos]]
    return matrix


@pytest.mark.parametrize(
    "angles",
    [
        (0.3, 1.2, 2.9),
        (0.5, 0.5, 0.5),
        (np.pi, np.pi, 0.2),
        (np.pi - 1e-7, np.pi, np.pi - 1e-3),
        (0.0, 0.0, 1e-6),
        (2.0, np.pi - 2.0, 2.0),
    ],
)
def test_logarithm_continues_the_powers(angles):
    basis = random_orthogonal(6, seed=3)
    orthogonal = basis @ blocks(*angles) @ basis.T
    generator = skew_logarithm(orthogonal)
    np.testing.assert_array_equal(generator, -generator.T)
    np.testing.assert_allclose(matrix_exponential(generator), orthogonal, rtol=0, atol=1e-12)
    frequencies = np.sort(np.abs(np.linalg.eigvals(generator).imag))[::2]
    np.testing.assert_allclose(frequencies, np.sort(angles), atol=1e-7)
    steps = np.arange(-3.0, 4.0)
    np.testing.assert_allclose(
        exponential(generator)(steps), orthogonal_power(orthogonal)(steps), atol=1e-12
    )


def test_two_axes_are_relative_exactly_when_generators_commute():
    first = skew([1, 0, 0, 0, 0, 0])
    assert is_relative(exponential([first, skew([0, 0, 0, 0, 0, 1])]), num_axes=2)
    crossing = np.stack([first, skew([0, 1, 0, 0, 0, 0])])
    assert commutator_norm(crossing) == pytest.approx(1.0, abs=1e-12)
    assert not is_relative(exponential(crossing), num_axes=2)
    # Along each axis alone it is still relative: the failure is in the mixture.
    assert is_relative(exponential(crossing[0]))
    assert is_relative(exponential(crossing[1]))


def test_a_violation_along_unit_steps_alone_is_seen():
    """The drawn pairs may be far away; pairs of unit steps are always among them."""
    small = 1e-4 * np.stack([skew([1, 0, 0]), skew([0, 1, 0])])
    assert relativity_error(exponential(small), num_axes=2, draws=0) > 1e-9


@pytest.mark.parametrize(("dim", "free"), [(2, 1), (3, 1), (4, 2), (5, 2), (6, 3), (7, 3), (8, 4)])
def test_how_many_axes_fit(dim, free):
    """Beside a generic generator only dim // 2 commuting ones exist, itself included."""
    generator = random_skew(dim)
    partners = centraliser(generator)
    assert len(partners) == free
    for partner in partners:
        assert commutator_norm([generator, partner]) < 1e-12 * np.linalg.norm(generator)
    # They commute among themselves, and nothing commutes with all of them: the maximal torus.
    assert commutator_norm(partners) < 1e-10
    assert len(centraliser(partners)) == free


def test_two_and_three_channels_leave_no_second_axis():
    for parameters in ([1.0], [1.0, -0.4, 2.0]):
        generator = skew(parameters)
        (only,) = centraliser(generator)
        assert np.abs(only @ generator - generator @ only).max() < 1e-12
        ratio = only[generator != 0] / generator[generator != 0]
        np.testing.assert_allclose(ratio, ratio[0], atol=1e-12)
    # Rotations that stand still or turn alike leave more room, without more axes.
    assert len(centraliser(np.zeros((3, 3)))) == 3
    assert len(centraliser(skew([1, 0, 0, 0, 0, 1]))) == 4


def test_the_posts_three_by_three_attempt(reference):
    b1, b2 = skew([1, 0, 0]), skew([0, 1, 0])
    commutator = b1 @ b2 - b2 @ b1
    expected = reference["precision_and_algebra"]["seed_3x3_commutator_for_b=1,c=0"]
    np.testing.assert_array_equal(commutator, expected)
    for b, c in ((1.0, 0.0), (0.0, 1.0), (-0.3, 2.0)):
        assert commutator_norm([b1, skew([0, b, c])]) == pytest.approx(np.hypot(b, c), abs=1e-12)


def test_general_solution_residuals_are_rounding():
    matrix = np.random.default_rng(2).normal(size=(6, 6))
    assert relativity_error(exponential((matrix - matrix.T) / 2)) < 1e-11


def test_skew_reads_the_posts_letters():
    a, b, c, d, e, f = range(1, 7)
    expected = [[0, -a, -b, -d], [a, 0, -c, -e], [b, c, 0, -f], [d, e, f, 0]]
    np.testing.assert_array_equal(skew([a, b, c, d, e, f]), expected)


def test_matrix_exponential_is_the_power_series():
    matrix = np.random.default_rng(0).normal(size=(3, 3))
    series, term = np.eye(3), np.eye(3)
    for k in range(1, 40):
        term = term @ matrix / k
        series = series + term
    np.testing.assert_allclose(matrix_exponential(matrix), series, rtol=1e-12)
    assert torch.get_default_dtype() == torch.float32


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: skew([1, 2]), "1, 3, 6, 10"),
        (lambda: exponential(np.ones((2, 3))), r"square matrices, \(dim, dim\)"),
        (lambda: exponential(np.eye(2))(np.ones((3, 2))), r"positions have shape \(3, 2\)"),
        (lambda: orthogonal_power(2 * np.eye(2)), "not orthogonal"),
        (lambda: centraliser(np.eye(2)), "generator 0 is not skew-symmetric.*norm 1"),
        (lambda: exponential([[np.nan, 0], [0, 0]]), "not finite"),
        (lambda: relativity_error(lambda x: x), "returned shape"),
    ],
)
def test_errors_say_what_is_wrong(call, message):
    with pytest.raises((ConfigError, ShapeError), match=message):
        call()


@pytest.mark.usefixtures("wrong_types")
def test_positions_are_real_or_integer():
    with pytest.raises(ConfigError, match="accepted are 'real', 'integer'"):
        relativity_error(exponential(np.eye(2)), positions="whole")
