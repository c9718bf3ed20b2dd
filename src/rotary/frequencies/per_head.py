"""Different frequencies for different heads, or none."""

from __future__ import annotations

import numpy as np

from rotary.errors import ConfigError, ShapeError
from rotary.frequencies.base import Frequencies, make_recipe


def per_head(*heads: Frequencies | None) -> Frequencies:
    """Give each head its own frequencies; a head that is None is not rotated.

    For instance one head that follows the rows of an image, one that follows the columns, and one
    that sees no position at all.

    Args:
        *heads: One for each head, of the same axes, planes and amplitude; None stands for zeros.

    Returns:
        A matrix of shape (heads, axes, planes).

    Raises:
        ConfigError: If no head has frequencies, or the amplitudes differ.
        ShapeError: If the heads differ in shape, or have heads themselves.

    Example:
        >>> from rotary import inverse_power
        >>> per_head(inverse_power(4), None).matrix
        array([[[1.  , 0.01]],
        <BLANKLINE>
               [[0.  , 0.  ]]])
    """
    given = [head for head in heads if head is not None]
    if not given:
        raise ConfigError("per_head: no head has frequencies; give at least one that is not None.")
    shape, amplitude = given[0].matrix.shape, given[0].amplitude
    if len(shape) != 2 or any(head.matrix.shape != shape for head in given):
        raise ShapeError(
            f"per_head: the heads have frequencies of shapes {[h.matrix.shape for h in given]}; "
            "all must be the same (axes, planes)."
        )
    # A head that does not turn would otherwise be scaled alone, or not at all: neither is asked.
    if any(head.amplitude != amplitude for head in given):
        raise ConfigError(
            f"per_head: the amplitudes are {[head.amplitude for head in given]}; one rotation has "
            "one amplitude."
        )
    matrix = np.stack([np.zeros(shape) if head is None else head.matrix for head in heads])
    recipes = [None if head is None else head.recipe for head in heads]
    return Frequencies(matrix, amplitude, recipe=make_recipe("per_head", heads=recipes))
