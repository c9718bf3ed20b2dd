"""RoFormer with a language-model head: what all such models share, and masked tokens."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from transformers.modeling_outputs import MaskedLMOutput

from rotary.errors import ConfigError
from rotary.models.roformer.configuration_roformer import RoFormerConfig
from rotary.models.roformer.heads import RoFormerLMHead, check_labels, finish, token_loss
from rotary.models.roformer.modeling_roformer import RoFormerModel
from rotary.models.roformer.pretrained import RoFormerPreTrainedModel


class RoFormerLMModel(RoFormerPreTrainedModel):
    """What language models share: the output layer is tied to the token embedding."""

    cls: RoFormerLMHead
    accepts_loss_kwargs = True
    _tied_weights_keys = {  # noqa: RUF012 (transformers reads it from the class)
        "cls.predictions.decoder.weight": "roformer.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    }

    def __init__(self, config: RoFormerConfig) -> None:
        super().__init__(config)
        if config.lm_head == "direct":  # No biases to tie.
            weight, embedding = next(iter(self._tied_weights_keys.items()))
            self._tied_weights_keys = {weight: embedding}

    def get_expanded_tied_weights_keys(self, all_submodels: bool = False) -> dict[str, str]:
        """The bias is one, also where the weights are not: checkpoints hold it under one name."""
        tied: dict[str, str] = super().get_expanded_tied_weights_keys(all_submodels)
        bias = "cls.predictions.decoder.bias"
        if bias in self._tied_weights_keys:
            tied[bias] = self._tied_weights_keys[bias]
        return tied

    def _is_sparse(self, asked: bool | None) -> bool:
        """Whether to leave logits out; who evaluates expects one for each token, unless asked."""
        return self.training and self.config.sparse_logits if asked is None else asked

    def get_output_embeddings(self) -> nn.Module:
        """The layer that gives the logits."""
        return self.cls.predictions.decoder

    def set_output_embeddings(self, new_embeddings: nn.Linear) -> None:
        """Replace it, and its bias with it."""
        self.cls.predictions.decoder = new_embeddings
        self.cls.predictions.bias = new_embeddings.bias


class RoFormerForMaskedLM(RoFormerLMModel):
    """RoFormer with the masked-language-model head, its output layer tied to the embedding."""

    def __init__(self, config: RoFormerConfig) -> None:
        super().__init__(config)
        if config.is_decoder:
            raise ConfigError(
                "RoFormerForMaskedLM: config.is_decoder is True, but masked tokens are predicted "
                "from both sides; use is_decoder=False."
            )
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
        labels: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        sparse_logits: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> Any:
        """Predict tokens; see :meth:`RoFormerModel.forward` for the inputs.

        Args:
            input_ids: Tokens, (batch, length).
            attention_mask: 1 or True for real tokens.
            token_type_ids: Segments.
            position_ids: Integer positions.
            inputs_embeds: Embeddings instead of tokens.
            document_ids: Documents of packed rows.
            labels: The right tokens, (batch, length), -100 where none is asked for.
            num_items_in_batch: Divide the summed loss by this instead of by the number of labels;
                the Trainer gives it when it accumulates gradients.
            sparse_logits: With labels, compute logits only where there is one. When None, what the
                config says in training, and all logits in evaluation.
            output_attentions: Return attention probabilities.
            output_hidden_states: Return the output of every layer.
            return_dict: Return an object with names or a tuple.

        Returns:
            ``loss`` when there are labels (0 where none is asked for) and ``logits``
            (batch, length, vocabulary). Where they are sparse they are (labels, vocabulary), in the
            order of ``labels[labels != -100]``.
        """
        outputs = self.roformer(
            input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            document_ids=document_ids,
            output_attentions=output_attentions,
            output_hidden_states=output_hidden_states,
            return_dict=True,
        )
        hidden = outputs.last_hidden_state
        if labels is not None:
            check_labels(type(self).__name__, labels, hidden)
        if labels is not None and self._is_sparse(sparse_logits):
            labelled = labels != -100
            hidden, labels = hidden[labelled], labels[labelled]
        logits = self.cls(hidden)
        loss = None
        if labels is not None:
            loss = token_loss(logits, labels, num_items_in_batch)
        output = MaskedLMOutput(
            loss=loss,
            logits=logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )
        return finish(self.config, output, return_dict)
