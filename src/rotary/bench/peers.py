"""Other libraries' rotations of the same queries and keys, behind one call.

A peer is built for queries and keys at positions 0, 1, 2, ... with base 10000 and all channels
turned; what it makes once per forward pass (tables) is made here, as ours are made before timing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from rotary.kernels import Layout

Pair = tuple[Tensor, Tensor]
Turn = Callable[[Tensor, Tensor], Pair]


@dataclass(frozen=True)
class Peer:
    """A rotation by somebody else.

    Attributes:
        name: For the table.
        layout: Which channels form a plane.
        build: Given queries and keys, returns the function to time; raises ImportError where the
            package is not installed.
        on_gpu_only: Whether it runs on a GPU alone.
    """

    name: str
    layout: Layout
    build: Callable[[Tensor, Tensor], Turn]
    on_gpu_only: bool = False


def _angles(q: Tensor) -> Tensor:
    dim, length = q.shape[-1], q.shape[-2]
    theta = 10000.0 ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    return (torch.arange(length, dtype=torch.float64)[:, None] * theta).to(q.device)


def llama(q: Tensor, k: Tensor) -> Turn:
    """Transformers' Llama rotation, eager; tables in the dtype of ``q``, as its models have it."""
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    angles = torch.cat((_angles(q), _angles(q)), dim=-1)[None]
    cos, sin = angles.cos().to(q.dtype), angles.sin().to(q.dtype)
    return lambda q, k: apply_rotary_pos_emb(q, k, cos, sin)


def roformer(q: Tensor, k: Tensor) -> Turn:
    """Transformers' RoFormer rotation, eager."""
    from transformers.models.roformer.modeling_roformer import RoFormerSelfAttention

    angles = _angles(q)
    sinusoids = torch.cat((angles.sin(), angles.cos()), dim=-1)[None, None].to(q.dtype)
    turn = RoFormerSelfAttention.apply_rotary_position_embeddings
    return lambda q, k: turn(sinusoids, q, k)


def compiled(build: Callable[[Tensor, Tensor], Turn]) -> Callable[[Tensor, Tensor], Turn]:
    """The same through ``torch.compile``."""

    def compile_it(q: Tensor, k: Tensor) -> Turn:
        turn: Turn = torch.compile(build(q, k), fullgraph=True)
        return turn

    return compile_it


def rotary_embedding_torch(q: Tensor, k: Tensor) -> Turn:
    """Its module, which caches its own tables."""
    from rotary_embedding_torch import RotaryEmbedding

    rope = RotaryEmbedding(dim=q.shape[-1]).to(q.device)
    return lambda q, k: (rope.rotate_queries_or_keys(q), rope.rotate_queries_or_keys(k))


def x_transformers(q: Tensor, k: Tensor) -> Turn:
    """Its function; it takes the cosines of its angles at every call."""
    from x_transformers.x_transformers import RotaryEmbedding, apply_rotary_pos_emb

    rope = RotaryEmbedding(q.shape[-1]).to(q.device)
    angles, scale = rope.forward_from_seq_len(q.shape[-2])
    return lambda q, k: (
        apply_rotary_pos_emb(q, angles, scale),
        apply_rotary_pos_emb(k, angles, scale),
    )


def flash_attn(q: Tensor, k: Tensor) -> Turn:
    """Its Triton kernel, which wants (batch, length, heads, dim)."""
    from flash_attn.layers.rotary import apply_rotary_emb

    cos, sin = _angles(q).cos().to(q.dtype), _angles(q).sin().to(q.dtype)

    def turn(x: Tensor) -> Tensor:
        return apply_rotary_emb(x.transpose(1, 2), cos, sin).transpose(1, 2)

    return lambda q, k: (turn(q), turn(k))


def liger(q: Tensor, k: Tensor) -> Turn:
    """Liger's Triton kernel, which works in place."""
    from liger_kernel.ops.rope import LigerRopeFunction

    angles = torch.cat((_angles(q), _angles(q)), dim=-1)[None]
    cos, sin = angles.cos().to(q.dtype), angles.sin().to(q.dtype)
    return lambda q, k: LigerRopeFunction.apply(q, k, cos, sin)


def quack(q: Tensor, k: Tensor) -> Turn:
    """Quack's kernel, which wants (batch, length, heads, dim)."""
    from quack.rotary import apply_rotary_emb

    cos, sin = _angles(q).cos().to(q.dtype), _angles(q).sin().to(q.dtype)

    def turn(x: Tensor) -> Tensor:
        return apply_rotary_emb(x.transpose(1, 2), cos, sin).transpose(1, 2)

    return lambda q, k: (turn(q), turn(k))


PEERS = (
    Peer("transformers Llama, eager", "half", llama),
    Peer("transformers Llama, compiled", "half", compiled(llama)),
    Peer("transformers RoFormer, eager", "interleaved", roformer),
    Peer("transformers RoFormer, compiled", "interleaved", compiled(roformer)),
    Peer("rotary-embedding-torch", "interleaved", rotary_embedding_torch),
    Peer("x-transformers", "interleaved", x_transformers),
    Peer("flash-attn", "half", flash_attn, on_gpu_only=True),
    Peer("quack", "half", quack, on_gpu_only=True),
    Peer("Liger", "half", liger, on_gpu_only=True),
)
