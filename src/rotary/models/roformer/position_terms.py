"""What the positions of one forward pass mean: to the embeddings, and to every layer.

Whatever encoding the config names, the model asks three things of it: what to add to the
embeddings, how each layer turns queries and keys, and how each pair of tokens is related. Cached
keys keep the position, and the length of the text, that they were given.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import DynamicLayer, StaticLayer

from rotary._shapes import Float
from rotary.attention.encodings import PositionEncoding, make_encoding
from rotary.errors import ConfigError
from rotary.frequencies import LengthSchedule
from rotary.layers import LayerRotaryEmbeddings
from rotary.models.roformer.configuration_roformer import RoFormerConfig
from rotary.models.roformer.position_values import RELATIVE_ENCODINGS
from rotary.models.roformer.token_layout import TokenLayout, default_positions
from rotary.rotation import Rotation


@dataclass(frozen=True, eq=False)
class _Part:
    """Some documents of one length, or all rows: how their tokens are related, and who sees whom.

    Args:
        num_documents: None for rows.
        length: Tokens of each document.
        relation: What the encoding made of their positions.
        mask: True where a query may attend to a key; None where every query may.
    """

    num_documents: int | None
    length: int
    relation: Tensor | None
    mask: Tensor | None


@dataclass(frozen=True, eq=False)
class Relations:
    """How queries and keys are related, worked out once for all layers, and attention with it.

    Args:
        encoding: Shaw, NEZHA, T5 or ALiBi.
        parts: One for rows; for documents end to end one for each length, in their order.
    """

    encoding: PositionEncoding
    parts: tuple[_Part, ...]

    def attend(
        self,
        q: Float[Tensor, "batch heads length dim"],
        k: Float[Tensor, "batch heads keys dim"],
        v: Float[Tensor, "batch heads keys dim"],
        *,
        layer: int,
        dropout: float,
    ) -> Float[Tensor, "batch heads length dim"]:
        """Give each query what the encoding's attention gives it in its document alone."""
        if len(self.parts) == 1 and self.parts[0].num_documents is None:
            return self._attend(q, k, v, self.parts[0], layer, dropout)
        mixed, start = [], 0
        for part in self.parts:
            assert part.num_documents is not None
            stop = start + part.num_documents * part.length
            each = [
                x[0, :, start:stop]
                .reshape(x.shape[1], part.num_documents, part.length, x.shape[-1])
                .transpose(0, 1)
                for x in (q, k, v)
            ]
            found = self._attend(each[0], each[1], each[2], part, layer, dropout)
            mixed.append(found.transpose(0, 1).flatten(1, 2))
            start = stop
        return torch.cat(mixed, dim=1).unsqueeze(0) if mixed else v

    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, part: _Part, layer: int, dropout: float
    ) -> Tensor:
        relation, mask = (None if x is None else x.to(q.device) for x in (part.relation, part.mask))
        return self.encoding.attend(q, k, v, relation, mask=mask, layer=layer, dropout=dropout)


