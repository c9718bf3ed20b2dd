"""FAVOR+, the random features of the Performer (Choromanski et al. 2021), made safe for causal use.

``exp(q . k / sqrt(d))`` is the mean over Gaussian w of ``exp(w . q' - |q'|^2 / 2)`` times the same
of k', with ``x' = x / d^(1/4)``. The draws are a buffer: saved with the model, frozen in eval.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from rotary._shapes import Float
from rotary.errors import ConfigError, ShapeError

_LARGEST_EXPONENT = 40.0  # exp(40) leaves a float32 sum over any number of keys far from overflow.


def orthogonal_draws(num_features: int, dim: int, *, seed: int) -> Float[Tensor, "features dim"]:
    """Draw Gaussian vectors that are orthogonal in blocks of ``dim`` (FAVOR+'s "ORF").

    Every row has the distribution of a standard normal vector, so the estimate stays unbiased;
    orthogonality lowers its variance.

    Args:
        num_features: Number of rows.
        dim: Number of channels.
        seed: The same seed gives the same draws.

    Returns:
        Float32, on the CPU.
    """
    generator = torch.Generator("cpu").manual_seed(seed)
    blocks = []
    for start in range(0, num_features, dim):
        square = torch.randn(dim, dim, generator=generator, dtype=torch.float64, device="cpu")
        basis, triangle = torch.linalg.qr(square)
        # Without the signs of the diagonal, QR does not draw from the uniform distribution.
        basis = basis * triangle.diagonal().sign()
        norms = torch.randn(dim, dim, generator=generator, dtype=torch.float64, device="cpu")
        rows = basis.mT * norms.norm(dim=1, keepdim=True)
        blocks.append(rows[: num_features - start])
    return torch.cat(blocks).to(torch.float32)


def default_num_features(head_dim: int) -> int:
    """``head_dim * ln(head_dim)`` features, an even number of them, so that RoPE can turn pairs.

    Example:
        >>> default_num_features(64)
        266
    """
    return 2 * max(1, int(head_dim * math.log(max(head_dim, 2))) // 2)


class FavorFeatures(nn.Module):
    """Positive orthogonal random features of the softmax kernel, a :class:`FeatureMap`.

    No ``+ eps`` and no maximum over the keys: a key maximum over the sequence lets later keys move
    earlier outputs. A key's exponent ``w . k' - |k'|^2 / 2`` is at most ``|w|^2 / 2``, so a
    constant taken from the draws alone keeps float32 finite. A query's own maximum cancels in the
    division.

    Args:
        head_dim: Channels of queries and keys.
        num_features: Number of features M; :func:`default_num_features` when left out.
        seed: Of the draws; give every layer its own.
        redraw_interval: Training steps between two draws, for :meth:`at_step`; None never redraws.

    Raises:
        ConfigError: If a size is not positive.

    Example:
        >>> favor = FavorFeatures(head_dim=64, num_features=128, seed=3)
        >>> favor.keys(torch.randn(2, 4, 10, 64)).shape
        torch.Size([2, 4, 10, 128])
    """

    name = "favor"
    is_non_negative = True
    is_pointwise = True
    is_relative_rotated_first = True  # In expectation over the draws, not for any one of them.

    projection: Tensor

    def __init__(
        self,
        head_dim: int,
        num_features: int | None = None,
        *,
        seed: int = 0,
        redraw_interval: int | None = None,
    ) -> None:
        super().__init__()
        if num_features is None:
            num_features = default_num_features(head_dim)
        for name, value in (
            ("head_dim", head_dim),
            ("num_features", num_features),
            ("redraw_interval", 1 if redraw_interval is None else redraw_interval),
        ):
            if value < 1:
                raise ConfigError(f"FavorFeatures: {name} is {value}; it must be 1 or more.")
        self.head_dim = head_dim
        self.num_features = num_features
        self.seed = seed
        self.redraw_interval = redraw_interval
        self.register_buffer("projection", self._draw(0))

    def draws_of(self, step: int) -> Float[Tensor, "features dim"]:
        """The draws of a training step, a pure function of (seed, step): float32, on the CPU."""
        return self._draw(0 if self.redraw_interval is None else step // self.redraw_interval)

    def _draw(self, index: int) -> Tensor:
        # A generator on the CPU uses 32 bits of its seed, so both numbers are hashed into them.
        digest = hashlib.sha256(f"{self.seed}/{index}".encode()).digest()
        mixed = int.from_bytes(digest[:4], "big")
        return orthogonal_draws(self.num_features, self.head_dim, seed=mixed)

    @torch.no_grad()
    def at_step(self, step: int) -> None:
        """Put the draws of a training step in place: a pure function of (seed, step).

        Call it before each optimiser step. A run that is resumed at that step has the same draws.

        Raises:
            ConfigError: In eval mode, where the draws are frozen.
        """
        if not self.training:
            raise ConfigError(
                "FavorFeatures.at_step: the draws are frozen in eval mode; call train() first."
            )
        if self.redraw_interval is not None:
            self.projection.copy_(self.draws_of(step))

    def queries(self, q: Tensor, *, is_divided: bool) -> Tensor:
        """Features of queries, (..., L, M), float32 or wider."""
        exponent = self._exponent(q)
        if is_divided:
            exponent = exponent - exponent.amax(-1, keepdim=True).detach()
        else:
            exponent = exponent - self._shift()
        return exponent.exp() / math.sqrt(self.num_features)

    def keys(self, k: Tensor, valid: Tensor | None = None) -> Tensor:
        """Features of keys, (..., S, M), float32 or wider; each depends on its own key only."""
        return (self._exponent(k) - self._shift()).exp() / math.sqrt(self.num_features)

    def _exponent(self, x: Tensor) -> Tensor:
        if x.shape[-1] != self.head_dim:
            raise ShapeError(
                f"FavorFeatures: x has {x.shape[-1]} channels, but the draws are for head_dim="
                f"{self.head_dim}."
            )
        wide = torch.promote_types(x.dtype, torch.float32)
        x = x.to(wide) * self.head_dim**-0.25
        return x @ self.projection.to(wide).mT - 0.5 * x.square().sum(-1, keepdim=True)

    def _shift(self) -> Tensor:
        """What the largest possible exponent exceeds the limit by: 0 for ordinary sizes."""
        largest = 0.5 * self.projection.square().sum(-1).amax()
        return (largest - _LARGEST_EXPONENT).clamp(min=0)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        exact = self.projection
        result = super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if self.projection.dtype in (torch.float16, torch.bfloat16):
            # A cast of the model to half precision would be another draw; keep this one.
            self.projection = exact.to(self.projection.device)
        return result

    def extra_repr(self) -> str:
        """What ``print(model)`` shows."""
        return (
            f"head_dim={self.head_dim}, num_features={self.num_features}, seed={self.seed}, "
            f"redraw_interval={self.redraw_interval}"
        )
