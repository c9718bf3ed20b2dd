"""Convert between the two layouts: activations, weights and biases, fused projections.

Interleaved, plane ``p`` is channels ``2p, 2p + 1``; half, it is ``p, p + planes``. Converting is a
permutation of channels within each head, the same for queries and keys, so scores do not change
when the weights and the layout of the rotation change together. Nothing here guesses: the name of
the function says the direction.

Meta's Llama weights, GPT-J and RoFormer are interleaved; what Hugging Face converted for Llama,
GPT-NeoX and most newer models are half.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from rotary._shapes import Shaped
from rotary.errors import ConfigError, ShapeError, one_of

__all__ = [
    "half_to_interleaved",
    "interleaved_to_half",
    "qkv_half_to_interleaved",
    "qkv_interleaved_to_half",
    "weight_half_to_interleaved",
    "weight_interleaved_to_half",
]

Arrangement = Literal["concatenated", "grouped"]
"""Rows of a fused projection: all q, all k, all v; or for each key head its q heads, k and v."""


def interleaved_to_half(
    x: Shaped[Tensor, "*shape dim"], *, rotary_dim: int | None = None, start: int = 0
) -> Shaped[Tensor, "*shape dim"]:
    """Reorder the channels of activations: queries, keys, or cached keys.

    Args:
        x: (..., dim), one head in the last axis.
        rotary_dim: How many channels turn; all from ``start`` on if left out.
        start: The first channel that turns, where those before it do not (DeepSeek's heads).

    Returns:
        A new tensor of the same shape and dtype; channels outside the span are where they were.

    Raises:
        ShapeError: If the span is odd or does not fit.

    Example:
        >>> interleaved_to_half(torch.tensor([0, 1, 2, 3]))
        tensor([0, 2, 1, 3])
    """
    return x.index_select(-1, _order(x.shape[-1], rotary_dim, start, x.device))


def half_to_interleaved(
    x: Shaped[Tensor, "*shape dim"], *, rotary_dim: int | None = None, start: int = 0
) -> Shaped[Tensor, "*shape dim"]:
    """Undo :func:`interleaved_to_half`; the same arguments.

    Example:
        >>> half_to_interleaved(torch.tensor([0, 2, 1, 3]))
        tensor([0, 1, 2, 3])
    """
    return x.index_select(-1, _order(x.shape[-1], rotary_dim, start, x.device).argsort())


def weight_interleaved_to_half(
    weight: Shaped[Tensor, "rows *columns"],
    *,
    head_dim: int,
    rotary_dim: int | None = None,
    start: int = 0,
) -> Shaped[Tensor, "rows *columns"]:
    """Reorder the rows of a projection that makes queries, or keys.

    Convert the weight and the bias, and both projections; with grouped queries the numbers of heads
    differ, which the number of rows says.

    Args:
        weight: Weight (heads * head_dim, features) as ``nn.Linear`` keeps it, or bias
            (heads * head_dim,). Also what acts on every head alike, such as the gain of a query
            norm (head_dim,).
        head_dim: Channels of a head.
        rotary_dim: How many of them turn; all from ``start`` on if left out.
        start: The first channel of a head that turns.

    Returns:
        A new tensor of the same shape and dtype.

    Raises:
        ShapeError: If the rows are not whole heads, or the span is odd or does not fit.

    Example:
        >>> weight_interleaved_to_half(torch.arange(8), head_dim=4)
        tensor([0, 2, 1, 3, 4, 6, 5, 7])
    """
    order = _order(head_dim, rotary_dim, start, weight.device)
    return _reorder_rows("weight_interleaved_to_half", weight, head_dim, order)


def weight_half_to_interleaved(
    weight: Shaped[Tensor, "rows *columns"],
    *,
    head_dim: int,
    rotary_dim: int | None = None,
    start: int = 0,
) -> Shaped[Tensor, "rows *columns"]:
    """Undo :func:`weight_interleaved_to_half`; the same arguments.

    Example:
        >>> weight_half_to_interleaved(torch.tensor([0, 2, 1, 3]), head_dim=4)
        tensor([0, 1, 2, 3])
    """
    order = _order(head_dim, rotary_dim, start, weight.device).argsort()
    return _reorder_rows("weight_half_to_interleaved", weight, head_dim, order)


def qkv_interleaved_to_half(
    weight: Shaped[Tensor, "rows *columns"],
    *,
    head_dim: int,
    num_heads: int,
    num_key_heads: int | None = None,
    arrangement: Arrangement,
    rotary_dim: int | None = None,
    start: int = 0,
) -> Shaped[Tensor, "rows *columns"]:
    """Reorder the query and key rows of a fused projection; the value rows stay.

    Args:
        weight: ((num_heads + 2 num_key_heads) * head_dim, features), or the bias without features.
        head_dim: Channels of a head.
        num_heads: Heads of the queries.
        num_key_heads: Heads of the keys, and of the values; as many as of the queries if left out.
        arrangement: ``"concatenated"``: all queries, all keys, all values (Phi-3, ModernBERT);
            ``"grouped"``: for each key head its queries, its key, its value (Falcon, Megatron; and
            GPT-NeoX, whose groups have one query).
        rotary_dim: How many channels of a head turn; all from ``start`` on if left out.
        start: The first channel of a head that turns.

    Returns:
        A new tensor of the same shape and dtype.

    Raises:
        ShapeError: If the rows are not what the numbers of heads say.
        ConfigError: If the query heads do not divide into groups.

    Example:
        >>> fused = torch.arange(12)
        >>> heads = dict(head_dim=4, num_heads=1, arrangement="concatenated")
        >>> qkv_interleaved_to_half(fused, **heads)
        tensor([ 0,  2,  1,  3,  4,  6,  5,  7,  8,  9, 10, 11])
    """
    order = _order(head_dim, rotary_dim, start, weight.device)
    return _reorder_fused(
        "qkv_interleaved_to_half", weight, order, head_dim, num_heads, num_key_heads, arrangement
    )


def qkv_half_to_interleaved(
    weight: Shaped[Tensor, "rows *columns"],
    *,
    head_dim: int,
    num_heads: int,
    num_key_heads: int | None = None,
    arrangement: Arrangement,
    rotary_dim: int | None = None,
    start: int = 0,
) -> Shaped[Tensor, "rows *columns"]:
    """Undo :func:`qkv_interleaved_to_half`; the same arguments.

    Example:
        >>> heads = dict(head_dim=4, num_heads=1, arrangement="grouped")
        >>> qkv_half_to_interleaved(torch.tensor([0, 2, 1, 3] * 2 + [0, 1, 2, 3]), **heads)
        tensor([0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3])
    """
    order = _order(head_dim, rotary_dim, start, weight.device).argsort()
    return _reorder_fused(
        "qkv_half_to_interleaved", weight, order, head_dim, num_heads, num_key_heads, arrangement
    )


def _order(dim: int, rotary_dim: int | None, start: int, device: torch.device) -> Tensor:
    """Where each channel of the half layout comes from in the interleaved one."""
    span = dim - start if rotary_dim is None else rotary_dim
    if dim < 1:
        raise ShapeError(f"layouts: head_dim is {dim}; it must be at least 1.")
    if span < 0 or span % 2 or start < 0 or start + span > dim:
        raise ShapeError(
            f"layouts: channels {start} to {start + span} of {dim} were to be reordered; the span "
            "(rotary_dim) must be even and lie within the head."
        )
    channels = torch.arange(dim, device=device)
    turning = channels[start : start + span]
    return torch.cat((channels[:start], turning[0::2], turning[1::2], channels[start + span :]))


def _reorder_rows(function: str, weight: Tensor, head_dim: int, order: Tensor) -> Tensor:
    if weight.ndim == 0 or weight.shape[0] % head_dim:
        raise ShapeError(
            f"{function}: the weight has shape {tuple(weight.shape)}; its rows must be whole heads "
            f"of {head_dim}."
        )
    heads = weight.reshape(-1, head_dim, *weight.shape[1:])
    return heads.index_select(1, order).reshape(weight.shape)


def _reorder_fused(
    function: str,
    weight: Tensor,
    order: Tensor,
    head_dim: int,
    num_heads: int,
    num_key_heads: int | None,
    arrangement: str,
) -> Tensor:
    if arrangement not in ("concatenated", "grouped"):
        raise ConfigError(
            f"{function}: " + one_of("arrangement", arrangement, ("concatenated", "grouped"))
        )
    keys = num_heads if num_key_heads is None else num_key_heads
    if keys < 1 or num_heads % keys:
        raise ConfigError(
            f"{function}: {num_heads} query heads cannot be shared by {keys} key heads evenly."
        )
    rows = (num_heads + 2 * keys) * head_dim
    if weight.ndim == 0 or weight.shape[0] != rows:
        raise ShapeError(
            f"{function}: the weight has shape {tuple(weight.shape)}; {num_heads} query heads and "
            f"{keys} key and value heads of {head_dim} make {rows} rows."
        )
    groups = 1 if arrangement == "concatenated" else keys
    # Within a group: its queries, its keys, its values.
    split = weight.reshape(groups, (num_heads + 2 * keys) // groups, head_dim, *weight.shape[1:])
    turned = (num_heads + keys) // groups
    reordered = split[:, :turned].index_select(2, order)
    return torch.cat((reordered, split[:, turned:]), dim=1).reshape(weight.shape)
