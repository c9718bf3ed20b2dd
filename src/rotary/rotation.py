"""``Rotation``: the tables of one forward pass, made once and shared by every layer."""

from __future__ import annotations

from typing import Any, overload

import torch
from torch import Tensor

from rotary.errors import ConfigError
from rotary.kernels import Backend, Layout
from rotary.kernels.contract import check_layout
from rotary.kernels.dispatch import rotate_all


class Rotation:
    """Cosines and sines of the angles of some positions, ready to turn queries and keys.

    A plain immutable object with slots: not a dataclass and not a pytree, so mixed-precision
    wrappers that cast every tensor they find leave its float32 tables alone. Made by
    :class:`rotary.RotaryEmbedding`; called on tensors.

    Args:
        cos: Cosines, float32 or float64: (length, planes), (batch, length, planes), or
            (batch or 1, heads or 1, length, planes).
        sin: Sines, like ``cos``.
        layout: Which channels form a plane: ``"interleaved"`` or ``"half"``.
        amplitude: A factor on the turned vector, kept out of the tables.

    Example:
        >>> from rotary import RotaryEmbedding
        >>> rotation = RotaryEmbedding(head_dim=4)(torch.arange(3))
        >>> rotation(torch.ones(1, 2, 3, 4)).shape
        torch.Size([1, 2, 3, 4])
    """

    __slots__ = ("amplitude", "cos", "layout", "sin")

    cos: Tensor
    sin: Tensor
    layout: Layout
    amplitude: float

    def __init__(self, cos: Tensor, sin: Tensor, layout: Layout, amplitude: float = 1.0) -> None:
        check_layout(layout)
        object.__setattr__(self, "cos", cos)
        object.__setattr__(self, "sin", sin)
        object.__setattr__(self, "layout", layout)
        object.__setattr__(self, "amplitude", amplitude)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"Rotation is immutable; build a new one instead of setting {name}.")

    @overload
    def __call__(
        self, x: Tensor, /, *, length_axis: int = ..., inplace: bool = ..., backend: Backend = ...
    ) -> Tensor: ...

    @overload
    def __call__(
        self,
        x: Tensor,
        /,
        *more: Tensor,
        length_axis: int = ...,
        inplace: bool = ...,
        backend: Backend = ...,
    ) -> tuple[Tensor, ...]: ...

    def __call__(
        self,
        x: Tensor,
        /,
        *more: Tensor,
        length_axis: int = -2,
        inplace: bool = False,
        backend: Backend = "auto",
    ) -> Tensor | tuple[Tensor, ...]:
        """Turn one tensor, or several at the same positions; see :func:`rotary.rotate`."""
        turned = rotate_all(
            (x, *more),
            self.cos,
            self.sin,
            layout=self.layout,
            amplitude=self.amplitude,
            length_axis=length_axis,
            inplace=inplace,
            backend=backend,
        )
        return turned if more else turned[0]

    def transpose(self) -> Rotation:
        """The opposite turn with the same amplitude: what a backward pass applies."""
        return Rotation(self.cos, -self.sin, self.layout, self.amplitude)

    def inverse(self) -> Rotation:
        """The rotation that undoes this one: the opposite turn, divided by the amplitude."""
        return Rotation(self.cos, -self.sin, self.layout, 1.0 / self.amplitude)

    def __getitem__(self, rows: slice | int | Tensor | list[int]) -> Rotation:
        """The rotation of some of the positions: ``tables[a:b]``, as views where it is a slice."""
        if isinstance(rows, slice):
            if rows.stop is not None and rows.stop > self.num_positions:
                raise ConfigError(
                    f"Rotation: rows up to {rows.stop} were asked for, but the tables hold "
                    f"{self.num_positions} positions; build longer ones."
                )
        elif isinstance(rows, int):
            raise ConfigError(
                f"Rotation: {rows} names one row; write [{rows}:{rows + 1}], which keeps the axis."
            )
        return Rotation(self.cos[..., rows, :], self.sin[..., rows, :], self.layout, self.amplitude)

    def to(
        self, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> Rotation:
        """Move the tables, or widen or narrow them to float64 or float32."""
        if dtype not in (None, torch.float32, torch.float64):
            raise ConfigError(
                f"Rotation.to: dtype is {dtype}; tables are float32 or float64. Half-precision x "
                "needs no cast: the result has the dtype of x."
            )
        return Rotation(
            self.cos.to(device=device, dtype=dtype),
            self.sin.to(device=device, dtype=dtype),
            self.layout,
            self.amplitude,
        )

    @property
    def num_positions(self) -> int:
        """Number of positions in the tables."""
        return self.cos.shape[-2]

    @property
    def num_planes(self) -> int:
        """Number of planes that turn, half the number of channels."""
        return self.cos.shape[-1]

    def __reduce__(self) -> tuple[Any, ...]:
        return Rotation, (self.cos, self.sin, self.layout, self.amplitude)

    def __repr__(self) -> str:
        amplitude = "" if self.amplitude == 1.0 else f", amplitude={self.amplitude:g}"
        return (
            f"Rotation({tuple(self.cos.shape)}, {self.cos.dtype}, {self.cos.device}, "
            f"layout={self.layout!r}{amplitude})"
        )
