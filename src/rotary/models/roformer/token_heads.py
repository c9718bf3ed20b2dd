"""Heads that say something about each token: tagging, and the span that answers a question."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import QuestionAnsweringModelOutput, TokenClassifierOutput

from rotary.errors import ConfigError
from rotary.models.roformer.configuration_roformer import RoFormerConfig
from rotary.models.roformer.heads import check_labels, finish, token_loss
from rotary.models.roformer.modeling_roformer import RoFormerModel
from rotary.models.roformer.pretrained import RoFormerPreTrainedModel


class RoFormerForTokenClassification(RoFormerPreTrainedModel):
    """One of ``config.num_labels`` for each token: tagging, named entities, segmentation."""

    accepts_loss_kwargs = True

    def __init__(self, config: RoFormerConfig) -> None:
        super().__init__(config)
        self.roformer = RoFormerModel(config)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
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
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> Any:
        """Label tokens; see :meth:`RoFormerModel.forward` for the inputs.

        Args:
            input_ids: Tokens, (batch, length).
            attention_mask: 1 or True for real tokens.
            token_type_ids: Segments.
            position_ids: Integer positions.
            inputs_embeds: Embeddings instead of tokens.
            document_ids: Documents of packed rows.
            labels: Right labels, (batch, length), -100 where none is asked for.
            num_items_in_batch: Divide the summed loss by this instead of the number of labels.
            output_attentions: Return attention probabilities.
            output_hidden_states: Return the output of every layer.
            return_dict: Return an object with names or a tuple.

        Returns:
            ``loss`` when there are labels and ``logits`` (batch, length, labels).
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
        logits = self.classifier(self.dropout(outputs.last_hidden_state))
        loss = None
        if labels is not None:
            check_labels(type(self).__name__, labels, logits)
            loss = token_loss(logits, labels, num_items_in_batch)
        output = TokenClassifierOutput(
            loss=loss,
            logits=logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )
        return finish(self.config, output, return_dict)


class RoFormerForQuestionAnswering(RoFormerPreTrainedModel):
    """First and last token of the answer in a text that follows the question."""

    def __init__(self, config: RoFormerConfig) -> None:
        super().__init__(config)
        self.roformer = RoFormerModel(config)
        self.qa_outputs = nn.Linear(config.hidden_size, 2)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> Any:
        """Find the answer; see :meth:`RoFormerModel.forward` for the inputs.

        Args:
            input_ids: Question and text, (batch, length).
            attention_mask: 1 or True for real tokens; padding gets no share of the probability.
            token_type_ids: Segments: 0 for the question, 1 for the text.
            position_ids: Integer positions.
            inputs_embeds: Embeddings instead of tokens.
            start_positions: First token of the answer, (batch,); one that is negative, or beyond
                the text after truncation, is left out of the loss.
            end_positions: Last token of the answer, (batch,).
            output_attentions: Return attention probabilities.
            output_hidden_states: Return the output of every layer.
            return_dict: Return an object with names or a tuple.

        Returns:
            ``loss`` when both positions are given, ``start_logits`` and ``end_logits``
            (batch, length).

        Raises:
            ConfigError: If an answer begins or ends on padding (read on a CPU only).
        """
        outputs = self.roformer(
            input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            output_attentions=output_attentions,
            output_hidden_states=output_hidden_states,
            return_dict=True,
        )
        start, end = self.qa_outputs(outputs.last_hidden_state).unbind(-1)
        if attention_mask is not None and attention_mask.ndim == 2:
            # Padding is no answer; without this the loss would depend on how much there is.
            lowest = torch.finfo(start.dtype).min
            is_padding = ~attention_mask.bool()
            start, end = (x.masked_fill(is_padding, lowest) for x in (start, end))
        loss = None
        if start_positions is not None and end_positions is not None:
            losses = [
                _place_loss(x, places.reshape(-1), attention_mask)
                for x, places in ((start, start_positions), (end, end_positions))
            ]
            loss = (losses[0] + losses[1]) / 2
        output = QuestionAnsweringModelOutput(
            loss=loss,
            start_logits=start,
            end_logits=end,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )
        return finish(self.config, output, return_dict)


def _place_loss(logits: Tensor, places: Tensor, attention_mask: Tensor | None) -> Tensor:
    """Mean cross entropy over the texts whose place is in them; 0 where none is."""
    is_inside = (places >= 0) & (places < logits.shape[1])
    places = places.where(is_inside, 0)
    if (
        attention_mask is not None
        and attention_mask.ndim == 2
        and logits.device.type == "cpu"
        and not torch.compiler.is_compiling()
    ):
        is_padding = ~attention_mask.bool().gather(1, places[:, None])[:, 0] & is_inside
        if is_padding.any():
            row = int(is_padding.nonzero()[0])
            raise ConfigError(
                f"RoFormerForQuestionAnswering: the answer of row {row} begins or ends at token "
                f"{int(places[row])}, which is padding."
            )
    return token_loss(logits, places.where(is_inside, -100))
