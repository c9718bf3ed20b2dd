"""loss.png: training and validation loss over the stages, the baseline, and accuracy."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import FuncFormatter, MaxNLocator, PercentFormatter

from rotary.training.metrics import Event
from rotary.training.objectives import MASKED, Objective
from rotary.training.stages import StagePlace

INK, FAINT = "#22303c", "#8a97a3"
TRAIN, VALIDATION, BASELINE = "#2f7fd0", "#e4572e", "#6b7785"
BANDS = ("#f3f6f9", "#e6edf3")


def draw(
    events: Sequence[Event],
    stages: Sequence[StagePlace],
    baseline: tuple[str, float],
    title: str,
    *,
    objective: Objective = MASKED,
) -> bytes:
    """Draw a run as a PNG.

    Args:
        events: The lines of metrics.jsonl.
        stages: The stages, which become bands.
        baseline: Name and loss of the baseline, a level line.
        title: What was trained.
        objective: For the names of loss and accuracy.

    Returns:
        The bytes of the PNG file.
    """
    baseline_name, baseline_loss = baseline
    steps = [event for event in events if event["event"] == "step" and math.isfinite(event["loss"])]
    validations = [event for event in events if event["event"] == "evaluation"]
    figure = Figure(figsize=(10, 6), dpi=150, facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1.15))
    _dress(upper, stages)
    _dress(lower, stages)
    _curves(upper, steps, validations, "loss")
    _curves(lower, steps, validations, "accuracy")
    _name_stages(upper, stages)
    _baseline(upper, baseline_name, baseline_loss, stages[-1].end)
    if validations:
        last = validations[-1]
        gain = baseline_loss - last["loss"]
        side = "below" if gain >= 0 else "above"
        text = f"{last['loss']:.2f}, {abs(gain):.2f} nats {side} {baseline_name}"
        _last_value(upper, steps, last, "loss", text)
        _last_value(lower, steps, last, "accuracy", f"{last['accuracy']:.1%}")
    highest = max([baseline_loss, *(event["loss"] for event in steps)])
    lowest = min([baseline_loss, *(event["loss"] for event in [*steps, *validations])])
    upper.set_ylim(max(0.0, lowest - 0.4), highest + 0.12 * (highest - lowest) + 0.4)
    upper.set_ylabel(f"loss ({objective.unit})", color=INK)
    lower.set_ylabel(objective.accuracy, color=INK)
    lower.set_ylim(0, 1.25 * max(event["accuracy"] for event in [*steps, *validations]) + 0.02)
    lower.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    lower.set_xlabel("step", color=INK)
    upper.set_title(title, loc="left", color=INK, fontsize=13, fontweight="bold", pad=12)
    handles = upper.get_legend_handles_labels()
    upper.legend(
        *handles, loc="upper right", frameon=False, labelcolor=INK, bbox_to_anchor=(1, 0.9)
    )
    file = io.BytesIO()
    # No date or version in the file: the same run gives the same bytes.
    figure.savefig(file, format="png", metadata={"Software": None})
    return file.getvalue()


def smooth(values: Sequence[float], reach: int) -> list[float]:
    """Mean of each value and up to ``reach`` neighbours on both sides (fewer at the ends).

    Example:
        >>> smooth([0.0, 3.0, 6.0], reach=1)
        [1.5, 3.0, 4.5]
    """
    means = []
    for index in range(len(values)):
        part = values[max(0, index - reach) : index + reach + 1]
        means.append(sum(part) / len(part))
    return means


def _dress(axes: Any, stages: Sequence[StagePlace]) -> None:
    for index, stage in enumerate(stages):
        axes.axvspan(stage.begin, stage.end, color=BANDS[index % 2], linewidth=0, zorder=0)
    axes.set_xlim(0, stages[-1].end)
    axes.grid(axis="y", color="white", linewidth=1.2, zorder=1)
    axes.set_axisbelow(True)
    for side in axes.spines.values():
        side.set_visible(False)
    axes.tick_params(colors=INK, length=0)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=10, integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda step, _: f"{step:,.0f}"))


def _curves(axes: Any, steps: Sequence[Event], validations: Sequence[Event], what: str) -> None:
    places = [event["step"] for event in steps]
    values = [event[what] for event in steps]
    reach = max(1, len(values) // 60)
    axes.plot(places, values, color=TRAIN, alpha=0.25, linewidth=1, zorder=2)
    axes.plot(places, smooth(values, reach), color=TRAIN, linewidth=2, label="training", zorder=3)
    axes.plot(
        [event["step"] for event in validations],
        [event[what] for event in validations],
        color=VALIDATION,
        linewidth=1.5,
        marker="o",
        markersize=5,
        markeredgecolor="white",
        label="validation",
        clip_on=False,
        zorder=4,
    )


def _name_stages(axes: Any, stages: Sequence[StagePlace]) -> None:
    for stage in stages:
        axes.annotate(
            f"stage {stage.number}\n{stage.length} tokens \u00d7 {stage.batch}",
            ((stage.begin + stage.end) / 2, 1),
            xycoords=("data", "axes fraction"),
            xytext=(0, -6),
            textcoords="offset points",
            ha="center",
            va="top",
            fontsize=9,
            color=INK,
        )


def _baseline(axes: Any, name: str, loss: float, end: int) -> None:
    axes.axhline(loss, color=BASELINE, linewidth=1.2, linestyle=(0, (5, 3)), zorder=2)
    axes.annotate(
        f"{name} baseline {loss:.2f}",
        (end, loss),
        xytext=(-8, 4),
        textcoords="offset points",
        ha="right",
        va="bottom",
        fontsize=10,
        color=BASELINE,
    )


def _last_value(axes: Any, steps: Sequence[Event], last: Event, what: str, text: str) -> None:
    """Write the last validation beside its point, on the side where training is not."""
    is_above = not steps or last[what] >= steps[-1][what]
    axes.annotate(
        text,
        (last["step"], last[what]),
        xytext=(-6, 9 if is_above else -9),
        textcoords="offset points",
        ha="right",
        va="bottom" if is_above else "top",
        fontsize=11,
        fontweight="bold",
        color=VALIDATION,
        path_effects=[withStroke(linewidth=3, foreground=BANDS[0])],
        zorder=5,
    )
