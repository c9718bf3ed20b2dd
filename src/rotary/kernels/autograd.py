"""The derivative of a kernel in eager mode, to any order and in both directions.

A rotation is linear and its transpose is the opposite turn, so the backward pass is the same kernel
with the sign of the sine changed, and so is its own backward pass. The tables are constants here: a
call whose tables need a gradient is served by plain PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from rotary.kernels.contract import Layout, align_tables, full_tables
from rotary.kernels.plain import rotate_plain

Kernel = Callable[..., tuple[Tensor, ...]]
"""``kernel(xs, cos, sin, interleaved, length_axis, amplitude, transpose)`` gives the turned xs."""

Turn = tuple[bool, int, float, bool]
"""Whether pairs are neighbours, the length axis, the amplitude, and whether to turn backwards."""


class _Derivatives(torch.autograd.Function):
    """The derivatives; the two classes below differ in how their forward pass is called."""

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        """Turn the gradients the other way."""
        assert not any(ctx.needs_input_grad[2:4]), "tables are constants here"
        cos, sin = ctx.saved_tensors
        *turn, transpose = ctx.turn
        turned = _turn_present(ctx.kernel, (*turn, not transpose), cos, sin, grads)
        return None, None, None, None, *turned

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[Tensor, ...]:
        """Turn the tangents; the result is bilinear, so tangents of the tables add a term."""
        cos, sin, *xs = ctx.saved_tensors
        cos_tangent, sin_tangent = tangents[2:4]
        turned = _turn_present(ctx.kernel, ctx.turn, cos, sin, tangents[4:])
        # Autograd wants a tangent for each result once one of the arguments has one.
        both = zip(xs, turned, strict=True)
        present = tuple(torch.zeros_like(x) if t is None else t for x, t in both)
        if cos_tangent is None and sin_tangent is None:
            return present
        cos_tangent = torch.zeros_like(cos) if cos_tangent is None else cos_tangent
        sin_tangent = torch.zeros_like(sin) if sin_tangent is None else sin_tangent
        planes = cos.shape[-1]
        moved = apply(ctx.kernel, ctx.turn, cos_tangent, sin_tangent, *xs)
        # The kernel passes the tail through, and the tail does not depend on the tables.
        moved = tuple(
            torch.cat((m[..., : 2 * planes], torch.zeros_like(m[..., 2 * planes :])), dim=-1)
            for m in moved
        )
        return tuple(t + m for t, m in zip(present, moved, strict=True))


class Turned(_Derivatives):
    """A kernel with derivatives, for plain eager mode: the cheaper of the two to call."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, ...]:
        """Run the kernel."""
        _keep(ctx, inputs, has_tangents=is_dual())
        kernel, turn, cos, sin, *xs = inputs
        return kernel(xs, cos, sin, *turn)


class TurnedInTransforms(_Derivatives):
    """The same inside ``torch.func``'s transforms, which want the context apart and ``vmap``."""

    @staticmethod
    def forward(*inputs: Any) -> tuple[Tensor, ...]:
        """Run the kernel."""
        kernel, turn, cos, sin, *xs = inputs
        return kernel(xs, cos, sin, *turn)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Keep what the derivatives need."""
        _keep(ctx, inputs, has_tangents=True)

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], *inputs: Any
    ) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        """One more axis in front of ``x``, and of the tables where they have it or need it."""
        kernel, turn, cos, sin, *xs = inputs
        xs = [
            x.expand(info.batch_size, *x.shape) if dim is None else x.movedim(dim, 0)
            for x, dim in zip(xs, in_dims[4:], strict=True)
        ]

        tables = [cos, sin]
        if cos.ndim != 2 or any(dim is not None for dim in in_dims[2:4]):
            tables = [
                full_tables(t.unsqueeze(0) if dim is None else t.movedim(dim, 0), xs[0].ndim)
                for t, dim in zip(tables, in_dims[2:4], strict=True)
            ]
            shape = torch.broadcast_shapes(tables[0].shape, tables[1].shape)  # type: ignore[no-untyped-call]
            tables = [t.expand(shape) for t in tables]
        turned = apply(kernel, turn, *tables, *xs)
        return turned, (0,) * len(xs)


def _keep(ctx: Any, inputs: tuple[Any, ...], *, has_tangents: bool) -> None:
    """Keep the tables, and, for forward mode alone, what they turn."""
    ctx.kernel, ctx.turn = inputs[:2]
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs[2:4])
    if has_tangents:
        ctx.save_for_forward(*inputs[2:])


def is_transformed() -> bool:
    """Whether one of ``torch.func``'s transforms is at work."""
    return torch._C._are_functorch_transforms_active()


def is_dual() -> bool:
    """Whether forward-mode differentiation is at work outside of ``torch.func``."""
    return forward_ad._current_level >= 0


def apply(kernel: Kernel, turn: Turn, cos: Tensor, sin: Tensor, *xs: Tensor) -> tuple[Tensor, ...]:
    """Turn with a derivative: by the kernel, or plainly where the tables have one too.

    Inside nested transforms (``vmap`` of ``grad``) only an inner call can see that they do.
    """
    function: Any = TurnedInTransforms
    if not is_transformed():
        if not torch.is_grad_enabled() and not is_dual():
            return kernel(xs, cos, sin, *turn)
        function = Turned
    elif cos.requires_grad or sin.requires_grad:
        interleaved, length_axis, amplitude, transpose = turn
        layout: Layout = "interleaved" if interleaved else "half"
        sign = -amplitude if transpose else amplitude
        aligned = [align_tables(x, cos, sin, length_axis=length_axis) for x in xs]
        return tuple(
            rotate_plain(x, c * amplitude, s * sign, layout=layout)
            for x, (c, s) in zip(xs, aligned, strict=True)
        )
    turned: tuple[Tensor, ...] = function.apply(kernel, turn, cos, sin, *xs)
    return turned


def register_rotation(op: Any) -> None:
    """Give the operator that ``torch.compile`` records its shapes and its derivative."""

    def remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, cos, sin, *ctx.turn = inputs
        ctx.save_for_backward(cos, sin)

    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        *turn, transpose = ctx.turn
        return op(grad, *ctx.saved_tensors, *turn, not transpose), *[None] * 6

    torch.library.register_fake(op, lambda x, *_: torch.empty_like(x))
    torch.library.register_autograd(op, backward, setup_context=remember)


def _turn_present(
    kernel: Kernel, turn: Any, cos: Tensor, sin: Tensor, values: tuple[Tensor | None, ...]
) -> tuple[Tensor | None, ...]:
    """Turn those that are there: a result that nobody used has no gradient."""
    present = [value for value in values if value is not None]
    turned = iter(apply(kernel, turn, cos, sin, *present) if present else ())
    return tuple(None if value is None else next(turned) for value in values)
