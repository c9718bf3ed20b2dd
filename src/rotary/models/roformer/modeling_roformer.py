"""RoFormer (Su et al., 2021) as a Hugging Face model: the encoder, which every head stands on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache
from transformers.modeling_outputs import ModelOutput

from rotary.errors import ConfigError, ShapeError
from rotary.models.roformer.batch_checks import check_batch, check_ids
from rotary.models.roformer.configuration_roformer import RoFormerConfig
from rotary.models.roformer.heads import RoFormerPooler, finish, first_token
from rotary.models.roformer.layers import RoFormerEmbeddings, RoFormerEncoder, linear
from rotary.models.roformer.linear_layers import LinearStateCache, check_cache
from rotary.models.roformer.position_terms import RoFormerPositions, real_tokens
from rotary.models.roformer.pretrained import RoFormerPreTrainedModel
from rotary.models.roformer.token_layout import (
    TokenLayout,
    lay_end_to_end,
    lay_for_linear,
    lay_in_rows,
    prefix_segments,
)


@dataclass
class RoFormerModelOutput(ModelOutput):
    """What the encoder returns; ``past_key_values`` is the cache's older name.

    Args:
        last_hidden_state: (batch, length, hidden size).
        pooler_output: (batch, hidden size), with ``config.pooler_activation``.
        cache: Keys and values, or the linear state, for the next step of a decoder.
        hidden_states: Output of the embeddings and of every layer, when asked for.
        attentions: Probabilities of every layer, when asked for.
    """

    last_hidden_state: Tensor | None = None
    pooler_output: Tensor | None = None
    cache: Any = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None


class RoFormerModel(RoFormerPreTrainedModel):
    """The encoder: tokens in, one vector for each out. No length is too long.

    Example:
        >>> config = RoFormerConfig(
        ...     vocab_size=100, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        ...     intermediate_size=32,
        ... )
        >>> RoFormerModel(config)(torch.tensor([[1, 2, 3]])).last_hidden_state.shape
        torch.Size([1, 3, 16])
    """

    def __init__(self, config: RoFormerConfig) -> None:
        super().__init__(config)
        self.embeddings = RoFormerEmbeddings(config)
        if config.embedding_size != config.hidden_size:
            assert config.embedding_size is not None
            self.embeddings_project = linear(config, config.embedding_size, config.hidden_size)
        self.encoder = RoFormerEncoder(config)
        self.positions = RoFormerPositions(config)
        if config.pooler_activation is not None:
            self.pooler = RoFormerPooler(config)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        """The token embedding."""
        return self.embeddings.word_embeddings

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        """Replace the token embedding."""
        self.embeddings.word_embeddings = value

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        document_ids: Tensor | None = None,
        cache: Any = None,
        past_key_values: Any = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> Any:
        """Give every token its vector.

        Args:
            input_ids: Tokens, (batch, length).
            attention_mask: 1 or True for real tokens, (batch, length); or, ready made and boolean,
                which query sees which key, (batch, 1 or heads, length, keys).
            token_type_ids: Segments, (batch, length); all 0 when None.
            position_ids: Integers of any sign, (batch, length) or (length,). Counted from the first
                real token of each document when None.
            inputs_embeds: Token embeddings (batch, length, embedding size), instead of tokens.
            document_ids: Documents of packed rows, (batch, length): 0 is padding; tokens with
                different numbers never see each other.
            cache: Keys and values of the tokens before these, in a decoder; transformers' cache.
            past_key_values: The older name of ``cache``.
            use_cache: Return such a cache; only a decoder has one.
            output_attentions: Return the attention probabilities; needs
                ``attn_implementation="eager"``.
            output_hidden_states: Return the output of every layer.
            return_dict: Return an object with names (the default) or a tuple.

        Returns:
            ``last_hidden_state`` (batch, length, hidden size), and what was asked for. What it says
            at padding is of no meaning: zeros where padding is not computed.

        Raises:
            ShapeError: If inputs do not belong together.
            ConfigError: If a token is not in the vocabulary, or probabilities are asked of an
                attention that has none.
        """
        embeds = self._embed(input_ids, inputs_embeds)
        shape = (embeds.shape[0], embeds.shape[1])
        if cache is not None and past_key_values is not None and cache is not past_key_values:
            raise ConfigError("RoFormerModel: past_key_values is an older name of cache; give one.")
        cache = self._cache(past_key_values if cache is None else cache, use_cache)
        num_cached = 0 if cache is None else cache.get_seq_length()
        check_batch(
            attention_mask,
            document_ids,
            position_ids,
            token_type_ids,
            shape=shape,
            num_cached=num_cached,
        )
        layout = self._layout(
            attention_mask, document_ids, position_ids, token_type_ids, shape, embeds.device, cache
        )
        if token_type_ids is not None:
            count = self.config.type_vocab_size
            if count:  # Else segments play no part.
                check_ids("token_type_ids", token_type_ids, count, f"type_vocab_size is {count}.")
            token_type_ids = layout.lay(token_type_ids)
        real = real_tokens(attention_mask, document_ids, shape[1])
        embeds = self.positions.add_to(layout.lay(embeds), layout, real)
        hidden = self.embeddings(embeds, token_type_ids)
        if hasattr(self, "embeddings_project"):
            hidden = self.embeddings_project(hidden)
        with_attentions = self._wants_attentions(output_attentions)
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        rotations, relations = self.positions(
            hidden, layout, real=real, document_ids=document_ids, cache=cache
        )
        hidden, all_hidden, attentions = self.encoder(
            hidden,
            layout,
            rotations,
            cache,
            relations=relations,
            with_hidden=bool(output_hidden_states),
        )
        if isinstance(cache, LinearStateCache):
            cache.advance(shape[1])
        last = layout.unlay(hidden)
        pooled = None
        if hasattr(self, "pooler"):
            pooled = self.pooler(first_token(last, real))
        output = RoFormerModelOutput(
            last_hidden_state=last,
            pooler_output=pooled,
            cache=cache,
            hidden_states=tuple(layout.unlay(h) for h in all_hidden) if all_hidden else None,
            attentions=attentions if with_attentions else None,
        )
        return finish(self.config, output, return_dict)

    def _embed(self, input_ids: Tensor | None, inputs_embeds: Tensor | None) -> Tensor:
        if (input_ids is None) == (inputs_embeds is None):
            raise ConfigError(
                "RoFormerModel: give either input_ids or inputs_embeds, one of the two."
            )
        words = self.embeddings.word_embeddings
        if inputs_embeds is not None:
            if inputs_embeds.ndim != 3 or inputs_embeds.shape[-1] != words.embedding_dim:
                raise ShapeError(
                    f"RoFormerModel: inputs_embeds have shape {tuple(inputs_embeds.shape)}; "
                    f"expected (batch, length, {words.embedding_dim})."
                )
            return inputs_embeds
        assert input_ids is not None
        if input_ids.ndim != 2:
            raise ShapeError(
                f"RoFormerModel: input_ids have shape {tuple(input_ids.shape)}; expected "
                "(batch, length). For one text add the batch axis: input_ids[None]."
            )
        hint = (
            f"the vocabulary has {words.num_embeddings} tokens; was the text encoded with this "
            "model's tokenizer?"
        )
        check_ids("input_ids", input_ids, words.num_embeddings, hint)
        return words(input_ids)

    def _cache(self, cache: Any, use_cache: bool | None) -> Any:
        if not self.config.is_decoder:
            if cache is not None or use_cache:
                raise ConfigError(
                    "RoFormerModel: a cache was asked for, but config.is_decoder is False; tokens "
                    "that come later would change the cached ones."
                )
            return None
        if cache is None and use_cache:
            if self.config.is_linear:
                return LinearStateCache(self.config.num_hidden_layers)
            return DynamicCache(config=self.config)
        if cache is not None:
            check_cache(cache, is_linear=self.config.is_linear)
        return cache

    def _layout(
        self,
        attention_mask: Tensor | None,
        document_ids: Tensor | None,
        position_ids: Tensor | None,
        token_type_ids: Tensor | None,
        shape: tuple[int, int],
        device: torch.device,
        cache: Any,
    ) -> TokenLayout:
        kind, is_linear = self.config._attn_implementation, self.config.is_linear
        where: dict[str, Any] = {
            "shape": shape,
            "is_causal": self.config.is_decoder,
            "device": device,
        }
        # Linear attention has no mask over pairs that could keep the documents of a row apart.
        needs_documents = is_linear and document_ids is not None
        # Lengths would be constants of a compiled program, so a compiler gets rows and a mask.
        if (
            (kind == "rotary_packed" or kind.startswith("flash") or needs_documents)
            and (attention_mask is None or attention_mask.ndim == 2)
            and cache is None
            and not self.config.is_prefix_lm
            and (needs_documents or not torch.compiler.is_compiling())
        ):
            return lay_end_to_end(
                attention_mask,
                document_ids,
                position_ids,
                **where,
            )
        num_cached = 0 if cache is None else cache.get_seq_length()
        if is_linear:
            return lay_for_linear(attention_mask, position_ids, num_cached=num_cached, **where)
        segments = None
        is_mask_made = attention_mask is not None and attention_mask.ndim == 4
        if self.config.is_prefix_lm and not is_mask_made:
            segments = prefix_segments(token_type_ids, shape, device, num_cached)
        return lay_in_rows(
            attention_mask,
            document_ids,
            position_ids,
            **where,
            segments=segments,
            num_cached=num_cached,
            num_keys=None if cache is None else cache.get_mask_sizes(shape[1], 0)[0],
        )

    def _wants_attentions(self, asked: bool | None) -> bool:
        wanted = self.config.output_attentions if asked is None else asked
        if wanted and self.config.is_linear:
            raise ConfigError(
                "RoFormerModel: output_attentions was asked for, but attention_form "
                f"{self.config.attention_form!r} never forms probabilities; only 'softmax' does."
            )
        if wanted and self.positions.relates:
            raise ConfigError(
                "RoFormerModel: output_attentions was asked for, but position_encoding "
                f"{self.config.position_encoding!r} has an attention of its own, which does not "
                "show its probabilities."
            )
        if wanted and self.config._attn_implementation != "eager":
            raise ConfigError(
                "RoFormerModel: output_attentions needs attn_implementation='eager', which alone "
                f"forms the probabilities; this model has {self.config._attn_implementation!r}. "
                "Call model.set_attn_implementation('eager')."
            )
        return bool(wanted)
