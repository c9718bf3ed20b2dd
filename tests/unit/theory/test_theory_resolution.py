import numpy as np
import pytest
import torch

from rotary import Frequencies, inverse_power
from rotary.errors import ConfigError, DtypeError, ShapeError
from rotary.theory import (
    RECIPES,
    angle_error,
    closest_alias,
    code_distance,
    distinct_codes,
    exact_frequencies,
    exact_integers,
    incomplete_planes,
    resolution,
    table_error,
    wavelengths,
)

ROPE = inverse_power(128)
NAMES = {
    "fp64": "float64",
    "fp32_theta_fp64_product": "float32_frequencies",
    "fp32_rounded_from_fp64": "float32",
    "fp32_hf_recipe": "float32_power",
    "bf16_theta_fp32_product_wrapped": "bfloat16_frequencies",
}


def test_wavelengths(reference):
    for name, planes in reference["theory"]["wavelengths"].items():
        dim, base = (int(part.lstrip("dbase")) for part in name.split("_"))
        frequencies = inverse_power(dim, float(base))
        for plane, group in planes.items():
            assert frequencies.matrix[0, int(plane)] == pytest.approx(group["theta"], rel=1e-12)
            got = wavelengths(frequencies)[0, int(plane)]
            assert got == pytest.approx(group["wavelength"], rel=1e-12)


def test_wavelength_counts(reference):
    for name, group in reference["theory"]["wavelength_counts"].items():
        dim, base = (int(part.lstrip("dbase")) for part in name.split("_"))
        frequencies = inverse_power(dim, float(base))
        for length in (4096, 32768, 131072):
            assert (
                len(incomplete_planes(frequencies, length))
                == group[f"pairs_with_lambda_gt_{length}"]
            )
        assert (wavelengths(frequencies) < 16).sum() == group["pairs_lambda_lt_16"]


def test_wavelengths_of_still_planes_and_of_several_axes():
    matrix = Frequencies([[1.0, 0.0, 0.001], [0.0, 0.0, 1.0]])
    assert wavelengths(matrix)[0, 1] == np.inf
    assert incomplete_planes(matrix, 100) == [1]
    assert incomplete_planes(matrix, 5) == [0, 1, 2]


@pytest.mark.parametrize("dim", [2, 4, 8, 16])
def test_closest_alias_within_a_million(reference, dim):
    group = reference["theory"]["aliasing_code_distance_base1e4"][f"d{dim}"]
    alias = closest_alias(inverse_power(dim), 1_000_000)
    assert alias.displacement == group["argmin_delta"]
    assert alias.distance == pytest.approx(group["min_dist_delta_2..1e6"], abs=1e-9)


@pytest.mark.parametrize("dim", [2, 4, 8, 16, 32, 64, 128])
def test_code_distance_of_one_and_two_steps(reference, dim):
    group = reference["theory"]["aliasing_code_distance_base1e4"][f"d{dim}"]
    got = code_distance(inverse_power(dim), [1, 2])
    np.testing.assert_allclose(got, [group["dist_delta1"], group["dist_delta2"]], atol=1e-12)


def test_wide_heads_have_no_alias():
    assert closest_alias(ROPE, 50_000) == (2, pytest.approx(3.638169717639967, abs=1e-12))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("dim", [2, 4, 6])
def test_resolution_keeps_its_promise(dim, dtype):
    """Below it every rounded code decodes to its own position."""
    frequencies = inverse_power(dim)
    count = min(resolution(frequencies, dtype, limit=1500), 1500)
    angles = np.arange(count)[:, None] * frequencies.matrix[0]
    exact = np.concatenate([np.cos(angles), np.sin(angles)], axis=1)
    rounded = torch.from_numpy(exact).to(dtype).double().numpy()
    nearest = ((rounded[:, None] - exact[None]) ** 2).sum(axis=2).argmin(axis=1)
    np.testing.assert_array_equal(nearest, np.arange(count))


def test_resolution_by_dim_and_dtype():
    table = {
        dim: [
            resolution(inverse_power(dim), dtype, limit=200_000)
            for dtype in (torch.bfloat16, torch.float16, torch.float32)
        ]
        for dim in (2, 4, 8, 16)
    }
    for row in table.values():
        assert row == sorted(row)
    assert table[2][0] == 710
    assert table[16] == [200_000] * 3
    columns = np.array(list(table.values()))
    assert (np.diff(columns, axis=0) >= 0).all()


def test_what_a_dtype_can_count(reference):
    group = reference["precision_and_algebra"]["distinctness"]
    for name, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16), ("fp32", torch.float32)):
        first_wrong = group[name]["first_wrong_integer"]
        assert exact_integers(dtype) + 1 == first_wrong
        assert float(torch.tensor(first_wrong, dtype=torch.float64).to(dtype)) != first_wrong


