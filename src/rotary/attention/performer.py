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

# What w . x' - |x'|^2 / 2 may reach. By chance it stays below half the square of the largest of M
# normal draws, about 8; its bound is |w|^2 / 2, for a vector that is a draw itself.
_LARGEST_EXPONENT = 30.0
# The same factor exp(30) on all keys makes use of float32's whole range: exp(60) times 1e5 keys
# times a large value is still finite. Queries of the undivided form take it back.
_KEY_SHIFT = 30.0


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
    earlier outputs, and would make the state of one call no past of the next. The keys' scale is a
    constant; a query's own maximum cancels in the division.

    What float32 holds is exponents ``w . k' - |k'|^2 / 2`` from about -95 to 30. Larger ones are
    capped, in every dtype, with a gradient of zero; that takes a long key along one of the draws.
    Keys so long that they stay below (normal ones of standard deviation 5 at head_dim 64, of 4 at
    256, begin to) lose their weight, and a row that sees no others is zero: scale such keys first.

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
        self.register_buffer("projection", self._draw(0).to(torch.get_default_device()))

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Put the draws of step 0 in place: those of a new module."""
        self.projection.copy_(self._draw(0))

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
        if not is_divided:
            return self._features(q, -_KEY_SHIFT - math.log(self.num_features))
        # Any factor of a row cancels, |q'|^2 / 2 as well.
        scores = self._scores(self._scaled(q))
        scores = scores - scores.detach().amax(-1, keepdim=True)
        # The floor, exp(-60) of a query's largest feature, keeps the gradient finite: sums of keys
        # over a denominator to which they contribute nothing would be infinity times zero.
        return scores.clamp(min=-2 * _LARGEST_EXPONENT).exp_()

    def keys(self, k: Tensor, valid: Tensor | None = None) -> Tensor:
        """Features of keys, (..., S, M), float32 or wider; each depends on its own key only."""
        return self._features(k, _KEY_SHIFT)

    def _features(self, x: Tensor, shift: float) -> Tensor:
        """``exp(w . x' - |x'|^2 / 2 + shift)``; the shift costs nothing beside the norm."""
        x = self._scaled(x)
        offset = shift - 0.5 * x.square().sum(-1, keepdim=True)
        return (self._scores(x) + offset).clamp(max=_LARGEST_EXPONENT + shift).exp_()

    def _scaled(self, x: Tensor) -> Tensor:
        if x.shape[-1] != self.head_dim:
            raise ShapeError(
                f"FavorFeatures: x has {x.shape[-1]} channels, but the draws are for head_dim="
                f"{self.head_dim}."
            )
        return x.to(torch.promote_types(x.dtype, torch.float32)) * self.head_dim**-0.25

    def _scores(self, x: Tensor) -> Tensor:
        return x @ self.projection.to(x.dtype).mT

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        exact = self.projection
        result = super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if self.projection.dtype in (torch.float16, torch.bfloat16):
            # A cast of the model to half precision would be another draw; keep this one.
            self.projection = exact.to(self.projection.device)
        if exact.is_meta and not self.projection.is_meta:
            # `to_empty` leaves memory as it finds it; a new module's draws are known exactly.
            self.reset_parameters()
        return result

    def extra_repr(self) -> str:
        """What ``print(model)`` shows."""
        return (
            f"head_dim={self.head_dim}, num_features={self.num_features}, seed={self.seed}, "
            f"redraw_interval={self.redraw_interval}"
        )
