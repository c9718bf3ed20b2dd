"""Figures of the theory: each function computes with :mod:`rotary.theory` and returns a Figure.

Nothing is shown or written here; ``rotary plot`` saves them, and so does ``figure.savefig``. The
data of every line and image is that of the functions named in its docstring.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from rotary.errors import ConfigError, missing
from rotary.frequencies import (
    Frequencies,
    axial,
    dynamic_ntk,
    inverse_power,
    linear,
    llama3,
    mixed,
    ntk,
    yarn,
)
from rotary.frequencies.checks import integer
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

try:
    import matplotlib
    from cycler import cycler
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
except ModuleNotFoundError as error:
    raise missing("rotary.plots", error.name, "train") from error

Array = npt.NDArray[np.float64]

# Okabe and Ito's colours, which readers with any colour vision can tell apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
GREY = "#7F7F7F"
STYLE = {
    "axes.prop_cycle": cycler(color=COLOURS),
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "font.size": 10,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "lines.linewidth": 1.6,
    "svg.hashsalt": "rotary",  # The same figure is the same file.
}
_ANGLE_LABELS = {
    "float64": "float64 throughout",
    "float32_frequencies": "frequencies float32",
    "float32": "float32 throughout",
    "bfloat16_frequencies": "frequencies bfloat16",
}
FORMATS = (".png", ".svg", ".pdf")


def decay_figure(dim: int = 128, base: float = 10000.0, *, length: int = 256) -> Figure:
    """The first post's bound, what other thetas give, and how it goes on beyond the figure.

    Left :func:`rotary.theory.decay` at whole distances up to ``length`` for the power law, a linear
    theta and one shared theta; right it, :func:`rotary.theory.final_sum` and
    :func:`rotary.theory.mean_cosine`, each as a share of its value at 0, out to twice the longest
    wavelength: the mean over the distances of a bin, and in light the range over them.

    Args:
        dim: Number of channels that turn.
        base: Of the power law.
        length: Where the left panel ends.
    """
    length = integer("decay_figure", "length", length)
    with _style():
        power = inverse_power(dim, base)
        planes = power.num_planes
        figure = Figure(figsize=(9.6, 3.9), layout="constrained")
        near, far = figure.subplots(1, 2)
        others = {
            rf"power, $\theta_p = {base:g}^{{-2p/{dim}}}$": power,
            rf"linear, $\theta_p = 1 - p/{planes}$": Frequencies(1 - np.arange(planes) / planes),
            r"shared, $\theta_p = 0.1$": Frequencies(np.full(planes, 0.1)),
        }
        distances = np.arange(length + 1)
        for label, frequencies in others.items():
            near.plot(distances, decay(frequencies, distances), label=label)
        near.set(xlabel="relative distance $m$", ylabel="$B(m)$", xlim=(0, length))
        near.set_ylim(0, (planes + 1) / 2 * 1.1)
        near.set_title("A bound that falls, but not steadily")
        near.legend(loc="center right", bbox_to_anchor=(1.0, 0.66))
        longest = float(wavelengths(power).max())
        curves: dict[str, Callable[[Array], Array]] = {
            "bound $B(m)/B(0)$": lambda m: decay(power, m) / decay(power, 0),
            r"last sum $|S_{d/2}|\,/\,(d/2)$": lambda m: final_sum(power, m),
            r"mean of $\cos m\theta_p$": lambda m: mean_cosine(power, m),
        }
        bins = log_bins(2 * longest)
        centres = [float(np.exp(np.log(each).mean())) for each in bins]
        for label, curve in curves.items():
            values = [curve(each) for each in bins]
            (line,) = far.plot(centres, [each.mean() for each in values], label=label)
            low, high = [each.min() for each in values], [each.max() for each in values]
            far.fill_between(centres, low, high, color=line.get_color(), alpha=0.22, linewidth=0)
        far.axhline(0, color=GREY, linewidth=0.8)
        far.axvline(longest, color=GREY, linewidth=0.8, linestyle="--")
        _note(far, f"longest\nwavelength\n{longest:,.0f}", (longest, 0.44), (-5, 0), ha="right")
        far.set(xscale="log", xlabel="relative distance $m$", ylabel="share of the value at 0")
        far.set(xlim=(1, centres[-1]), ylim=(None, 1.02))
        far.set_title("Further out it stops falling")
        far.legend(loc="upper right", bbox_to_anchor=(0.93, 1.0))
        return figure


def wavelengths_figure(
    dim: int = 128,
    bases: Sequence[float] = (10000.0, 500000.0, 1000000.0),
    *,
    length: int = 8192,
) -> Figure:
    """Wavelength of every plane, and which planes never complete a turn within a context.

    Lines are :func:`rotary.theory.wavelengths`; the counts in the legend are those of
    :func:`rotary.theory.incomplete_planes`.

    Args:
        dim: Number of channels that turn.
        bases: One line for each.
        length: The context length.
    """
    with _style():
        figure = Figure(figsize=(7.2, 4.3), layout="constrained")
        axes = figure.subplots()
        top = float(length)
        for base in bases:
            frequencies = inverse_power(dim, base)
            values, slow = wavelengths(frequencies)[0], incomplete_planes(frequencies, length)
            label = f"base {base:,.0f}: {len(slow)} of {values.size} planes"
            axes.plot(values, label=label, zorder=3)
            top = max(top, float(values.max()))
        axes.axhline(length, color=GREY, linewidth=1, linestyle="--")
        axes.axhspan(length, top * 2, color=GREY, alpha=0.12, linewidth=0)
        _note(axes, f"never a full turn within {length:,} positions", (0, length), (4, 5))
        axes.set(yscale="log", xlabel="plane $p$", ylabel=r"wavelength $2\pi/\theta_p$, positions")
        axes.set(xlim=(0, dim // 2 - 1), ylim=(5, top * 2))
        axes.set_title("Slow planes never complete a turn")
        axes.legend(title="planes that never complete a turn", loc="lower right")
        return figure


def schedules_figure(
    dim: int = 128,
    base: float = 10000.0,
    *,
    factor: float = 8.0,
    original_length: int = 4096,
    schedules: Mapping[str, Frequencies] | None = None,
) -> Figure:
    """What context extensions do to each plane: the share of its frequency that is left.

    Args:
        dim: Number of channels that turn.
        base: Of the frequencies before scaling.
        factor: New length over original length.
        original_length: What the model was trained on.
        schedules: Other scaled frequencies by their label; by default the schedules of
            :mod:`rotary.frequencies` at this factor.

    Raises:
        ConfigError: If scaled frequencies have other planes than ``dim / 2``.
    """
    plain = inverse_power(dim, base)
    if schedules is None:
        new_length = int(factor * original_length)
        schedules = {
            "linear (PI)": linear(plain, factor),
            "NTK": ntk(plain, factor),
            f"dynamic NTK at {new_length:,}": dynamic_ntk(plain, factor, original_length).at(
                new_length
            ),
            "YaRN": yarn(plain, factor, original_length),
            "Llama 3": llama3(plain, factor, original_length),
        }
    with _style():
        figure = Figure(figsize=(9.0, 4.1), layout="constrained")
        axes = figure.subplots()
        for label, scaled in schedules.items():
            if scaled.matrix.shape != plain.matrix.shape:
                raise ConfigError(
                    f"schedules_figure: {label!r} has a matrix of shape {scaled.matrix.shape}; "
                    f"dim={dim} needs {plain.matrix.shape}."
                )
            note = "" if scaled.amplitude == 1 else f", amplitude {scaled.amplitude:.3f}"
            axes.plot(scaled.matrix[0] / plain.matrix[0], label=label + note)
        turns = original_length / wavelengths(plain)[0]
        for limit in (32, 1):
            plane = float(np.interp(-limit, -turns, np.arange(turns.size)))
            axes.axvline(plane, color=GREY, linewidth=0.8, linestyle="--")
            words = f"{limit} turn{'s' * (limit > 1)} in\n{original_length:,}"
            _note(axes, words, (plane, 1.12), (3, 0), va="top")
        axes.set(xlabel="plane $p$ (fast to slow)", ylabel=r"$\theta'_p\,/\,\theta_p$")
        axes.set(xlim=(0, dim // 2 - 1), ylim=(0, 1.14))
        axes.set_title(f"Extending {original_length:,} positions {factor:g} times")
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
        return figure


def grid_figure(dim: int = 64, *, base: float = 100.0, size: int = 14, seed: int = 0) -> Figure:
    """Which cells of an image look near: the mean cosine of every displacement, four ways.

    Images are :func:`rotary.theory.mean_cosine` of the displacement: axial, mixed (drawn), summed
    ``x + y``, and flattened row by row.

    Args:
        dim: Number of channels that turn, a multiple of 4.
        base: Of the axial and mixed frequencies; the one-axis ones have base 10000.
        size: Cells in a row and rows of the grid.
        seed: Of the mixed frequencies.
    """
    size = integer("grid_figure", "size", size, least=2)
    encodings = {
        "axial": axial(dim, 2, base),
        "mixed (drawn)": _first_head(mixed(dim, 2, seed=seed)),
        "x + y: lossy": summed(inverse_power(dim)),
        "flattened: wraps": flattened(inverse_power(dim), size),
    }
    with _style():
        figure = Figure(figsize=(10.4, 2.9), layout="compressed")
        panels = figure.subplots(1, 4, sharey=True)
        reach = np.arange(-size + 1, size)
        moves = np.stack(np.meshgrid(reach, reach, indexing="ij"), axis=-1)
        for axes, (title, frequencies) in zip(panels, encodings.items(), strict=True):
            image = axes.imshow(
                mean_cosine(frequencies, moves),
                extent=(-size + 0.5, size - 0.5, size - 0.5, -size + 0.5),
                vmin=-0.2,
                vmax=1,
                cmap="viridis",
                interpolation="nearest",
            )
            axes.set_title(title)
            axes.set_xlabel("columns to the right")
            axes.spines[:].set_visible(False)
        panels[0].set_ylabel("rows down")
        figure.colorbar(image, ax=panels, label=r"mean of $\cos$ angle", pad=0.01)
        return figure


def resolution_figure(
    dims: Sequence[int] = (2, 4, 8, 16, 64),
    *,
    base: float = 10000.0,
    length: int = 100_000,
    angle_dim: int = 128,
) -> Figure:
    """How near far positions come to a code, and how wrong an angle is in each dtype.

    Left the running minimum of :func:`rotary.theory.code_distance` (as a share of its maximum
    ``2 sqrt(planes)``) with the limits below which rounded tables may confuse positions; right
    :func:`rotary.theory.angle_error`.

    Args:
        dims: One line for each.
        base: Of the power law.
        length: Largest displacement.
        angle_dim: Channels of the right panel.
    """
    length = integer("resolution_figure", "length", length, least=2)
    with _style():
        figure = Figure(figsize=(9.8, 4.1), layout="constrained")
        near, angles = figure.subplots(1, 2)
        distances = np.arange(1, length + 1)
        for dim in dims:
            frequencies = inverse_power(dim, base)
            smallest = np.minimum.accumulate(code_distance(frequencies, distances))
            share = smallest / (2 * np.sqrt(frequencies.num_planes))
            keep = np.flatnonzero(np.diff(share, prepend=np.inf, append=-np.inf)[:-1] < 0)
            keep = np.append(keep, length - 1)
            near.plot(distances[keep], share[keep], drawstyle="steps-post", label=f"dim {dim}")
        for dtype, name in ((torch.bfloat16, "bfloat16"), (torch.float16, "float16")):
            limit = torch.finfo(dtype).eps / 2
            near.axhline(limit, color=GREY, linewidth=0.9, linestyle="--")
            _note(near, f"{name} tables", (1.1, limit), (0, 3))
        near.set(xscale="log", yscale="log", xlim=(1, length), ylim=(3e-6, 1))
        near.set(xlabel="displacements up to", ylabel="nearest code, share of the maximum")
        near.set_title("Few channels confuse far positions")
        near.legend(loc="lower left")
        _draw_angle_errors(angles, angle_dim, base)
        return figure


def log_bins(last: float, per_decade: int = 16, most: int = 48) -> list[Array]:
    """Whole numbers from 1 to ``last`` in bins of equal ratio, at most so many of each.

    Example:
        >>> [each.tolist() for each in log_bins(4, per_decade=3)]
        [[1.0, 2.0], [3.0, 4.0]]
    """
    edges = np.geomspace(1, last + 1, round(per_decade * np.log10(last + 1)) + 1)
    return [
        np.unique(np.linspace(np.ceil(low), np.ceil(high) - 1, most).round())
        for low, high in itertools.pairwise(edges)
        if np.ceil(low) < np.ceil(high)
    ]


def save(figure: Figure, path: str | Path) -> Path:
    """Write a figure as PNG, SVG or PDF, the same bytes for the same figure.

    Raises:
        ConfigError: If the suffix is another one or the folder does not exist.
    """
    target = Path(path)
    if target.suffix.lower() not in FORMATS:
        raise ConfigError(
            f"plot: {target.name!r} ends in {target.suffix!r}; accepted are {', '.join(FORMATS)}."
        )
    if not target.parent.is_dir():
        raise ConfigError(f"plot: the folder {target.parent} does not exist; make it first.")
    undated = {".png": {"Software": None}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
    with _style():
        figure.savefig(target, dpi=160, metadata=undated[target.suffix.lower()])
    return target


def _draw_angle_errors(axes: Axes, dim: int, base: float) -> None:
    positions = [10**power for power in range(2, 8)]
    for recipe, label in _ANGLE_LABELS.items():
        errors = [angle_error(dim, position, recipe, base=base).max for position in positions]
        axes.plot(positions, errors, marker="o", markersize=3.5, label=label)
    axes.axhline(np.pi, color=GREY, linewidth=0.9, linestyle="--")
    _note(axes, "half a turn: nothing left", (positions[0], np.pi), (0, 4))
    axes.set(xscale="log", yscale="log", xlabel="position", ylabel="largest angle error, radians")
    axes.set_ylim(1e-15, 60)
    axes.set_title(f"Angles need float64 (dim {dim})")
    axes.legend(
        loc="center left",
        bbox_to_anchor=(0.0, 0.4),
        title="how angles are formed",
        alignment="left",
    )


def _note(
    axes: Axes, text: str, at: tuple[float, float], offset: tuple[float, float], **style: Any
) -> None:
    """Small grey words beside a point, moved by an offset in points."""
    axes.annotate(
        text, at, xytext=offset, textcoords="offset points", fontsize=8, color="#555555", **style
    )


def _first_head(frequencies: Frequencies) -> Frequencies:
    matrix = frequencies.matrix
    return Frequencies(matrix[0]) if matrix.ndim == 3 else frequencies


@contextmanager
def _style() -> Iterator[None]:
    with matplotlib.rc_context(STYLE):
        yield
