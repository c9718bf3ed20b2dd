"""The rotation in plain PyTorch: runs everywhere, differentiable to any order in every argument."""

from __future__ import annotations

import torch
from torch import Tensor

from rotary.kernels.contract import Layout, turn_dtype


def rotate_plain(
    x: Tensor, cos: Tensor, sin: Tensor, *, layout: Layout, amplitude: float
) -> Tensor:
    """Turn each plane of ``x``; the tables are already lined up with ``x`` (``align_tables``)."""
    planes = cos.shape[-1]
    dtype = turn_dtype(x, cos)
    if amplitude != 1.0:
        cos, sin = cos * amplitude, sin * amplitude
    turned, tail = x[..., : 2 * planes], x[..., 2 * planes :]
    if layout == "interleaved":
        first, second = turned[..., 0::2].to(dtype), turned[..., 1::2].to(dtype)
        new = (first * cos - second * sin, first * sin + second * cos)
        turned = torch.stack(new, dim=-1).flatten(-2).to(x.dtype)
    else:
        first, second = turned[..., :planes].to(dtype), turned[..., planes:].to(dtype)
        new = (first * cos - second * sin, first * sin + second * cos)
        turned = torch.cat(new, dim=-1).to(x.dtype)
    return torch.cat((turned, tail), dim=-1) if tail.shape[-1] else turned
