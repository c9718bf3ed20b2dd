"""The compiled kernel for CPUs (``cpu.cpp``), if this installation has it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rotary.kernels.autograd import register_rotation

MISSING: str | None = None
"""Why there is no compiled kernel here; None where there is one."""

try:
    from rotary.kernels import _cpu
except ImportError as error:
    MISSING = (
        f"the extension is not there or does not load ({error}); with a C++17 compiler, "
        "`pip install --no-build-isolation rotary` builds it"
    )


def instructions() -> tuple[str, ...]:
    """The instruction sets that the kernel can use here, the best first; empty without one."""
    return _cpu.supported_instructions() if MISSING is None else ()


def refusal(x: Tensor) -> str | None:
    """Why the kernel cannot serve this tensor; None if it can."""
    if MISSING is not None:
        return MISSING
    if x.device.type != "cpu":
        return f"x is on {x.device}, not on the CPU"
    if x.layout is not torch.strided:
        return f"x is {x.layout}, not a dense tensor"
    return None


def how() -> str:
    """A remark for :func:`rotary.kernels.explain`: the instructions in use."""
    return f"with {instructions()[0]} instructions" if MISSING is None else ""


def turn(
    xs: Sequence[Tensor],
    cos: Tensor,
    sin: Tensor,
    interleaved: bool,
    length_axis: int,
    amplitude: float,
    transpose: bool,
) -> tuple[Tensor, ...]:
    """Turn tensors that share their tables; a pair is one call."""
    rest = (cos, sin, interleaved, length_axis, amplitude, transpose)
    if len(xs) == 2:
        turned: tuple[Tensor, ...] = _turn_pair(xs[0], xs[1], *rest)
        return turned
    return tuple(_turn(x, *rest) for x in xs)


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
    torch.ops.rotary.turn_.default(x, cos, sin, interleaved, length_axis, amplitude, transpose)


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
    turned: Tensor = torch.ops.rotary.rotate.default(
        x, cos, sin, interleaved, length_axis, amplitude, transpose
    )
    return turned


def tables(angles: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines of float64 angles, rounded once, to float32."""
    cos, sin = _tables(angles)
    return cos, sin


def running_dot(q: Tensor, k: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
    """See :func:`rotary.kernels.running.running_dot`."""
    dots, last = _running_dot(q, k, start)
    return dots, last


def _fake(x: Tensor, *_: object) -> Tensor:
    return torch.empty_like(x)


def _fake_pair(q: Tensor, k: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    return torch.empty_like(q), torch.empty_like(k)


def _fake_tables(angles: Tensor) -> tuple[Tensor, Tensor]:
    cos, sin = (angles.new_empty(angles.shape, dtype=torch.float32) for _ in range(2))
    return cos, sin


def _fake_running_dot(q: Tensor, k: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
    return q.new_empty(q.shape[:3]), start.new_empty(start.shape)


if MISSING is None:
    _turn = torch.ops.rotary.turn.default
    _turn_pair = torch.ops.rotary.turn_pair.default
    _tables = torch.ops.rotary.tables.default
    _running_dot = torch.ops.rotary.running_dot.default
    for _name, _shapes in (
        ("turn", _fake),
        ("turn_pair", _fake_pair),
        ("turn_", lambda *_: None),
        ("tables", _fake_tables),
        ("running_dot", _fake_running_dot),
    ):
        torch.library.register_fake(f"rotary::{_name}", _shapes)
    register_rotation(torch.ops.rotary.rotate.default)
