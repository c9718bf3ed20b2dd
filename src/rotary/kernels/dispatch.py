"""The operator: checks its arguments once, then hands them to a backend.

One kernel has two doors. In eager mode an ``autograd.Function`` gives it derivatives of every kind,
and is left out where nobody asks for one. While compiling, the call becomes a registered operator
or plain PyTorch for the compiler to fuse; while exporting it is plain PyTorch.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from types import ModuleType

import torch
from torch import Tensor

from rotary._shapes import Float
from rotary.errors import BackendError, ShapeError
from rotary.kernels import cpu, triton
from rotary.kernels.autograd import Turn, apply, is_dual, is_transformed
from rotary.kernels.contract import (
    Backend,
    Layout,
    align_tables,
    check_amplitude,
    check_backend,
    check_call,
    check_layout,
)
from rotary.kernels.plain import rotate_plain, rotate_plain_into

KERNELS: dict[str, ModuleType] = {"cpu": cpu, "triton": triton}
_OWN_TYPES = (Tensor, torch.nn.Parameter)


def rotate(
    x: Float[Tensor, "*shape dim"],
    cos: Float[Tensor, "*tables planes"],
    sin: Float[Tensor, "*tables planes"],
    *,
    layout: Layout,
    amplitude: float | Tensor = 1.0,
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
        amplitude: A factor on the turned channels (YaRN's and LongRoPE's attention factor); a
            number, or a tensor: one number, one for each sequence (batch,), or of ``x``'s rank.
        length_axis: Where the positions run in ``x``; heads are the axis before it when it is -2,
            after it when it is -3.
        inplace: Write into ``x``; an error where autograd needs the old values, or where several
            elements of ``x`` share memory or might: each axis must step over all smaller ones.
        backend: ``"auto"`` picks the fastest that can serve this call; see
            :func:`rotary.kernels.explain`.

    Returns:
        A new tensor with the shape, dtype, device and memory order of ``x``; ``x`` itself when
        ``inplace``.

    Raises:
        ShapeError: If the shapes do not belong together.
        DtypeError: If ``x`` is not real floating point or the tables are half precision.
        ConfigError: If a name is unknown, or the tensors are on different devices.
        BackendError: If the named backend cannot serve the call, or ``inplace`` cannot be done.

    Example:
        >>> x, angle = torch.tensor([[1.0, 0.0]]), torch.tensor([[torch.pi / 2]])
        >>> rotate(x, angle.cos(), angle.sin(), layout="half").round()
        tensor([[-0., 1.]])
    """
    return rotate_all(
        (x,),
        cos,
        sin,
        layout=layout,
        amplitude=amplitude,
        length_axis=length_axis,
        inplace=inplace,
        backend=backend,
    )[0]


def rotate_all(
    xs: Sequence[Tensor],
    cos: Tensor,
    sin: Tensor,
    *,
    layout: Layout,
    amplitude: float | Tensor = 1.0,
    length_axis: int = -2,
    inplace: bool = False,
    backend: Backend = "auto",
) -> tuple[Tensor, ...]:
    """:func:`rotate` for several tensors at the same positions, in one call of a kernel."""
    check_layout(layout)
    check_backend(backend)
    for x in xs:
        check_call(x, cos, sin, length_axis)
    if inplace and len(xs) > 1:
        check_distinct(xs)
    run = _turn_inplace if inplace else _turn
    interleaved = layout == "interleaved"
    if isinstance(amplitude, Tensor):
        tables = [_with_amplitude(x, cos, sin, amplitude, length_axis) for x in xs]
        turn = (interleaved, length_axis, 1.0, False)
        each = zip(xs, tables, strict=True)
        return tuple(run((x,), *of_x, turn, backend)[0] for x, of_x in each)
    if type(amplitude) is not float:
        check_amplitude(amplitude)
    turn = (interleaved, length_axis, amplitude, False)
    if inplace:
        return tuple(run((x,), cos, sin, turn, backend)[0] for x in xs)
    return run(tuple(xs), cos, sin, turn, backend)


