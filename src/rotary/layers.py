"""``LayerRotaryEmbeddings``: one rotation for each distinct frequencies of a model."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rotary.embedding import RotaryEmbedding
from rotary.errors import ConfigError
from rotary.frequencies import Frequencies, LengthSchedule, XPos
from rotary.kernels import Layout
from rotary.rotation import Rotation


class LayerRotaryEmbeddings(nn.Module):
    """The rotations of a model whose layers differ: one for each distinct frequencies.

    Layers with equal frequencies are given the same ``Rotation``; nothing is computed twice.

    Args:
        layers: The frequencies of each layer in order; None for a layer without rotation.
        layout: Of all of them.
        is_learnable: Learn an offset from the frequencies, for each layer its own; then equal ones
            are not shared.

    Raises:
        ConfigError: If there is no layer.

    Example:
        >>> from rotary import inverse_power
        >>> near, far = inverse_power(8), inverse_power(8, base=1e6)
        >>> rotations = LayerRotaryEmbeddings([near, near, far, None])(torch.arange(5))
        >>> rotations[0] is rotations[1], rotations[3]
        (True, None)
    """

    def __init__(
        self,
        layers: Sequence[Frequencies | LengthSchedule | XPos | None],
        *,
        layout: Layout = "interleaved",
        is_learnable: bool = False,
    ) -> None:
        super().__init__()
        if not layers:
            raise ConfigError("LayerRotaryEmbeddings: give the frequencies of at least one layer.")
        present = [layer for layer in layers if layer is not None]
        distinct = present if is_learnable else list(dict.fromkeys(present))
        self.ropes = nn.ModuleList(
            RotaryEmbedding(each, layout=layout, is_learnable=is_learnable) for each in distinct
        )
        places = iter(range(len(present)))
        self.index = [
            None if layer is None else next(places) if is_learnable else distinct.index(layer)
            for layer in layers
        ]

    def forward(
        self,
        positions: Tensor,
        *,
        lengths: int | Tensor | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> tuple[Rotation | None, ...]:
        """One rotation for each layer, the same object where the frequencies are the same.

        Args:
            positions: See :meth:`RotaryEmbedding.forward`, as for the others.
            lengths: How long the sequences are.
            dtype: Of the tables.
        """
        made = [rope(positions, lengths=lengths, dtype=dtype) for rope in self.ropes]
        return tuple(None if i is None else made[i] for i in self.index)
