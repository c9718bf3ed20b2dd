"""Position encodings other than RoPE, for honest comparison: one small interface for all.

An encoding does up to three things, each of which does nothing unless the encoding needs it:
``add_to`` the input embeddings (learned, sinusoidal), ``relate`` the positions of queries and keys
once per forward pass, and ``attend`` with what ``relate`` found (Shaw, NEZHA, T5, ALiBi).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout as drop
from torch.nn.functional import scaled_dot_product_attention

from rotary._shapes import Float, Integer
from rotary.errors import ConfigError, one_of

EncodingName = Literal["rotary", "learned", "sinusoidal", "shaw", "nezha", "t5", "alibi", "none"]
ENCODINGS: tuple[str, ...] = get_args(EncodingName)


def sinusoidal_table(
    positions: Tensor, dim: int, *, base: float = 10000.0
) -> Float[Tensor, "*shape dim"]:
    """Sinusoids of the positions (Vaswani et al., 3.5), interleaved: sin, cos, sin, cos, ...

    Args:
        positions: Any shape, integer or real.
        dim: Number of channels, even.
        base: The wavelengths run from ``2 pi`` to nearly ``2 pi base``.

    Returns:
        Channel ``2t`` is ``sin(m base^(-2t/dim))`` and ``2t + 1`` its cosine; float64.

    Raises:
        ConfigError: If dim is not even and positive.
    """
    if dim < 2 or dim % 2:
        raise ConfigError(f"sinusoidal_table: dim is {dim}; it must be even and at least 2.")
    exponents = torch.arange(0, dim, 2, dtype=torch.float64, device=positions.device) / dim
    angles = positions.to(torch.float64).unsqueeze(-1) * base**-exponents
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)


def t5_bucket(
    distance: Integer[Tensor, "*shape"],
    *,
    num_buckets: int = 32,
    max_distance: int = 128,
    is_causal: bool = False,
) -> Integer[Tensor, "*shape"]:
    """Number of the bucket of a distance, key position minus query position (T5, section 2.1).

    Half of the buckets hold one distance each, the others grow as a power up to
    ``max_distance``; everything beyond shares the last one. Two-sided, keys that come later have
    buckets of their own.

    Args:
        distance: Key position minus query position.
        num_buckets: Number of buckets, both sides together.
        max_distance: Where the last bucket begins to take everything.
        is_causal: One-sided: later keys, which are masked, go to bucket 0.

    Returns:
        Buckets, 0 to ``num_buckets - 1``, int64.

    Raises:
        ConfigError: If a side has fewer than 2 buckets, or no distance left for those that grow.
    """
    _check_buckets(num_buckets, max_distance, is_causal=is_causal)
    distance = distance.to(torch.int64)
    later = torch.zeros_like(distance)
    if is_causal:
        size = (-distance).clamp_min(0)
    else:
        num_buckets //= 2
        later = (distance > 0).to(torch.int64) * num_buckets
        size = distance.abs()
    exact = num_buckets // 2
    steps = torch.arange(num_buckets - exact, dtype=torch.float64, device=distance.device)
    # The smallest distance of each bucket; a whole number that the power misses by rounding counts.
    bounds = exact * (max_distance / exact) ** (steps / (num_buckets - exact))
    grown = exact - 1 + torch.bucketize(size.to(torch.float64), bounds - 1e-6, right=True)
    return later + torch.where(size < exact, size, grown)


def _check_buckets(num_buckets: int, max_distance: int, *, is_causal: bool) -> None:
    least = 2 if is_causal else 4
    if num_buckets < least:
        raise ConfigError(
            f"t5_bucket: num_buckets is {num_buckets}; with is_causal={is_causal} it must be at "
            f"least {least}."
        )
    exact = num_buckets // least
    if max_distance <= exact:
        raise ConfigError(
            f"t5_bucket: max_distance is {max_distance}; with num_buckets={num_buckets} and "
            f"is_causal={is_causal} it must be above {exact}, up to which every distance has its "
            "own bucket."
        )


def alibi_slopes(num_heads: int) -> Float[Tensor, " heads"]:
    """Slopes of ALiBi (Press et al., section 3): ``2^(-8h/H)``, h = 1 ... H.

    Where H is no power of two, the slopes of the power below it come first, then every second
    one of the power above.

    Returns:
        Slopes, float64, all positive.
    """
    if num_heads < 1:
        raise ConfigError(f"alibi_slopes: num_heads is {num_heads}; it must be at least 1.")
    return torch.tensor(_slopes(num_heads), dtype=torch.float64)


def _slopes(num_heads: int) -> list[float]:
    power = 2 ** int(math.log2(num_heads))
    slopes = [2.0 ** (-8.0 * h / power) for h in range(1, power + 1)]
    between = [2.0 ** (-4.0 * h / power) for h in range(1, 2 * power + 1, 2)]
    return (slopes + between)[:num_heads]


class PositionEncoding(nn.Module):
    """What a model asks of its position encoding; as it stands, the encoding ``"none"``."""

    def add_to(
        self, embeddings: Float[Tensor, "*batch length width"], positions: Tensor
    ) -> Float[Tensor, "*batch length width"]:
        """Add what belongs to the input embeddings."""
        return embeddings

    def relate(self, queries: Tensor, keys: Tensor) -> Tensor | None:
        """Work out once per forward pass what every layer needs of the positions.

        Args:
            queries: Positions of the queries, (length,) or (batch, length).
            keys: Positions of the keys, alike.

        Returns:
            What :meth:`attend` takes as ``relation``: (heads or 1, length, keys), with the batch
            before it where the positions have one; or None.
        """
        return None

    def attend(
        self,
        q: Float[Tensor, "batch heads length dim"],
        k: Float[Tensor, "batch heads keys dim"],
        v: Float[Tensor, "batch heads keys value_dim"],
        relation: Tensor | None,
        *,
        mask: Tensor | None = None,
        layer: int = 0,
        dropout: float = 0.0,
        scale: float | None = None,
    ) -> Float[Tensor, "batch heads length value_dim"]:
        """Softmax attention that knows the positions; the mask is boolean, True where allowed."""
        return scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout, scale=scale)


class LearnedPositions(PositionEncoding):
    """A learned vector for each position, added to the input (BERT)."""

    def __init__(self, max_length: int, dim: int) -> None:
        super().__init__()
        self.table = nn.Embedding(max_length, dim)

    def add_to(self, embeddings: Tensor, positions: Tensor) -> Tensor:
        """Add the vectors of the positions.

        Raises:
            ConfigError: If there is none for a position (not checked on an accelerator, which
                would have to wait for the answer).
        """
        size = self.table.num_embeddings
        if (
            positions.device.type == "cpu"
            and positions.numel()
            and not torch.compiler.is_compiling()
        ):
            low, high = int(positions.min()), int(positions.max())
            if low < 0 or high >= size:
                raise ConfigError(
                    f"LearnedPositions: positions run from {low} to {high}; there are vectors for "
                    f"0 to {size - 1}. A learned encoding has a length limit; 'rotary' has none."
                )
        return embeddings + self.table(positions)


class SinusoidalPositions(PositionEncoding):
    """Fixed sinusoids, added to the input (Vaswani et al., section 3.5)."""

    def __init__(self, dim: int, base: float = 10000.0) -> None:
        super().__init__()
        self.dim, self.base = dim, base

    def add_to(self, embeddings: Tensor, positions: Tensor) -> Tensor:
        """Add the sinusoids of the positions."""
        return embeddings + sinusoidal_table(positions, self.dim, base=self.base).to(
            embeddings.dtype
        )


class _ScoreBias(PositionEncoding):
    """A number for each head and distance, added to the scores before the softmax."""

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        relation: Tensor | None,
        *,
        mask: Tensor | None = None,
        layer: int = 0,
        dropout: float = 0.0,
        scale: float | None = None,
    ) -> Tensor:
        assert relation is not None
        bias = relation.to(q.dtype)
        if mask is None:
            return scaled_dot_product_attention(
                q, k, v, attn_mask=bias, dropout_p=dropout, scale=scale
            )
        bias = bias.masked_fill(~mask, -torch.inf)
        mixed = scaled_dot_product_attention(
            q, k, v, attn_mask=bias, dropout_p=dropout, scale=scale
        )
        # A query without a valid key gets zeros, whatever the kernel makes of a row of -inf.
        return mixed.masked_fill(~mask.any(-1, keepdim=True), 0.0)


class T5Bias(_ScoreBias):
    """A learned number for each head and bucket of distances, the same in all layers (T5)."""

    def __init__(
        self,
        num_heads: int,
        *,
        num_buckets: int = 32,
        max_distance: int = 128,
        is_causal: bool = False,
    ) -> None:
        super().__init__()
        _check_buckets(num_buckets, max_distance, is_causal=is_causal)
        self.table = nn.Embedding(num_buckets, num_heads)
        self.max_distance, self.is_causal = max_distance, is_causal

    def relate(self, queries: Tensor, keys: Tensor) -> Tensor:
        """The bias of each head, query and key."""
        bucket = t5_bucket(
            _distance(queries, keys),
            num_buckets=self.table.num_embeddings,
            max_distance=self.max_distance,
            is_causal=self.is_causal,
        )
        return self.table(bucket).movedim(-1, -3)


class AlibiBias(_ScoreBias):
    """A penalty that grows linearly with the distance, ``-slope |m - n|``; nothing is learned."""

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.slopes = tuple(_slopes(num_heads))  # Numbers, for models that begin without memory.

    def relate(self, queries: Tensor, keys: Tensor) -> Tensor:
        """The penalty of each head, query and key."""
        distance = _distance(queries, keys).abs().unsqueeze(-3)
        slopes = torch.tensor(self.slopes, device=distance.device)
        return -distance * slopes[:, None, None]


class ShawEncoding(PositionEncoding):
    """A learned vector for each distance, joined to keys and values (Shaw et al., eq. 3 and 4).

    ``score = q . (k + a_K) scale`` and ``output = sum p (v + a_V)``, the distance, key minus query,
    cut to ``max_distance`` on either side. Heads share the vectors; each layer has its own.
    """

    def __init__(self, num_layers: int, head_dim: int, max_distance: int = 16) -> None:
        super().__init__()
        self.max_distance = max_distance
        shape = (num_layers, 2 * max_distance + 1, head_dim)
        self.key_table = nn.Parameter(torch.empty(shape))
        self.value_table = nn.Parameter(torch.empty(shape))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the vectors anew, with standard deviation 0.02."""
        nn.init.trunc_normal_(self.key_table, std=0.02, a=-0.04, b=0.04)
        nn.init.trunc_normal_(self.value_table, std=0.02, a=-0.04, b=0.04)

    def tables(self, layer: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """The vectors of a layer for keys and for values, (2 * max_distance + 1, dim)."""
        return self.key_table[layer].to(like.dtype), self.value_table[layer].to(like.dtype)

    def relate(self, queries: Tensor, keys: Tensor) -> Tensor:
        """The row of the table for each query and key: ``clip(n - m) + max_distance``."""
        limit = self.max_distance
        return (_distance(queries, keys).clamp(-limit, limit) + limit).unsqueeze(-3)

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        relation: Tensor | None,
        *,
        mask: Tensor | None = None,
        layer: int = 0,
        dropout: float = 0.0,
        scale: float | None = None,
    ) -> Tensor:
        """Attend with the vectors of the distances; memory grows as heads x length x keys."""
        assert relation is not None
        key_table, value_table = self.tables(layer, q)
        scale = q.shape[-1] ** -0.5 if scale is None else scale
        index = relation.expand(*q.shape[:-1], k.shape[-2])
        # q . a_K for every row of the table, then the row of each key: no (length, keys, dim).
        scores = (q @ k.mT + (q @ key_table.T).gather(-1, index)) * scale
        if mask is not None:
            scores = scores.masked_fill(~mask, -torch.inf)
        weights = scores.softmax(dim=-1)
        if mask is not None:
            weights = weights.masked_fill(~mask.any(-1, keepdim=True), 0.0)
        weights = drop(weights, dropout, training=dropout > 0)
        by_distance = weights.new_zeros(*weights.shape[:-1], len(value_table))
        return weights @ v + by_distance.scatter_add(-1, index, weights) @ value_table


