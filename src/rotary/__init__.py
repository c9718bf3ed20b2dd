"""Rotary position embedding (RoPE) in PyTorch, from the operator to trained RoFormer models."""

from rotary._version import __version__
from rotary.embedding import RotaryEmbedding
from rotary.errors import RotaryError, ShapeError
from rotary.frequencies import Frequencies, inverse_power
from rotary.kernels import rotate
from rotary.positions import sequence
from rotary.rotation import Rotation

__all__ = [
    "Frequencies",
    "RotaryEmbedding",
    "RotaryError",
    "Rotation",
    "ShapeError",
    "__version__",
    "inverse_power",
    "rotate",
    "sequence",
]
