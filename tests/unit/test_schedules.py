"""Every schedule against numbers made elsewhere: literals, and all arrays of the reference file."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from rotary import RotaryError, from_config
from rotary.errors import ConfigError, DtypeError, ShapeError
from rotary.frequencies import (
    Frequencies,
    LengthSchedule,
    assign_axes,
    axial,
    dynamic_ntk,
    inverse_power,
    linear,
    llama3,
    longrope,
    mixed,
    ntk,
    per_head,
    proportional,
    sections,
    xpos,
    yarn,
    yarn_mscale,
)

REFERENCE = Path(__file__).parents[3] / "shared" / "reference" / "rope_scaling_expected.json"
PLAIN = inverse_power(128)


def close(actual, expected, rtol=1e-12):
    np.testing.assert_allclose(actual, expected, rtol=rtol, atol=0)


@pytest.fixture(scope="module")
def reference():
    if not REFERENCE.exists():
        pytest.skip("needs ../shared/reference/rope_scaling_expected.json")
    return json.loads(REFERENCE.read_text())


def plain_config(reference, case):
    given = dict(reference["configs"][case["config"]])
    keep = ("head_dim", "hidden_size", "num_attention_heads", "max_position_embeddings")
    return {key: given[key] for key in keep} | {"rope_parameters": case["rope_parameters"]}


def test_all_arrays_of_the_reference(reference):
    checked = 0
    for case in reference["cases"]:
        if "static" in case["id"]:
            frequencies = ntk(PLAIN, case["rope_parameters"]["factor"])
        else:
            length = case["seq_len"]
            config = plain_config(reference, case)
            frequencies = from_config(config, length=0 if length is None else length)
        assert frequencies.matrix.shape == (1, len(case["inv_freq"])), case["id"]
        np.testing.assert_allclose(
            frequencies.matrix[0], case["inv_freq"], rtol=1e-12, atol=0, err_msg=case["id"]
        )
        assert frequencies.amplitude == pytest.approx(case["attention_factor"], rel=1e-14)
        if "inv_freq_published_5_digits" in case:
            close(frequencies.matrix[0], case["inv_freq_published_5_digits"], rtol=6e-5)
        checked += 1
    assert checked == 45


def test_all_amplitudes_of_the_reference(reference):
    checked = 0
    for case in reference["attention_factor_cases"]:
        kind = case["rope_type"].split()[0]
        rope = {"rope_type": "yarn" if kind == "deepseek_yarn" else kind, "rope_theta": 10000.0}
        if kind != "default":
            rope["factor"] = case["factor"]
        rope |= {k: case[k] for k in ("mscale", "mscale_all_dim") if k in case}
        original = case.get("original_max_position_embeddings", 2048)
        if kind in ("yarn", "deepseek_yarn", "llama3", "longrope"):
            rope["original_max_position_embeddings"] = original
        if "explicit_attention_factor" in case:
            rope["attention_factor"] = case["explicit_attention_factor"]
        if kind == "llama3":
            rope |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
        if kind == "longrope":
            rope |= {"short_factor": [1.0] * 64, "long_factor": [1.0] * 64}
        config = {"head_dim": 128, "max_position_embeddings": 2048, "rope_parameters": rope}
        found = from_config(config, length=0).amplitude
        assert found == pytest.approx(case["attention_factor"], rel=1e-14), case
        checked += 1
    assert checked == 37


def test_numbers_that_are_always_here():
    # rotary-peers.md, section 4.1: dim 128, base 1e4, factor 10, original length 2048.
    scaled = yarn(PLAIN, 10.0, 2048).matrix[0]
    close(scaled[[17, 20, 32, 40]], [0.08347896077, 0.04813641744, 0.00424, 0.0004300697618], 1e-9)
    scaled = yarn(PLAIN, 10.0, 2048, truncate=False).matrix[0]
    expected = [0.08377442334, 0.04809687783, 0.004068365825, 0.000341092926]
    close(scaled[[17, 20, 32, 40]], expected, 1e-9)
    scaled = llama3(PLAIN, 10.0, 2048).matrix[0]
    close(scaled[[31, 35, 40]], [0.01073024829, 0.002824787437, 0.0003453924383], 1e-9)
    grown = dynamic_ntk(PLAIN, 10.0, 2048).at(16384).matrix[0]
    expected = [0.8093100749, 0.0338718681, 0.001147303449, 1.6264535e-06]
    close(grown[[1, 16, 32, 63]], expected, 1e-8)
    close(ntk(PLAIN, 10.0).matrix[0], 103722.5095407057 ** -(np.arange(64) / 64), 1e-12)
    assert yarn(PLAIN, 10.0, 2048).amplitude == 1.2302585092994045
    amplitude = longrope(PLAIN, [1.0] * 64, [1.0] * 64, 2048, factor=10.0).at(0).amplitude
    assert amplitude == pytest.approx(1.1410492816577111, rel=1e-15)


def test_llama3_table_of_torchtune():
    """The sum over a whole table of cosines and sines, published by another library."""
    matrix = llama3(PLAIN, 8.0, 8192).matrix
    angles = np.arange(4096)[:, None] * matrix
    assert (np.cos(angles) + np.sin(angles)).sum() == pytest.approx(91141.75927551617, rel=1e-12)


def test_yarn_ends_of_the_ramp():
    scaled, same = yarn(PLAIN, 10.0, 2048).matrix[0], PLAIN.matrix[0]
    close(scaled[:17], same[:17])
    close(scaled[41:], same[41:] / 10)
    assert (scaled[17:41] < same[17:41]).all()
    assert (scaled[17:41] > same[17:41] / 10).all()
    # A ramp without width is a step; the ratio of both mscales is what DeepSeek-V2 has.
    close(yarn(inverse_power(4), 2.0, 1, beta_fast=1.0).matrix[0], [1.0, 0.005])
    assert yarn(PLAIN, 16.0, 2048, mscale=0.707, mscale_all_dim=1.0).amplitude == pytest.approx(
        yarn_mscale(16.0, 0.707) / yarn_mscale(16.0, 1.0)
    )
    assert yarn(linear(PLAIN, 1.0), 10.0, 2048) == yarn(PLAIN, 10.0, 2048)


@pytest.mark.parametrize("schedule", [linear, ntk, lambda f, s: dynamic_ntk(f, s, 8).at(1)])
def test_a_factor_of_one_changes_nothing(schedule):
    assert schedule(PLAIN, 1.0) == PLAIN


def test_ntk_keeps_the_first_and_divides_the_last():
    scaled = ntk(PLAIN, 8.0).matrix[0]
    close(scaled[[0, -1]], PLAIN.matrix[0][[0, -1]] / [1, 8])
    assert ntk(inverse_power(2), 8.0) == inverse_power(2)  # One plane: no division by zero.


@pytest.mark.parametrize("length", [0, 1, 2048, 2049, 16384])
@pytest.mark.parametrize(
    "schedule",
    [
        dynamic_ntk(PLAIN, 10.0, 2048),
        longrope(PLAIN, [2.0] * 64, list(range(1, 65)), 2048, factor=4.0, amplitude=(1.1, 1.3)),
    ],
    ids=["dynamic", "longrope"],
)
def test_a_length_gives_the_same_alone_and_in_a_batch(schedule, length):
    alone = schedule.at(length)
    lengths = torch.tensor([7, length, 100_000])
    matrix, amplitude = schedule.at(lengths)
    assert matrix.shape == (3, 1, 64)
    assert matrix.dtype == amplitude.dtype == torch.float64
    close(matrix[1].numpy(), alone.matrix, 1e-14)
    assert amplitude[1].item() == pytest.approx(alone.amplitude, rel=1e-15)
    assert isinstance(schedule, LengthSchedule)


LOUD = Frequencies(PLAIN.matrix, amplitude=1.5)


@pytest.mark.parametrize(
    "schedule",
    [
        lambda f: linear(f, 2.0),
        lambda f: ntk(f, 2.0),
        lambda f: llama3(f),
        lambda f: yarn(f, 2.0, 64, amplitude=1.0),
        lambda f: sections(f, (32, 16, 16)),
        lambda f: assign_axes(f, [0] * 64),
        lambda f: per_head(f, None),
        lambda f: dynamic_ntk(f, 2.0, 8).at(100),
        lambda f: longrope(f, [1.0] * 64, [2.0] * 64, 8, amplitude=1.0).at(100),
    ],
)
def test_the_amplitude_of_what_is_scaled_is_kept(schedule):
    assert schedule(LOUD).amplitude == 1.5
    assert schedule(PLAIN).amplitude == 1.0


def test_amplitudes_of_a_batch():
    lengths = torch.tensor([4, 8, 9])
    assert dynamic_ntk(LOUD, 2.0, 8).at(lengths)[1].tolist() == [1.5] * 3
    both = longrope(LOUD, [1.0] * 64, [2.0] * 64, 8, amplitude=(2.0, 4.0))
    assert both.at(lengths)[1].tolist() == [3.0, 3.0, 6.0]
    assert (both.at(8).amplitude, both.at(9).amplitude) == (3.0, 6.0)
    assert both.constant_amplitude is None


def test_longrope_changes_after_the_original_length():
    schedule = longrope(PLAIN, [2.0] * 64, [4.0] * 64, 2048)
    assert schedule.at(2048) == Frequencies(PLAIN.matrix / 2)
    assert schedule.at(2049) == Frequencies(PLAIN.matrix / 4)


def test_proportional_and_partial_differ():
    values = proportional(128, 0.25).matrix[0]
    close(values[:16], PLAIN.matrix[0][:16])
    assert (values[16:] == 0).all()
    assert len(values) == 64
    assert inverse_power(32).num_planes == 16
    assert inverse_power(32).matrix[0, 1] != values[1]
    assert proportional(128, 1.0, factor=3.0) == linear(PLAIN, 3.0)


def test_axial_shares():
    assert [int((row != 0).sum()) for row in axial(64, 3).matrix] == [11, 11, 10]
    uneven = axial(12, 2, base=100.0, planes=[4, 2]).matrix
    close(uneven[0, :4], 100.0 ** -(np.arange(4) / 4))
    close(uneven[1, 4:], 100.0 ** -(np.arange(2) / 2))
    assert (uneven[0, 4:] == 0).all()
    assert (uneven[1, :4] == 0).all()
    # The 2-D post: x in the first half of the channels, y in the second, each RoPE of d/2.
    half = inverse_power(32).matrix[0]
    close(axial(64).matrix, np.block([[half, 0 * half], [0 * half, half]]))


def test_sections_in_blocks_and_in_turn():
    one = Frequencies(np.arange(1.0, 9.0))
    blocks = sections(one, (4, 2, 2)).matrix
    in_turn = sections(one, (4, 2, 2), is_interleaved=True).matrix
    assert blocks.argmax(0).tolist() == [0, 0, 0, 0, 1, 1, 2, 2]
    assert in_turn.argmax(0).tolist() == [0, 1, 2, 0, 1, 2, 0, 0]
    for matrix in (blocks, in_turn):
        assert matrix.sum(0).tolist() == one.matrix[0].tolist()
        assert (matrix > 0).sum() == 8
    explicit = assign_axes(one, [0, 1, 2, 0, 1, 2, 0, 0])
    assert (explicit.matrix == in_turn).all()


def test_mixed_starts_as_the_paper_says():
    matrix = mixed(dim=32, num_heads=4, base=10.0).matrix
    magnitude = np.linalg.norm(matrix, axis=1)
    expected = 10.0 ** -(4 * np.arange(8) / 32)
    close(magnitude[:, :8], np.broadcast_to(expected, (4, 8)), 1e-13)
    close(magnitude[:, 8:], np.broadcast_to(expected, (4, 8)), 1e-13)
    dots = (matrix[:, :, :8] * matrix[:, :, 8:]).sum(1)
    assert np.abs(dots).max() < 1e-15
    directions = matrix[:, :, 0]
    assert len({tuple(row) for row in directions.round(6).tolist()}) == 4
    assert mixed(32, 4, seed=3, layer=1) == mixed(32, 4, seed=3, layer=1)
    assert mixed(32, 4, seed=3, layer=1) != mixed(32, 4, seed=3, layer=2)
    assert mixed(32, 4, seed=3) != mixed(32, 4, seed=4)
    video = mixed(32, 2, num_axes=3).matrix
    assert video.shape == (2, 3, 16)
    assert (np.linalg.norm(video, axis=1) <= 1 + 1e-12).all()


def test_per_head():
    matrix = per_head(inverse_power(8), None, linear(inverse_power(8), 2.0)).matrix
    assert matrix.shape == (3, 1, 4)
    assert (matrix[1] == 0).all()
    close(matrix[2], matrix[0] / 2)


def test_a_tensor_of_the_matrix_is_one_s_own():
    frequencies = inverse_power(8)
    before = hash(frequencies)
    frequencies.on(torch.ones(1)).mul_(2)
    assert frequencies == inverse_power(8)
    assert hash(frequencies) == before


def test_xpos_rates():
    # linear-attention-and-theory.md: zeta_i = (2i + 0.4 d) / (1.4 d), scale base 512.
    rates = xpos(inverse_power(64)).rates
    zeta = (2 * np.arange(32) + 0.4 * 64) / (1.4 * 64)
    close(rates, np.log(zeta) / 512)


WRONG = {
    "odd dim": (lambda: inverse_power(9), "dim is 9"),
    "dim of another type": (lambda: inverse_power(8.0), "must be an integer"),
    "base": (lambda: inverse_power(8, base=-1), "base is -1"),
    "base as text": (lambda: inverse_power(8, base="1e4"), "base is '1e4'"),
    "factor": (lambda: linear(PLAIN, 0), "factor is 0"),
    "factor NaN": (lambda: ntk(PLAIN, math.nan), "factor is nan"),
    "no frequencies": (lambda: ntk(64, 2.0), "frequencies are 64"),
    "linear of no frequencies": (lambda: linear(64, 2.0), "frequencies are 64"),
    "axes": (lambda: ntk(axial(8), 2.0), "one position axis"),
    "not a power": (lambda: yarn(Frequencies([1.0, 0.5, 0.1]), 2, 8), "fall as a power"),
    "betas": (lambda: yarn(PLAIN, 2, 8, beta_fast=1, beta_slow=32), "beta_fast is 1"),
    "low and high": (lambda: llama3(PLAIN, low_freq_factor=4, high_freq_factor=1), "the greater"),
    "divisors": (lambda: longrope(PLAIN, [1.0] * 64, [1.0] * 63, 8), "64 planes"),
    "divisor": (lambda: longrope(PLAIN, [0.0] * 64, [1.0] * 64, 8), r"short_factor\[0\] is 0"),
    "shares": (lambda: axial(8, planes=[1, 2]), "add up to dim / 2 = 4"),
    "too few planes": (lambda: axial(2, num_axes=2), "add up"),
    "sections": (lambda: sections(PLAIN, (1, 2, 3)), "6 planes together, but there are 64"),
    "sections in turn": (
        lambda: sections(inverse_power(8), (0, 4), is_interleaved=True),
        "nearly equal",
    ),
    "axis": (lambda: assign_axes(inverse_power(4), [0, 2], num_axes=2), "from 0 to 1"),
    "mixed": (lambda: mixed(2, 1), "dim >= 4"),
    "fraction": (lambda: proportional(8, 1.5), "between 0 and 1"),
    "no head": (lambda: per_head(None), "at least one"),
    "heads": (lambda: per_head(inverse_power(4), inverse_power(8)), "all must be the same"),
    "amplitudes": (
        lambda: per_head(Frequencies([1.0]), Frequencies([1.0], 2.0)),
        "one rotation has one amplitude",
    ),
    "centre": (lambda: xpos(PLAIN, centre=math.inf), "centre is inf"),
    "length": (lambda: dynamic_ntk(PLAIN, 2.0, 8).at(-1), "length is -1"),
    "lengths": (lambda: dynamic_ntk(PLAIN, 2.0, 8).at(torch.ones(1, 1, dtype=int)), r"\(batch,\)"),
    **{
        f"lengths in {kind}": (
            lambda kind=kind: dynamic_ntk(PLAIN, 2.0, 8).at(torch.ones(1, dtype=kind)),
            "must be integers",
        )
        for kind in (torch.bool, torch.float16, torch.complex64, torch.complex128)
    },
    "rank": (lambda: Frequencies(1.0), "accepted are"),
    "empty": (lambda: Frequencies([]), "accepted are"),
    "not finite": (lambda: Frequencies([1.0, math.inf]), "not finite"),
    "amplitude": (lambda: Frequencies([1.0], amplitude=0.0), "amplitude is 0"),
    "words": (lambda: Frequencies(["a"]), "real numbers"),
}


@pytest.mark.usefixtures("wrong_types")
@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_said(case):
    make, message = WRONG[case]
    with pytest.raises((ConfigError, DtypeError, ShapeError), match=message) as caught:
        make()
    assert isinstance(caught.value, (RotaryError, ValueError))
