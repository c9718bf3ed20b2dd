"""Angles to tables: by the compiled kernel where it may serve, in plain PyTorch elsewhere."""

from __future__ import annotations

import torch
from torch import Tensor

from rotary.kernels import cpu
from rotary.kernels.dispatch import is_plain_sailing


def tables(angles: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosines and sines of angles in float64, rounded once to float32, or not at all."""
    if (
        dtype is torch.float32
        and cpu.MISSING is None
        and angles.is_cpu
        and is_plain_sailing(angles)
    ):
        return cpu.tables(angles)
    cos, sin = angles.cos(), angles.sin()
    return cos.to(dtype), sin.to(dtype)
