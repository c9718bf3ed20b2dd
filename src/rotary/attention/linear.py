"""Linear attention with RoPE: the seed post's forms, causal or not, at a cost linear in the length.

    o_i = [R_i phi(q_i)]^T sum_j [R_j varphi(k_j)] v_j^T  /  phi(q_i)^T sum_j varphi(k_j)

(seed post, "Linear-attention scenario", second display; RoFormer, eq. 19). The numerator's features
are rotated *after* the feature map; which features the denominator uses is the form.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from rotary._shapes import Bool, Float
from rotary.attention import causal as algebra
from rotary.attention.causal import Features
from rotary.attention.feature_maps import FEATURE_MAPS, FeatureMap, feature_map_of
from rotary.attention.forms import Form, FormFeatures, check_form
from rotary.attention.masks import check_key_padding_mask
from rotary.attention.performer import FavorFeatures
from rotary.attention.scan import Carry, is_transformed, scan
from rotary.errors import ConfigError, DtypeError, ShapeError
from rotary.rotation import Rotation

Side = Callable[[Tensor], Tensor]

# Rows of all heads together that a block may have: its few temporaries should stay in the cache of
# a CPU, and keep a GPU busy.
_BLOCK_ROWS = {"cpu": 6144}
_BLOCK_ROWS_ELSEWHERE = 2**18


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


def linear_attention(
    q: Float[Tensor, "*q_heads L dim"],
    k: Float[Tensor, "*k_heads S dim"],
    v: Float[Tensor, "*k_heads S value_dim"],
    *,
    rotation: Rotation | None = None,
    key_rotation: Rotation | None = None,
    form: Form = "numerator",
    feature_map: str | FeatureMap | Callable[[Tensor], Tensor] | tuple | None = None,
    causal: bool = False,
    key_padding_mask: Bool[Tensor, "*batch S"] | None = None,
    state: LinearState | None = None,
    return_state: bool = False,
    chunk_size: int = 64,
) -> Float[Tensor, "*q_heads L value_dim"] | tuple[Tensor, LinearState]:
    """Attend with weights that are products of features, rotated by position.

    The forms, and what each promises:

    ``"numerator"``     RoPE in the numerator only, the post's choice. Exactly relative; the
                        denominator is positive; a weight may be negative and a row does not sum
                        to 1, so outputs shrink as the context grows: let a norm follow.
    ``"cosine"``        Weights ``1 + cos(R_i q, R_j k)``, RoPE in both. Exactly relative; weights
                        in [0, 2] that sum to 1 after the division; close to uniform.
    ``"both"``          RoPE in numerator and denominator of other features. For study: the
                        denominator can vanish, and is held at 1e-6 there.
    ``"undivided"``     No denominator; a norm must follow. Exactly relative.
    ``"rotate_first"``  Rotate, then map. Relative in expectation for FAVOR+ (what performer-pytorch
                        does), exactly for identity, not at all for the others, which are refused.

    Sums and state are float32 (float64 for float64 inputs), whatever the inputs are.

    Args:
        q: Queries, (..., heads, L, D).
        k: Keys, (..., key heads, S, D); the key heads divide the heads (grouped queries).
        v: Values, (..., key heads, S, any dim).
        rotation: Of the queries, and of the keys unless they have their own; acts on the M
            features, so build it for M channels. None is plain linear attention.
        key_rotation: Of the keys, where their positions, length or heads differ.
        form: Where the rotation enters.
        feature_map: A name (``"elu+1"``, the default; ``"relu"``, ``"exp"``, ``"softmax"``,
            ``"softmax_exp"``, ``"softmax_positions"``, ``"identity"``), a ``FeatureMap`` such as
            ``FavorFeatures``, a function, or a pair (for queries, for keys). The cosine form has
            its own.
        causal: Query i sees the state and keys 0..i; L and S are equal. Otherwise every query sees
            the state and all keys.
        key_padding_mask: Boolean, True for a real key: (S,) or (batch, S). Taken out of numerator
            and denominator alike; a row that sees no real key is zero.
        state: What a previous call returned: the past. It is not changed.
        return_state: Return the state after the last key as well.
        chunk_size: Rows of a chunk of the causal form; changes the speed, not the result.

    Returns:
        The output, (..., heads, L, value dim), of the dtype of ``v``; with ``return_state`` a pair
        of it and the new state.

    Raises:
        ShapeError: If shapes do not belong together, or a mask over query-key pairs is given.
        ConfigError: If the form, the feature map and the rotation contradict one another.
        DtypeError: If q, k, v are not real floating point or the mask is not boolean.

    Example:
        >>> from rotary import RotaryEmbedding
        >>> q, k, v = torch.randn(3, 2, 12, 100, 64)
        >>> rotation = RotaryEmbedding(head_dim=64)(torch.arange(100))
        >>> linear_attention(q, k, v, rotation=rotation, causal=True).shape
        torch.Size([2, 12, 100, 64])
    """
    _check_tensors(q, k, v, causal=causal, chunk_size=chunk_size)
    the_map = _feature_map(form, feature_map)
    key_rotation = rotation if key_rotation is None else key_rotation
    for each in (rotation, key_rotation):
        check_form(form, the_map, each, causal=causal)
    valid = None if key_padding_mask is None else check_key_padding_mask(key_padding_mask, k)
    features = FormFeatures(
        form, the_map, rotation, key_rotation, valid, _sum_dtype(q, k, v, state)
    )
    with torch.autocast(q.device.type, enabled=False):
        features, q, k = _map_whole(features, q, k)
        features.check(q, k)
        output, memory, key_sum = _attend(features, q, k, v, state, causal, chunk_size)
    if not return_state:
        return output
    count = torch.full(k.shape[:-3], k.shape[-2], dtype=torch.int64, device=k.device)
    if key_padding_mask is not None:
        real = key_padding_mask.sum(-1)
        count = real.expand(torch.broadcast_shapes(count.shape, real.shape))
    position = count if state is None else count + state.position
    return output, LinearState(memory, key_sum, position)


def _attend(
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
    carry = _start(features, state, lead, M, value_dim, like=v)
    grouped = _Grouped(features, G, q.shape[:-2].numel() // max(G, 1), v.dtype)
    many = (
        sys.maxsize if is_transformed() else _BLOCK_ROWS.get(q.device.type, _BLOCK_ROWS_ELSEWHERE)
    )
    rows = max(1, many // max(1, q.shape[:-2].numel()))
    captured = features.tables()
    if causal:
        blocks = algebra.blocks_of(length, chunk=chunk, rows=rows)
        step = functools.partial(grouped.causal_step, chunk)
        output, carry = scan(step, carry, (q, k, v), blocks, captured)
    else:
        blocks = algebra.blocks_of(k.shape[-2], chunk=min(rows, 4096), rows=rows)
        _, carry = scan(grouped.key_step, carry, (k, v), blocks, captured)
        blocks = algebra.blocks_of(length, chunk=min(rows, 4096), rows=rows)
        output, _ = scan(grouped.query_step, carry, (q,), blocks, captured)
    if output is None:
        output = q[..., :1].to(v.dtype).expand(*q.shape[:-1], value_dim)
    memory = carry[0].view(*lead, M, value_dim)
    return output, memory, (carry[1].view(*lead, M) if len(carry) > 1 else None)


@dataclass(frozen=True)
class _Grouped:
    """The steps of a scan: features of some rows, brought to the shapes of the algebra."""

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
        S, z = _unpack(carry)
        if q.shape[-2] == 1:
            numerator, denominator, S, z = algebra.causal_token(
                queries, keys, self._values(v), S, z
            )
        else:
            numerator, denominator, S, z = algebra.causal_block(
                queries, keys, self._values(v), S, z, chunk=chunk
            )
        return self._output(numerator, denominator, q), _pack(S, z)

    def key_step(self, rows: slice, carry: Carry, parts: tuple[Tensor, ...]) -> tuple[None, Carry]:
        """Put some keys and values into the state."""
        k, v = parts
        return None, _pack(*algebra.add_keys(self._keys(k, rows), self._values(v), *_unpack(carry)))

    def query_step(
        self, rows: slice, carry: Carry, parts: tuple[Tensor, ...]
    ) -> tuple[Tensor, Carry]:
        """Let some queries read the state."""
        (q,) = parts
        numerator, denominator = algebra.read(self._queries(q, rows), *_unpack(carry))
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
    above, below = features
    new = above.reshape(*shape, above.shape[-1])
    if below is None or below is above:
        return new, (None if below is None else new)
    return new, below.reshape(*shape, below.shape[-1])


def _pack(S: Tensor, z: Tensor | None) -> Carry:
    return (S,) if z is None else (S, z)


def _unpack(carry: Carry) -> tuple[Tensor, Tensor | None]:
    return carry[0], (carry[1] if len(carry) > 1 else None)


def _start(
    features: FormFeatures,
    state: LinearState | None,
    lead: torch.Size,
    num_features: int,
    value_dim: int,
    *,
    like: Tensor,
) -> Carry:
    """The carry before the first block: zeros, or the caller's state, checked."""
    shape = (*lead, num_features, value_dim)
    if state is None:
        S = like.new_zeros(lead.numel(), *shape[-2:], dtype=features.dtype)
        return _pack(S, S.new_zeros(S.shape[:2]) if features.is_divided else None)
    fits = state.memory.shape == shape and (state.key_sum is not None) == features.is_divided
    if not fits or (state.key_sum is not None and state.key_sum.shape != shape[:-1]):
        have = "None" if state.key_sum is None else f"{tuple(state.key_sum.shape)}"
        raise ShapeError(
            f"linear_attention: the state has memory {tuple(state.memory.shape)} and key_sum {have}; "
            f"for these keys and values and form {features.form!r} expected {shape} and "
            f"{shape[:-1] if features.is_divided else None}. A state belongs to one layer, one "
            "batch and one form."
        )
    S = state.memory.to(features.dtype).reshape(-1, *shape[-2:])
    return _pack(
        S,
        None if state.key_sum is None else state.key_sum.to(features.dtype).reshape(S.shape[:2]),
    )


