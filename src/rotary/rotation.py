"""``Rotation``: the tables of one forward pass, made once and shared by every layer."""

from __future__ import annotations

from typing import Any, overload

import torch
from torch import Tensor

from rotary.errors import ConfigError
from rotary.kernels import Backend, Layout
from rotary.kernels.contract import check_layout, line_up
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
        amplitude: A factor on the turned vector, kept out of the tables; a tensor where it differs
            between sequences or positions, of a shape that broadcasts with the tables.
        decay: xPos: the logarithm of the scale of a query, of a shape that broadcasts with the
            tables. Such a rotation must be asked for its side: ``for_queries()``, ``for_keys()``.

    Example:
        >>> import torch
        >>> from rotary import RotaryEmbedding
        >>> rotation = RotaryEmbedding(head_dim=4)(torch.arange(3))
        >>> rotation(torch.ones(1, 2, 3, 4)).shape
        torch.Size([1, 2, 3, 4])
    """

    __slots__ = ("_scaled", "amplitude", "cos", "decay", "layout", "sin")

    cos: Tensor
    sin: Tensor
    layout: Layout
    amplitude: float | Tensor
    decay: Tensor | None
    _scaled: tuple[Tensor, Tensor, float]

    def __init__(
        self,
        cos: Tensor,
        sin: Tensor,
        layout: Layout,
        amplitude: float | Tensor = 1.0,
        decay: Tensor | None = None,
    ) -> None:
        check_layout(layout)
        put = object.__setattr__
        put(self, "cos", cos)
        put(self, "sin", sin)
        put(self, "layout", layout)
        put(self, "amplitude", amplitude)
        put(self, "decay", decay)
        # Kernels take one number; amplitudes that vary are multiplied in here, once for all layers.
        if isinstance(amplitude, Tensor):
            put(self, "_scaled", (cos * amplitude, sin * amplitude, 1.0))
        else:
            put(self, "_scaled", (cos, sin, amplitude))

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
        """Turn one tensor, or several at the same positions; see :func:`rotary.rotate`.

        Args:
            x: Queries or keys: (..., heads, length, dim), (batch, length, dim) or (length, dim).
            *more: Further tensors; numbers of heads may differ.
            length_axis: Where the length runs, -2 or -3.
            inplace: Write into the tensors, no two of which may begin at the same element.
            backend: Who does the work.

        Returns:
            One tensor for one, a tuple for several, each with the shape and dtype of its input.

        Raises:
            ConfigError: If this is an xPos rotation that was not asked for its side.
            ShapeError: If the shapes do not belong together.
        """
        if self.decay is not None:
            raise ConfigError(
                "Rotation: xPos scales queries and keys in opposite senses; say which these are: "
                "rotation.for_queries()(q), rotation.for_keys()(k)."
            )
        cos, sin, amplitude = self._scaled
        turned = rotate_all(
            (x, *more),
            cos,
            sin,
            layout=self.layout,
            amplitude=amplitude,
            length_axis=length_axis,
            inplace=inplace,
            backend=backend,
        )
        return turned if more else turned[0]

    def for_queries(self) -> Rotation:
        """What queries get: with xPos ``zeta ** ((m - centre) / scale_base)``, otherwise self."""
        return self if self.decay is None else self._sided(self.decay.exp())

    def for_keys(self) -> Rotation:
        """What keys get: with xPos ``zeta ** (-(n - centre) / scale_base)``, otherwise self."""
        return self if self.decay is None else self._sided((-self.decay).exp())

    def _sided(self, scale: Tensor) -> Rotation:
        return Rotation(self.cos, self.sin, self.layout, scale * self.amplitude)

    def transpose(self) -> Rotation:
        """The opposite turn with the same amplitude: what a backward pass applies."""
        return Rotation(self.cos, -self.sin, self.layout, self.amplitude, self.decay)

    def inverse(self) -> Rotation:
        """The rotation that undoes this one: the opposite turn, divided by the amplitude."""
        decay = None if self.decay is None else -self.decay
        return Rotation(self.cos, -self.sin, self.layout, 1.0 / self.amplitude, decay)

    def __matmul__(self, other: Rotation) -> Rotation:
        """First ``other``, then this: angles add, amplitudes multiply. ``R(a) @ R(b) = R(a + b)``.

        Raises:
            ConfigError: If the layouts differ.
            ShapeError: If the tables cannot belong to the same vectors.
        """
        if not isinstance(other, Rotation):
            return NotImplemented
        if self.layout != other.layout:
            raise ConfigError(
                f"Rotation: {self.layout!r} and {other.layout!r} pair different channels, so the "
                "two turns do not compose to one."
            )
        (cos, sin, amplitude, decay), (cos_2, sin_2, amplitude_2, decay_2) = line_up(
            "Rotation",
            *((each.cos, each.sin, each.amplitude, each.decay) for each in (self, other)),
        )
        if decay is None or decay_2 is None:
            decay = decay_2 if decay is None else decay
        else:
            decay = decay + decay_2
        return Rotation(
            cos * cos_2 - sin * sin_2,
            sin * cos_2 + cos * sin_2,
            self.layout,
            amplitude * amplitude_2,
            decay,
        )

    def __getitem__(self, rows: Any) -> Rotation:
        """The rotation of some of the positions: ``tables[a:b]``, views where it is a slice.

        Args:
            rows: A slice; or a list or one-dimensional tensor of row numbers, or of booleans, one
                for each position.

        Raises:
            ConfigError: If rows are named that the tables do not hold, or what is given are none.
        """
        if isinstance(rows, slice):
            # A slice past the end of a tensor is silently shorter; here it would turn too few.
            for edge in (rows.start, rows.stop):
                if edge is not None and not -self.num_positions <= edge <= self.num_positions:
                    raise self._too_short(f"[{rows.start}:{rows.stop}]")
            if rows.step is not None and rows.step < 1:
                raise ConfigError(f"Rotation: the step of a slice is {rows.step}; it must be >= 1.")
        elif isinstance(rows, int):
            raise ConfigError(
                f"Rotation: {rows} names one row; write [{rows}:{rows + 1}], which keeps the axis."
            )
        else:
            rows = self._row_numbers(rows)

        def pick(table: Tensor) -> Tensor:
            has_rows = table.ndim >= 2 and table.shape[-2] != 1
            return table[..., rows, :] if has_rows or table.shape == self.cos.shape else table

        amplitude, decay = self.amplitude, self.decay
        return Rotation(
            pick(self.cos),
            pick(self.sin),
            self.layout,
            pick(amplitude) if isinstance(amplitude, Tensor) else amplitude,
            None if decay is None else pick(decay),
        )

    def _row_numbers(self, rows: Any) -> Tensor:
        """Row numbers or a mask, checked, as a tensor beside the tables."""
        found = rows
        if isinstance(rows, list):
            try:
                found = torch.tensor(rows, dtype=None if rows else torch.int64)
            except (TypeError, ValueError, RuntimeError):
                found = None
        is_set = isinstance(found, Tensor) and found.ndim == 1
        if not is_set or found.dtype.is_floating_point or found.dtype.is_complex:
            what = f"a tensor {tuple(rows.shape)}" if isinstance(rows, Tensor) else repr(rows)
            raise ConfigError(
                f"Rotation: {what} is no set of rows; give a slice, or a list or one-dimensional "
                "tensor of row numbers, or of booleans, one for each position."
            )
        if found.dtype == torch.bool:
            if found.shape[0] != self.num_positions:
                raise self._too_short(f"chosen by {found.shape[0]} booleans")
        elif found.is_cpu and found.numel() and not torch.compiler.is_compiling():
            first, last = (int(edge) for edge in found.aminmax())
            if first < -self.num_positions or last >= self.num_positions:
                raise self._too_short(f"{first} to {last}")
            found = found.long()  # PyTorch takes uint8 for a mask.
        return found.to(self.cos.device)

    def _too_short(self, rows: str) -> ConfigError:
        return ConfigError(
            f"Rotation: rows {rows} were asked for, but the tables hold {self.num_positions} "
            "positions; build longer ones."
        )

    def to(
        self, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> Rotation:
        """Move the tables, or widen or narrow them to float64 or float32; self if nothing changes.

        Raises:
            ConfigError: If the dtype is another.
        """
        if dtype not in (None, torch.float32, torch.float64):
            raise ConfigError(
                f"Rotation.to: dtype is {dtype}; tables are float32 or float64. Half-precision x "
                "needs no cast: the result has the dtype of x."
            )
        cos = self.cos.to(device=device, dtype=dtype)
        if cos is self.cos:
            return self

        def move(table: Any) -> Any:
            return table.to(device=device, dtype=dtype) if isinstance(table, Tensor) else table

        return Rotation(cos, move(self.sin), self.layout, move(self.amplitude), move(self.decay))

    @property
    def num_positions(self) -> int:
        """Number of positions in the tables."""
        return self.cos.shape[-2]

    @property
    def num_planes(self) -> int:
        """Number of planes that turn, half the number of channels."""
        return self.cos.shape[-1]

    @property
    def device(self) -> torch.device:
        """Where the tables are."""
        return self.cos.device

    @property
    def dtype(self) -> torch.dtype:
        """Of the tables, float32 or float64."""
        return self.cos.dtype

    def __reduce__(self) -> tuple[Any, ...]:
        return Rotation, (self.cos, self.sin, self.layout, self.amplitude, self.decay)

    def __repr__(self) -> str:
        if isinstance(self.amplitude, Tensor):
            amplitude = f", amplitude={tuple(self.amplitude.shape)}"
        else:
            amplitude = "" if self.amplitude == 1.0 else f", amplitude={self.amplitude:g}"
        decay = "" if self.decay is None else ", xpos"
        return (
            f"Rotation({tuple(self.cos.shape)}, {self.cos.dtype}, {self.cos.device}, "
            f"layout={self.layout!r}{amplitude}{decay})"
        )
