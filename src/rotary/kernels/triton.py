"""The Triton kernel for GPUs: which tensors it takes, and how it is launched.

``x`` is seen as (batch, heads, length, dim) whatever its rank and strides; queries and keys go in
one launch, one load of the tables serves several heads, and addresses are 64-bit. Triton itself is
imported when a tensor on a GPU first comes along.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from types import ModuleType

import torch
from torch import Tensor

from rotary.kernels.autograd import register_rotation
from rotary.kernels.contract import full_tables

HEADS = 4  # That share one load of the tables.
ELEMENTS = 2048  # Of one head in one block, about; Triton wants powers of two.


@lru_cache(maxsize=1)
def _rows() -> ModuleType | str:
    """The module with the kernel, or why there is none."""
    try:
        from rotary.kernels import _triton_rows
    except ImportError as error:
        return f"Triton is not installed or does not load ({error})"
    return _triton_rows


def refusal(x: Tensor) -> str | None:
    """Why the kernel cannot serve this tensor; None if it can."""
    if not x.is_cuda and not _is_interpreting():
        return f"x is on {x.device}, and Triton needs a GPU"
    rows = _rows()
    return rows if isinstance(rows, str) else None


def how() -> str:
    """A remark for :func:`rotary.kernels.explain`."""
    return "in Triton's interpreter" if _is_interpreting() else ""


def _is_interpreting() -> bool:
    """Whether Triton was told to run on the CPU, for tests (``TRITON_INTERPRET=1``)."""
    rows = _rows()
    if isinstance(rows, str):
        return False
    return bool(type(rows.turn_rows).__name__ == "InterpretedFunction")


def turn(
    xs: Sequence[Tensor],
    cos: Tensor,
    sin: Tensor,
    interleaved: bool,
    length_axis: int,
    amplitude: float,
    transpose: bool,
) -> tuple[Tensor, ...]:
    """Turn tensors that share their tables; a pair of the same kind is one launch."""
    outs = tuple(torch.empty_like(x) for x in xs)
    rest = (cos, sin, interleaved, length_axis, amplitude, transpose)
    if len(xs) == 2 and _are_alike(xs[0], xs[1], length_axis):
        _launch(xs, outs, *rest)
    else:
        for x, out in zip(xs, outs, strict=True):
            _launch((x,), (out,), *rest)
    return outs


def turn_inplace(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    interleaved: bool,
    length_axis: int,
    amplitude: float,
    transpose: bool,
) -> None:
    """Turn a tensor where it lies."""
    _launch((x,), (x,), cos, sin, interleaved, length_axis, amplitude, transpose)


@torch.library.custom_op(
    "rotary::rotate_triton",
    mutates_args=(),
    schema="(Tensor x, Tensor cos, Tensor sin, bool interleaved, int length_axis, "
    "float amplitude, bool transpose) -> Tensor",
)
def turn_compiled(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    interleaved: bool,
    length_axis: int,
    amplitude: float,
    transpose: bool,
) -> Tensor:
    """The operator that ``torch.compile`` records: the same kernel, with its derivative."""
    return turn((x,), cos, sin, interleaved, length_axis, amplitude, transpose)[0]


register_rotation(turn_compiled)


def _are_alike(q: Tensor, k: Tensor, length_axis: int) -> bool:
    """Whether two tensors differ in nothing but the number of heads."""
    if q.dtype != k.dtype or q.ndim != k.ndim or q.ndim != 4:
        return False
    heads = 1 if length_axis == -2 else 2
    return all(a == b for i, (a, b) in enumerate(zip(q.shape, k.shape, strict=True)) if i != heads)


def _as_four(x: Tensor, length_axis: int) -> Tensor:
    """(batch, heads, length, dim), as a view."""
    if length_axis == -3:
        x = x.transpose(-3, -2)
    while x.ndim < 4:
        x = x.unsqueeze(0)
    return x


def _launch(
    xs: Sequence[Tensor],
    outs: Sequence[Tensor],
    cos: Tensor,
    sin: Tensor,
    interleaved: bool,
    length_axis: int,
    amplitude: float,
    transpose: bool,
) -> None:
    cos, sin = full_tables(cos, xs[0].ndim), full_tables(sin, xs[0].ndim)
    if xs[0].numel() == 0:
        return
    # The memory of a negated view, such as z.conj().imag, has the other sign.
    xs, cos, sin = [x.resolve_neg() for x in xs], cos.resolve_neg(), sin.resolve_neg()
    if xs[0].ndim > 4:
        for i in range(xs[0].shape[0]):
            at = i if cos.shape[0] > 1 else 0
            slices = ([t[i] for t in xs], [t[i] for t in outs], cos[at], sin[at])
            _launch(*slices, interleaved, length_axis, amplitude, transpose)
        return
    _launch_four(
        [_as_four(x, length_axis) for x in xs],
        [_as_four(out, length_axis) for out in outs],
        _as_four(cos, -2),
        _as_four(sin, -2),
        interleaved,
        amplitude,
        transpose,
    )


def _launch_four(
    xs: Sequence[Tensor],
    outs: Sequence[Tensor],
    cos: Tensor,
    sin: Tensor,
    interleaved: bool,
    amplitude: float,
    transpose: bool,
) -> None:
    rows = _rows()
    assert not isinstance(rows, str)
    import triton.language as tl

    q, q_out, k, k_out = xs[0], outs[0], xs[-1], outs[-1]
    batch, q_heads, length, dim = q.shape
    k_heads = k.shape[1] if len(xs) == 2 else 0
    planes = cos.shape[-1]
    block_p = _power_of_two(max(1, planes))
    block_l = max(1, min(_power_of_two(length), ELEMENTS // (2 * block_p)))
    programs = batch * -(-length // block_l) * (-(-q_heads // HEADS) + -(-k_heads // HEADS))
    is_wide = torch.float64 in (q.dtype, cos.dtype)
    if is_wide and amplitude != 1.0:  # Triton would pass the number as float32.
        cos, sin, amplitude = cos * amplitude, sin * amplitude, 1.0

    def steps(table: Tensor) -> list[int]:
        shape_and_stride = zip(table.shape, table.stride(), strict=True)
        return [
            0 if n == 1 and axis < 3 else step for axis, (n, step) in enumerate(shape_and_stride)
        ]

    with torch.cuda.device_of(q):  # type: ignore[no-untyped-call]
        rows.turn_rows[(programs,)](
            q,
            q_out,
            k,
            k_out,
            cos,
            sin,
            q_heads,
            k_heads,
            length,
            planes,
            dim,
            *q.stride(),
            *q_out.stride(),
            *k.stride(),
            *k_out.stride(),
            *steps(cos),
            *steps(sin),
            amplitude,
            INTERLEAVED=interleaved,
            TRANSPOSE=transpose,
            INPLACE=q is q_out or q.data_ptr() == q_out.data_ptr(),
            COMPUTE=tl.float64 if is_wide else tl.float32,
            TABLE_PER_HEAD=cos.shape[1] > 1 or sin.shape[1] > 1,
            HEADS=HEADS,
            BLOCK_L=block_l,
            BLOCK_P=block_p,
            BLOCK_TAIL=_power_of_two(dim - 2 * planes) if dim > 2 * planes else 0,
        )


def _power_of_two(n: int) -> int:
    """The least power of two that is not below ``n``."""
    return 1 << max(0, n - 1).bit_length()
