"""M-RoPE: one row of frequencies, its planes dealt out to several position axes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rotary.errors import ConfigError
from rotary.frequencies.base import Frequencies, make_recipe, one_axis
from rotary.frequencies.checks import integer


def sections(
    frequencies: Frequencies, sizes: Sequence[int], *, is_interleaved: bool = False
) -> Frequencies:
    """Deal the planes out to axes, in blocks or in turn (Qwen2-VL, arXiv 2409.12191; Qwen3-VL).

    Blocks give the first ``sizes[0]`` planes to axis 0, the next ``sizes[1]`` to axis 1, and so on.
    Interleaved, plane ``p`` goes to axis ``p mod axes`` while that axis has planes left, and to
    axis 0 (time) otherwise. This says which *axis* a plane follows; which *channels* form a plane
    is the layout, another question.

    Args:
        frequencies: Of one axis, (1, planes).
        sizes: Planes of each axis, for Qwen (time, height, width); they add up to the planes.
        is_interleaved: In turn (Qwen3-VL's ``mrope_interleaved``) instead of in blocks.

    Returns:
        A matrix of shape (axes, planes) with the same value in each column as before.

    Raises:
        ConfigError: If the sizes do not add up, or cannot be dealt out in turn.
        ShapeError: If the frequencies have heads or more than one axis.

    Example:
        >>> from rotary import inverse_power
        >>> sections(inverse_power(8), (2, 1, 1)).matrix
        array([[1.   , 0.1  , 0.   , 0.   ],
               [0.   , 0.   , 0.01 , 0.   ],
               [0.   , 0.   , 0.   , 0.001]])
    """
    values = one_axis("sections", frequencies)
    sizes = [integer("sections", "sizes", size, least=0) for size in sizes]
    if not sizes or sum(sizes) != values.size:
        raise ConfigError(
            f"sections: sizes are {sizes}, {sum(sizes)} planes together, but there are "
            f"{values.size}; they must add up."
        )
    if is_interleaved:
        axes = np.zeros(values.size, dtype=np.int64)
        for axis, size in list(enumerate(sizes))[1:]:
            taken = np.arange(axis, len(sizes) * size, len(sizes))
            if taken.size and taken[-1] >= values.size:
                raise ConfigError(
                    f"sections: axis {axis} wants {size} of {values.size} planes, more than there "
                    f"are in every {len(sizes)}th place; interleaved sizes must be nearly equal."
                )
            axes[taken] = axis
    else:
        axes = np.repeat(np.arange(len(sizes)), sizes)
    spread = assign_axes(frequencies, axes.tolist(), num_axes=len(sizes))
    return Frequencies(
        spread.matrix,
        frequencies.amplitude,
        recipe=make_recipe(
            "sections", frequencies=frequencies, sizes=sizes, is_interleaved=bool(is_interleaved)
        ),
    )


def assign_axes(
    frequencies: Frequencies, axes: Sequence[int], *, num_axes: int | None = None
) -> Frequencies:
    """Say for every plane which axis it follows, as explicit data.

    Args:
        frequencies: Of one axis, (1, planes).
        axes: One axis number for each plane.
        num_axes: How many axes the positions have; one more than the largest named if left out.

    Returns:
        A matrix of shape (num_axes, planes) with the same value in each column as before.

    Raises:
        ConfigError: If there is not exactly one axis, in range, for each plane.

    Example:
        >>> from rotary import inverse_power
        >>> assign_axes(inverse_power(4), [1, 0]).matrix
        array([[0.  , 0.01],
               [1.  , 0.  ]])
    """
    values = one_axis("assign_axes", frequencies)
    axes = [integer("assign_axes", "axes", axis, least=0) for axis in axes]
    num_axes = max(axes, default=0) + 1 if num_axes is None else num_axes
    if len(axes) != values.size or max(axes, default=0) >= num_axes:
        raise ConfigError(
            f"assign_axes: {len(axes)} axes were given for {values.size} planes, the largest "
            f"{max(axes, default=0)} of {num_axes}; give one axis from 0 to {num_axes - 1} for "
            "each plane."
        )
    matrix = np.zeros((num_axes, values.size))
    matrix[axes, np.arange(values.size)] = values
    return Frequencies(
        matrix,
        frequencies.amplitude,
        recipe=make_recipe("assign_axes", frequencies=frequencies, axes=axes, num_axes=num_axes),
    )
