"""The memory of linear attention: ``(S, z, position)``, of constant size, float32 or float64."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from rotary.errors import DtypeError, ShapeError

Sums = tuple[Tensor, ...]
"""``(S,)`` or ``(S, z)`` with batch and key heads in one axis: (G, M, D), (G, M)."""


class LinearState(NamedTuple):
    """What linear attention remembers of the past, of constant size: ``(S, z, position)``.

    Attributes:
        memory: S, the sum of ``R_j varphi(k_j) v_j^T``: (..., key heads, M, D), float32 or float64.
        key_sum: z, the sum of the denominator's keys: (..., key heads, M); None where the form
            divides by nothing.
        position: Number of real tokens taken in, int64, one per sequence of the batch: the
            position of the next token, where positions count real tokens from 0.
    """

    memory: Tensor
    key_sum: Tensor | None
    position: Tensor

    def select(self, rows: Tensor) -> LinearState:
        """The states of some sequences of the batch, in that order: what beam search needs."""
        key_sum = None if self.key_sum is None else self.key_sum.index_select(0, rows)
        return LinearState(
            self.memory.index_select(0, rows), key_sum, self.position.index_select(0, rows)
        )

    def sums(self, shape: tuple[int, ...], *, form: str, dtype: torch.dtype) -> Sums:
        """Both sums with batch and key heads in one axis.

        Args:
            shape: What the memory must have: (..., key heads, M, D).
            form: The form that asks; the undivided one has no ``key_sum``.
            dtype: Of the sums.

        Raises:
            ShapeError: If the state belongs to something else.
        """
        below = None if form == "undivided" else shape[:-1]
        have = None if self.key_sum is None else tuple(self.key_sum.shape)
        if tuple(self.memory.shape) != shape or have != below:
            raise ShapeError(
                f"linear_attention: the state has memory {tuple(self.memory.shape)} and key_sum "
                f"{have}; for these keys and values and form {form!r} expected {shape} and "
                f"{below}. A state belongs to one layer, one batch and one form."
            )
        memory = self.memory.to(dtype).reshape(-1, *shape[-2:])
        if self.key_sum is None:
            return (memory,)
        return memory, self.key_sum.to(dtype).reshape(memory.shape[:2])


def sum_dtype(q: Tensor, k: Tensor, v: Tensor, state: LinearState | None) -> torch.dtype:
    """Float32, or float64 where anything is; a half-precision state is refused."""
    dtype = torch.float32
    for each in (q, k, v, *(() if state is None else (state.memory,))):
        dtype = torch.promote_types(dtype, each.dtype)
    if state is not None and state.memory.dtype not in (torch.float32, torch.float64):
        raise DtypeError(
            f"linear_attention: the state is {state.memory.dtype}; sums in half precision stall "
            "after a few hundred tokens, so a state stays float32 or float64."
        )
    return dtype
