"""The forms of rotary linear attention: which features go into numerator and denominator.

One core computes ``num_i = Qn_i . sum_j Kn_j v_j^T`` and ``den_i = Qd_i . sum_j Kd_j``; a form is a
choice of the four feature tensors (seed post, "Linear-attention scenario"; RoFormer, eq. 19).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from rotary.attention.core import Features, divide
from rotary.attention.feature_maps import FEATURE_MAPS, FeatureMap
from rotary.errors import ConfigError, ShapeError, one_of
from rotary.rotation import Rotation

Form = Literal["numerator", "cosine", "both", "undivided", "rotate_first"]
"""Where the rotation enters; see :func:`rotary.attention.linear.linear_attention`."""

FORMS: tuple[str, ...] = get_args(Form)

_SMALLEST_SIGNED = 1e-6  # Holds a denominator that can change its sign away from zero.


@dataclass(frozen=True)
class FormFeatures:
    """The features of any rows of a sequence, for one form.

    Attributes:
        form: See the head of this file.
        feature_map: The map; it has been applied already where ``is_mapped``.
        rotation: Of the queries.
        key_rotation: Of the keys.
        valid: Which keys are real, with the rank of the keys; None means all.
        dtype: In which features and sums are computed, float32 or float64.
        is_mapped: Queries and keys that are handed in are features already.
    """

    form: Form
    feature_map: FeatureMap
    rotation: Rotation | None
    key_rotation: Rotation | None
    valid: Tensor | None
    dtype: torch.dtype
    is_mapped: bool = False

    @property
    def is_divided(self) -> bool:
        """Whether the form has a denominator."""
        return self.form != "undivided"

    def num_features(self, dim: int) -> int:
        """M, for queries and keys of ``dim`` channels (the features themselves where mapped)."""
        if self.form == "cosine":
            return dim + 1
        return dim if self.is_mapped else int(getattr(self.feature_map, "num_features", dim))

    def check(self, q: Tensor, k: Tensor) -> None:
        """Raise unless the rotations fit these queries and keys."""
        dim = q.shape[-1]
        # The 1 of the cosine form stands still, and rotating first turns channels, not features.
        turned = dim if self.form in ("cosine", "rotate_first") else self.num_features(dim)
        for name, rotation, x in (
            ("rotation", self.rotation, q),
            ("key_rotation", self.key_rotation, k),
        ):
            check_rotation(name, rotation, dim=dim, num_features=turned, length=x.shape[-2])

    def tables(self) -> tuple[Tensor, ...]:
        """What both rotations turn by, which may be learnable."""
        rotations = [each for each in (self.rotation, self.key_rotation) if each is not None]
        parts = [part for each in rotations for part in (each.cos, each.sin, each.amplitude)]
        return tuple(part for part in parts if isinstance(part, Tensor))

    def of_queries(self, q: Tensor, rows: slice) -> Features:
        """Numerator and denominator features of the queries of some rows."""
        q = q.to(self.dtype)
        if self.form == "cosine":
            one = F.pad(_turn(self.rotation, unit(q), rows), (0, 1), value=1.0)
            return one, one
        if self.form == "rotate_first" and not self.is_mapped:
            q = _turn(self.rotation, q, rows)
        below = q if self.is_mapped else self.feature_map.queries(q, is_divided=self.is_divided)
        return self._pair(below, self.rotation, rows)

    def of_keys(self, k: Tensor, rows: slice) -> Features:
        """Numerator and denominator features of the keys of some rows; padding is zero in both."""
        k = k.to(self.dtype)
        valid = self.valid if self.valid is None else self.valid[..., rows, :]
        if self.form == "cosine":
            one = F.pad(_turn(self.key_rotation, unit(k), rows), (0, 1), value=1.0)
            one = one if valid is None else one.masked_fill(~valid, 0.0)
            return one, one
        if self.form == "rotate_first" and not self.is_mapped:
            k = _turn(self.key_rotation, k, rows)
        below = k if self.is_mapped else self.feature_map.keys(k, valid)
        below = below if valid is None else below.masked_fill(~valid, 0.0)
        return self._pair(below, self.key_rotation, rows)

    def _pair(self, below: Tensor, rotation: Rotation | None, rows: slice) -> Features:
        if self.form == "rotate_first":
            return below, below
        above = _turn(rotation, below, rows)
        if self.form == "undivided":
            return above, None
        return above, (above if self.form == "both" else below)

    def divide(self, numerator: Tensor, denominator: Tensor | None) -> Tensor:
        """Divide as the form demands."""
        if denominator is None:
            return numerator
        limits = torch.finfo(self.dtype)
        if self.form == "cosine":
            # Weights that are zero but for rounding: every key is opposite to the query.
            return divide(numerator, denominator, is_positive=True, smallest=8 * limits.eps)
        # Without a rotation "both" is ordinary linear attention.
        turns = self.rotation is not None or self.key_rotation is not None
        is_positive = self.feature_map.is_non_negative and not (self.form == "both" and turns)
        # One over the smallest number is near the largest, and backward still multiplies it by
        # values and sums it over rows; this root leaves nine orders of magnitude for that.
        smallest = limits.tiny**0.75 if is_positive else _SMALLEST_SIGNED
        return divide(numerator, denominator, is_positive=is_positive, smallest=smallest)


def unit(x: Tensor) -> Tensor:
    """``x / |x|``, and a zero vector as it is."""
    squares = x.square().sum(-1, keepdim=True)
    return x * squares.where(squares > torch.finfo(x.dtype).tiny, 1.0).rsqrt()


def _turn(rotation: Rotation | None, x: Tensor, rows: slice) -> Tensor:
    if rotation is None:
        return x
    if rotation.num_positions not in (1, rows.stop - rows.start):
        rotation = rotation[rows]
    return rotation(x)


def check_form(
    form: str, feature_map: FeatureMap, rotation: Rotation | None, *, causal: bool
) -> None:
    """Raise where form, feature map and direction contradict one another.

    Raises:
        ConfigError: With the reason.
    """
    if form not in FORMS:
        raise ConfigError(one_of("form", form, FORMS))
    name = feature_map.name
    if causal and not feature_map.is_pointwise:
        raise ConfigError(
            f"linear_attention: feature_map {name!r} looks at all positions, so with causal=True "
            "later keys would move earlier outputs; for the past only use 'softmax_exp'."
        )
    if form == "rotate_first" and not feature_map.is_relative_rotated_first:
        raise ConfigError(
            f"linear_attention: form 'rotate_first' with feature_map {name!r} is not relative: the "
            "map mixes the turned channels up, and scores follow the absolute position. Use "
            "form='numerator', which rotates after the map; or FavorFeatures, which is relative in "
            "expectation."
        )
    if form == "numerator" and not feature_map.is_non_negative:
        raise ConfigError(
            f"linear_attention: feature_map {name!r} can be negative, so the sum that "
            f"form {form!r} divides by can vanish; use form='undivided' with a norm after it, or a "
            f"non-negative map such as {next(iter(FEATURE_MAPS))!r}."
        )
    if form == "cosine" and rotation is not None:
        amplitude = rotation.amplitude
        if isinstance(amplitude, Tensor):
            what = f"an amplitude of shape {tuple(amplitude.shape)}"
        elif amplitude != 1.0:
            what = f"amplitude {amplitude:g}"
        else:
            return
        raise ConfigError(
            f"linear_attention: the rotation has {what}, which would take the weights 1 + cos of "
            "form 'cosine' out of [0, 2]; use frequencies with amplitude 1."
        )


def check_rotation(
    name: str, rotation: Rotation | None, *, dim: int, num_features: int, length: int
) -> None:
    """Raise unless the rotation is for these features and this many positions.

    Raises:
        ShapeError: If it is not. A rotation of fewer planes than the features form is a partial one
            where the map keeps the number of channels, and a mistake where it changes it.
    """
    if rotation is None:
        return
    if rotation.num_positions not in (1, length):
        raise ShapeError(
            f"linear_attention: {name} holds {rotation.num_positions} positions, but there are "
            f"{length} tokens; make it from one position per token."
        )
    planes = rotation.num_planes
    is_short = num_features != dim and 2 * planes != num_features - num_features % 2
    if 2 * planes > num_features or is_short:
        raise ShapeError(
            f"linear_attention: {name} has {planes} planes, but the feature map makes "
            f"{num_features} features of {dim} channels, and it is the features that turn; build "
            f"the rotation with head_dim={num_features - num_features % 2}."
        )
