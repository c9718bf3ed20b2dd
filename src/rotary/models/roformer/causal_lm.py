"""RoFormer as a language model that writes from left to right, with a cache and ``generate``."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationMixin
from transformers.modeling_outputs import CausalLMOutputWithPast

from rotary.errors import ConfigError
from rotary.models.roformer.configuration_roformer import RoFormerConfig
from rotary.models.roformer.heads import RoFormerLMHead, check_labels, finish, token_loss
from rotary.models.roformer.linear_layers import LinearStateCache
from rotary.models.roformer.masked_lm import RoFormerLMModel
from rotary.models.roformer.modeling_roformer import RoFormerModel
from rotary.models.roformer.token_layout import lay_in_rows, prefix_segments

_CACHE_FIELD = (
    "cache" if "cache" in {f.name for f in fields(CausalLMOutputWithPast)} else "past_key_values"
)
"""What this version of transformers calls the cache, in outputs and in what a step is given."""


class RoFormerForCausalLM(RoFormerLMModel, GenerationMixin):
    """RoFormer that predicts the next token (RoFormer-GPT; with ``is_prefix_lm`` RoFormer-Sim).

    A cached key keeps the position it was given, so text of any length is written with one
    rotation per step, and left padding and packed rows give what each text gives alone. With a
    linear ``attention_form`` the cache is a state of constant size, and a step costs the same at
    any length; it cannot take tokens back, so assisted decoding is refused.

    Example:
        >>> config = RoFormerConfig(
        ...     vocab_size=100, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        ...     intermediate_size=32, is_decoder=True,
        ... )
        >>> model = RoFormerForCausalLM(config).eval()
        >>> model.generate(torch.tensor([[1, 2, 3]]), max_new_tokens=4, do_sample=False).shape
        torch.Size([1, 7])
    """

    def __init__(self, config: RoFormerConfig) -> None:
        super().__init__(config)
        if not config.is_decoder:
            raise ConfigError(
                "RoFormerForCausalLM: config.is_decoder is False, so a token would see the ones it "
                "has to predict; use is_decoder=True, also with "
                "from_pretrained(..., is_decoder=True)."
            )
        self._is_stateful = config.is_linear
        self.roformer = RoFormerModel(config)
        self.cls = RoFormerLMHead(config)
        self.post_init()

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
        labels: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        sparse_logits: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> Any:
        """Predict each next token; see :meth:`RoFormerModel.forward` for the inputs.

        Args:
            input_ids: Tokens, (batch, length).
            attention_mask: 1 or True for real tokens, cached ones included.
            token_type_ids: Segments.
            position_ids: Integer positions.
            inputs_embeds: Embeddings instead of tokens.
            document_ids: Documents of packed rows; none predicts the next one's first token.
            cache: Keys and values of the tokens before.
            past_key_values: The older name of ``cache``.
            use_cache: Return the cache. ``config.use_cache`` when None, but not in training, with
                labels or with packed rows.
            labels: The tokens themselves, -100 where none is asked for; moved by one here.
            num_items_in_batch: Divide the summed loss by this instead of the number of labels.
            sparse_logits: With labels, compute logits only where there is one. When None, what the
                config says in training, and all logits in evaluation.
            logits_to_keep: Compute logits of only that many last tokens, or of these places;
                0 means all.
            output_attentions: Return attention probabilities.
            output_hidden_states: Return the output of every layer.
            return_dict: Return an object with names or a tuple.

        Returns:
            ``loss`` when there are labels, ``logits`` (batch, length, vocabulary) and the cache.
            Where they are sparse they are (labels, vocabulary).

        Raises:
            ConfigError: If a prefix model gets labels and no segments.
        """
        if self.config.is_prefix_lm and labels is not None and token_type_ids is None:
            raise ConfigError(
                "RoFormerForCausalLM: this prefix model needs token_type_ids beside labels, 0 for "
                "the prefix and 1 for what is to be predicted; without them all is prefix, and a "
                "token sees the one it has to predict."
            )
        is_plain = not self.training and labels is None and document_ids is None
        outputs = self.roformer(
            input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            document_ids=document_ids,
            cache=cache,
            past_key_values=past_key_values,
            use_cache=self.config.use_cache and is_plain if use_cache is None else use_cache,
            output_attentions=output_attentions,
            output_hidden_states=output_hidden_states,
            return_dict=True,
        )
        hidden = outputs.last_hidden_state
        targets = None
        if labels is not None:
            check_labels(type(self).__name__, labels, hidden)
            targets = _next_tokens(labels, document_ids)
            if self._is_sparse(sparse_logits):
                labelled = targets != -100
                hidden, targets = hidden[labelled], targets[labelled]
        elif isinstance(logits_to_keep, Tensor):
            hidden = hidden[:, logits_to_keep]
        elif logits_to_keep:
            hidden = hidden[:, -logits_to_keep:]
        logits = self.cls(hidden)
        loss = None if targets is None else token_loss(logits, targets, num_items_in_batch)
        output = CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
            **{_CACHE_FIELD: outputs.cache},
        )
        return finish(self.config, output, return_dict)

    def prepare_inputs_for_generation(
        self,
        input_ids: Tensor,
        next_sequence_length: int | None = None,
        inputs_embeds: Tensor | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Choose the inputs of one step; a prefix model needs to be told its prefix."""
        if self.config.is_prefix_lm and kwargs.get("token_type_ids") is None:
            raise ConfigError(
                "RoFormerForCausalLM.generate: this prefix model needs token_type_ids, 0 for the "
                "text it starts from; what it writes is segment 1."
            )
        if kwargs.get("is_first_iteration") and isinstance(
            kwargs.get(_CACHE_FIELD), LinearStateCache
        ):
            # transformers cuts off what a cache of keys has taken in, and not what a state has.
            given = input_ids if inputs_embeds is None else inputs_embeds
            num_new = _num_new(given, kwargs[_CACHE_FIELD], kwargs.get("attention_mask"))
            next_sequence_length = next_sequence_length if num_new is None else num_new
        inputs: dict[str, Any] = super().prepare_inputs_for_generation(
            input_ids,
            next_sequence_length=next_sequence_length,
            inputs_embeds=inputs_embeds,
            **kwargs,
        )
        return inputs

    def _expand_inputs_for_generation(
        self,
        expand_size: int = 1,
        is_encoder_decoder: bool = False,
        input_ids: Tensor | None = None,
        **model_kwargs: Any,
    ) -> tuple[Tensor, dict[str, Any]]:
        """Give prompts a mask where the length of the whole text has to be known."""
        is_wanted = self.roformer.positions.needs_lengths or (
            self.config.is_linear and model_kwargs.get(_CACHE_FIELD) is not None
        )
        given = model_kwargs.get("inputs_embeds")
        given = input_ids if given is None else given
        if is_wanted and given is not None and model_kwargs.get("attention_mask") is None:
            model_kwargs["attention_mask"] = given.new_ones(given.shape[:2], dtype=torch.int64)
        made: tuple[Tensor, dict[str, Any]] = super()._expand_inputs_for_generation(
            expand_size, is_encoder_decoder, input_ids, **model_kwargs
        )
        return made

    def _prepare_cache_for_generation(
        self, generation_config: Any, model_kwargs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> Any:
        """Give linear attention its own kind of cache; see transformers' ``generate``."""
        given = model_kwargs.get(_CACHE_FIELD)
        is_plain = given is None and generation_config.use_cache is not False
        if (
            isinstance(given, LinearStateCache)
            and given.get_seq_length()
            and generation_config.prefill_chunk_size is not None
        ):
            raise ConfigError(
                "RoFormerForCausalLM.generate: prefill_chunk_size cannot go with a state that has "
                "tokens in it; leave one of them out."
            )
        if not (self.config.is_linear and is_plain):
            done = super()._prepare_cache_for_generation(
                generation_config, model_kwargs, *args, **kwargs
            )
            # What is read first may be a part of the prompt, or have guessed tokens behind it.
            self.roformer.positions.fix_lengths(
                model_kwargs.get(_CACHE_FIELD),
                model_kwargs.get("attention_mask"),
                model_kwargs.get("position_ids"),
            )
            return done
        wanted = generation_config.cache_implementation
        if wanted not in (None, "dynamic"):
            raise ConfigError(
                f"RoFormerForCausalLM.generate: cache_implementation is {wanted!r}, but linear "
                "attention keeps a state of constant size, on the model's device; leave it out."
            )
        if generation_config.is_assistant:
            raise ConfigError(
                "RoFormerForCausalLM.generate: a linear model cannot assist another one, because "
                "its state cannot take tokens back; use a softmax model."
            )
        model_kwargs[_CACHE_FIELD] = LinearStateCache(self.config.num_hidden_layers)
        return None

    def _update_model_kwargs_for_generation(
        self, outputs: Any, model_kwargs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> dict[str, Any]:
        """Number what a prefix model writes as segment 1 (JunnYu/RoFormer_pytorch#45)."""
        segments = model_kwargs.pop("token_type_ids", None)
        updated: dict[str, Any] = super()._update_model_kwargs_for_generation(
            outputs, model_kwargs, *args, **kwargs
        )
        if segments is not None:
            new = segments[:, -1:]
            new = torch.ones_like(new) if self.config.is_prefix_lm else new
            updated["token_type_ids"] = torch.cat(
                [segments, new.expand(-1, kwargs.get("num_new_tokens", 1))], dim=-1
            )
        return updated

    def create_masks_for_generate(
        self,
        config: RoFormerConfig,
        inputs_embeds: Tensor,
        attention_mask: Tensor | None,
        cache: Any = None,
        position_ids: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        past_key_values: Any = None,
        **kwargs: Any,
    ) -> Tensor:
        """The mask over a cache of fixed size, boolean, (batch, 1, length, keys)."""
        cache = past_key_values if cache is None else cache
        shape = (inputs_embeds.shape[0], inputs_embeds.shape[1])
        num_cached = cache.get_seq_length()
        segments = None
        if config.is_prefix_lm:
            segments = prefix_segments(token_type_ids, shape, inputs_embeds.device, num_cached)
        mask = lay_in_rows(
            attention_mask,
            None,
            position_ids,
            shape=shape,
            is_causal=True,
            device=inputs_embeds.device,
            segments=segments,
            num_cached=num_cached,
            num_keys=cache.get_mask_sizes(shape[1], 0)[0],
        ).mask
        assert mask is not None
        return mask.expand(shape[0], 1, shape[1], -1)


def _next_tokens(labels: Tensor, document_ids: Tensor | None) -> Tensor:
    """What each token has to predict: the label after it, in the same document."""
    targets = torch.full_like(labels, -100)
    targets[:, :-1] = labels[:, 1:]
    if document_ids is not None:
        targets[:, :-1][document_ids[:, 1:] != document_ids[:, :-1]] = -100
    return targets


def _num_new(given: Tensor, cache: LinearStateCache, attention_mask: Tensor | None) -> int | None:
    """How many of the last tokens a state has not taken in; None where all given are new.

    As in transformers, a mask as long as what is given says that it is the whole text.
    """
    num_read, num_given = cache.get_seq_length(), given.shape[1]
    if not num_read or attention_mask is None or attention_mask.shape[1] != num_given:
        return None
    if num_read >= num_given:
        raise ConfigError(
            f"RoFormerForCausalLM.generate: the cache has taken in {num_read} tokens and the text "
            f"has {num_given}, so there is nothing new to read; put new tokens behind it, or leave "
            "the cache out."
        )
    return num_given - num_read
