"""The parts of a RoFormer. Module names are those of the existing checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout as drop
from torch.nn.functional import scaled_dot_product_attention
from transformers.activations import ACT2FN
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, AttentionInterface

from rotary._shapes import Float
from rotary.attention.performer import FavorFeatures
from rotary.attention.softmax import packed_attention
from rotary.models.roformer.configuration_roformer import RoFormerConfig
from rotary.models.roformer.linear_layers import attend_linearly
from rotary.models.roformer.position_terms import Relations
from rotary.models.roformer.token_layout import TokenLayout
from rotary.rotation import Rotation


class RoFormerRMSNorm(nn.Module):
    """``x / sqrt(mean(x^2) + eps)``: RoFormer-V2's norm, which has no weights."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, x: Float[Tensor, "*shape width"]) -> Float[Tensor, "*shape width"]:
        """Divide each vector by its root mean square, in float32 or wider."""
        wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        return (wide * (wide.square().mean(-1, keepdim=True) + self.eps).rsqrt()).to(x.dtype)

    def extra_repr(self) -> str:
        """What ``print(model)`` shows."""
        return f"eps={self.eps:g}"


def norm(config: RoFormerConfig, width: int) -> nn.Module:
    """The norm that the config asks for."""
    if config.norm_type == "rms_norm":
        return RoFormerRMSNorm(config.layer_norm_eps)
    return nn.LayerNorm(width, eps=config.layer_norm_eps)


def linear(config: RoFormerConfig, width: int, out_width: int) -> nn.Linear:
    """A linear layer, with a bias if the config has them."""
    return nn.Linear(width, out_width, bias=config.use_bias)


def eager_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    dropout: float = 0.0,
    is_causal: bool = False,
    **kwargs: Any,
) -> tuple[Tensor, Tensor]:
    """Attention written out: slow, and the one form that can show its probabilities."""
    scores = query @ key.transpose(-1, -2) * scaling
    if is_causal:
        attention_mask = scores.new_ones(scores.shape[-2:], dtype=torch.bool).tril()
    if attention_mask is not None:
        scores = scores.masked_fill(~attention_mask, -torch.inf)
    probabilities = scores.softmax(dim=-1)
    if attention_mask is not None:
        # A query without a valid key gets zeros, as from scaled_dot_product_attention.
        probabilities = probabilities.masked_fill(~attention_mask.any(-1, keepdim=True), 0.0)
    probabilities = drop(probabilities, dropout, training=module.training)
    return (probabilities @ value).transpose(1, 2), probabilities


def packed_attention_interface(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    dropout: float = 0.0,
    is_causal: bool = False,
    lengths: tuple[int, ...] | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """``rotary_packed`` for transformers: documents end to end, or rows where there are none."""
    if lengths is None:
        mixed = scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=attention_mask,
            dropout_p=dropout,
            is_causal=is_causal,
            scale=scaling,
        )
        return mixed.transpose(1, 2), None
    mixed = packed_attention(
        query[0],
        key[0],
        value[0],
        lengths,
        is_causal=is_causal,
        dropout=dropout,
        scale=scaling,
    )
    return mixed.transpose(0, 1).unsqueeze(0), None


def register_packed_attention() -> None:
    """Make ``attn_implementation="rotary_packed"`` known to transformers."""
    AttentionInterface.register("rotary_packed", packed_attention_interface)


class RoFormerEmbeddings(nn.Module):
    """Token and segment embedding, normalised. Positions are not added here."""

    def __init__(self, config: RoFormerConfig) -> None:
        super().__init__()
        assert config.embedding_size is not None
        self.word_embeddings = nn.Embedding(config.vocab_size, config.embedding_size)
        if config.type_vocab_size:
            self.token_type_embeddings = nn.Embedding(config.type_vocab_size, config.embedding_size)
        self.LayerNorm = norm(config, config.embedding_size)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.drops_first = config.norm_type == "rms_norm"

    def forward(
        self, embeds: Float[Tensor, "batch length width"], token_type_ids: Tensor | None
    ) -> Float[Tensor, "batch length width"]:
        """Add the segment embedding (segment 0 when None) to token embeddings; normalise."""
        if hasattr(self, "token_type_embeddings"):
            if token_type_ids is None:
                embeds = embeds + self.token_type_embeddings.weight[0]
            else:
                embeds = embeds + self.token_type_embeddings(token_type_ids)
        if self.drops_first:  # RoFormer-V2's order.
            return self.LayerNorm(self.dropout(embeds))
        return self.dropout(self.LayerNorm(embeds))


