"""Rotary position embedding (RoPE) in PyTorch, from the operator to trained RoFormer models."""

from rotary import frequencies, layouts, positions
from rotary._version import __version__
from rotary.basis import Basis
from rotary.embedding import RotaryEmbedding
from rotary.errors import RotaryError, ShapeError
from rotary.frequencies import (
    Frequencies,
    LengthSchedule,
    from_config,
    inverse_power,
    to_config,
)
from rotary.kernels import rotate
from rotary.layers import LayerRotaryEmbeddings
from rotary.positions import sequence
from rotary.rotation import Rotation

__all__ = [
    "Basis",
    "Frequencies",
    "LayerRotaryEmbeddings",
    "LengthSchedule",
    "RotaryEmbedding",
    "RotaryError",
    "Rotation",
    "ShapeError",
    "__version__",
    "frequencies",
    "from_config",
    "inverse_power",
    "layouts",
    "positions",
    "rotate",
    "sequence",
    "to_config",
]
