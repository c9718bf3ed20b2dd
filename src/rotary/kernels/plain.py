"""The rotation in plain PyTorch: runs everywhere, differentiable to any order in every argument.

This is what devices without a kernel run, what exporters see and what the compiler fuses. Each half
of the channels is made by one product and one fused multiply-add, in the wider of the types of
``x`` and of the tables, which are float32 or float64.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rotary.kernels.contract import Layout, full_tables


def rotate_plain(x: Tensor, cos: Tensor, sin: Tensor, *, layout: Layout) -> Tensor:
    """Turn each plane of ``x``; the tables broadcast to ``x`` already (``align_tables``)."""
    if not torch.compiler.is_compiling() and not x.is_contiguous():
        # The result is to lie in memory as x does: visit the axes in that order.
        order = sorted(range(x.ndim - 1), key=x.stride, reverse=True)
        if order != list(range(x.ndim - 1)):
            order.append(x.ndim - 1)
            cos, sin = full_tables(cos, x.ndim), full_tables(sin, x.ndim)
            moved = rotate_plain(*(t.permute(order) for t in (x, cos, sin)), layout=layout)
            return moved.permute([order.index(axis) for axis in range(x.ndim)])
    planes = cos.shape[-1]
    # One cast before, so that the gradient of x is summed in the wider type and rounded once.
    wide = x.to(torch.promote_types(x.dtype, cos.dtype))
    first, second = _channels(wide, planes, layout)
    new = (
        torch.addcmul(first * cos, second, sin, value=-1).to(x.dtype),
        torch.addcmul(first * sin, second, cos).to(x.dtype),
    )
    tail = x[..., 2 * planes :]
    if layout == "half":
        return torch.cat((*new, tail), dim=-1) if tail.shape[-1] else torch.cat(new, dim=-1)
    turned = torch.stack(new, dim=-1).flatten(-2)
    return torch.cat((turned, tail), dim=-1) if tail.shape[-1] else turned


def rotate_plain_into(out: Tensor, x: Tensor, cos: Tensor, sin: Tensor, *, layout: Layout) -> None:
    """The same, written straight into ``out``, which may be ``x``; leaves no trace for autograd."""
    planes = cos.shape[-1]
    dtype = torch.promote_types(x.dtype, cos.dtype)
    if dtype != x.dtype:  # One cast there and one back; mixed products would cast every operand.
        wide = x[..., : 2 * planes].to(dtype)
        rotate_plain_into(wide, wide, cos, sin, layout=layout)
        out[..., : 2 * planes].copy_(wide)
    else:
        first, second = _channels(x, planes, layout)
        new_first, new_second = _channels(out, planes, layout)
        # Both products with the first channels come before these are overwritten, should out be x.
        first_cos, first_sin = first * cos, first * sin
        torch.addcmul(first_cos, second, sin, value=-1, out=new_first)
        torch.addcmul(first_sin, second, cos, out=new_second)
    if out is not x and x.shape[-1] > 2 * planes:
        out[..., 2 * planes :].copy_(x[..., 2 * planes :])


def _channels(x: Tensor, planes: int, layout: Layout) -> tuple[Tensor, Tensor]:
    """The first and the second channel of every plane, as views."""
    if layout == "interleaved":
        return x[..., 0 : 2 * planes : 2], x[..., 1 : 2 * planes : 2]
    if planes != 0 and x.shape[-1] == 2 * planes:
        first, second = torch.split(x, planes, dim=-1)
        return first, second
    return x[..., :planes], x[..., planes : 2 * planes]
