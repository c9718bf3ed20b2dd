"""Queries with the running sum of the keys, by the compiled kernel or in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor

from rotary._shapes import Float
from rotary.kernels import cpu
from rotary.kernels.dispatch import is_plain_sailing


def running_dot(
    q: Float[Tensor, "G R T M"], k: Float[Tensor, "G T M"], start: Float[Tensor, "G M"]
) -> tuple[Float[Tensor, "G R T"], Float[Tensor, "G M"]]:
    """Dot products of each query with the sum of the keys up to it: causal denominators.

    Args:
        q: Queries of ``R`` heads that share their keys.
        k: Keys.
        start: The sum of the keys before these.

    Returns:
        ``q[t] . (start + k[0] + ... + k[t])``, and the sum after the last key.
    """
    if (
        cpu.MISSING is None
        and q.is_cpu
        and q.dtype in (torch.float32, torch.float64)
        and q.dtype == k.dtype == start.dtype
        and is_plain_sailing(q, k, start)
    ):
        return cpu.running_dot(q, k, start)
    running = k.cumsum(1) + start.unsqueeze(1)
    return (q * running.unsqueeze(1)).sum(-1), running[:, -1]
