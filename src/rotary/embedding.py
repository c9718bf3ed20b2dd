"""``RotaryEmbedding``: the module that turns positions into a ``Rotation``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from rotary.angles import angles_of
from rotary.basis import Basis
from rotary.errors import ConfigError, DtypeError, ShapeError
from rotary.frequencies import Frequencies, LengthSchedule, XPos, inverse_power
from rotary.kernels import Backend, Layout
from rotary.kernels.contract import check_layout, length_of, line_up
from rotary.kernels.dispatch import check_distinct
from rotary.kernels.tables import tables
from rotary.positions import sequence
from rotary.rotation import Rotation

__all__ = ["Basis", "RotaryEmbedding"]

# What older modules saved beside their weights; none of it is a parameter.
_OLD_KEYS = (
    "inv_freq",
    "freqs",
    "cos_cached",
    "sin_cached",
    "cos_cache",
    "sin_cache",
    "cached_freqs",
)


class RotaryEmbedding(nn.Module):
    """Turn positions into a rotation: ``angles = positions @ frequencies`` (RoFormer, eq. 15).

    Holds no tensor: the frequencies are plain floats, so a cast, a move, ``meta`` or an old
    checkpoint cannot spoil them, and nothing enters the ``state_dict``. Learnable frequencies are
    an offset from those floats that starts at zero. Angles are float64.

    Args:
        frequencies: The frequency matrix, a schedule that depends on the length, or xPos; or leave
            it out and give ``head_dim``. The attribute may be replaced later: nothing is cached.
        head_dim: Short form: RoFormer's frequencies for heads of this many channels.
        base: The base of the short form; 10000 if left out.
        layout: Which channels form a plane: ``"interleaved"`` (the paper, GPT-J, Meta's Llama) or
            ``"half"`` (GPT-NeoX, Hugging Face's Llama). A property of the checkpoint.
        is_learnable: Learn an offset to the frequencies, the parameter ``frequency_offset``.

    Raises:
        ConfigError: If both or neither of frequencies and head_dim are given, or frequencies that
            depend on the length are to be learned.

    Example:
        >>> rope = RotaryEmbedding(head_dim=64)
        >>> q, k = torch.randn(2, 12, 7, 64), torch.randn(2, 12, 7, 64)
        >>> rotation = rope(torch.arange(7))
        >>> q, k = rotation(q), rotation(k)
    """

    frequencies: Frequencies | LengthSchedule | XPos
    layout: Layout
    frequency_offset: nn.Parameter | None

    def __init__(
        self,
        frequencies: Frequencies | LengthSchedule | XPos | None = None,
        *,
        head_dim: int | None = None,
        base: float | None = None,
        layout: Layout = "interleaved",
        is_learnable: bool = False,
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
        if not isinstance(frequencies, (Frequencies, LengthSchedule, XPos)):
            raise ConfigError(
                f"RotaryEmbedding: frequencies are {frequencies!r}, of type "
                f"{type(frequencies).__name__}; give Frequencies, a LengthSchedule or xpos(...). "
                "For heads of a number of channels, name it: head_dim=64."
            )
        self.frequencies = frequencies
        self.layout = layout
        self.frequency_offset = None
        if is_learnable:
            if not isinstance(frequencies, Frequencies):
                raise ConfigError(
                    f"RotaryEmbedding: {type(frequencies).__name__} cannot be learned; give "
                    "Frequencies, or is_learnable=False."
                )
            self.frequency_offset = nn.Parameter(torch.zeros(frequencies.matrix.shape))

    def forward(
        self,
        positions: Tensor,
        *,
        lengths: int | Tensor | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> Rotation:
        """Make the tables of some positions: once per forward pass, for all layers together.

        Args:
            positions: One per token, integer or real, of any sign: (length,) or (batch, length) for
                one axis; (length, axes) or (batch, length, axes) for more.
            lengths: How long the sequences are in all, cached tokens included: one number, or an
                integer tensor (batch,). Needed by frequencies that depend on it, not used by
                others. In generation, fix it for a sequence when its first tokens are read.
            dtype: Of the tables, float32 or float64.

        Returns:
            A rotation whose tables are (length, planes) or (batch, length, planes); with a matrix
            for each head (batch or 1, heads, length, planes).

        Raises:
            ShapeError: If the positions have another shape.
            DtypeError: If the positions are held in half precision, where neighbours collide.
            ConfigError: If lengths are needed and missing.
        """
        if dtype is not torch.float32 and dtype is not torch.float64:
            raise DtypeError(f"RotaryEmbedding: dtype is {dtype}; tables are float32 or float64.")
        angles, amplitude, decay = angles_of(
            positions, self.frequencies, lengths, self.frequency_offset
        )
        return self._rotation(angles, amplitude, decay, positions.device, dtype)

    def angles(self, positions: Tensor, *, lengths: int | Tensor | None = None) -> Tensor:
        """Radians, float64: ``positions @ frequencies``, of the shape of the tables."""
        return angles_of(positions, self.frequencies, lengths, self.frequency_offset)[0]

    def rotate(
        self,
        q: Tensor,
        k: Tensor,
        *,
        positions: Tensor | None = None,
        key_positions: Tensor | None = None,
        offset: int | Tensor = 0,
        lengths: int | Tensor | None = None,
        length_axis: int = -2,
        inplace: bool = False,
        backend: Backend = "auto",
    ) -> tuple[Tensor, Tensor]:
        """Turn queries and keys: at positions 0, 1, 2, ... unless told otherwise.

        Args:
            q: Queries, (..., heads, length, dim).
            k: Keys; the number of heads may differ.
            positions: One per token; see :meth:`forward`.
            key_positions: Those of the keys, where they are not the same; ``q`` and ``k`` may have
                different lengths only then. Keys in a cache are turned already: turn the new ones.
            offset: Position of the first token, when positions are left out; see
                :func:`rotary.sequence`.
            lengths: See :meth:`forward`; the number of positions when both are left out.
            length_axis: Where the length runs in ``q`` and ``k``, -2 or -3.
            inplace: Write into ``q`` and ``k``, which must not begin at the same element.
            backend: See :func:`rotary.rotate`.

        Returns:
            The turned queries and keys.

        Raises:
            ConfigError: If positions and offset are both given.
            ShapeError: If the lengths of ``q`` and ``k`` differ, and no key_positions are given.

        Example:
            >>> rope = RotaryEmbedding(head_dim=8)
            >>> q, k = rope.rotate(torch.randn(1, 4, 5, 8), torch.randn(1, 2, 5, 8))
        """
        length, key_length = (length_of(x.shape, length_axis) for x in (q, k))
        if key_length != length and key_positions is None:
            raise ShapeError(
                f"RotaryEmbedding.rotate: q has {length} positions and k has {key_length}, and "
                "without key_positions they share theirs. Keys in a cache are turned already: turn "
                "only the new ones, with offset=, and put them behind; or give positions= and "
                "key_positions=."
            )
        if positions is None:
            if self.frequencies.num_axes != 1:
                raise ConfigError(
                    f"RotaryEmbedding.rotate: the frequencies have {self.frequencies.num_axes} "
                    "axes, so positions must be given, for instance from rotary.positions.grid."
                )
            positions = sequence(length, offset, device=q.device)
            if lengths is None and isinstance(self.frequencies, LengthSchedule):
                lengths = offset + length
        elif isinstance(offset, Tensor) or offset != 0:
            raise ConfigError("RotaryEmbedding.rotate: give positions or offset, not both.")
        wide = torch.float64 if torch.float64 in (q.dtype, k.dtype) else torch.float32
        rotation = keys = self(positions, lengths=lengths, dtype=wide)
        if key_positions is not None:
            keys = self(key_positions, lengths=lengths, dtype=wide)
        if inplace:
            check_distinct((q, k))

        def turn(by: Rotation, x: Tensor) -> Tensor:
            return by(x, length_axis=length_axis, inplace=inplace, backend=backend)

        return turn(rotation.for_queries(), q), turn(keys.for_keys(), k)

    def move(
        self,
        k: Tensor,
        old: Tensor,
        new: Tensor,
        *,
        old_frequencies: Frequencies | LengthSchedule | XPos | None = None,
        lengths: int | Tensor | None = None,
        old_lengths: int | Tensor | None = None,
        length_axis: int = -2,
        inplace: bool = False,
        backend: Backend = "auto",
    ) -> Tensor:
        """Move keys that were already turned from their old positions to new ones.

        One turn by the difference of the angles; the amplitude that the keys carry is counted once.
        For evicting from a cache, for attention sinks, and for a change of frequencies.

        Args:
            k: Turned keys, (..., heads, length, dim).
            old: The positions they were turned at; see :meth:`forward`.
            new: The positions they are to have.
            old_frequencies: What they were turned with, where that has changed.
            lengths: Lengths for the new frequencies, where those depend on them.
            old_lengths: Lengths for the old ones; ``lengths`` if left out.
            length_axis: Where the length runs in ``k``, -2 or -3.
            inplace: Write into ``k``.
            backend: See :func:`rotary.rotate`.

        Returns:
            The keys as if turned at the new positions in the first place.

        Raises:
            ShapeError: If old and new positions or frequencies cannot belong to the same keys.

        Example:
            >>> rope = RotaryEmbedding(head_dim=8)
            >>> k = torch.randn(1, 2, 4, 8, dtype=torch.float64)
            >>> cached = rope(torch.arange(4), dtype=k.dtype)(k)
            >>> moved = rope.move(cached, torch.arange(4), torch.arange(4) - 3)
            >>> torch.allclose(moved, rope(torch.arange(4) - 3, dtype=k.dtype)(k))
            True
        """
        old_lengths = lengths if old_lengths is None else old_lengths
        source = self.frequencies if old_frequencies is None else old_frequencies
        offset = self.frequency_offset if old_frequencies is None else None
        (start, before, old_decay), (end, after, decay) = line_up(
            "RotaryEmbedding.move",
            angles_of(old, source, old_lengths, offset),
            angles_of(new, self.frequencies, lengths, self.frequency_offset),
        )
        if old_decay is not None:
            decay = -old_decay if decay is None else decay - old_decay
        wide = torch.float64 if k.dtype == torch.float64 else torch.float32
        turn = self._rotation(end - start, after / before, decay, k.device, wide)
        return turn.for_keys()(k, length_axis=length_axis, inplace=inplace, backend=backend)

    def tables(
        self,
        positions: Tensor,
        *,
        lengths: int | Tensor | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> tuple[Tensor, Tensor]:
        """The bare cosines and sines, for exporters and for kernels of one's own.

        The amplitude is not in them; see ``rope(positions).amplitude``.
        """
        rotation = self(positions, lengths=lengths, dtype=dtype)
        return rotation.cos, rotation.sin

    @torch.no_grad()
    def current_frequencies(self) -> Frequencies | LengthSchedule | XPos:
        """The frequencies as they are now: those given, plus what was learned."""
        if self.frequency_offset is None:
            return self.frequencies
        assert isinstance(self.frequencies, Frequencies)
        offset = self.frequency_offset.double().cpu().numpy()
        return Frequencies(self.frequencies.matrix + offset, self.frequencies.amplitude)

    def reset_parameters(self) -> None:
        """Forget what was learned: the offset becomes zero again."""
        if self.frequency_offset is not None:
            nn.init.zeros_(self.frequency_offset)

    def _rotation(
        self,
        angles: Tensor,
        amplitude: float | Tensor,
        decay: Tensor | None,
        device: torch.device,
        dtype: torch.dtype,
    ) -> Rotation:
        cos, sin = tables(angles, dtype)
        if device.type == "mps":
            cos, sin = cos.to(device), sin.to(device)
        if isinstance(amplitude, Tensor):
            amplitude = amplitude.to(dtype).to(device)
        if decay is not None:
            decay = decay.to(dtype).to(device)
        return Rotation(cos, sin, self.layout, amplitude, decay)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> RotaryEmbedding:
        offset = self.frequency_offset
        was_meta = offset is not None and offset.is_meta
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        # `to_empty` leaves memory as it finds it; the initial value here is known exactly.
        if was_meta and self.frequency_offset is not None and not self.frequency_offset.is_meta:
            with torch.no_grad():
                self.frequency_offset.zero_()
        return self

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        # Checkpoints of older modules carry tables; they hold nothing that is not known exactly,
        # but frequencies that are others altogether mean that this module was built wrongly.
        for key in _OLD_KEYS:
            stored = state_dict.pop(prefix + key, None)
            if key == "inv_freq" and isinstance(stored, Tensor) and not stored.is_meta:
                problem = self._disagreement(stored)
                if problem:
                    args[-1].append(f"{prefix}{key}: {problem}")
        super()._load_from_state_dict(state_dict, prefix, *args)

    def _disagreement(self, stored: Tensor) -> str | None:
        source = self.frequencies
        if not isinstance(source, Frequencies) or source.matrix.shape[:-1] != (1,):
            return None
        exact = torch.tensor(source.rows[0], dtype=torch.float64)
        stored = stored.detach().cpu().double()
        # Within the rounding of bfloat16, in which many were saved.
        if stored.shape == exact.shape and torch.allclose(stored, exact, rtol=1e-2, atol=1e-7):
            return None
        span = f" from {stored.max():.4g} to {stored.min():.4g}" if stored.numel() else ""
        return (
            f"the checkpoint was made with other frequencies, {stored.numel()}{span}, than these, "
            f"{source!r}; build them from the model's own config, rotary.from_config(config)."
        )

    def extra_repr(self) -> str:
        """What ``print(model)`` shows."""
        learned = ", is_learnable=True" if self.frequency_offset is not None else ""
        return f"{self.frequencies!r}, layout={self.layout!r}{learned}"
