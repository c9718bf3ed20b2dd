"""Figures are compared by the data they draw, with the functions that they say they show."""

import numpy as np
import pytest
import torch

from rotary import Frequencies, inverse_power, plots
from rotary.cli.main import main
from rotary.errors import ConfigError
from rotary.frequencies import axial, linear, llama3, ntk, yarn
from rotary.theory import (
    angle_error,
    code_distance,
    decay,
    final_sum,
    flattened,
    incomplete_planes,
    mean_cosine,
    summed,
    wavelengths,
)


def lines(axes):
    return {line.get_label(): line.get_xydata() for line in axes.get_lines()}


def test_decay():
    near, far = plots.decay_figure(dim=16, length=40).get_axes()
    shapes = {
        "power": inverse_power(16),
        "linear": Frequencies(1 - np.arange(8) / 8),
        "shared": Frequencies(np.full(8, 0.1)),
    }
    drawn = {label.split(",")[0]: data for label, data in lines(near).items()}
    assert set(drawn) == set(shapes)
    for name, frequencies in shapes.items():
        np.testing.assert_array_equal(drawn[name][:, 0], np.arange(41))
        np.testing.assert_allclose(drawn[name][:, 1], decay(frequencies, np.arange(41)))
    bins = plots.log_bins(2 * wavelengths(inverse_power(16)).max())
    curves = (decay, final_sum, mean_cosine)
    for line, band, curve in zip(far.get_lines(), far.collections, curves, strict=False):
        values = [curve(inverse_power(16), each) / curve(inverse_power(16), 0) for each in bins]
        np.testing.assert_allclose(line.get_ydata(), [each.mean() for each in values])
        drawn_to = band.get_paths()[0].vertices[:, 1]
        assert drawn_to.max() == pytest.approx(max(each.max() for each in values))
        assert drawn_to.min() == pytest.approx(min(each.min() for each in values))


def test_log_bins_are_whole_numbers_without_gaps_at_the_start():
    bins = plots.log_bins(1000)
    joined = np.concatenate(bins)
    assert (joined == np.round(joined)).all()
    assert (np.diff(joined) > 0).all()
    np.testing.assert_array_equal(joined[:100], np.arange(1, 101))
    assert joined[-1] == 1000


def test_wavelengths():
    (axes,) = plots.wavelengths_figure(32, (100.0, 1e6), length=500).get_axes()
    drawn = lines(axes)
    for base in (100.0, 1e6):
        frequencies = inverse_power(32, base)
        slow = len(incomplete_planes(frequencies, 500))
        data = drawn[f"base {base:,.0f}: {slow} of 16 planes"]
        np.testing.assert_allclose(data[:, 1], wavelengths(frequencies)[0])


def test_schedules():
    (axes,) = plots.schedules_figure(factor=8.0, original_length=4096).get_axes()
    plain = inverse_power(128)
    drawn = lines(axes)
    scaled = {
        "linear (PI)": linear(plain, 8.0),
        "NTK": ntk(plain, 8.0),
        "YaRN, amplitude 1.208": yarn(plain, 8.0, 4096),
        "Llama 3": llama3(plain, 8.0, 4096),
    }
    for label, frequencies in scaled.items():
        np.testing.assert_allclose(drawn[label][:, 1], frequencies.matrix[0] / plain.matrix[0])
    assert sum(label.startswith("dynamic NTK at 32,768") for label in drawn) == 1
    own = {"half": Frequencies(plain.matrix / 2)}
    (axes,) = plots.schedules_figure(schedules=own).get_axes()
    np.testing.assert_allclose(lines(axes)["half"][:, 1], 0.5)
    with pytest.raises(ConfigError, match=r"'half' has a matrix of shape \(1, 64\); dim=64 needs"):
        plots.schedules_figure(dim=64, schedules=own)


def test_grid():
    *panels, bar = plots.grid_figure(16, size=5).get_axes()
    images = {axes.get_title(loc="left"): axes.get_images()[0].get_array() for axes in panels}
    assert len(images) == 4
    expected = {
        "axial": axial(16, 2, 100.0),
        "x + y: lossy": summed(inverse_power(16)),
        "flattened: wraps": flattened(inverse_power(16), 5),
    }
    for title, frequencies in expected.items():
        for row, column in ((0, 0), (4, -4), (-3, 1)):  # Rows run down, columns to the right.
            got = images[title][row + 4, column + 4]
            assert got == pytest.approx(float(mean_cosine(frequencies, [row, column])))
    assert images["mixed (drawn)"][4, 4] == pytest.approx(1)
    np.testing.assert_allclose(images["mixed (drawn)"], images["mixed (drawn)"][::-1, ::-1])
    assert images["flattened: wraps"][5, 0] > images["flattened: wraps"][5, 4]
    assert "cos" in bar.get_ylabel()


def test_resolution():
    near, angles = plots.resolution_figure((2, 4), length=800, angle_dim=16).get_axes()
    for dim in (2, 4):
        steps = lines(near)[f"dim {dim}"]
        frequencies = inverse_power(dim)
        smallest = np.minimum.accumulate(code_distance(frequencies, np.arange(1, 801)))
        drawn = np.interp(np.arange(1, 801), steps[:, 0], np.arange(len(steps)))
        share = smallest / (2 * np.sqrt(dim // 2))
        np.testing.assert_allclose(steps[drawn.astype(int), 1], share)
    limits = sorted(line.get_ydata()[0] for line in near.get_lines() if len(line.get_ydata()) == 2)
    assert limits[-2:] == [torch.finfo(t).eps / 2 for t in (torch.float16, torch.bfloat16)]
    data = lines(angles)["float32 throughout"]
    assert data[3, 1] == angle_error(16, 100_000, "float32").max


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_files_are_reproducible(tmp_path, suffix):
    first, second = tmp_path / f"a{suffix}", tmp_path / f"b{suffix}"
    for path in (first, second):
        plots.save(plots.wavelengths_figure(8), path)
    assert first.read_bytes() == second.read_bytes()


def test_the_command(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["plot", "wavelengths", "--dim", "8", "--bases", "100", "--length", "50"]) == 0
    assert capsys.readouterr().out.strip() == "wavelengths.png"
    assert (tmp_path / "wavelengths.png").read_bytes().startswith(b"\x89PNG")
    assert main(["plot", "schedules", "--output", "s.svg", "--factor", "4"]) == 0
    assert "<svg" in (tmp_path / "s.svg").read_text(encoding="utf-8")
    capsys.readouterr()
    for output, message in (
        ("s.jpg", "ends in '.jpg'; accepted are .png, .svg, .pdf"),
        ("no/s.png", "the folder no does not exist; make it first"),
    ):
        assert main(["plot", "schedules", "--output", output]) == 2
        error = capsys.readouterr().err
        assert message in error
        assert len(error.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["decay", "--length", "0"], "length is 0; it must be an integer >= 1"),
        (["decay", "--dim", "7"], "dim is 7"),
        (["wavelengths", "--bases", "-1"], "base is -1"),
        (["schedules", "--factor", "0"], "factor is 0"),
        (["grid", "--size", "1"], "size is 1; it must be an integer >= 2"),
        (["resolution", "--length", "1"], "length is 1; it must be an integer >= 2"),
    ],
)
def test_wrong_numbers_are_one_line(capsys, arguments, message):
    assert main(["plot", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1


def test_every_figure_has_a_command():
    from rotary.cli.plot import FIGURES

    drawers = {name for name in dir(plots) if name.endswith("_figure")}
    assert {draw.__name__ for draw, _ in FIGURES.values()} == drawers