def explain(x: Tensor, cos: Tensor | None = None, sin: Tensor | None = None) -> str:
    """Say which backend serves a rotation of ``x``, and why the others do not.

    Args:
        x: Queries or keys.
        cos: Cosines, if they might need a gradient.
        sin: Sines, like ``cos``.

    Returns:
        One line for each backend in the order in which ``"auto"`` tries them.

    Example:
        >>> print(explain(torch.ones(3, 4)).splitlines()[-1])  # doctest: +SKIP
        plain: could serve it too
    """
    lines, taken = [], False
    for name, kernel in KERNELS.items():
        reason = _refusal(kernel, (x,), cos, sin)
        if reason is None and not taken:
            taken = True
            lines.append(f"{name}: serves {x.dtype} on {x.device} {kernel.how()}".rstrip())
        else:
            lines.append(f"{name}: {'could serve it too' if reason is None else reason}")
    lines.append("plain: could serve it too" if taken else f"plain: serves {x.dtype} on {x.device}")
    return "\n".join(lines)


def _turn(
    xs: tuple[Tensor, ...], cos: Tensor, sin: Tensor, turn: Turn, backend: Backend
) -> tuple[Tensor, ...]:
    kernel = _choose(xs, cos, sin, turn[0], backend)
    if kernel is None:
        return tuple(_turn_plain(x, cos, sin, turn) for x in xs)
    if torch.compiler.is_compiling():
        return tuple(kernel.turn_compiled(x, cos, sin, *turn) for x in xs)
    if is_transformed() or is_dual():
        return apply(kernel.turn, turn, cos, sin, *xs)
    if not torch.is_grad_enabled() or not any(x.requires_grad for x in xs):
        turned: tuple[Tensor, ...] = kernel.turn(xs, cos, sin, *turn)
        return turned
    if all(x.requires_grad for x in xs):
        return apply(kernel.turn, turn, cos, sin, *xs)
    # One by one, so that no result asks for a gradient that its own x does not need.
    return tuple([_turn((x,), cos, sin, turn, backend)[0] for x in xs])


def _turn_plain(x: Tensor, cos: Tensor, sin: Tensor, turn: Turn) -> Tensor:
    layout, cos, sin = _plain_tables(x, cos, sin, turn)
    if is_plain_sailing(x, cos, sin):
        out = torch.empty_like(x)
        rotate_plain_into(out, x, cos, sin, layout=layout)
        return out
    return rotate_plain(x, cos, sin, layout=layout)


def _plain_tables(x: Tensor, cos: Tensor, sin: Tensor, turn: Turn) -> tuple[Layout, Tensor, Tensor]:
    interleaved, length_axis, amplitude, _ = turn
    if cos.ndim != 2 or length_axis != -2:  # Two axes broadcast to the last two as they are.
        cos, sin = align_tables(x, cos, sin, length_axis=length_axis)
    if amplitude != 1.0:
        cos, sin = cos * amplitude, sin * amplitude
    return "interleaved" if interleaved else "half", cos, sin


def _turn_inplace(
    xs: tuple[Tensor, ...], cos: Tensor, sin: Tensor, turn: Turn, backend: Backend
) -> tuple[Tensor, ...]:
    (x,) = xs
    _check_inplace(x, cos, sin)
    kernel = _choose(xs, cos, sin, turn[0], backend)
    if not is_plain_sailing(x, cos, sin):
        turned = _turn(xs, cos, sin, turn, backend)
        try:
            return (x.copy_(turned[0]),)
        except RuntimeError as error:
            raise BackendError(f"rotate: inplace=True cannot be done here: {error}") from error
    if kernel is None:
        layout, cos, sin = _plain_tables(x, cos, sin, turn)
        rotate_plain_into(x, x, cos, sin, layout=layout)
    else:
        kernel.turn_inplace(x, cos, sin, *turn)
        if not x.is_inference():
            torch.autograd.graph.increment_version(x)
    return xs


def check_distinct(xs: Sequence[Tensor]) -> None:
    """Raise where tensors to be written begin at the same element, which would be turned twice.

    Views of one storage that begin apart, as of a fused projection, are taken to lie apart.
    """
    if (
        torch.compiler.is_compiling()
        or is_transformed()
        or any(type(x) not in _OWN_TYPES for x in xs)
    ):
        starts = [id(x) for x in xs]
    else:
        starts = [x.data_ptr() for x in xs if x.numel() and not x.is_meta]
    if len(set(starts)) < len(starts):
        raise BackendError(
            "rotate: inplace=True cannot be done: two of the tensors share memory, which would be "
            "turned twice. Turn it once, or pass inplace=False."
        )


