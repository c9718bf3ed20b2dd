"""What every backend may rely on: checked arguments, and tables lined up with ``x``.

The shape rule, in one sentence: the axes of a table before its length line up, in order, with the
axes of ``x`` other than length and channels; they match or are 1, all of them may be left out, and
so may the last one (the heads). Nothing is aligned from the right by accident.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from rotary.errors import ConfigError, DtypeError, ShapeError, one_of

Layout = Literal["interleaved", "half"]
"""Which channels form plane ``p``: (2p, 2p + 1), or (p, p + planes)."""

Backend = Literal["auto", "plain", "cpu", "triton"]
"""Who does the work; ``"auto"`` is the fastest that can serve the call."""

LAYOUTS: tuple[str, ...] = get_args(Layout)
BACKENDS: tuple[str, ...] = get_args(Backend)

_DTYPES = frozenset((torch.float64, torch.float32, torch.bfloat16, torch.float16))
_TABLE_DTYPES = frozenset((torch.float64, torch.float32))


def check_layout(layout: str) -> None:
    """Raise unless the layout is a known name."""
    if layout not in LAYOUTS:
        raise ConfigError(one_of("layout", layout, LAYOUTS))


def check_backend(backend: str) -> None:
    """Raise unless the backend is a known name."""
    if backend not in BACKENDS:
        raise ConfigError(one_of("backend", backend, BACKENDS))


def check_amplitude(amplitude: object) -> None:
    """Raise unless the amplitude is a number."""
    if not hasattr(amplitude, "__float__"):
        raise ConfigError(
            f"rotate: amplitude is {amplitude!r}, of type {type(amplitude).__name__}; give a "
            "number, or a tensor where sequences differ."
        )


def check_call(x: Tensor, cos: Tensor, sin: Tensor, length_axis: int) -> None:
    """Raise unless ``x`` and its tables belong together by the rule at the head of this file.

    Cheap where all is well: the shapes of a call that passed once are remembered.

    Raises:
        ShapeError: If the shapes do not belong together.
        DtypeError: If ``x`` is not real floating point, or the tables are not float32 or float64.
        ConfigError: If the length axis is none, or the devices differ.
    """
    if x.dtype not in _DTYPES:
        raise DtypeError(
            f"rotate: x is {x.dtype}; accepted are float64, float32, bfloat16 and float16. "
            "Integers and 8-bit floats must be converted first."
        )
    if cos.dtype is not sin.dtype or cos.dtype not in _TABLE_DTYPES:
        raise DtypeError(
            f"rotate: the tables are {cos.dtype} (cos) and {sin.dtype} (sin); both must be float32 "
            "or both float64. Half-precision tables lose the position; x may be half precision."
        )
    if cos.shape != sin.shape:
        raise ShapeError(
            f"rotate: cos has shape {tuple(cos.shape)} and sin {tuple(sin.shape)}; they are two "
            "halves of one table and must agree."
        )
    if not cos.device == sin.device == x.device:
        raise ConfigError(
            f"rotate: x is on {x.device}, cos on {cos.device} and sin on {sin.device}; move one of "
            "them, for instance with rotation.to(x.device)."
        )
    # While compiling, sizes may be symbols, which a cache would pin to numbers.
    fits = _fits.__wrapped__ if torch.compiler.is_compiling() else _fits
    if not fits(tuple(x.shape), tuple(cos.shape), length_axis):
        _check_shapes(tuple(x.shape), tuple(cos.shape), length_axis, _listing(x, cos))


def length_of(shape: Sequence[int], length_axis: int) -> int:
    """The number of positions in ``x``.

    Raises:
        ConfigError: If the length axis is none.
        ShapeError: If ``x`` has no such axis.
    """
    if length_axis not in (-2, -3):
        raise ConfigError(
            f"rotate: length_axis is {length_axis}; accepted are -2 for (..., heads, length, dim) "
            "and -3 for (..., length, heads, dim)."
        )
    if len(shape) < -length_axis:
        raise ShapeError(
            f"rotate: x has shape {tuple(shape)}, which has no axis {length_axis}; expected "
            f"{'(..., length, dim)' if length_axis == -2 else '(..., length, heads, dim)'}."
        )
    return shape[length_axis]


def align_tables(
    x: Tensor, cos: Tensor, sin: Tensor, *, length_axis: int = -2
) -> tuple[Tensor, Tensor]:
    """Give both tables the rank and the axes of ``x``, as views; raises as :func:`check_call`."""
    check_call(x, cos, sin, length_axis)
    cos, sin = full_tables(cos, x.ndim), full_tables(sin, x.ndim)
    if length_axis == -3:
        cos, sin = cos.transpose(-3, -2), sin.transpose(-3, -2)
    return cos, sin


def full_tables(table: Tensor, rank: int) -> Tensor:
    """Put the axes that a checked table leaves out, as ones: the rank of ``x``, as a view."""
    missing = [1] * (rank - table.ndim)
    return table.reshape(*table.shape[:-2], *missing, *table.shape[-2:]) if missing else table


def line_up(function: str, *sides: Sequence[Any]) -> list[list[Any]]:
    """Give the tables of two rotations one rank; the heads, where only one has them, are put in.

    Args:
        function: Who asks, for the message.
        *sides: What belongs to each rotation: a table first, then tensors, numbers or None that
            broadcast with it.

    Raises:
        ShapeError: If the tables cannot belong to the same ``x``.
    """
    ranks = [max(part.ndim for part in side if isinstance(part, Tensor)) for side in sides]
    lined = [
        [
            part.unsqueeze(-3) if isinstance(part, Tensor) and 2 < part.ndim < max(ranks) else part
            for part in side
        ]
        if own == max(ranks) - 1
        else list(side)
        for own, side in zip(ranks, sides, strict=True)
    ]
    planes, *others = zip(*(reversed(side[0].shape) for side in lined), strict=False)
    if (
        planes[0] != planes[1]
        or any(a != b and a != 1 and b != 1 for a, b in others)
        or 2 < min(ranks) < max(ranks) - 1
    ):
        raise ShapeError(
            f"{function}: the tables have shapes {tuple(sides[0][0].shape)} and "
            f"{tuple(sides[1][0].shape)}, and cannot belong to the same vectors. Planes must be "
            "equal, batch, heads and length equal or 1: (L, P), (B, L, P), (B|1, H|1, L, P)."
        )
    return lined


@lru_cache(maxsize=1024)
def _fits(x: tuple[int, ...], table: tuple[int, ...], length_axis: int) -> bool:
    """Whether :func:`_check_shapes` has nothing to say."""
    try:
        _check_shapes(x, table, length_axis)
    except (ShapeError, ConfigError):
        return False
    return True


def _check_shapes(
    x: tuple[int, ...], table: tuple[int, ...], length_axis: int, listing: str = ""
) -> None:
    """Raise unless the shapes obey the rule at the head of this file."""
    length = length_of(x, length_axis)
    if len(table) < 2:
        raise _shape_error(x, listing, length_axis, "a table needs a length and a plane axis")
    planes = table[-1]
    if 2 * planes > x[-1]:
        raise ShapeError(
            f"rotate: the tables describe {planes} planes, but x has {x[-1]} channels, which "
            f"form {x[-1] // 2} planes.\n{listing}\nBuild the frequencies with "
            f"dim={x[-1] - x[-1] % 2}, or give x whole."
        )
    outer = list(x[:-1])
    del outer[length_axis + 1]
    lead = list(table[:-2])
    if not lead:
        lead = [1] * len(outer)
    elif len(lead) == len(outer) - 1:
        lead = [*lead, 1]
    elif len(lead) != len(outer):
        why = f"tables of rank {len(table)} do not fit"
        raise _shape_error(x, listing, length_axis, why)
    # `!=`, not `in`: a compiler's `in` takes a number and a symbol that is that number for two.
    if any(have != 1 and have != want for have, want in zip(lead, outer, strict=True)):
        raise _shape_error(x, listing, length_axis, "batch and heads must match or be 1")
    if table[-2] != 1 and table[-2] != length:
        why = f"x has {length} positions and the tables {table[-2]}"
        raise _shape_error(x, listing, length_axis, why)


def _listing(x: Tensor, cos: Tensor) -> str:
    rows = [("x", x), ("cos", cos)]
    width = max(len(str(tuple(t.shape))) for _, t in rows)
    return "\n".join(f"  {name:<4} {tuple(t.shape)!s:<{width}}  {t.dtype}" for name, t in rows)


def _shape_error(x: tuple[int, ...], listing: str, length_axis: int, why: str) -> ShapeError:
    heads = "H" if len(x) > 2 else ""
    order = {-2: f"{heads}, L, D", -3: f"L, {heads}, D"}[length_axis].lstrip(", ")
    accepted = "(L, P), (B, L, P) or (B|1, H|1, L, P)" if len(x) == 4 else "(L, P) or one axis more"
    return ShapeError(
        f"rotate: {why}.\n{listing}\nx is read as (..., {order}) because length_axis is "
        f"{length_axis}; accepted tables are {accepted}. If the length runs elsewhere, name it: "
        f"length_axis={-5 - length_axis}."
    )