def _feature_map(
    form: str, value: str | FeatureMap | Side | tuple[Side, Side] | None
) -> FeatureMap:
    if form == "cosine" and value is not None:
        raise ConfigError(
            "linear_attention: form 'cosine' has its own features, 1 and the unit vector; leave "
            "feature_map out."
        )
    return feature_map_of("elu+1" if value is None else value)


def _map_whole(features: FormFeatures, q: Tensor, k: Tensor) -> tuple[FormFeatures, Tensor, Tensor]:
    """Apply a map to whole sequences where it cannot go into the blocks.

    That is a map that looks at all positions, and any map of somebody else's: it may have
    parameters, whose gradients the recomputing scan would not see.
    """
    the_map = features.feature_map
    if isinstance(the_map, FavorFeatures) or (
        the_map in FEATURE_MAPS.values() and the_map.is_pointwise
    ):
        return features, q, k
    q, k = q.to(features.dtype), k.to(features.dtype)
    if features.form == "rotate_first":
        q = q if features.rotation is None else features.rotation(q)
        k = k if features.key_rotation is None else features.key_rotation(k)
    q = the_map.queries(q, is_divided=features.is_divided)
    k = the_map.keys(k, features.valid)
    if q.shape[-1] != k.shape[-1]:
        raise ShapeError(
            f"linear_attention: feature_map {the_map.name!r} makes {q.shape[-1]} features of a query "
            f"and {k.shape[-1]} of a key; their products need the same number."
        )
    return replace(features, is_mapped=True), q, k


