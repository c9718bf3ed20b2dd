"""The operator: checks its arguments once, then hands them to a backend."""

from __future__ import annotations

import torch
from torch import Tensor

from rotary._shapes import Float
from rotary.errors import BackendError
from rotary.kernels.contract import (
    Backend,
    Layout,
    align_tables,
    check_backend,
    check_layout,
)
from rotary.kernels.plain import rotate_plain


def rotate(
    x: Float[Tensor, "*shape dim"],
    cos: Float[Tensor, "*tables planes"],
    sin: Float[Tensor, "*tables planes"],
    *,
    layout: Layout,
    amplitude: float = 1.0,
    length_axis: int = -2,
    inplace: bool = False,
    backend: Backend = "auto",
) -> Float[Tensor, "*shape dim"]:
    """Turn each plane of ``x`` by its angle (RoFormer, eq. 34).

    Channels from ``2 * planes`` on are passed through unchanged.

    Args:
        x: Queries or keys, any real floating dtype: (..., heads, length, dim), (batch, length, dim)
            or (length, dim).
        cos: Cosines of the angles, float32 or float64: (length, planes), (batch, length, planes),
            or (batch or 1, heads or 1, length, planes).
        sin: Sines of the angles, like ``cos``.
        layout: Which channels form a plane: ``"interleaved"`` (2p, 2p + 1) or ``"half"``
            (p, p + planes).
        amplitude: A factor on the turned channels (YaRN's and LongRoPE's attention factor).
        length_axis: Where the positions run in ``x``; heads are the axis before it when it is -2,
            after it when it is -3.
        inplace: Write into ``x``; an error where autograd needs the old values.
        backend: ``"auto"`` picks the fastest that can serve this call; see
            :func:`rotary.kernels.explain`.

    Returns:
        A tensor with the shape, dtype and device of ``x``; ``x`` itself when ``inplace``.

    Raises:
        ShapeError: If the shapes do not belong together.
        DtypeError: If ``x`` is not real floating point or the tables are half precision.
        BackendError: If the named backend cannot serve the call.

    Example:
        >>> x, angle = torch.tensor([[1.0, 0.0]]), torch.tensor([[torch.pi / 2]])
        >>> rotate(x, angle.cos(), angle.sin(), layout="half").round()
        tensor([[-0., 1.]])
    """
    check_layout(layout)
    check_backend(backend)
    cos, sin = align_tables(x, cos, sin, length_axis=length_axis)
    turned = rotate_plain(x, cos, sin, layout=layout, amplitude=amplitude)
    if not inplace:
        return turned
    if x.requires_grad and x.is_leaf and torch.is_grad_enabled():
        raise BackendError(
            "rotate: inplace=True would overwrite a leaf tensor that requires a gradient; pass "
            "inplace=False, or detach x first."
        )
    return x.copy_(turned)


def explain(x: Tensor) -> str:
    """Say which backend serves a rotation of ``x``, and why the others do not."""
    return f"plain: serves {x.dtype} on {x.device.type}"