class RoFormerPositions(nn.Module):
    """The position encoding of a model. RoPE has no weights here, unless its frequencies learn."""

    def __init__(self, config: RoFormerConfig) -> None:
        super().__init__()
        assert config.embedding_size is not None
        self.num_layers = config.num_hidden_layers
        self.relates = config.position_encoding in RELATIVE_ENCODINGS
        self.needs_lengths = False
        self.rope: LayerRotaryEmbeddings | None = None
        self.encoding: PositionEncoding | None = None
        if config.position_encoding != "rotary":
            self.encoding = make_encoding(
                config.position_encoding,
                dim=config.embedding_size,
                head_dim=config.head_dim,
                num_heads=config.num_attention_heads,
                num_layers=config.num_hidden_layers,
                max_length=config.max_position_embeddings,
                # In a prefix model some later keys are seen.
                is_causal=config.is_decoder and not config.is_prefix_lm,
            )
        elif self.num_layers:
            layers = config.layer_frequencies()
            self.needs_lengths = any(isinstance(layer, LengthSchedule) for layer in layers)
            self.rope = LayerRotaryEmbeddings(
                layers, layout=config.rotary_layout, is_learnable=config.has_learned_frequencies
            )

    def fix_lengths(
        self, cache: Any, attention_mask: Tensor | None, position_ids: Tensor | None
    ) -> None:
        """Note in an empty cache how long the texts are whose tokens it will take in.

        Args:
            cache: Of one text a row; None has no need of it.
            attention_mask: 1 or True for the real tokens of these texts, (batch, length).
            position_ids: Of all their tokens, or None.
        """
        if not self.needs_lengths or cache is None or attention_mask is None:
            return
        shape = (attention_mask.shape[0], attention_mask.shape[1])
        if position_ids is None:
            device = attention_mask.device
            position_ids = default_positions(attention_mask, None, shape, device, 0)
        layout = TokenLayout(shape, position_ids)
        cache.text_lengths = _document_lengths(layout, attention_mask.bool(), None)

    def add_to(self, embeddings: Tensor, layout: TokenLayout, real: Tensor | None) -> Tensor:
        """Add what a learned or sinusoidal encoding adds to the token embeddings.

        Args:
            embeddings: Of the tokens as they are laid out, (batch, length, width).
            layout: Where they are.
            real: In rows, which tokens are no padding, (batch, length); None means all.
        """
        if self.encoding is None:
            return embeddings
        positions = layout.positions.to(embeddings.device)
        if layout.index is None and real is not None:
            # Padding before a text counts backwards, and no vector belongs to it.
            positions = torch.where(real, positions, 0)
        return self.encoding.add_to(embeddings, positions)

    def forward(
        self,
        hidden: Tensor,
        layout: TokenLayout,
        *,
        real: Tensor | None,
        document_ids: Tensor | None,
        cache: Any,
    ) -> tuple[Sequence[Rotation | None], Relations | None]:
        """Make the rotation of each layer, or the relations that all layers share.

        Args:
            hidden: What the layers get: its device, and how exact the tables are to be.
            layout: Where the tokens are.
            real: In rows, which of them are no padding.
            document_ids: Documents of packed rows.
            cache: Keys and values of the tokens before these; it takes the new positions in.

        Returns:
            Rotations, the same object wherever the frequencies are the same; and the relations, or
            None where attention knows of no positions.
        """
        keys = positions = layout.positions.to(hidden.device)
        lengths = _document_lengths(layout, real, document_ids) if self.needs_lengths else None
        if cache is not None and (self.relates or lengths is not None):
            # One text a row, so one length a row: the one it had when it was first read.
            keys, known = _remember(cache, positions, lengths, layout.shape[0], self.num_layers)
            lengths = None if lengths is None else known
        relations = None
        if self.relates:
            assert self.encoding is not None
            relations = Relations(self.encoding, _relate(self.encoding, layout, positions, keys))
        if self.rope is None:
            return (None,) * self.num_layers, relations
        dtype = torch.float64 if hidden.dtype == torch.float64 else torch.float32
        if lengths is None or (lengths.ndim == 1 and layout.lengths is None):
            if lengths is not None:
                positions = positions.expand(layout.shape[0], -1)
            return self.rope(positions, lengths=lengths, dtype=dtype), relations
        # Several documents in a row: each token is a sequence of its own, as long as its document.
        positions = positions.expand(lengths.shape).reshape(-1, 1)
        made = self.rope(positions, lengths=lengths.reshape(-1), dtype=dtype)
        return _reshaped(made, lengths.shape), relations


def real_tokens(
    attention_mask: Tensor | None, document_ids: Tensor | None, columns: int
) -> Tensor | None:
    """Which of the newest tokens are no padding, (batch, length); None where nothing says so."""
    real = None
    if attention_mask is not None and attention_mask.ndim == 2:
        real = attention_mask[:, attention_mask.shape[1] - columns :].bool()
    if document_ids is not None:
        real = document_ids > 0 if real is None else real & (document_ids > 0)
    return real


