"""Heads that say something about a whole text: classes, pairs, choices, a sentence's vector."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import (
    binary_cross_entropy_with_logits,
    cross_entropy,
    mse_loss,
    normalize,
)
from transformers.modeling_outputs import (
    ModelOutput,
    MultipleChoiceModelOutput,
    SequenceClassifierOutput,
)

from rotary.errors import ConfigError, ShapeError
from rotary.models.roformer.configuration_roformer import RoFormerConfig
from rotary.models.roformer.heads import (
    RoFormerClassificationHead,
    finish,
    mean_of_tokens,
    pool,
)
from rotary.models.roformer.modeling_roformer import RoFormerModel
from rotary.models.roformer.pretrained import RoFormerPreTrainedModel


class RoFormerForSequenceClassification(RoFormerPreTrainedModel):
    """One of ``config.num_labels`` for each text, or a number with one label.

    The text's vector is its first token's, or the mean of all (``config.pooling``).
    """

    def __init__(self, config: RoFormerConfig) -> None:
        super().__init__(config)
        self.roformer = RoFormerModel(config)
        self.classifier = RoFormerClassificationHead(config)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> Any:
        """Classify texts; see :meth:`RoFormerModel.forward` for the inputs.

        Args:
            input_ids: Tokens, (batch, length).
            attention_mask: 1 or True for real tokens.
            token_type_ids: Segments.
            position_ids: Integer positions.
            inputs_embeds: Embeddings instead of tokens.
            labels: Class of each text (batch,), its value with one label, or a float 0 or 1 for
                each label (batch, labels); ``config.problem_type`` may say which.
            output_attentions: Return attention probabilities.
            output_hidden_states: Return the output of every layer.
            return_dict: Return an object with names or a tuple.

        Returns:
            ``loss`` when there are labels and ``logits`` (batch, labels).
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
        logits = self.classifier(pool(self.config, outputs.last_hidden_state, attention_mask))
        loss = None if labels is None else class_loss(self.config, logits, labels)
        output = SequenceClassifierOutput(
            loss=loss,
            logits=logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )
        return finish(self.config, output, return_dict)