@pytest.mark.parametrize(("name", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_distinct_codes(reference, name, dtype):
    group = reference["precision_and_algebra"]["distinctness"][name]
    for plane, expected in group["distinct_(cos,sin)_in_first_4096_by_channel"].items():
        one = Frequencies(ROPE.matrix[:, int(plane)])
        assert distinct_codes(one, 4096, dtype) == expected
    assert distinct_codes(ROPE, 4096, dtype) == 4096


@pytest.mark.parametrize(
    ("name", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.float16), ("fp32", torch.float32)]
)
def test_rounded_tables(reference, name, dtype):
    group = reference["precision_and_algebra"]["table_quantisation_d128_base1e4"][name]
    error = table_error(ROPE, np.arange(0, 32768, 7), dtype)
    assert error.max_angle == pytest.approx(group["max_angle_err_rad"], rel=1e-3)
    assert error.rms_angle == pytest.approx(group["rms_angle_err_rad"], rel=1e-3)
    assert error.max_norm == pytest.approx(group["max_norm_dev"], rel=1e-3)
    for plane, expected in group["max_err_in_tokens_channel"].items():
        assert error.max_tokens[int(plane)] == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("position", [1_000, 10_000, 100_000, 1_000_000, 10_000_000])
def test_angle_errors(reference, position):
    group = reference["precision_and_algebra"]["angle_error_d128_base1e4"][str(position)]
    for theirs, recipe in NAMES.items():
        got = angle_error(128, position, recipe)
        expected = group[theirs]
        if recipe == "float64":  # A residual of rounding: its order of magnitude.
            assert 0.5 < got.max / expected["max_abs_rad"] < 2
            continue
        assert got.max == pytest.approx(expected["max_abs_rad"], rel=1e-11)
        if "rms_rad" in expected:  # The float32 power differs from one libm to the next.
            slack = 0.1 if recipe == "float32_power" else 1e-11
            assert got.rms == pytest.approx(expected["rms_rad"], rel=slack)
        if "channel_of_max" in expected:
            assert got.plane == expected["channel_of_max"]
    step = group["fp32_relative_phase_err_delta1"]["max_abs_rad"]
    assert angle_error(128, position, "float32").step == pytest.approx(step, rel=1e-11)


def test_the_order_of_the_recipes_at_a_hundred_thousand():
    errors = {recipe: angle_error(128, 100_000, recipe).max for recipe in RECIPES}
    assert errors["float64"] < 1e-10 < 1e-3 < errors["float32_frequencies"] < errors["float32"]
    assert errors["bfloat16_frequencies"] > 3.0


def test_exact_frequencies_are_beyond_float64():
    from fractions import Fraction

    high, middle, low = exact_frequencies(8, 10000.0)  # 1, 1/10, 1/100, 1/1000
    for plane, exact in enumerate((1, 10, 100, 1000)):
        total = Fraction(high[plane]) + Fraction(middle[plane]) + Fraction(low[plane])
        assert abs(total - Fraction(1, exact)) < Fraction(1, 10**30)
    for part in (high, middle):
        mantissas = np.ldexp(np.frexp(part)[0], 26)
        np.testing.assert_array_equal(mantissas, np.round(mantissas))


def test_errors():
    with pytest.raises(ConfigError, match="recipe is 'fp32'; accepted are 'float64'"):
        angle_error(128, 10, "fp32")
    with pytest.raises(ConfigError, match=r"must be below 2\^24"):
        angle_error(128, 1 << 24, "float64")
    with pytest.raises(DtypeError, match=r"dtype is torch\.int64; expected a floating"):
        resolution(ROPE, torch.int64)
    with pytest.raises(ShapeError, match="2 position axes; ask about one"):
        closest_alias(Frequencies(np.ones((2, 2))), 10)
    with pytest.raises(ConfigError, match="nothing turns"):
        resolution(Frequencies([0.0]), torch.float32)


@pytest.mark.parametrize("offset", [0, 4096, 131072])
def test_score_errors_of_rounded_angles_and_tables(reference, offset):
    """Unit q and k at distance 16, the orders of magnitude of the reference's 4000 pairs."""
    group = reference["precision_and_algebra"]["score_error_unit_qk_d128"]["data"]["delta16"]
    expected = {name: values["rms"] for name, values in group[str(offset)].items()}
    generator = np.random.default_rng(1)
    query, key = generator.normal(size=(2, 500, 64)) + 1j * generator.normal(size=(2, 500, 64))
    products = query * key.conj()
    products /= np.linalg.norm(query, axis=1, keepdims=True)
    products /= np.linalg.norm(key, axis=1, keepdims=True)

    def codes(recipe, dtype):
        angles = torch.from_numpy(RECIPES[recipe](128, 1e4, np.array([offset, offset + 16.0])))
        cos, sin = angles.cos().to(dtype).double(), angles.sin().to(dtype).double()
        return (cos + 1j * sin).numpy()

    right = np.exp(-16j * ROPE.matrix[0])
    for name, recipe, dtype in (
        ("fp32", "float32", torch.float32),
        ("fp32angle_fp16table", "float32", torch.float16),
        ("fp32angle_bf16table", "float32", torch.bfloat16),
    ):
        at_query, at_key = codes(recipe, dtype)
        errors = (products * (at_query * at_key.conj() - right)).real.sum(axis=1)
        assert 0.8 < np.sqrt(np.square(errors).mean()) / expected[name] < 1.25
