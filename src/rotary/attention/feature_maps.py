"""Feature maps: what stands in for the exponential of a score, as a product of two features.

Linear attention replaces ``exp(q . k)`` by ``phi(q) . varphi(k)`` (seed post, "Linear-attention
scenario"). A map here has two sides, for queries and for keys, and says three things about itself:
whether its values are non-negative (then a sum of them can be divided by), whether each token is
mapped on its own (then it can be causal), and whether rotating *before* it is relative at all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from rotary._shapes import Float
from rotary.errors import ConfigError, one_of

_LARGEST_EXPONENT = 60.0  # exp(60) times 1e5 keys times a large value is still finite in float32.


@runtime_checkable
class FeatureMap(Protocol):
    """The two sides of a feature map, and what may be done with them."""

    @property
    def name(self) -> str:
        """For messages."""

    @property
    def is_non_negative(self) -> bool:
        """No feature is below zero, so a sum of products is a safe denominator."""

    @property
    def is_pointwise(self) -> bool:
        """A token's features depend on that token alone; otherwise the map is never causal."""

    @property
    def is_relative_rotated_first(self) -> bool:
        """``phi(R q) . varphi(R k)`` depends on the distance alone, exactly or in expectation."""

    def queries(self, q: Tensor, *, is_divided: bool) -> Tensor:
        """Features of queries; when a division follows, a factor common to a row may go."""
        ...

    def keys(self, k: Tensor, valid: Tensor | None = None) -> Tensor:
        """Features of keys; ``valid`` marks the real ones, for maps that look at all of them."""
        ...


@dataclass(frozen=True)
class SimpleMap:
    """A feature map made of two functions; see :class:`FeatureMap` for the flags."""

    name: str
    on_queries: Callable[[Tensor], Tensor]
    on_keys: Callable[[Tensor], Tensor]
    is_non_negative: bool = True
    is_pointwise: bool = True
    is_relative_rotated_first: bool = False

    def queries(self, q: Tensor, *, is_divided: bool) -> Tensor:
        """Features of queries."""
        if self.on_queries is capped_exp and is_divided:
            return (q - q.amax(-1, keepdim=True).detach()).exp()
        return self.on_queries(q)

    def keys(self, k: Tensor, valid: Tensor | None = None) -> Tensor:
        """Features of keys."""
        if self.on_keys is softmax_over_positions:
            return softmax_over_positions(k, valid)
        return self.on_keys(k)


def elu_plus_one(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """``x + 1`` above zero, ``exp(x)`` below (Katharopoulos et al. 2020, eq. 7).

    Written as ``exp(min(x, 0)) + max(x, 0)``: one of the two terms is exactly 1 or 0, so nothing
    cancels. ``elu(x) + 1`` is exactly 0 in bfloat16 from x = -8 on.
    """
    negative = x.clamp(max=0)
    # At 0 clamp passes the gradient and relu stops it: 1 in all, as above zero.
    return negative.exp_() + x.relu()


def capped_exp(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """``exp(x)``, the exponent capped at 60, where a float32 sum would soon be infinite."""
    return x.clamp(max=_LARGEST_EXPONENT).exp()


def softmax_over_features(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Softmax over the channels of every token."""
    return x.softmax(-1)


def softmax_over_positions(
    x: Float[Tensor, "*lead length dim"], valid: Tensor | None = None
) -> Float[Tensor, "*lead length dim"]:
    """Softmax over the positions for every channel, padding left out (Shen et al. 2018)."""
    if valid is not None:
        # A channel without a single valid key would be 0/0: a finite fill makes it uniform, and the
        # mask takes it out afterwards.
        x = x.masked_fill(~valid, torch.finfo(x.dtype).min)
    return x.softmax(-2)


def _identity(x: Tensor) -> Tensor:
    return x


FEATURE_MAPS: dict[str, SimpleMap] = {
    "elu+1": SimpleMap("elu+1", elu_plus_one, elu_plus_one),
    "relu": SimpleMap("relu", torch.relu, torch.relu),
    "exp": SimpleMap("exp", capped_exp, capped_exp),
    "softmax": SimpleMap("softmax", softmax_over_features, softmax_over_features),
    "softmax_exp": SimpleMap("softmax_exp", softmax_over_features, capped_exp),
    "softmax_positions": SimpleMap(
        "softmax_positions", softmax_over_features, softmax_over_positions, is_pointwise=False
    ),
    "identity": SimpleMap(
        "identity", _identity, _identity, is_non_negative=False, is_relative_rotated_first=True
    ),
}
"""The maps that have a name. ``softmax_exp`` is the paper's second choice: softmax over the
features of a query, exp of a key; normalised over all keys it is ``softmax_positions``."""


def feature_map_of(
    value: str
    | FeatureMap
    | Callable[[Tensor], Tensor]
    | tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]],
) -> FeatureMap:
    """Turn what a caller gave into a feature map.

    Args:
        value: A name, a feature map, one function for both sides, or a pair (queries, keys). A bare
            function is taken to be non-negative and to map each token on its own.

    Raises:
        ConfigError: If it is none of these, or an unknown name.

    Example:
        >>> feature_map_of("relu").keys(torch.tensor([-1.0, 2.0]))
        tensor([0., 2.])
    """
    if isinstance(value, str):
        if value not in FEATURE_MAPS:
            raise ConfigError(one_of("feature_map", value, FEATURE_MAPS))
        return FEATURE_MAPS[value]
    if isinstance(value, FeatureMap):
        return value
    if isinstance(value, tuple) and len(value) == 2 and all(callable(side) for side in value):
        return SimpleMap("custom", *value)
    if callable(value):
        return SimpleMap("custom", value, value)
    raise ConfigError(
        f"feature_map is {value!r}; accepted are the names {', '.join(map(repr, FEATURE_MAPS))}, a "
        "FeatureMap such as FavorFeatures, a function, or a pair of functions (queries, keys)."
    )
