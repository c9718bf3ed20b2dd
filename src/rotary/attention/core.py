"""The algebra of linear attention on features: a causal block, one token, and the full sum.

Here ``G`` counts batch times key heads, ``R`` query heads per key head, ``T`` rows of a block, made
of ``n`` chunks of ``C`` rows, ``M`` features and ``D`` value channels. The state is ``memory``
(G, M, D), the sum S of ``k v^T``, and ``key_sum`` (G, M), the sum z of the denominator's keys.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from rotary._shapes import Float
from rotary.attention.scan import needs_plain_operations
from rotary.kernels.running import running_dot

Features = tuple[Tensor, Tensor | None]
"""Numerator features and denominator features; the second is the first one itself where one tensor
serves both, and None where nothing is divided."""


def on_both(features: Features, change: Callable[[Tensor], Tensor]) -> Features:
    """Change both kinds of features, once where one tensor serves both."""
    above, below = features
    new = change(above)
    if below is None or below is above:
        return new, (None if below is None else new)
    return new, change(below)


def blocks_of(length: int, *, chunk: int, rows: int) -> list[slice]:
    """Cut a length into blocks of whole chunks, at most ``rows`` long where that is possible.

    The rest that fills no chunk is a block, and a chunk, of its own; nothing is padded. Up to two
    chunks stay one: there the dense form is the cheaper one. A compiler gets one block, so that its
    graph is the same for any length.
    """
    if needs_plain_operations() or length <= 2 * chunk:
        return [slice(0, length)] if length else []
    step = max(chunk, rows // chunk * chunk)
    whole = length // chunk * chunk
    cuts = [*range(0, whole, step), whole]
    if length > whole:
        cuts.append(length)
    return [slice(a, b) for a, b in itertools.pairwise(cuts)]


def causal_block(
    queries: Features,
    keys: Features,
    values: Float[Tensor, "G T D"],
    memory: Float[Tensor, "G M D"],
    key_sum: Float[Tensor, "G M"] | None,
    *,
    chunk: int,
) -> tuple[Tensor, Tensor | None, Tensor, Tensor | None]:
    """Attend to the state and, within the block, to the past: chunk by chunk, all at once.

    ``num = q S_start + tril(q k^T) v`` where ``S_start`` is the state at the chunk's start.

    Args:
        queries: (G, R, T, M) each.
        keys: (G, T, M) each.
        values: The values.
        memory: The state before the block.
        key_sum: The same for the denominator; None where nothing is divided.
        chunk: Rows of a chunk; if they do not divide T, the block is one chunk.

    Returns:
        Numerator (G, R, T, D), denominator (G, R, T) or None, and the state after the block.
    """
    (q, q_below), (k, k_below) = queries, keys
    G, R, T, M = q.shape
    D = values.shape[-1]
    C = T if T % chunk else chunk
    n = T // C
    q_rows = q.reshape(G, R, n, C, M).transpose(1, 2).reshape(G * n, R * C, M)
    k_rows, v_rows = k.reshape(G * n, C, M), values.reshape(G * n, C, D)

    starts, memory = _running((k_rows.mT @ v_rows).view(G, n, M, D), memory)
    scores = q_rows @ k_rows.mT
    scores = scores.view(G * n, R, C, C).tril().view(G * n, R * C, C)
    within, starts = scores @ v_rows, starts.reshape(G * n, M, D)
    # Functorch has no rule for the in-place form.
    add = torch.baddbmm if needs_plain_operations() else torch.Tensor.baddbmm_
    numerator = add(within, q_rows, starts)
    numerator = numerator.view(G, n, R, C, D).transpose(1, 2).reshape(G, R, T, D)
    if q_below is None or k_below is None or key_sum is None:
        return numerator, None, memory, key_sum
    if q_below is q:
        # The scores are at hand, so their row sums are the part within the chunk.
        sums, key_sum = _running(k.reshape(G, n, C, M).sum(2), key_sum)
        before = torch.einsum("gnm,grncm->grnc", sums, q.reshape(G, R, n, C, M))
        within = scores.sum(-1).view(G, n, R, C).transpose(1, 2)
        return numerator, (before + within).reshape(G, R, T), memory, key_sum
    denominator, key_sum = running_dot(q_below, k_below, key_sum)
    return numerator, denominator, memory, key_sum


def causal_padded(
    queries: Features,
    keys: Features,
    values: Float[Tensor, "G T D"],
    memory: Float[Tensor, "G M D"],
    key_sum: Float[Tensor, "G M"] | None,
    *,
    chunk: int,
) -> tuple[Tensor, Tensor | None, Tensor, Tensor | None]:
    """The same for any T in one graph: rows of zeros fill the last chunk up."""
    T = values.shape[-2]
    missing = (T + chunk - 1) // chunk * chunk - T

    def fill(x: Tensor) -> Tensor:
        return F.pad(x, (0, 0, 0, missing))

    numerator, denominator, memory, key_sum = causal_block(
        on_both(queries, fill), on_both(keys, fill), fill(values), memory, key_sum, chunk=chunk
    )
    denominator = None if denominator is None else denominator[..., :T]
    return numerator[..., :T, :], denominator, memory, key_sum


def _running(parts: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
    """Sums of the parts (G, n, ...) before each, beginning with ``start``; and the sum of all."""
    n = parts.shape[1]
    if torch.compiler.is_compiling():
        sums = torch.cat((start.unsqueeze(1), parts), 1).cumsum(1)
        return sums[:, :-1], sums[:, -1]
    sums_so_far = [start]
    for index in range(n):
        sums_so_far.append(sums_so_far[-1] + parts[:, index])
    return torch.stack(sums_so_far[:-1], 1), sums_so_far[-1]


def causal_token(
    queries: Features,
    keys: Features,
    values: Float[Tensor, "G 1 D"],
    memory: Float[Tensor, "G M D"],
    key_sum: Float[Tensor, "G M"] | None,
) -> tuple[Tensor, Tensor | None, Tensor, Tensor | None]:
    """The block of one token: put it into the state, then read the state."""
    (q, q_below), (k, k_below) = queries, keys
    memory = torch.baddbmm(memory, k.mT, values)
    numerator = q.squeeze(2) @ memory
    if q_below is None or k_below is None or key_sum is None:
        return numerator.unsqueeze(2), None, memory, key_sum
    key_sum = key_sum + k_below.squeeze(1)
    denominator = q_below.squeeze(2) @ key_sum.unsqueeze(-1)
    return numerator.unsqueeze(2), denominator, memory, key_sum


def add_keys(
    keys: Features,
    values: Float[Tensor, "G T D"],
    memory: Float[Tensor, "G M D"],
    key_sum: Tensor | None,
) -> tuple[Tensor, Tensor | None]:
    """Put all keys and values of a block into the state."""
    k, k_below = keys
    memory = torch.baddbmm(memory, k.mT, values)
    return memory, (key_sum if key_sum is None or k_below is None else key_sum + k_below.sum(1))


def read(
    queries: Features, memory: Float[Tensor, "G M D"], key_sum: Float[Tensor, "G M"] | None
) -> tuple[Tensor, Tensor | None]:
    """Attend to everything that the state holds."""
    q, q_below = queries
    G, R, T, M = q.shape
    numerator = (q.reshape(G, R * T, M) @ memory).view(G, R, T, memory.shape[-1])
    if q_below is None or key_sum is None:
        return numerator, None
    return numerator, (q_below.reshape(G, R * T, M) @ key_sum.unsqueeze(-1)).view(G, R, T)


def divide(
    numerator: Float[Tensor, "*rows D"],
    denominator: Float[Tensor, "*rows"],
    *,
    is_positive: bool,
    smallest: float,
) -> Float[Tensor, "*rows D"]:
    """Divide, so that a row without any weight is zero and its gradient finite.

    Args:
        numerator: Weighted sums of the values.
        denominator: Sums of the weights.
        is_positive: Whether it is a sum of non-negative weights. Otherwise it may vanish by
            cancellation, and its size is held at ``smallest``, the sign kept.
        smallest: Below this a positive denominator counts as none.
    """
    if is_positive:
        # Over infinity the row is zero, also where signed numerators left something in it.
        safe = denominator.where(denominator > smallest, torch.inf)
    else:
        held = torch.full_like(denominator, smallest).copysign(denominator)
        safe = denominator.where(denominator.abs() > smallest, held)
    return numerator / safe.unsqueeze(-1)
