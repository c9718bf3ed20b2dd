"""Softmax attention over documents laid end to end: no padding is computed, no mask made."""

from __future__ import annotations

import inspect
import math
import operator
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from rotary._shapes import Float
from rotary.errors import DtypeError, ShapeError


def packed_attention(
    q: Float[Tensor, "heads tokens dim"],
    k: Float[Tensor, "key_heads tokens dim"],
    v: Float[Tensor, "key_heads tokens value_dim"],
    lengths: Sequence[int],
    *,
    is_causal: bool = False,
    dropout: float = 0.0,
    scale: float | None = None,
) -> Float[Tensor, "heads tokens value_dim"]:
    """Let each document attend to itself alone: ``softmax(scale q k^T) v``, document by document.

    The result equals one call with a block-diagonal mask, which costs the square of all tokens
    together. Neighbouring documents of one length share a call, so put equal lengths side by side.
    On CUDA in half precision all documents go through one variable-length flash kernel.

    Args:
        q: Queries of all documents, one document after the other.
        k: Keys, laid out like the queries; their heads divide those of the queries (grouped ones).
        v: Values, laid out like the keys; their dim may differ.
        lengths: Tokens of each document, in order; they add up to ``tokens``.
        is_causal: Let a token see only itself and the tokens before it in its document.
        dropout: Probability with which an attention probability is dropped. On the CPU anything
            above 0 leaves PyTorch's fast kernel.
        scale: Factor on the scores; ``1 / sqrt(dim)`` when left out.

    Returns:
        The attended values; in memory (tokens, heads, value_dim), so merging the heads is free.

    Raises:
        ShapeError: If the lengths do not add up to the tokens of q, k and v, or the heads or
            channels of these do not belong together.
        DtypeError: If a length is no whole number.

    Example:
        >>> q = k = v = torch.randn(2, 5, 8)
        >>> packed_attention(q, k, v, [3, 2]).shape
        torch.Size([2, 5, 8])
    """
    try:
        lengths = [operator.index(length) for length in lengths]
    except TypeError:
        raise DtypeError(
            f"packed_attention: lengths is {lengths!r}; expected one whole number per document."
        ) from None
    tokens = sum(lengths)
    _check_shapes(q, k, v, lengths, tokens)
    if tokens and dropout == 0.0 and _has_varlen_flash(q, v):
        return _varlen_flash(q, k, v, lengths, is_causal=is_causal, scale=scale)
    runs = [(length, len(list(run))) for length, run in groupby(n for n in lengths if n)]
    runs = runs or [(0, 1)]  # An empty call, so that no tokens have a gradient as well.
    sizes = [length * count for length, count in runs]
    out: list[Tensor] = []
    # One `split` and one `cat`: the gradient of slicing would write all tokens once per document.
    parts = zip(runs, *(torch.split(x, sizes, dim=1) for x in (q, k, v)), strict=True)
    for (length, count), *run in parts:
        query, key, value = (x.unflatten(1, (count, length)).transpose(0, 1) for x in run)
        mixed = scaled_dot_product_attention(
            query,
            key,
            value,
            dropout_p=dropout,
            is_causal=is_causal and length > 1,
            scale=scale,
            enable_gqa=len(q) != len(k),
        )
        out.append(mixed.transpose(1, 2).flatten(0, 1))
    return (torch.cat(out) if len(out) > 1 else out[0]).transpose(0, 1)


def _check_shapes(q: Tensor, k: Tensor, v: Tensor, lengths: Sequence[int], tokens: int) -> None:
    if min(lengths, default=0) < 0 or any(x.ndim != 3 or x.shape[1] != tokens for x in (q, k, v)):
        why = f"the lengths of {len(lengths)} documents add up to {tokens} tokens"
    elif len(k) != len(v):
        why = f"keys have {len(k)} heads and values {len(v)}"
    elif len(q) != len(k) and (len(k) == 0 or len(q) % len(k)):
        why = f"{len(q)} heads cannot share {len(k)} key heads"
    elif q.shape[2] != k.shape[2]:
        why = f"queries have {q.shape[2]} channels and keys {k.shape[2]}"
    else:
        return
    shapes = ", ".join(str(tuple(x.shape)) for x in (q, k, v))
    raise ShapeError(
        f"packed_attention: {why}; q, k and v have shapes {shapes}. Expected (heads, {tokens}, "
        "dim) each, keys and values with the same heads, which divide those of q, and no negative "
        "length."
    )


def _has_varlen_flash(q: Tensor, v: Tensor) -> bool:
    dim = q.shape[-1]
    is_half = q.dtype in (torch.float16, torch.bfloat16)
    return q.is_cuda and is_half and dim == v.shape[-1] and dim % 8 == 0 and dim <= 256


def _varlen_flash(
    q: Tensor, k: Tensor, v: Tensor, lengths: Sequence[int], *, is_causal: bool, scale: float | None
) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn

    # PyTorch 2.10 has neither a scale nor a window nor grouped heads here.
    known = inspect.signature(varlen_attn).parameters
    options: dict[str, Any] = {}
    if is_causal:
        options |= {"window_size": (-1, 0)} if "window_size" in known else {"is_causal": True}
    if scale is not None and "scale" in known:
        options["scale"] = scale
    elif scale is not None:
        q = q * (scale * math.sqrt(q.shape[-1]))
    if len(q) != len(k) and "enable_gqa" in known:
        options["enable_gqa"] = True
    elif len(q) != len(k):
        k, v = (x.repeat_interleave(len(q) // len(k), dim=0) for x in (k, v))
    ends = torch.tensor([0, *lengths]).cumsum(0).to(device=q.device, dtype=torch.int32)
    longest = max(lengths)
    q, k, v = (x.transpose(0, 1) for x in (q, k, v))
    out = varlen_attn(q, k, v, ends, ends, longest, longest, **options)
    assert isinstance(out, Tensor)
    return out.transpose(0, 1)
