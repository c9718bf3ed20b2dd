"""The kernel for GPUs in Triton; imported only where it is about to run (see ``triton.py``)."""

# Triton reads these functions as source, with types of its own.
# ruff: noqa: ANN001, ANN202, N803
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _turn_heads(
    x,
    out,
    cos,
    sin,
    batch,
    first_head,
    heads,
    rows,
    length,
    planes,
    dim,
    x_batch,
    x_head,
    x_row,
    x_channel,
    out_batch,
    out_head,
    out_row,
    out_channel,
    cos_batch,
    cos_head,
    cos_row,
    cos_plane,
    sin_batch,
    sin_head,
    sin_row,
    sin_plane,
    amplitude,
    INTERLEAVED: tl.constexpr,
    TRANSPOSE: tl.constexpr,
    INPLACE: tl.constexpr,
    COMPUTE: tl.constexpr,
    TABLE_PER_HEAD: tl.constexpr,
    HEADS: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_TAIL: tl.constexpr,
):
    p = tl.arange(0, BLOCK_P).to(tl.int64)
    in_rows = (rows < length)[:, None]
    in_table = in_rows & (p < planes)[None, :]
    cos += batch * cos_batch + rows[:, None] * cos_row + p[None, :] * cos_plane
    sin += batch * sin_batch + rows[:, None] * sin_row + p[None, :] * sin_plane
    if not TABLE_PER_HEAD:  # One load serves all heads of this block.
        c = tl.load(cos, mask=in_table, other=0.0).to(COMPUTE) * amplitude
        s = tl.load(sin, mask=in_table, other=0.0).to(COMPUTE) * amplitude
    for i in tl.static_range(HEADS):
        head = first_head + i
        in_head = in_rows & (head < heads)
        in_planes = in_table & (head < heads)
        if TABLE_PER_HEAD:
            c = tl.load(cos + head * cos_head, mask=in_planes, other=0.0).to(COMPUTE) * amplitude
            s = tl.load(sin + head * sin_head, mask=in_planes, other=0.0).to(COMPUTE) * amplitude
        turned_s = -s if TRANSPOSE else s
        x_rows = x + batch * x_batch + head * x_head + rows[:, None] * x_row
        out_rows = out + batch * out_batch + head * out_head + rows[:, None] * out_row
        if INTERLEAVED:
            # Both channels of a plane in one contiguous load, taken apart in registers.
            channel = tl.arange(0, 2 * BLOCK_P).to(tl.int64)[None, :]
            in_pairs = in_head & (channel < 2 * planes)
            pairs = tl.load(x_rows + channel * x_channel, mask=in_pairs, other=0.0).to(COMPUTE)
            a, b = tl.split(tl.reshape(pairs, (pairs.shape[0], BLOCK_P, 2)))
            turned = tl.join(a * c - b * turned_s, a * turned_s + b * c)
            turned = tl.reshape(turned, (pairs.shape[0], 2 * BLOCK_P))
            to = out_rows + channel * out_channel
            tl.store(to, turned.to(out.dtype.element_ty), mask=in_pairs)
        else:
            first, second = p[None, :], p[None, :] + planes
            a = tl.load(x_rows + first * x_channel, mask=in_planes, other=0.0).to(COMPUTE)
            b = tl.load(x_rows + second * x_channel, mask=in_planes, other=0.0).to(COMPUTE)
            new_a = (a * c - b * turned_s).to(out.dtype.element_ty)
            new_b = (a * turned_s + b * c).to(out.dtype.element_ty)
            tl.store(out_rows + first * out_channel, new_a, mask=in_planes)
            tl.store(out_rows + second * out_channel, new_b, mask=in_planes)
        if not INPLACE and BLOCK_TAIL > 0:
            rest = (2 * planes + tl.arange(0, BLOCK_TAIL).to(tl.int64))[None, :]
            in_tail = in_head & (rest < dim)
            tail = tl.load(x_rows + rest * x_channel, mask=in_tail)
            tl.store(out_rows + rest * out_channel, tail, mask=in_tail)


@triton.jit
def turn_rows(
    q,
    q_out,
    k,
    k_out,
    cos,
    sin,
    q_heads,
    k_heads,
    length,
    planes,
    dim,
    q_batch,
    q_head,
    q_row,
    q_channel,
    q_out_batch,
    q_out_head,
    q_out_row,
    q_out_channel,
    k_batch,
    k_head,
    k_row,
    k_channel,
    k_out_batch,
    k_out_head,
    k_out_row,
    k_out_channel,
    cos_batch,
    cos_head,
    cos_row,
    cos_plane,
    sin_batch,
    sin_head,
    sin_row,
    sin_plane,
    amplitude,
    INTERLEAVED: tl.constexpr,
    TRANSPOSE: tl.constexpr,
    INPLACE: tl.constexpr,
    COMPUTE: tl.constexpr,
    TABLE_PER_HEAD: tl.constexpr,
    HEADS: tl.constexpr,
    BLOCK_L: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_TAIL: tl.constexpr,
):
    # Heads are the fastest axis of the grid, so that the rows of the tables stay in the cache.
    q_blocks = (q_heads + HEADS - 1) // HEADS
    blocks = q_blocks + (k_heads + HEADS - 1) // HEADS
    tiles = (length + BLOCK_L - 1) // BLOCK_L
    program = tl.program_id(0).to(tl.int64)
    block = program % blocks
    tile = program // blocks % tiles
    batch = program // blocks // tiles
    rows = tile * BLOCK_L + tl.arange(0, BLOCK_L).to(tl.int64)
    if block < q_blocks:
        _turn_heads(
            q,
            q_out,
            cos,
            sin,
            batch,
            block * HEADS,
            q_heads,
            rows,
            length,
            planes,
            dim,
            q_batch,
            q_head,
            q_row,
            q_channel,
            q_out_batch,
            q_out_head,
            q_out_row,
            q_out_channel,
            cos_batch,
            cos_head,
            cos_row,
            cos_plane,
            sin_batch,
            sin_head,
            sin_row,
            sin_plane,
            amplitude,
            INTERLEAVED,
            TRANSPOSE,
            INPLACE,
            COMPUTE,
            TABLE_PER_HEAD,
            HEADS,
            BLOCK_P,
            BLOCK_TAIL,
        )
    else:
        _turn_heads(
            k,
            k_out,
            cos,
            sin,
            batch,
            (block - q_blocks) * HEADS,
            k_heads,
            rows,
            length,
            planes,
            dim,
            k_batch,
            k_head,
            k_row,
            k_channel,
            k_out_batch,
            k_out_head,
            k_out_row,
            k_out_channel,
            cos_batch,
            cos_head,
            cos_row,
            cos_plane,
            sin_batch,
            sin_head,
            sin_row,
            sin_plane,
            amplitude,
            INTERLEAVED,
            TRANSPOSE,
            INPLACE,
            COMPUTE,
            TABLE_PER_HEAD,
            HEADS,
            BLOCK_P,
            BLOCK_TAIL,
        )