def _sum_dtype(q: Tensor, k: Tensor, v: Tensor, state: LinearState | None) -> torch.dtype:
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


def _check_tensors(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, chunk_size: int) -> None:
    for name, each in (("q", q), ("k", k), ("v", v)):
        if not each.dtype.is_floating_point:
            raise DtypeError(
                f"linear_attention: {name} is {each.dtype}; it must be real floating point."
            )
    listing = "\n".join(
        f"  {name}  {tuple(each.shape)}  {each.dtype}"
        for name, each in (("q", q), ("k", k), ("v", v))
    )
    if q.ndim < 2 or not q.ndim == k.ndim == v.ndim:
        why = "q, k and v need the same number of axes, at least length and channels"
    elif q.shape[-1] != k.shape[-1]:
        why = f"queries have {q.shape[-1]} channels and keys {k.shape[-1]}"
    elif k.shape[:-1] != v.shape[:-1]:
        why = "keys and values differ in batch, heads or length"
    elif q.shape[:-3] != k.shape[:-3]:
        why = "queries and keys differ in batch"
    elif q.ndim > 2 and (k.shape[-3] == 0 or q.shape[-3] % k.shape[-3]):
        why = f"{q.shape[-3]} heads cannot share {k.shape[-3]} key heads"
    elif causal and q.shape[-2] != k.shape[-2]:
        why = (
            f"causal=True needs one key per query, but there are {q.shape[-2]} and {k.shape[-2]}; "
            "hand the past over as state="
        )
    elif chunk_size < 1:
        raise ConfigError(f"linear_attention: chunk_size is {chunk_size}; it must be 1 or more.")
    else:
        return
    raise ShapeError(
        f"linear_attention: {why}.\n{listing}\nExpected q (..., heads, L, D), k (..., key heads, S, "
        "D), v (..., key heads, S, any dim)."
    )
