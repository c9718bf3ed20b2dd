"""RoPE-Mixed: every plane follows a direction of its own, different for every head."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rotary.errors import ConfigError
from rotary.frequencies.base import Frequencies, make_recipe
from rotary.frequencies.checks import even_dim, integer, number


def mixed(
    dim: int,
    num_heads: int,
    num_axes: int = 2,
    base: float = 10.0,
    *,
    seed: int = 0,
    layer: int = 0,
) -> Frequencies:
    """Draw dense frequencies for each head, to be learned (RoPE-Mixed, arXiv 2403.13298).

    Each head draws ``num_axes`` orthogonal unit directions; the planes along direction ``j`` have
    the magnitudes ``base ** (-i / n)``, ``n = dim / (2 num_axes)``. For two axes that is the
    paper's initialisation: one random angle a head, magnitudes ``base ** (-4i / dim)``.

    Train them with ``RotaryEmbedding(mixed(...), is_learnable=True)``.

    Args:
        dim: Number of channels of a head that turn, even.
        num_heads: Number of heads, each with its own matrix.
        num_axes: Number of position axes; 2 for images.
        base: The paper's is 10, far below that of text: an image has few positions.
        seed: Of the directions; the values are a pure function of the arguments.
        layer: Which layer they are for: a part of the seed, so that layers differ.

    Returns:
        A matrix of shape (num_heads, num_axes, dim / 2). Planes that do not divide evenly go one
        each to the first directions.

    Raises:
        ConfigError: If a number is out of range.

    Example:
        >>> mixed(dim=16, num_heads=3).matrix.shape
        (3, 2, 8)
    """
    dim = even_dim("mixed", "dim", dim)
    num_heads = integer("mixed", "num_heads", num_heads)
    num_axes = integer("mixed", "num_axes", num_axes)
    base = number("mixed", "base", base)
    seed, layer = (
        integer("mixed", "seed", seed, least=0),
        integer("mixed", "layer", layer, least=0),
    )
    total = dim // 2
    if total < num_axes:
        raise ConfigError(
            f"mixed: dim is {dim}, which gives {total} planes for {num_axes} axes; there must be a "
            f"plane for each, so dim >= {2 * num_axes}."
        )
    shares = [total // num_axes + (axis < total % num_axes) for axis in range(num_axes)]
    magnitudes = [base ** -(np.arange(share) / share) for share in shares]
    generator = np.random.default_rng([seed, layer])
    matrix = np.empty((num_heads, num_axes, total))
    for head in range(num_heads):
        directions = _orthogonal(generator, num_axes)
        matrix[head] = np.concatenate(
            [np.outer(directions[j], magnitudes[j]) for j in range(num_axes)], axis=1
        )
    return Frequencies(
        matrix,
        recipe=make_recipe(
            "mixed",
            dim=dim,
            num_heads=num_heads,
            num_axes=num_axes,
            base=base,
            seed=seed,
            layer=layer,
        ),
    )


def _orthogonal(generator: np.random.Generator, size: int) -> npt.NDArray[np.float64]:
    """Orthogonal unit rows, uniformly drawn; for two axes a turn by one uniform angle."""
    if size == 2:
        angle = generator.uniform(0.0, 2 * np.pi)
        return np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
    q, r = np.linalg.qr(generator.standard_normal((size, size)))
    return (q * np.sign(np.diag(r))).T