class RoFormerSelfAttention(nn.Module):
    """Project, rotate queries and keys (in the linear forms their features), attend."""

    def __init__(self, config: RoFormerConfig, layer_idx: int) -> None:
        super().__init__()
        self.config = config
        self.layer_idx = layer_idx
        self.num_heads = config.num_attention_heads
        self.query = linear(config, config.hidden_size, config.hidden_size)
        self.key = linear(config, config.hidden_size, config.hidden_size)
        self.value = linear(config, config.hidden_size, config.hidden_size)
        self.is_causal = config.is_decoder
        self.favor = None
        if config.attention_form == "performer":
            self.favor = FavorFeatures(
                config.head_dim,
                config.num_features,
                seed=(config.feature_seed << 16) + layer_idx,
                redraw_interval=config.redraw_interval,
            )

    def forward(
        self,
        hidden: Tensor,
        layout: TokenLayout,
        rotation: Rotation | None,
        cache: Any,
        relations: Relations | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Return the attended values (batch, length, hidden) and, if eager, the probabilities."""
        q, k, v = (
            linear(hidden).unflatten(-1, (self.num_heads, self.config.head_dim))
            for linear in (self.query, self.key, self.value)
        )
        if not torch.compiler.is_compiling() and hidden.numel() == 0:
            return torch.zeros_like(hidden), None  # transformers' `sdpa` refuses nothing at all.
        if rotation is not None and rotation.cos.device != q.device:  # Spread over devices.
            rotation = rotation.to(q.device)
        if self.config.is_linear:
            mixed = attend_linearly(
                q,
                k,
                v,
                layout,
                rotation,
                attention_form=self.config.attention_form,
                favor=self.favor,
                layer_state=None if cache is None else cache.layers[self.layer_idx],
            )
            return mixed.flatten(2), None
        if rotation is not None:
            if rotation.decay is None:
                q, k = rotation(q, k, length_axis=-3)
            else:  # xPos scales queries and keys in opposite senses.
                q = rotation.for_queries()(q, length_axis=-3)
                k = rotation.for_keys()(k, length_axis=-3)
            if self.config.rotary_value:
                v = rotation(v, length_axis=-3)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        if cache is not None:
            k, v = cache.update(k, v, self.layer_idx)
        dropout = self.config.attention_probs_dropout_prob if self.training else 0.0
        if relations is not None:
            mixed = relations.attend(q, k, v, layer=self.layer_idx, dropout=dropout)
            return mixed.transpose(1, 2).flatten(2), None
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(
            self.config._attn_implementation, eager_attention
        )
        mixed, probabilities = attend(
            self,
            q,
            k,
            v,
            layout.mask,
            scaling=q.shape[-1] ** -0.5,
            dropout=dropout,
            is_causal=layout.is_causal,
            **layout.attention_arguments(self.config._attn_implementation),
        )
        return mixed.flatten(2), probabilities


class RoFormerSublayerOutput(nn.Module):
    """What ends a sub-layer: a linear layer, dropout, the sum with its input, the norm."""

    def __init__(self, config: RoFormerConfig, width: int) -> None:
        super().__init__()
        self.dense = linear(config, width, config.hidden_size)
        self.LayerNorm = norm(config, config.hidden_size)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.is_pre_norm = config.norm_position == "pre"

    def before(self, hidden: Tensor) -> Tensor:
        """What the sub-layer reads: its input, normalised if the norm comes first."""
        return self.LayerNorm(hidden) if self.is_pre_norm else hidden

    def forward(self, inner: Tensor, hidden: Tensor) -> Tensor:
        """Add the sub-layer's work to its input, and normalise if the norm comes last."""
        total = hidden + self.dropout(self.dense(inner))
        return total if self.is_pre_norm else self.LayerNorm(total)


class RoFormerAttention(nn.Module):
    """The attention sub-layer."""

    def __init__(self, config: RoFormerConfig, layer_idx: int) -> None:
        super().__init__()
        self.self = RoFormerSelfAttention(config, layer_idx)
        self.output = RoFormerSublayerOutput(config, config.hidden_size)

    def forward(
        self,
        hidden: Tensor,
        layout: TokenLayout,
        rotation: Rotation | None,
        cache: Any,
        relations: Relations | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend and add."""
        before = self.output.before(hidden)
        mixed, probabilities = self.self(before, layout, rotation, cache, relations)
        return self.output(mixed, hidden), probabilities


class RoFormerIntermediate(nn.Module):
    """The wide half of the feed-forward sub-layer."""

    def __init__(self, config: RoFormerConfig) -> None:
        super().__init__()
        self.dense = linear(config, config.hidden_size, config.intermediate_size)
        self.activation = ACT2FN[config.hidden_act]

    def forward(self, hidden: Tensor) -> Tensor:
        """Widen and activate."""
        return self.activation(self.dense(hidden))


class RoFormerLayer(GradientCheckpointingLayer):
    """One layer: attention, then feed-forward, each added to its input."""

    def __init__(self, config: RoFormerConfig, layer_idx: int) -> None:
        super().__init__()
        self.attention = RoFormerAttention(config, layer_idx)
        self.intermediate = RoFormerIntermediate(config)
        self.output = RoFormerSublayerOutput(config, config.intermediate_size)

    def forward(
        self,
        hidden: Tensor,
        layout: TokenLayout,
        rotation: Rotation | None,
        cache: Any = None,
        relations: Relations | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Return the hidden states and, if eager, the attention probabilities."""
        hidden, probabilities = self.attention(hidden, layout, rotation, cache, relations)
        wide = self.intermediate(self.output.before(hidden))
        return self.output(wide, hidden), probabilities


class RoFormerEncoder(nn.Module):
    """The stack of layers."""

    def __init__(self, config: RoFormerConfig) -> None:
        super().__init__()
        self.layer = nn.ModuleList(
            RoFormerLayer(config, index) for index in range(config.num_hidden_layers)
        )
        if config.norm_position == "pre":
            self.LayerNorm = norm(config, config.hidden_size)

    def forward(
        self,
        hidden: Tensor,
        layout: TokenLayout,
        rotations: Sequence[Rotation | None],
        cache: Any,
        *,
        relations: Relations | None = None,
        with_hidden: bool,
    ) -> tuple[Tensor, tuple[Tensor, ...], tuple[Tensor | None, ...]]:
        """Return the last hidden states, all of them if wanted, and the probabilities."""
        all_hidden = [hidden] if with_hidden else []
        attentions = []
        for layer, rotation in zip(self.layer, rotations, strict=True):
            hidden, probabilities = layer(
                hidden, layout, rotation, cache=cache, relations=relations
            )
            attentions.append(probabilities)
            if with_hidden:
                all_hidden.append(hidden)
        if hasattr(self, "LayerNorm"):
            hidden = self.LayerNorm(hidden)
            if with_hidden:
                all_hidden[-1] = hidden
        return hidden, tuple(all_hidden), tuple(attentions)
