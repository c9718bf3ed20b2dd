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
from rotary.models.roformer.token_layout import lay_in_rows

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
            logits_to_keep: Compute logits of only that many last tokens, or of these places;
                0 means all.
            output_attentions: Return attention probabilities.
            output_hidden_states: Return the output of every layer.
            return_dict: Return an object with names or a tuple.

        Returns:
            ``loss`` when there are labels, ``logits`` (batch, length, vocabulary) and the cache.
            With ``config.sparse_logits`` and labels the logits are (labels, vocabulary).
        """
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
            if self.config.sparse_logits:
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

    def prepare_inputs_for_generation(self, input_ids: Tensor, **kwargs: Any) -> dict[str, Any]:
        """Choose the inputs of one step; a prefix model needs to be told its prefix."""
        if self.config.is_prefix_lm and kwargs.get("token_type_ids") is None:
            raise ConfigError(
                "RoFormerForCausalLM.generate: this prefix model needs token_type_ids, 0 for the "
                "text it starts from; what it writes is segment 1."
            )
        inputs: dict[str, Any] = super().prepare_inputs_for_generation(input_ids, **kwargs)
        return inputs

    def _prepare_cache_for_generation(
        self, generation_config: Any, model_kwargs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> Any:
        """Give linear attention its own kind of cache; see transformers' ``generate``."""
        is_plain = (
            model_kwargs.get(_CACHE_FIELD) is None and generation_config.use_cache is not False
        )
        if not (self.config.is_linear and is_plain):
            return super()._prepare_cache_for_generation(
                generation_config, model_kwargs, *args, **kwargs
            )
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
        is_start = config.is_prefix_lm and int(num_cached) == 0
        mask = lay_in_rows(
            attention_mask,
            None,
            position_ids,
            shape=shape,
            is_causal=True,
            device=inputs_embeds.device,
            segments=token_type_ids if is_start else None,
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
