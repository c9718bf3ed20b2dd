"""``RotaryEmbedding``: the module that turns positions into a ``Rotation``."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rotary.errors import ConfigError, DtypeError, ShapeError
from rotary.frequencies import Frequencies, inverse_power
from rotary.kernels import Backend, Layout
from rotary.kernels.contract import check_layout
from rotary.positions import sequence
from rotary.rotation import Rotation


class RotaryEmbedding(nn.Module):
    """Turn positions into a rotation: ``angles = positions @ frequencies`` (RoFormer, eq. 15).

    Holds no tensor: the frequencies are plain floats, so a cast, a move, ``meta`` or an old
    checkpoint cannot spoil them, and nothing enters the ``state_dict``. Angles are float64.

    Args:
        frequencies: The frequency matrix; or leave it out and give ``head_dim``.
        head_dim: Short form: RoFormer's frequencies for heads of this many channels.
        base: The base of the short form.
        layout: Which channels form a plane: ``"interleaved"`` (the paper, GPT-J, Meta's Llama) or
            ``"half"`` (GPT-NeoX, Hugging Face's Llama). A property of the checkpoint.

    Raises:
        ConfigError: If both or neither of frequencies and head_dim are given.

    Example:
        >>> rope = RotaryEmbedding(head_dim=64)
        >>> q, k = torch.randn(2, 12, 7, 64), torch.randn(2, 12, 7, 64)
        >>> rotation = rope(torch.arange(7))
        >>> q, k = rotation(q), rotation(k)
    """

    frequencies: Frequencies
    layout: Layout

    def __init__(
        self,
        frequencies: Frequencies | None = None,
        *,
        head_dim: int | None = None,
        base: float | None = None,
        layout: Layout = "interleaved",
    ) -> None:
        super().__init__()
        check_layout(layout)
        if (frequencies is None) == (head_dim is None):
            raise ConfigError(
                "RotaryEmbedding: give either frequencies or head_dim, one of the two; for "
                "instance RotaryEmbedding(head_dim=64)."
            )
        if frequencies is None:
            assert head_dim is not None
            frequencies = inverse_power(head_dim, 10000.0 if base is None else base)
        elif base is not None:
            raise ConfigError(
                "RotaryEmbedding: base belongs to head_dim; frequencies have their own."
            )
        self.frequencies = frequencies
        self.layout = layout

    def forward(self, positions: Tensor, *, dtype: torch.dtype = torch.float32) -> Rotation:
        """Make the tables of some positions: once per forward pass, for all layers together.

        Args:
            positions: One per token, integer or real: (length,) or (batch, length) for one axis;
                (length, axes) or (batch, length, axes) for more.
            dtype: Of the tables, float32 or float64.

        Returns:
            A rotation whose tables are (length, planes) or (batch, length, planes); with a matrix
            for each head (batch or 1, heads, length, planes).

        Raises:
            ShapeError: If the positions have another shape.
            DtypeError: If the positions are held in half precision, where neighbours collide.
        """
        if dtype not in (torch.float32, torch.float64):
            raise DtypeError(f"RotaryEmbedding: dtype is {dtype}; tables are float32 or float64.")
        angles = self.angles(positions)
        cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
        return Rotation(
            cos.to(positions.device),
            sin.to(positions.device),
            self.layout,
            self.frequencies.amplitude,
        )

    def angles(self, positions: Tensor) -> Tensor:
        """Radians, float64: ``positions @ frequencies``."""
        if positions.dtype in (torch.float16, torch.bfloat16) or positions.is_complex():
            raise DtypeError(
                f"RotaryEmbedding: positions are {positions.dtype}, which cannot tell neighbouring "
                "positions apart; use integers, float32 or float64."
            )
        matrix = self.frequencies.matrix
        axes = self.frequencies.num_axes
        if axes == 1 and positions.ndim in (1, 2):
            positions = positions.unsqueeze(-1)
        if positions.ndim not in (2, 3) or positions.shape[-1] != axes:
            expected = (
                "(length,), (batch, length) or (batch, length, 1)"
                if axes == 1
                else f"(length, {axes}) or (batch, length, {axes})"
            )
            raise ShapeError(
                f"RotaryEmbedding: positions have shape {tuple(positions.shape)}; for frequencies "
                f"with {axes} position ax{'i' if axes == 1 else 'e'}s expected {expected}."
            )
        # Devices without float64 (MPS) get their tables from the CPU.
        device = torch.device("cpu") if positions.device.type == "mps" else positions.device
        exact = positions.to(device=device, dtype=torch.float64)
        weights = torch.tensor(matrix.tolist(), dtype=torch.float64, device=device)
        if matrix.ndim == 3:
            exact = exact.unsqueeze(-3) if exact.ndim == 3 else exact[None, None]
        if axes == 1:
            return exact * weights
        return (exact.unsqueeze(-1) * weights.unsqueeze(-3)).sum(-2)

    def rotate(
        self,
        q: Tensor,
        k: Tensor,
        *,
        positions: Tensor | None = None,
        offset: int = 0,
        length_axis: int = -2,
        backend: Backend = "auto",
    ) -> tuple[Tensor, Tensor]:
        """Turn queries and keys of the same positions: 0, 1, 2, ... unless told otherwise.

        Args:
            q: Queries, (..., heads, length, dim).
            k: Keys of the same length; the number of heads may differ.
            positions: One per token; see :meth:`forward`.
            offset: Position of the first token, when positions are left out.
            length_axis: Where the length runs in ``q`` and ``k``, -2 or -3.
            backend: See :func:`rotary.rotate`.

        Returns:
            The turned queries and keys.
        """
        if positions is None:
            positions = sequence(q.shape[length_axis], offset, device=q.device)
        elif offset:
            raise ConfigError("RotaryEmbedding.rotate: give positions or offset, not both.")
        wide = torch.float64 if torch.float64 in (q.dtype, k.dtype) else torch.float32
        rotation = self(positions, dtype=wide)
        q, k = rotation(q, k, length_axis=length_axis, backend=backend)
        return q, k

    def tables(
        self, positions: Tensor, *, dtype: torch.dtype = torch.float32
    ) -> tuple[Tensor, Tensor]:
        """The bare cosines and sines, for exporters and for kernels of one's own."""
        rotation = self(positions, dtype=dtype)
        return rotation.cos, rotation.sin

    def extra_repr(self) -> str:
        """What ``print(model)`` shows."""
        return f"{self.frequencies!r}, layout={self.layout!r}"
