"""What every backend may rely on: checked arguments, and tables lined up with ``x``.

The shape rule, in one sentence: the axes of a table before its length line up, in order, with the
axes of ``x`` other than length and channels; they match or are 1, all of them may be left out, and
so may the last one (the heads). Nothing is aligned from the right by accident.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from rotary.errors import ConfigError, DtypeError, ShapeError, one_of

Layout = Literal["interleaved", "half"]
"""Which channels form plane ``p``: (2p, 2p + 1), or (p, p + planes)."""

Backend = Literal["auto", "plain"]
"""Who does the work; ``"auto"`` is the fastest that can serve the call."""

LAYOUTS: tuple[str, ...] = get_args(Layout)
BACKENDS: tuple[str, ...] = get_args(Backend)


def check_layout(layout: str) -> None:
    """Raise unless the layout is a known name."""
    if layout not in LAYOUTS:
        raise ConfigError(one_of("layout", layout, LAYOUTS))


def check_backend(backend: str) -> None:
    """Raise unless the backend is a known name."""
    if backend not in BACKENDS:
        raise ConfigError(one_of("backend", backend, BACKENDS))


def turn_dtype(x: Tensor, table: Tensor) -> torch.dtype:
    """The dtype in which the turn is computed: the widest of float32, the table and ``x``."""
    return torch.promote_types(torch.promote_types(x.dtype, table.dtype), torch.float32)


def align_tables(
    x: Tensor, cos: Tensor, sin: Tensor, *, length_axis: int = -2
) -> tuple[Tensor, Tensor]:
    """Check ``x`` against its tables and give both tables the rank of ``x``, as views.

    Raises:
        ShapeError: If they do not belong together by the rule at the head of this file.
        DtypeError: If ``x`` is not real floating point, or the tables are not float32 or float64.
    """
    if length_axis not in (-2, -3):
        raise ConfigError(
            f"rotate: length_axis is {length_axis}; accepted are -2 for (..., heads, length, dim) "
            "and -3 for (..., length, heads, dim)."
        )
    if x.ndim < -length_axis:
        raise ShapeError(
            f"rotate: x has shape {tuple(x.shape)}, which has no axis {length_axis}; expected "
            f"{'(..., length, dim)' if length_axis == -2 else '(..., length, heads, dim)'}."
        )
    if not x.dtype.is_floating_point:
        raise DtypeError(f"rotate: x is {x.dtype}; it must be a real floating-point tensor.")
    if cos.dtype != sin.dtype or cos.dtype not in (torch.float32, torch.float64):
        raise DtypeError(
            f"rotate: the tables are {cos.dtype} (cos) and {sin.dtype} (sin); both must be float32 "
            "or both float64. Half-precision tables lose the position; x may be half precision."
        )
    if cos.shape != sin.shape:
        raise ShapeError(
            f"rotate: cos has shape {tuple(cos.shape)} and sin {tuple(sin.shape)}; they are two "
            "halves of one table and must agree."
        )
    if cos.device != x.device:
        raise ConfigError(
            f"rotate: x is on {x.device} and the tables are on {cos.device}; move one of them, for "
            "instance with rotation.to(x.device)."
        )
    if cos.ndim < 2:
        raise _shape_error(x, cos, length_axis, "a table needs a length and a plane axis")
    planes = cos.shape[-1]
    if 2 * planes > x.shape[-1]:
        raise ShapeError(
            f"rotate: the tables describe {planes} planes, but x has {x.shape[-1]} channels, which "
            f"form {x.shape[-1] // 2} planes.\n{_listing(x, cos)}\nBuild the frequencies with "
            f"dim={x.shape[-1] - x.shape[-1] % 2}, or give x whole."
        )
    outer = list(x.shape[:-1])
    length = outer.pop(length_axis + 1)
    lead = list(cos.shape[:-2])
    if not lead:
        lead = [1] * len(outer)
    elif len(lead) == len(outer) - 1:
        lead = [*lead, 1]
    elif len(lead) != len(outer):
        raise _shape_error(x, cos, length_axis, f"tables of rank {cos.ndim} do not fit")
    if any(have not in (1, want) for have, want in zip(lead, outer, strict=True)):
        raise _shape_error(x, cos, length_axis, "batch and heads must match or be 1")
    if cos.shape[-2] not in (1, length):
        raise _shape_error(
            x, cos, length_axis, f"x has {length} positions and the tables {cos.shape[-2]}"
        )
    shape = [*lead, cos.shape[-2], planes]
    cos, sin = cos.reshape(shape), sin.reshape(shape)
    if length_axis == -3:
        cos, sin = cos.transpose(-3, -2), sin.transpose(-3, -2)
    return cos, sin


def _listing(x: Tensor, cos: Tensor) -> str:
    rows = [("x", x), ("cos", cos)]
    width = max(len(str(tuple(t.shape))) for _, t in rows)
    return "\n".join(f"  {name:<4} {tuple(t.shape)!s:<{width}}  {t.dtype}" for name, t in rows)


def _shape_error(x: Tensor, cos: Tensor, length_axis: int, why: str) -> ShapeError:
    heads = "H" if x.ndim > 2 else ""
    order = {-2: f"{heads}, L, D", -3: f"L, {heads}, D"}[length_axis].lstrip(", ")
    accepted = "(L, P), (B, L, P) or (B|1, H|1, L, P)" if x.ndim == 4 else "(L, P) or one axis more"
    return ShapeError(
        f"rotate: {why}.\n{_listing(x, cos)}\nx is read as (..., {order}) because length_axis is "
        f"{length_axis}; accepted tables are {accepted}. If the length runs elsewhere, name it: "
        f"length_axis={-5 - length_axis}."
    )
