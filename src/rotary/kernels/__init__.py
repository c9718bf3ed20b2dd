"""The rotation itself: a float64 reference, plain PyTorch, and the choice between backends."""

from rotary.kernels.contract import Backend, Layout
from rotary.kernels.dispatch import explain, rotate

__all__ = ["Backend", "Layout", "explain", "rotate"]
