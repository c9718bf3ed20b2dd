"""Axial RoPE: each position axis has planes of its own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rotary.errors import ConfigError
from rotary.frequencies.base import Frequencies, make_recipe
from rotary.frequencies.checks import even_dim, integer, number


def axial(
    dim: int,
    num_axes: int = 2,
    base: float = 10000.0,
    *,
    planes: Sequence[int] | None = None,
) -> Frequencies:
    """Give each axis a block of planes: the block matrix of the 2-D post (Su 2021, kexue 8397).

    For two axes one half of the planes turns with the first coordinate and the other half with the
    second, each block with frequencies ``base ** (-i / n)`` for its ``n`` planes.

    Args:
        dim: Number of channels that turn, even.
        num_axes: Number of position axes: 2 for images, 3 for video.
        base: Of every axis; rope-vit uses 100 for images, most vision towers 10000.
        planes: How many planes each axis gets; they add up to ``dim / 2``. Left out, all get the
            same, and planes that remain go one each to the first axes: 32 planes over 3 axes are
            11, 11, 10.

    Returns:
        A matrix of shape (num_axes, dim / 2) with one non-zero entry in each column.

    Raises:
        ConfigError: If a number is out of range or the shares do not add up.

    Example:
        >>> axial(8, base=100.0).matrix
        array([[1. , 0.1, 0. , 0. ],
               [0. , 0. , 1. , 0.1]])
    """
    dim = even_dim("axial", "dim", dim)
    num_axes = integer("axial", "num_axes", num_axes)
    base = number("axial", "base", base)
    total = dim // 2
    if planes is None:
        shares = [total // num_axes + (axis < total % num_axes) for axis in range(num_axes)]
    else:
        shares = [integer("axial", "planes", share, least=0) for share in planes]
    if len(shares) != num_axes or sum(shares) != total or (planes is None and 0 in shares):
        raise ConfigError(
            f"axial: planes are {shares} for {num_axes} axes; there must be one number for each "
            f"axis, and they must add up to dim / 2 = {total}."
        )
    matrix = np.zeros((num_axes, total))
    start = 0
    for axis, share in enumerate(shares):
        matrix[axis, start : start + share] = base ** -(np.arange(share) / max(share, 1))
        start += share
    return Frequencies(
        matrix, recipe=make_recipe("axial", dim=dim, num_axes=num_axes, base=base, planes=shares)
    )
