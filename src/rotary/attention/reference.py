"""Linear attention as the seed post writes it: all weights in a matrix, float64.

Slow, plainly right. It takes angles, never tables, and plain functions, never the feature maps
under test.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from rotary._shapes import Bool, Float
from rotary.errors import ConfigError
from rotary.kernels.contract import Layout
from rotary.kernels.reference import rotate_reference


def weights_reference(
    q: Float[Tensor, "*heads L dim"],
    k: Float[Tensor, "*heads S dim"],
    *,
    form: str,
    on_queries: Callable[[Tensor], Tensor] | None = None,
    on_keys: Callable[[Tensor], Tensor] | None = None,
    query_angles: Tensor | None = None,
    key_angles: Tensor | None = None,
    layout: Layout = "interleaved",
) -> tuple[Tensor, Tensor]:
    """The weights in numerator and denominator, each (..., L, S), of every pair.

    Args:
        q: Queries.
        k: Keys, with as many heads.
        form: See :func:`rotary.attention.linear.linear_attention`.
        on_queries: The feature map of queries; not for the cosine form.
        on_keys: The same of keys.
        query_angles: Radians of the queries' planes, (..., L, P); None turns nothing.
        key_angles: The same of keys.
        layout: Which channels form a plane.

    Returns:
        Both matrices, float64; ones for the denominator of the undivided form.
    """
    q, k = q.to(torch.float64), k.to(torch.float64)

    def turn(x: Tensor, angles: Tensor | None) -> Tensor:
        return x if angles is None else rotate_reference(x, angles, layout=layout)

    if form == "cosine":
        cosine = turn(q / q.norm(dim=-1, keepdim=True), query_angles) @ (
            turn(k / k.norm(dim=-1, keepdim=True), key_angles).mT
        )
        return 1 + cosine, 1 + cosine
    if on_queries is None or on_keys is None:
        raise ConfigError(f"weights_reference: form {form!r} needs on_queries and on_keys.")
    if form == "rotate_first":
        first = on_queries(turn(q, query_angles)) @ on_keys(turn(k, key_angles)).mT
        return first, first
    plain = on_queries(q) @ on_keys(k).mT
    turned = turn(on_queries(q), query_angles) @ turn(on_keys(k), key_angles).mT
    return turned, {"numerator": plain, "both": turned, "undivided": torch.ones_like(plain)}[form]


def linear_attention_reference(
    above: Float[Tensor, "*heads L S"],
    below: Float[Tensor, "*heads L S"],
    v: Float[Tensor, "*heads S value_dim"],
    *,
    causal: bool = False,
    key_padding_mask: Bool[Tensor, "*batch S"] | None = None,
    is_divided: bool = True,
) -> Float[Tensor, "*heads L value_dim"]:
    """Weigh the values: ``sum_j above_ij v_j / sum_j below_ij`` over the pairs that count.

    Args:
        above: Weights of the numerator; see :func:`weights_reference`.
        below: Weights of the denominator.
        v: Values.
        causal: Query i sees keys up to i.
        key_padding_mask: True for a real key, (S,) or (batch, S).
        is_divided: Whether the form has a denominator.

    Returns:
        The output, float64; rows without any weight are zero.
    """
    counts = torch.ones(above.shape[-2:], dtype=torch.bool)
    if causal:
        counts = counts.tril()
    if key_padding_mask is not None:
        real = key_padding_mask.unsqueeze(-2)
        counts = counts & (real.unsqueeze(-3) if real.ndim == 3 and above.ndim == 4 else real)
    numerator = above.masked_fill(~counts, 0.0) @ v.to(torch.float64)
    if not is_divided:
        return numerator
    denominator = below.masked_fill(~counts, 0.0).sum(-1, keepdim=True)
    has_weight = denominator != 0
    return torch.where(has_weight, numerator / denominator.where(has_weight, 1.0), 0.0)