class NezhaEncoding(ShawEncoding):
    """Shaw's form with fixed sinusoids of the distance in place of learned vectors (NEZHA)."""

    def __init__(self, num_layers: int, head_dim: int, max_distance: int = 64) -> None:
        nn.Module.__init__(self)
        self.max_distance, self.head_dim = max_distance, head_dim

    def reset_parameters(self) -> None:
        """Nothing is drawn."""

    def tables(self, layer: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """The same sinusoids for keys and values of every layer."""
        rows = torch.arange(2 * self.max_distance + 1, device=like.device)
        table = sinusoidal_table(rows, self.head_dim).to(like.dtype)
        return table, table


def make_encoding(
    name: str,
    *,
    dim: int,
    head_dim: int,
    num_heads: int,
    num_layers: int,
    max_length: int,
    is_causal: bool = False,
) -> PositionEncoding:
    """Build the encoding of a model by its name; ``"rotary"`` adds nothing here, the model rotates.

    Args:
        name: One of ``ENCODINGS``.
        dim: Width of the input embeddings.
        head_dim: Channels of a head.
        num_heads: Number of heads.
        num_layers: Number of layers.
        max_length: Number of learned vectors.
        is_causal: Whether later keys are masked.

    Raises:
        ConfigError: If the name is unknown.
    """
    makers: dict[str, Callable[[], PositionEncoding]] = {
        "rotary": PositionEncoding,
        "none": PositionEncoding,
        "learned": lambda: LearnedPositions(max_length, dim),
        "sinusoidal": lambda: SinusoidalPositions(dim),
        "shaw": lambda: ShawEncoding(num_layers, head_dim),
        "nezha": lambda: NezhaEncoding(num_layers, head_dim),
        "t5": lambda: T5Bias(num_heads, is_causal=is_causal),
        "alibi": lambda: AlibiBias(num_heads),
    }
    if name not in makers:
        raise ConfigError(one_of("position_encoding", name, ENCODINGS))
    return makers[name]()


def _distance(queries: Tensor, keys: Tensor) -> Tensor:
    """Key position minus query position, (..., length, keys)."""
    return keys.unsqueeze(-2) - queries.unsqueeze(-1)