class RoFormerForPairMatching(RoFormerPreTrainedModel):
    """Does text A match text B: the head of RoFormer's CAIL2019-SCM experiment.

    Both texts are one input, ``[CLS] A [SEP] B [SEP]`` with segments 0 and 1; the mean of all
    tokens, special ones included, goes through one dense layer to one logit. Which of two texts is
    closer to A is the one with the strictly greater logit.
    """

    def __init__(self, config: RoFormerConfig) -> None:
        super().__init__(config)
        self.roformer = RoFormerModel(config)
        self.score = nn.Linear(config.hidden_size, 1)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> Any:
        """Score pairs; see :meth:`RoFormerModel.forward` for the inputs.

        Args:
            input_ids: Tokens, (batch, length).
            attention_mask: 1 or True for real tokens.
            token_type_ids: Segments.
            position_ids: Integer positions.
            inputs_embeds: Embeddings instead of tokens.
            labels: 1 for pairs that match, 0 for the others, (batch,).
            output_attentions: Return attention probabilities.
            output_hidden_states: Return the output of every layer.
            return_dict: Return an object with names or a tuple.

        Returns:
            ``loss`` (binary cross entropy) when there are labels and ``logits`` (batch,); their
            sigmoid is the probability of a match.
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
        logits = self.score(mean_of_tokens(outputs.last_hidden_state, attention_mask)).squeeze(-1)
        loss = None
        if labels is not None:
            labels = labels.to(logits.dtype).reshape(-1)
            if labels.device.type == "cpu" and not torch.compiler.is_compiling():
                outside = labels[~((labels >= 0) & (labels <= 1))]
                if outside.numel():
                    raise ConfigError(
                        f"RoFormerForPairMatching: labels hold {outside[0].item():g}; a pair "
                        "matches with 1 and does not with 0."
                    )
            loss = binary_cross_entropy_with_logits(logits, labels)
        output = SequenceClassifierOutput(
            loss=loss,
            logits=logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )
        return finish(self.config, output, return_dict)


class RoFormerForMultipleChoice(RoFormerPreTrainedModel):
    """Choose between texts. Stock reads the last place, padding or not; here it is a real token."""

    def __init__(self, config: RoFormerConfig) -> None:
        super().__init__(config)
        self.roformer = RoFormerModel(config)
        self.classifier = nn.Linear(config.hidden_size, 1)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> Any:
        """Score choices; see :meth:`RoFormerModel.forward`, with one axis more.

        Args:
            input_ids: Tokens, (batch, choices, length).
            attention_mask: 1 or True for real tokens.
            token_type_ids: Segments.
            position_ids: Integer positions, (batch, choices, length) or (length,).
            inputs_embeds: Embeddings instead of tokens.
            labels: Right choice of each row, (batch,).
            output_attentions: Return attention probabilities.
            output_hidden_states: Return the output of every layer.
            return_dict: Return an object with names or a tuple.

        Returns:
            ``loss`` when there are labels and ``logits`` (batch, choices).
        """
        given = input_ids if input_ids is not None else inputs_embeds
        if given is None or given.ndim != (3 if input_ids is not None else 4):
            raise ShapeError(
                "RoFormerForMultipleChoice: expected input_ids of shape (batch, choices, length); "
                f"got {None if given is None else tuple(given.shape)}."
            )
        choices = given.shape[1]
        input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds = (
            x if x is None or x.ndim == 1 else x.flatten(0, 1)
            for x in (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        )
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
        pooled = pool(self.config, outputs.last_hidden_state, attention_mask)
        logits = self.classifier(pooled).reshape(-1, choices)
        loss = None if labels is None else cross_entropy(logits, labels)
        output = MultipleChoiceModelOutput(
            loss=loss,
            logits=logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )
        return finish(self.config, output, return_dict)


@dataclass
class RoFormerSentenceOutput(ModelOutput):
    """What the sentence model returns.

    Args:
        sentence_embedding: Vectors of length 1, (batch, hidden size).
        hidden_states: Output of every layer, when asked for.
        attentions: Probabilities of every layer, when asked for.
    """

    sentence_embedding: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None


class RoFormerForSentenceEmbedding(RoFormerPreTrainedModel):
    """A vector of length 1 for each text; their dot product is the similarity (RoFormer-Sim).

    The vector is the pooler's where the config has one (``pooler_activation="linear"`` in
    RoFormer-Sim), else the first token's or the mean of all (``config.pooling``).
    """

    def __init__(self, config: RoFormerConfig) -> None:
        super().__init__(config)
        self.roformer = RoFormerModel(config)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> Any:
        """Embed texts; see :meth:`RoFormerModel.forward` for the inputs.

        Args:
            input_ids: Tokens, (batch, length).
            attention_mask: 1 or True for real tokens.
            token_type_ids: Segments.
            position_ids: Integer positions.
            inputs_embeds: Embeddings instead of tokens.
            output_attentions: Return attention probabilities.
            output_hidden_states: Return the output of every layer.
            return_dict: Return an object with names or a tuple.

        Returns:
            ``sentence_embedding`` (batch, hidden size).
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
        pooled = outputs.pooler_output
        if pooled is None:
            pooled = pool(self.config, outputs.last_hidden_state, attention_mask)
        output = RoFormerSentenceOutput(
            sentence_embedding=normalize(pooled, dim=-1),
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )
        return finish(self.config, output, return_dict)


def class_loss(config: RoFormerConfig, logits: Tensor, labels: Tensor) -> Tensor:
    """The loss of the problem type, which the labels show where the config does not name it."""
    problem = config.problem_type
    if problem is None:
        if logits.shape[-1] == 1:
            problem = "regression"
        elif labels.dtype in (torch.int64, torch.int32):
            problem = "single_label_classification"
        else:
            problem = "multi_label_classification"
    if problem == "single_label_classification":
        _check_classes(labels, logits.shape[-1])
        return cross_entropy(logits, labels.reshape(-1).long())
    labels = labels.to(logits.dtype).reshape(logits.shape)
    if problem == "regression":
        return mse_loss(logits, labels)
    return binary_cross_entropy_with_logits(logits, labels)


def _check_classes(labels: Tensor, num_labels: int) -> None:
    """Raise for a class that the head does not have; -100 asks for none (read on a CPU only)."""
    if labels.device.type != "cpu" or torch.compiler.is_compiling():
        return
    outside = labels[((labels < 0) & (labels != -100)) | (labels >= num_labels)]
    if outside.numel():
        raise ConfigError(
            f"RoFormerForSequenceClassification: labels hold {int(outside[0])}, but the head has "
            f"{num_labels} classes; build it with num_labels={max(int(labels.max()) + 1, 2)}."
        )
