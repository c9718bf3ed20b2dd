"""What a set of frequencies means within a context: the numbers that ``rotary explain`` prints."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

from rotary.errors import ShapeError
from rotary.frequencies import Frequencies
from rotary.frequencies.checks import integer
from rotary.theory._check import Array, matrix_of
from rotary.theory.base import first_negative_distance
from rotary.theory.resolution import incomplete_planes, wavelengths

Change = Literal["kept", "blended", "divided", "raised", "still"]


class PlaneGroup(NamedTuple):
    """Neighbouring planes of one axis that were changed alike.

    Attributes:
        axis: Position axis.
        first: First plane.
        last: Last plane, included.
        change: ``"kept"``; ``"divided"`` by one divisor, the same for all of the group;
            ``"blended"``: each by another; ``"raised"``: turned faster; ``"still"``: not turning.
        divisors: Smallest and largest ``theta / theta'`` of the group.
        wavelengths: Shortest and longest, in positions, after the change.
    """

    axis: int
    first: int
    last: int
    change: Change
    divisors: tuple[float, float]
    wavelengths: tuple[float, float]


class Explanation(NamedTuple):
    """Frequencies within a context.

    Attributes:
        groups: What happened to the planes, along every axis.
        incomplete: Planes that turn, and never complete a turn within the context.
        still: Planes that do not turn at all.
        first_negative: First distance within the context at which the mean cosine is negative, for
            positions that are equal on all axes (text); None if there is none.
    """

    groups: list[PlaneGroup]
    incomplete: list[int]
    still: list[int]
    first_negative: int | None


def explain(
    frequencies: Frequencies, length: int, *, original: Frequencies | None = None
) -> Explanation:
    """Describe frequencies within a context, against those that they were made from.

    Args:
        frequencies: The same for all heads.
        length: Positions in the context.
        original: Before scaling; the frequencies themselves when left out.

    Returns:
        Groups of planes, and which planes never complete a turn.

    Raises:
        ShapeError: If the frequencies differ from head to head, or the original has another shape.

    Example:
        >>> from rotary import inverse_power
        >>> from rotary.frequencies import llama3
        >>> plain = inverse_power(128, 500000.0)
        >>> for group in explain(llama3(plain), 131072, original=plain).groups:
        ...     print(group.first, group.last, group.change)
        0 28 kept
        29 34 blended
        35 63 divided
    """
    length = integer("explain", "length", length)
    matrix = matrix_of("explain", frequencies)
    before = matrix if original is None else matrix_of("explain", original)
    if before.shape != matrix.shape:
        raise ShapeError(
            f"explain: the frequencies have shape {matrix.shape} and the original ones "
            f"{before.shape}; they must be the same."
        )
    groups = [
        group
        for axis in range(len(matrix))
        for group in _groups(axis, matrix[axis], before[axis], wavelengths(frequencies)[axis])
    ]
    still = [int(plane) for plane in np.flatnonzero(~matrix.any(axis=0))]
    slow = [plane for plane in incomplete_planes(frequencies, length) if plane not in still]
    text = Frequencies(matrix.sum(axis=0))
    return Explanation(groups, slow, still, first_negative_distance(text, length))


def _groups(axis: int, theta: Array, before: Array, waves: Array) -> list[PlaneGroup]:
    with np.errstate(divide="ignore", invalid="ignore"):
        divisors = np.where(theta != 0, before / theta, np.inf)
    changes = [_change(float(divisor)) for divisor in divisors]
    # Planes divided by one and the same number are a group; each by its own are a blend.
    common = [
        change == "divided" and bool(np.isclose(divisors, divisors[plane], rtol=1e-9).sum() > 1)
        for plane, change in enumerate(changes)
    ]
    names: list[Change] = [
        "blended" if change == "divided" and not common[plane] else change
        for plane, change in enumerate(changes)
    ]
    starts = [
        plane
        for plane, name in enumerate(names)
        if plane == 0
        or name != names[plane - 1]
        or (name == "divided" and not np.isclose(divisors[plane], divisors[plane - 1], rtol=1e-9))
    ]
    groups = []
    for start, stop in zip(starts, [*starts[1:], len(names)], strict=True):
        inside, turning = divisors[start:stop], waves[start:stop]
        groups.append(
            PlaneGroup(
                axis,
                start,
                stop - 1,
                names[start],
                (float(inside.min()), float(inside.max())),
                (float(turning.min()), float(turning.max())),
            )
        )
    return groups


def _change(divisor: float) -> Change:
    if np.isinf(divisor):
        return "still"
    if abs(divisor - 1) < 1e-9:
        return "kept"
    return "divided" if divisor > 1 else "raised"
