"""``Basis``: a learnable change of basis before the rotation."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from rotary._shapes import Float
from rotary.errors import ConfigError, ShapeError


class Basis(nn.Module):
    """An orthogonal matrix ``P`` before the rotation: ``y = R(position) P x`` (STRING, 2502.02562).

    Every continuous relative encoding is a rotation of planes in some orthonormal basis; this
    learns the basis. ``P = (I - S)(I + S)^-1`` with ``S = A - A^T`` (Cayley), and ``A`` starts at
    zero, so ``P`` starts as the identity. After training, ``merge_into`` moves ``P`` into the
    projections that make the queries and keys, and it costs nothing.

    Use one basis for queries and keys alike, or scores are no longer relative.

    Args:
        dim: Number of channels of a head.
        num_heads: Give every head its own basis; None shares one.

    Example:
        >>> from rotary import RotaryEmbedding
        >>> rope, basis = RotaryEmbedding(head_dim=8), Basis(8)
        >>> q, k = torch.randn(1, 2, 5, 8), torch.randn(1, 2, 5, 8)
        >>> q, k = rope.rotate(basis(q), basis(k))
    """

    def __init__(self, dim: int, num_heads: int | None = None) -> None:
        super().__init__()
        if dim < 1 or (num_heads is not None and num_heads < 1):
            raise ConfigError(
                f"Basis: dim is {dim} and num_heads is {num_heads}; both must be at least 1."
            )
        self.dim = dim
        self.num_heads = num_heads
        shape = (dim, dim) if num_heads is None else (num_heads, dim, dim)
        self.generator = nn.Parameter(torch.zeros(shape))

    def reset_parameters(self) -> None:
        """Go back to the identity."""
        nn.init.zeros_(self.generator)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Basis:
        was_meta = self.generator.is_meta
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        # `to_empty` leaves memory as it finds it; the initial value here is known exactly.
        if was_meta and not self.generator.is_meta:
            with torch.no_grad():
                self.generator.zero_()
        return self

    def matrix(self) -> Float[Tensor, "*heads dim dim"]:
        """``P``, orthogonal, at least float32: (dim, dim) or (heads, dim, dim)."""
        wide = torch.promote_types(self.generator.dtype, torch.float32)
        generator = self.generator.to(wide)
        # Linear solvers have no half-precision form; autocast would choose one for the product.
        with torch.autocast(generator.device.type, enabled=False):
            skew = generator - generator.mT
            identity = torch.eye(self.dim, dtype=wide, device=generator.device)
            # (I - S)(I + S)^-1 = (I + S)^-1 (I - S): the two commute.
            return torch.linalg.solve(identity + skew, identity - skew)

    def forward(self, x: Float[Tensor, "*shape length dim"]) -> Float[Tensor, "*shape length dim"]:
        """Multiply every vector by ``P``.

        Args:
            x: (..., heads, length, dim); without heads of their own also (..., length, dim).

        Returns:
            A new tensor with the shape and dtype of ``x``.

        Raises:
            ShapeError: If the channels or heads do not fit.
        """
        if x.shape[-1] != self.dim or (
            self.num_heads is not None and (x.ndim < 3 or x.shape[-3] != self.num_heads)
        ):
            heads = "" if self.num_heads is None else f"{self.num_heads}, "
            raise ShapeError(
                f"Basis: x has shape {tuple(x.shape)}; expected (..., {heads}length, {self.dim})."
            )
        matrix = self.matrix()
        return (x.to(torch.promote_types(x.dtype, matrix.dtype)) @ matrix.mT).to(x.dtype)

    @torch.no_grad()
    def merge_into(self, weight: Float[Tensor, "rows *columns"]) -> Float[Tensor, "rows *columns"]:
        """Multiply a projection by ``P``: with the result, the basis is no longer needed.

        Args:
            weight: Weight (heads * dim, features) or bias (heads * dim,) of the layer that makes
                the queries, or the keys.

        Returns:
            A new tensor with the shape and dtype of the weight.

        Raises:
            ShapeError: If the rows are not whole heads.

        Example:
            >>> project, basis = torch.nn.Linear(6, 8), Basis(4)
            >>> _ = project.weight.data.copy_(basis.merge_into(project.weight))
            >>> _ = project.bias.data.copy_(basis.merge_into(project.bias))
        """
        rows = weight.shape[0]
        heads = rows // self.dim
        if rows % self.dim or (self.num_heads is not None and heads != self.num_heads):
            many = "any number of heads" if self.num_heads is None else f"{self.num_heads} heads"
            raise ShapeError(
                f"Basis.merge_into: the weight has {rows} rows; expected {many} of {self.dim}."
            )
        matrix = self.matrix()
        wide = torch.promote_types(weight.dtype, matrix.dtype)
        split = weight.reshape(heads, self.dim, -1).to(wide)
        return (matrix.to(wide) @ split).reshape(weight.shape).to(weight.dtype)

    def extra_repr(self) -> str:
        """What ``print(model)`` shows."""
        return f"{self.dim}" + ("" if self.num_heads is None else f", num_heads={self.num_heads}")
