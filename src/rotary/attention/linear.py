"""Linear attention with RoPE: the seed post's forms, causal or not, at a cost linear in the length.

    o_i = [R_i phi(q_i)]^T sum_j [R_j varphi(k_j)] v_j^T  /  phi(q_i)^T sum_j varphi(k_j)

(seed post, "Linear-attention scenario", second display; RoFormer, eq. 19). The numerator's features
are rotated *after* the feature map; which features the denominator uses is the form.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Literal, overload

import torch
from torch import Tensor

from rotary._shapes import Bool, Float
from rotary.attention.feature_maps import FEATURE_MAPS, FeatureMap, feature_map_of
from rotary.attention.forms import Form, FormFeatures, check_form
from rotary.attention.masks import check_key_padding_mask
from rotary.attention.performer import FavorFeatures
from rotary.attention.state import LinearState, sum_dtype
from rotary.attention.walk import attend
from rotary.errors import ConfigError, DtypeError, ShapeError
from rotary.rotation import Rotation

Side = Callable[[Tensor], Tensor]


@overload
def linear_attention(
    q: Float[Tensor, "*q_heads L dim"],
    k: Float[Tensor, "*k_heads S dim"],
    v: Float[Tensor, "*k_heads S value_dim"],
    *,
    rotation: Rotation | None = ...,
    key_rotation: Rotation | None = ...,
    form: Form = ...,
    feature_map: str | FeatureMap | Side | tuple[Side, Side] | None = ...,
    causal: bool = ...,
    key_padding_mask: Bool[Tensor, "*batch S"] | None = ...,
    state: LinearState | None = ...,
    return_state: Literal[False] = ...,
    chunk_size: int = ...,
) -> Tensor: ...


@overload
def linear_attention(
    q: Float[Tensor, "*q_heads L dim"],
    k: Float[Tensor, "*k_heads S dim"],
    v: Float[Tensor, "*k_heads S value_dim"],
    *,
    rotation: Rotation | None = ...,
    key_rotation: Rotation | None = ...,
    form: Form = ...,
    feature_map: str | FeatureMap | Side | tuple[Side, Side] | None = ...,
    causal: bool = ...,
    key_padding_mask: Bool[Tensor, "*batch S"] | None = ...,
    state: LinearState | None = ...,
    return_state: Literal[True],
    chunk_size: int = ...,
) -> tuple[Tensor, LinearState]: ...


def linear_attention(
    q: Float[Tensor, "*q_heads L dim"],
    k: Float[Tensor, "*k_heads S dim"],
    v: Float[Tensor, "*k_heads S value_dim"],
    *,
    rotation: Rotation | None = None,
    key_rotation: Rotation | None = None,
    form: Form = "numerator",
    feature_map: str | FeatureMap | Side | tuple[Side, Side] | None = None,
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

    ``torch.compile`` makes a few graphs for all lengths: causal, one each for those up to and above
    ``chunk_size``, which it divides or not. ``torch.export`` takes any length, and causal ones of
    two whole chunks and more: ``64 * Dim("chunks", min=2)``; pad such inputs at the end.

    Args:
        q: Queries, (..., heads, L, D).
        k: Keys, (..., key heads, S, D); the key heads divide the heads (grouped queries).
        v: Values, (..., key heads, S, any dim).
        rotation: Of the queries, and of as many keys unless they have their own; acts on the M
            features, so build it for M channels. None is plain linear attention.
        key_rotation: Of the keys; needed where their positions, length or heads differ.
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
    if key_rotation is None:
        key_rotation = _shared(rotation, q, k)
    for each in (rotation, key_rotation):
        check_form(form, the_map, each, causal=causal)
    valid = None if key_padding_mask is None else check_key_padding_mask(key_padding_mask, k)
    features = FormFeatures(form, the_map, rotation, key_rotation, valid, sum_dtype(q, k, v, state))
    with _without_autocast(q.device.type):
        features, q, k = _map_whole(features, q, k)
        features.check(q, k)
        output, memory, key_sum = attend(features, q, k, v, state, causal, chunk_size)
    if not return_state:
        return output
    count = torch.full(k.shape[:-3], k.shape[-2], dtype=torch.int64, device=k.device)
    if key_padding_mask is not None:
        real = key_padding_mask.sum(-1)
        count = real + torch.zeros_like(count)
    position = count if state is None else count + state.position
    return output, LinearState(memory, key_sum, position)


def _shared(rotation: Rotation | None, q: Tensor, k: Tensor) -> Rotation | None:
    """The queries' rotation for the keys, where they can have the same positions."""
    if rotation is not None and k.shape[-2] not in (q.shape[-2], 0):
        raise ShapeError(
            f"linear_attention: rotation is for the positions of {q.shape[-2]} queries, and there "
            f"are {k.shape[-2]} keys, so they need their own: give key_rotation as well."
        )
    return rotation


def _without_autocast(device_type: str) -> AbstractContextManager[object]:
    """Autocast would do the sums in half precision; entering it for nothing costs a token dear."""
    if torch.is_autocast_enabled(device_type):
        return torch.autocast(device_type, enabled=False)
    return nullcontext()


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
            f"linear_attention: feature_map {the_map.name!r} makes {q.shape[-1]} features of a "
            f"query and {k.shape[-1]} of a key; their products need the same number."
        )
    return replace(features, is_mapped=True), q, k


def _check_tensors(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, chunk_size: int) -> None:
    for name, each in (("q", q), ("k", k), ("v", v)):
        if not each.dtype.is_floating_point:
            raise DtypeError(
                f"linear_attention: {name} is {each.dtype}; it must be real floating point."
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
    tensors = (("q", q), ("k", k), ("v", v))
    listing = "\n".join(f"  {name}  {tuple(each.shape)}  {each.dtype}" for name, each in tensors)
    raise ShapeError(
        f"linear_attention: {why}.\n{listing}\nExpected q (..., heads, L, D), k (..., key heads, "
        "S, D), v (..., key heads, S, any dim)."
    )
