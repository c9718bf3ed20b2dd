import numpy as np
import pytest

from rotary import Frequencies, inverse_power
from rotary.errors import ConfigError, ShapeError
from rotary.theory import canonical_form, exponential, generators_of, matrix_exponential, skew


def orthogonal(dim, seed=0):
    return np.linalg.qr(np.random.default_rng(seed).normal(size=(dim, dim)))[0]


def hidden(matrix, dim=None, seed=0):
    """Generators of a frequency matrix in a basis nobody told us."""
    blocks = generators_of(Frequencies(matrix), dim)
    basis = orthogonal(blocks.shape[-1], seed)
    return basis @ blocks @ basis.T


def check(generators):
    """The three statements that make a canonical form."""
    form = canonical_form(generators)
    stack = np.atleast_3d(generators) if np.ndim(generators) == 3 else np.asarray(generators)[None]
    dim = stack.shape[-1]
    np.testing.assert_allclose(form.basis.T @ form.basis, np.eye(dim), rtol=0, atol=1e-12)
    rebuilt = form.basis @ generators_of(form.frequencies, dim) @ form.basis.T
    for got, right in zip(rebuilt, stack, strict=True):
        np.testing.assert_allclose(got, right, rtol=0, atol=1e-12 * max(1, np.abs(right).max()))
    return form.frequencies.matrix


MATRICES = {
    "distinct": [[3.0, 2.0, 1.0]],
    "equal on one axis": [[1.0, 1.0, 1.0], [3.0, -2.0, 0.5]],
    "equal on all axes": [[1.0, 1.0, 0.5], [2.0, 2.0, 0.25]],
    "opposite": [[1.0, 1.0], [1.0, -1.0]],
    "axial": [[1.0, 0.01, 0.0, 0.0], [0.0, 0.0, 1.0, 0.01]],
    "still planes": [[1.0, 0.0, 0.0], [0.0, 2.0, 0.0]],
    "nothing turns": [[0.0, 0.0]],
    "axes in other units": [[1e6, 2e6, 3e6], [1e-6, -1e-6, 5e-6]],
    "three axes": [[1.0, 0.0, 0.3], [0.0, 1.0, 0.3], [0.0, 0.5, -0.3]],
    "one plane": [[0.7]],
}


@pytest.mark.parametrize("name", MATRICES)
@pytest.mark.parametrize("odd", [0, 1])
def test_the_frequency_matrix_is_found_again(name, odd):
    matrix = np.array(MATRICES[name])
    generators = hidden(matrix, 2 * matrix.shape[1] + odd)
    found = check(generators if len(generators) > 1 else generators[0])
    expected = matrix.copy()
    for plane in range(matrix.shape[1]):
        leading = np.flatnonzero(expected[:, plane])
        if leading.size and expected[leading[0], plane] < 0:
            expected[:, plane] *= -1
    expected = expected[:, np.lexsort(-expected[::-1])]
    scale = np.abs(matrix).max(axis=1, keepdims=True)
    unit = np.where(scale > 0, scale, 1)
    np.testing.assert_allclose(found / unit, expected / unit, rtol=0, atol=1e-12)


@pytest.mark.parametrize("gap", [1e-3, 1e-6, 1e-9, 1e-12, 1e-14])
def test_nearly_equal_frequencies_do_not_spoil_the_other_axis(gap):
    """Eigenvectors of the first axis alone are arbitrary to eps / gap; the second tells."""
    check(hidden([[1.0, 1.0 + gap, 1.0 - gap], [0.3, 0.8, -0.5]], seed=1))


@pytest.mark.parametrize("slow", [1e-4, 1e-8, 1e-11, 1e-13, 1e-16])
def test_slow_planes_keep_an_orthonormal_basis(slow):
    found = check(hidden([[1.0, slow, 0.0]], seed=2)[0])
    assert found[0, 0] == pytest.approx(1.0, abs=1e-12)
    assert abs(found[0, 1] - slow) < 1e-13


def test_rope_is_its_own_canonical_form():
    frequencies = inverse_power(64)
    found = check(hidden(frequencies.matrix)[0])
    np.testing.assert_allclose(found, frequencies.matrix, rtol=0, atol=1e-12)
    np.testing.assert_allclose(
        canonical_form(generators_of(frequencies)).frequencies.matrix, frequencies.matrix
    )


def test_random_torus_elements():
    generator = np.random.default_rng(0)
    for dim in (4, 9, 16):
        check(hidden(generator.normal(size=(3, dim // 2)), dim, seed=dim))


def test_the_posts_four_by_four_family(reference):
    group = reference["precision_and_algebra"]["seed_4x4"]
    b, c, f = 0.7, -0.4, 1.3
    pair = np.stack([skew([1, b, c, 0, 0, 0]), skew([0, 0, 0, c * f, -b * f, f])])
    assert np.abs(pair[0] @ pair[1] - pair[1] @ pair[0]).max() < 1e-15
    found = check(pair)
    size = np.sqrt(1 + b * b + c * c)
    assert size == pytest.approx(group["sqrt(1+b^2+c^2)"], abs=1e-12)
    assert f * size == pytest.approx(group["f*sqrt(..)"], abs=1e-12)
    np.testing.assert_allclose(found, [[size, 0.0], [0.0, f * size]], rtol=0, atol=1e-12)
    # b = c = 0, f = 1 is the post's answer: one plane turns with x, the other with y.
    simple = np.stack([skew([1, 0, 0, 0, 0, 0]), skew([0, 0, 0, 0, 0, 1])])
    np.testing.assert_array_equal(check(simple), [[1, 0], [0, 1]])
    turned = exponential(simple)(np.array([[0.3, 2.0]]))[0]
    expected = matrix_exponential(generators_of(Frequencies([0.3, 2.0]))[0])
    np.testing.assert_allclose(turned, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("signs", [(1, -1), (-1, 1), (-1, -1), (0, 0)])
def test_outside_the_family_they_do_not_commute(signs):
    b, c, f = 0.7, -0.4, 1.3
    d, e = signs[0] * c * f, signs[1] * -b * f
    with pytest.raises(ConfigError, match=r"generators 0 and 1 do not commute; .* norm \d"):
        canonical_form([skew([1, b, c, 0, 0, 0]), skew([0, 0, 0, d, e, f])])


def test_errors_carry_the_norms():
    with pytest.raises(ConfigError, match=r"norm 1 \(their own norms: 1 and 1\)"):
        canonical_form([skew([1, 0, 0]), skew([0, 1, 0])])
    with pytest.raises(ConfigError, match=r"generator 1 is not skew-symmetric.*norm 0\.5"):
        canonical_form([skew([1]), np.array([[0.5, -1], [1, 0]])])
    with pytest.raises(ShapeError, match="1x1"):
        canonical_form([[0.0]])
    with pytest.raises(ShapeError, match="need 4 channels, not 3"):
        generators_of(Frequencies([1.0, 2.0]), 3)
    with pytest.raises(ShapeError, match="differ from head to head"):
        generators_of(Frequencies(np.ones((2, 1, 3))))


def test_a_large_generator_does_not_hide_that_small_ones_do_not_commute():
    generators = np.zeros((3, 8, 8))
    generators[0, 4:, 4:] = 1e6 * skew([1, 0, 0, 0, 0, 2])
    generators[1, :3, :3] = 1e-6 * skew([1, 0, 0])
    generators[2, :3, :3] = 1e-6 * skew([0, 1, 0])
    with pytest.raises(ConfigError, match="generators 1 and 2 do not commute"):
        canonical_form(generators)
    check(generators[:2])