def _check_inplace(x: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Raise where writing into ``x`` would spoil a gradient or another element."""
    why = None
    if torch.is_grad_enabled() and (cos.requires_grad or sin.requires_grad):
        why = "the tables need a gradient, which is made from the old values of x"
    elif torch.is_grad_enabled() and x.requires_grad and x.is_leaf:
        why = "x is a leaf that requires a gradient, and its values are still needed"
    elif torch.compiler.is_compiling():
        return  # The compiler writes the result where it must, and knows no inference mode.
    elif x.is_inference() and not torch.is_inference_mode_enabled():
        why = "x was made in inference mode, and only there it may be written"
    elif x.is_neg():
        why = "x is a negated view, such as z.conj().imag, whose memory has the other sign"
    elif not _lies_apart(x.shape, x.stride()):
        why = "x is a view, such as an expanded one, in which several elements share memory"
    if why is not None:
        raise BackendError(f"rotate: inplace=True cannot be done: {why}. Pass inplace=False.")


@lru_cache(maxsize=1024)
def _lies_apart(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether every element has memory of its own: each axis steps over all the smaller ones."""
    reach = 0
    for step, size in sorted((step, n) for n, step in zip(shape, strides, strict=True) if n != 1):
        if step <= reach:
            return False
        reach += (size - 1) * step
    return True


def _choose(
    xs: tuple[Tensor, ...], cos: Tensor, sin: Tensor, interleaved: bool, backend: Backend
) -> ModuleType | None:
    """The kernel that serves this call; None for plain PyTorch."""
    if backend == "plain":
        return None
    if backend == "auto":
        kernel = cpu if xs[0].is_cpu else triton if xs[0].is_cuda else None
        if torch.compiler.is_compiling() and (kernel is triton or not interleaved):
            # What the compiler writes is the faster there: it vectorises halves of a row, and joins
            # them with their neighbours; pairs it does not vectorise (`rotary bench rotate`).
            return None
        if kernel is None or _refusal(kernel, xs, cos, sin) is not None:
            return None
        return kernel
    kernel = KERNELS[backend]
    reason = _refusal(kernel, xs, cos, sin)
    if reason is not None:
        raise BackendError(
            f"rotate: backend={backend!r} cannot serve this call: {reason}. Leave the backend out "
            "to take one that can."
        )
    return kernel


def _refusal(
    kernel: ModuleType, xs: Sequence[Tensor], cos: Tensor | None, sin: Tensor | None
) -> str | None:
    """Why a kernel cannot serve the call; None if it can."""
    if torch.is_grad_enabled() and (
        (cos is not None and cos.requires_grad) or (sin is not None and sin.requires_grad)
    ):
        return "the tables need a gradient, which only plain PyTorch gives"
    if torch.compiler.is_exporting() or _is_tracing():
        return "the program is being exported, and what is exported must be plain PyTorch"
    for x in xs:
        if type(x) not in _OWN_TYPES:
            return f"x is a {type(x).__name__}, a tensor with rules of its own"
        reason: str | None = kernel.refusal(x)
        if reason is not None:
            return reason
    return None


def _is_tracing() -> bool:
    """Whether ``torch.jit.trace``, and with it the older ONNX exporter, is at work."""
    return torch._C._get_tracing_state() is not None


def is_plain_sailing(*given: Tensor) -> bool:
    """Whether the result may be written without telling autograd, a transform or a compiler."""
    if torch.compiler.is_compiling() or _is_tracing() or is_transformed() or is_dual():
        return False
    if any(type(tensor) not in _OWN_TYPES for tensor in given):
        return False
    return not (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in given))


def _with_amplitude(
    x: Tensor, cos: Tensor, sin: Tensor, amplitude: Tensor, length_axis: int
) -> tuple[Tensor, Tensor]:
    """Tables of the rank of ``x`` with an amplitude of their own for each sequence."""
    if amplitude.ndim == 1:
        amplitude = amplitude.reshape(-1, *[1] * (x.ndim - 1))
    cos, sin = align_tables(x, cos, sin, length_axis=length_axis)
    fits = amplitude.ndim in (0, x.ndim) and all(
        n in (1, of_x) for n, of_x in zip(amplitude.shape, x.shape, strict=False)
    )
    if not fits:
        raise ShapeError(
            f"rotate: amplitude has shape {tuple(amplitude.shape)}, and x {tuple(x.shape)}; "
            "accepted are one number, one for each sequence (batch,), or the rank of x with ones."
        )
    amplitude = amplitude.to(cos.dtype)
    cos, sin = cos * amplitude, sin * amplitude
    return (cos, sin) if length_axis == -2 else (cos.transpose(-3, -2), sin.transpose(-3, -2))
