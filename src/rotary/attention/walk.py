"""From whole sequences to blocks of rows and back: how linear attention walks along its tokens."""

from __future__ import annotations

import functools
import sys
from dataclasses import dataclass

import torch
from torch import Tensor

from rotary.attention import core
from rotary.attention.core import Features
from rotary.attention.forms import FormFeatures
from rotary.attention.scan import Carry, needs_plain_operations, scan
from rotary.attention.state import LinearState

# Elements of one temporary of a block: on a CPU they should stay in each core's own cache.
CPU_ELEMENTS_PER_THREAD = 3 * 2**15
GPU_ELEMENTS = 2**24


def attend(
    features: FormFeatures,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: LinearState | None,
    causal: bool,
    chunk: int,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Run the blocks: causally in one walk, otherwise all keys first and then all queries."""
    lead, length, value_dim = k.shape[:-2], q.shape[-2], v.shape[-1]
    G = lead.numel()
    M = features.num_features(q.shape[-1])
    carry = _start(features, state, (*lead, M, value_dim), like=v)
    grouped = _Grouped(features, G, q.shape[:-2].numel() // max(G, 1), v.dtype)
    rows = rows_of_block(q.device, q.shape[:-2].numel() * max(M, value_dim))
    captured = features.tables()
    if causal:
        blocks = core.blocks_of(length, chunk=chunk, rows=rows)
        step = functools.partial(grouped.causal_step, chunk)
        output, carry = scan(step, carry, (q, k, v), blocks, captured)
    else:
        blocks = core.blocks_of(k.shape[-2], chunk=min(rows, 4096), rows=rows)
        _, carry = scan(grouped.key_step, carry, (k, v), blocks, captured)
        blocks = core.blocks_of(length, chunk=min(rows, 4096), rows=rows)
        output, _ = scan(grouped.query_step, carry, (q,), blocks, captured)
    if output is None:
        output = q[..., :1].to(v.dtype).expand(*q.shape[:-1], value_dim)
    memory = carry[0].view(*lead, M, value_dim)
    return output, memory, (carry[1].view(*lead, M) if len(carry) > 1 else None)


@dataclass(frozen=True)
class _Grouped:
    """The steps of a scan: features of some rows, brought to the shapes of the core."""

    features: FormFeatures
    num_groups: int
    heads_per_group: int
    dtype: torch.dtype

    def causal_step(
        self, chunk: int, rows: slice, carry: Carry, parts: tuple[Tensor, ...]
    ) -> tuple[Tensor, Carry]:
        """Attend causally within some rows and to what came before them."""
        q, k, v = parts
        queries, keys = self._queries(q, rows), self._keys(k, rows)
        memory, key_sum = _unpack(carry)
        if q.shape[-2] == 1:
            numerator, denominator, memory, key_sum = core.causal_token(
                queries, keys, self._values(v), memory, key_sum
            )
        else:
            block = core.causal_padded if needs_plain_operations() else core.causal_block
            numerator, denominator, memory, key_sum = block(
                queries, keys, self._values(v), memory, key_sum, chunk=chunk
            )
        return self._output(numerator, denominator, q), _pack(memory, key_sum)

    def key_step(self, rows: slice, carry: Carry, parts: tuple[Tensor, ...]) -> tuple[None, Carry]:
        """Put some keys and values into the state."""
        k, v = parts
        return None, _pack(*core.add_keys(self._keys(k, rows), self._values(v), *_unpack(carry)))

    def query_step(
        self, rows: slice, carry: Carry, parts: tuple[Tensor, ...]
    ) -> tuple[Tensor, Carry]:
        """Let some queries read the state."""
        (q,) = parts
        numerator, denominator = core.read(self._queries(q, rows), *_unpack(carry))
        return self._output(numerator, denominator, q), carry

    def _queries(self, q: Tensor, rows: slice) -> Features:
        shape = (self.num_groups, self.heads_per_group, q.shape[-2])
        return _reshaped(self.features.of_queries(q, rows), shape)

    def _keys(self, k: Tensor, rows: slice) -> Features:
        return _reshaped(self.features.of_keys(k, rows), (self.num_groups, k.shape[-2]))

    def _values(self, v: Tensor) -> Tensor:
        return v.to(self.features.dtype).reshape(self.num_groups, *v.shape[-2:])

    def _output(self, numerator: Tensor, denominator: Tensor | None, q: Tensor) -> Tensor:
        output = self.features.divide(numerator, denominator)
        return output.reshape(*q.shape[:-1], output.shape[-1]).to(self.dtype)


def _reshaped(features: Features, shape: tuple[int, ...]) -> Features:
    return core.on_both(features, lambda x: x.reshape(*shape, x.shape[-1]))


def _pack(memory: Tensor, key_sum: Tensor | None) -> Carry:
    return (memory,) if key_sum is None else (memory, key_sum)


def _unpack(carry: Carry) -> tuple[Tensor, Tensor | None]:
    return carry[0], (carry[1] if len(carry) > 1 else None)


def _start(
    features: FormFeatures, state: LinearState | None, shape: tuple[int, ...], *, like: Tensor
) -> Carry:
    """The sums before the first block: zeros, or the caller's state."""
    if state is not None:
        return state.sums(shape, form=features.form, dtype=features.dtype)
    groups = shape[:-2]
    memory = like.new_zeros(torch.Size(groups).numel(), *shape[-2:], dtype=features.dtype)
    return _pack(memory, memory.new_zeros(memory.shape[:2]) if features.is_divided else None)


def rows_of_block(device: torch.device, row_elements: int) -> int:
    """How many rows a block has at most."""
    if needs_plain_operations():
        return sys.maxsize
    elements = GPU_ELEMENTS
    if device.type == "cpu":
        elements = CPU_ELEMENTS_PER_THREAD * torch.get_num_threads()
    return max(1, elements // max(1, row_elements))
