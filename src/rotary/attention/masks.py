"""The one mask that linear attention knows: which keys are real."""

from __future__ import annotations

import torch
from torch import Tensor

from rotary.errors import DtypeError, ShapeError


def check_key_padding_mask(mask: Tensor, keys: Tensor) -> Tensor:
    """Line a key padding mask up with the keys, as a view of their rank.

    True marks a key that takes part, as in ``scaled_dot_product_attention`` and in the
    ``attention_mask`` of a tokenizer (``torch.nn.MultiheadAttention`` means the opposite).

    Args:
        mask: Boolean, one value per key: (S,), or (B, S) beside keys (B, H, S, D) or (B, S, D).
        keys: The keys, (..., S, D).

    Returns:
        A view of the mask with the rank of the keys; its last axis has size 1.

    Raises:
        DtypeError: If the mask is not boolean.
        ShapeError: If it is not one value per key. A matrix of query-key pairs cannot be applied:
            linear attention never forms that matrix.

    Example:
        >>> mask = torch.tensor([[True, True, False]])
        >>> check_key_padding_mask(mask, torch.zeros(1, 2, 3, 4)).shape
        torch.Size([1, 1, 3, 1])
    """
    length = keys.shape[-2]
    if mask.dtype != torch.bool:
        raise DtypeError(
            f"linear_attention: key_padding_mask is {mask.dtype}; it must be boolean, True for a "
            "key that takes part. For a tokenizer's attention_mask of 0 and 1: mask.bool()."
        )
    # Batch axes of the keys; a rank-3 tensor is (batch, length, dim).
    lead = keys.shape[:-3] if keys.ndim > 3 else keys.shape[:-2]
    fits = mask.ndim == 1 or (mask.ndim > 1 and mask.ndim == len(lead) + 1)
    if fits:
        pairs = zip(mask.shape[:-1], lead, strict=False)
        fits = mask.shape[-1] == length and all(have in (1, want) for have, want in pairs)
    if not fits:
        accepted = f"({length},)" + (f" or {(*lead, length)}" if lead else "")
        raise ShapeError(
            f"linear_attention: key_padding_mask has shape {tuple(mask.shape)}; for keys of shape "
            f"{tuple(keys.shape)} accepted is {accepted}, one value per key. An arbitrary mask "
            "over query-key pairs is impossible here, because that matrix is never formed: use "
            "causal=True for the past only, or softmax attention for any other pattern."
        )
    if mask.ndim > 1 and keys.ndim > 3:
        mask = mask.unsqueeze(-2)
    return mask.unsqueeze(-1)