def _relate(
    encoding: PositionEncoding, layout: TokenLayout, queries: Tensor, keys: Tensor
) -> tuple[_Part, ...]:
    def order(length: int) -> Tensor | None:
        if not layout.is_causal:
            return None
        return torch.ones(length, length, dtype=torch.bool, device=queries.device).tril()

    if layout.lengths is None:
        length = queries.shape[-1]
        mask = layout.mask if layout.mask is not None else order(length)
        return (_Part(None, length, encoding.relate(queries, keys), mask),)
    parts, start = [], 0
    for length, group in groupby(layout.lengths):
        count = len(list(group))
        stop = start + count * length
        positions = queries[start:stop].reshape(count, length)
        if bool((positions == positions[:1]).all()):  # As they are unless they were given.
            positions = positions[0]
        relation = encoding.relate(positions, positions)
        parts.append(_Part(count, length, relation, order(length)))
        start = stop
    return tuple(parts)


def _document_lengths(
    layout: TokenLayout, real: Tensor | None, document_ids: Tensor | None
) -> Tensor:
    """How far the document of each token reaches: its last position, and one.

    Returns:
        (batch,) for rows of one text each; (batch, length) for packed rows; (tokens,) end to end.
    """
    positions = layout.positions
    if layout.lengths is not None:
        if not layout.lengths:
            return torch.zeros_like(positions)
        last = torch.stack([part.amax() for part in torch.split(positions, list(layout.lengths))])
        counts = torch.tensor(layout.lengths, device=positions.device)
        return (last + 1).clamp_min(0).repeat_interleave(counts)
    reach = positions.expand(layout.shape) + 1
    if real is not None:
        reach = torch.where(real, reach, 0)
    if document_ids is None:
        start = reach.new_zeros((reach.shape[0], 1))
        return torch.cat((start, reach), dim=1).amax(dim=1)
    changes = document_ids[:, 1:] != document_ids[:, :-1]
    run = torch.nn.functional.pad(changes, (1, 0)).cumsum(dim=1)
    return torch.zeros_like(reach).scatter_reduce(1, run, reach, "amax").gather(1, run)


def _remember(
    cache: Any, positions: Tensor, lengths: Tensor | None, rows: int, index: int
) -> tuple[Tensor, Tensor]:
    """Put positions into the cache as if they were the keys of one more layer.

    So they are reordered, repeated and cropped together with the keys they belong to.

    Returns:
        Positions of all keys, (batch, keys), and the length each row had at first, (batch,).
    """
    layers = cache.layers
    kinds = sorted({type(layer).__name__ for layer in layers} - {"DynamicLayer", "StaticLayer"})
    if kinds or getattr(cache, "offloading", False):
        raise ConfigError(
            f"RoFormerModel: the cache is a {type(cache).__name__} of "
            f"{', '.join(kinds) or 'offloaded layers'}, which cannot keep the positions of its "
            "keys as this position encoding needs; use transformers' DynamicCache or StaticCache."
        )
    if len(layers) == index:
        first = layers[0] if layers else DynamicLayer()
        is_static = isinstance(first, StaticLayer)
        layers.append(StaticLayer(first.max_cache_len) if is_static else DynamicLayer())
        if lengths is not None:
            lengths = getattr(cache, "text_lengths", lengths).to(lengths.device)
    new = positions.expand(rows, -1)[:, None, :, None]
    reach = (
        torch.zeros_like(new) if lengths is None else lengths[:, None, None, None].expand_as(new)
    )
    keys, values = cache.update(new, reach, index)
    return keys[:, 0, :, 0], values[:, 0, 0, 0]


def _reshaped(
    rotations: Sequence[Rotation | None], shape: torch.Size
) -> tuple[Rotation | None, ...]:
    """Tables of (tokens, 1, planes) as (*shape, planes); what was one object stays one."""
    made: dict[int, Rotation] = {}
    for rotation in rotations:
        if rotation is None or id(rotation) in made:
            continue
        cos, sin = (x.reshape(*shape, -1) for x in (rotation.cos, rotation.sin))
        amplitude = rotation.amplitude
        if isinstance(amplitude, Tensor):
            amplitude = amplitude.reshape(*shape, -1)
        made[id(rotation)] = Rotation(cos, sin, rotation.layout, amplitude)
    return tuple(None if rotation is None else made[id(rotation)] for rotation in rotations)
