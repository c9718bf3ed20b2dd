import numpy as np
import pytest
import torch

from rotary import RotaryEmbedding, inverse_power
from rotary.errors import ShapeError
from rotary.layouts import interleaved_to_half
from rotary.theory import (
    complex_form,
    elementwise_form,
    expanded_score,
    half_split_form,
    matrix_form,
    to_complex,
)

THETA = inverse_power(16).matrix[0]


def drawn(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def test_the_four_forms_are_one_rotation():
    x, positions = drawn(3, 5, 16), np.array([0.0, 1.0, -7.5, 4096.0, 1e6])
    angles = positions[:, None] * THETA
    by_complex = complex_form(x, angles)
    order = interleaved_to_half(torch.arange(16)).numpy()
    np.testing.assert_allclose(matrix_form(x, angles), by_complex, rtol=0, atol=1e-12)
    np.testing.assert_allclose(elementwise_form(x, angles), by_complex, rtol=0, atol=1e-12)
    np.testing.assert_array_equal(
        half_split_form(x[..., order], angles), elementwise_form(x, angles)[..., order]
    )


@pytest.mark.parametrize(
    ("form", "layout"),
    [
        (complex_form, "interleaved"),
        (matrix_form, "interleaved"),
        (elementwise_form, "interleaved"),
        (half_split_form, "half"),
    ],
)
def test_each_form_is_what_the_operator_computes(form, layout):
    x, positions = drawn(6, 16), torch.arange(-2, 4)
    rope = RotaryEmbedding(head_dim=16, layout=layout)
    operator = rope(positions, dtype=torch.float64)(torch.from_numpy(x))
    ours = form(x, positions.numpy()[:, None] * THETA)
    np.testing.assert_allclose(ours, operator.numpy(), rtol=0, atol=1e-12)


def test_golden_vectors(reference):
    for name, dim in (("d4", 4), ("d8", 8)):
        group = reference["theory"]["golden_vectors"][name]
        x, theta = np.array(group["x"]), inverse_power(dim).matrix[0]
        for form, layout in ((elementwise_form, "interleaved"), (half_split_form, "half")):
            for position, expected in group[layout].items():
                got = form(x, int(position) * theta)
                np.testing.assert_allclose(got, expected, rtol=0, atol=1e-12)


def test_golden_vector_of_one_pair():
    turned = complex_form([1.0, 2.0, 3.0, 4.0], inverse_power(4).matrix[0])
    golden = [-1.1426396637476532, 1.922075596544176, 2.9598506679133294, 4.029799501669161]
    np.testing.assert_allclose(turned, golden, rtol=0, atol=1e-12)


def test_scores_agree_in_three_forms(reference):
    group = reference["theory"]["form_equivalence"]
    query, key = drawn(128), drawn(128, seed=1)
    theta, m, n = inverse_power(128).matrix[0], 37, 11
    turned = elementwise_form(query, m * theta) @ elementwise_form(key, n * theta)
    by_complex = (
        (to_complex(query) * to_complex(key).conj() * np.exp(1j * (m - n) * theta)).sum().real
    )
    key_only = query @ matrix_form(key, (n - m) * theta)
    assert turned == pytest.approx(by_complex, abs=1e-12)
    assert turned == pytest.approx(key_only, abs=1e-12)
    # The reference's own pair is random; its three forms agree as ours do.
    values = [v for k, v in group.items() if k.startswith(("<R_m", "Re sum", "q^T"))]
    assert max(values) - min(values) < 1e-12
    assert len(values) == 3


def test_wrong_layout_changes_scores():
    query, key = drawn(16), drawn(16, seed=1)
    angles = 5 * THETA
    right = elementwise_form(query, angles) @ elementwise_form(key, 0 * THETA)
    wrong = half_split_form(query, angles) @ half_split_form(key, 0 * THETA)
    assert abs(right - wrong) > 0.01


def test_the_third_texts_expansion_needs_minus_in_its_first_row():
    query, key, m, n, theta = drawn(2), drawn(2, seed=1), 5, 2, 0.7
    direct = complex_form(query, [m * theta]) @ complex_form(key, [n * theta])
    angle = (m - n) * theta
    assert expanded_score(query, key, angle) == pytest.approx(direct, abs=1e-12)
    cos, sin = np.cos(angle), np.sin(angle)
    line_before = (
        query[0] * key[0] * cos
        + query[0] * key[1] * sin
        - query[1] * key[0] * sin
        + query[1] * key[1] * cos
    )
    assert line_before == pytest.approx(direct, abs=1e-12)
    as_printed = (query[0] * cos + query[1] * sin) * key[0]
    as_printed += (query[0] * sin + query[1] * cos) * key[1]
    assert abs(as_printed - direct) > 0.01


def test_errors_name_the_shapes():
    with pytest.raises(ShapeError, match=r"elementwise_form: x has shape \(6,\) and angles \(2,\)"):
        elementwise_form(np.ones(6), np.ones(2))
