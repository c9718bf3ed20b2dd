"""What stands on top of the encoder: logits, one vector for a text, losses."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers.activations import ACT2FN

from rotary._shapes import Float
from rotary.errors import ShapeError
from rotary.models.roformer.configuration_roformer import RoFormerConfig
from rotary.models.roformer.layers import linear, norm
from rotary.models.roformer.token_layout import first_real


class RoFormerTransform(nn.Module):
    """Dense, activation and norm before the vocabulary."""

    def __init__(self, config: RoFormerConfig) -> None:
        super().__init__()
        assert config.embedding_size is not None
        self.dense = linear(config, config.hidden_size, config.embedding_size)
        self.activation = ACT2FN[config.hidden_act]
        self.LayerNorm = norm(config, config.embedding_size)

    def forward(self, hidden: Tensor) -> Tensor:
        """Map to the width of the embeddings."""
        return self.LayerNorm(self.activation(self.dense(hidden)))


class RoFormerPredictions(nn.Module):
    """Logits over the vocabulary, by the token embedding and, in V1, a bias."""

    bias: nn.Parameter | None

    def __init__(self, config: RoFormerConfig) -> None:
        super().__init__()
        assert config.embedding_size is not None
        is_full = config.lm_head == "transform"
        if is_full:
            self.transform: nn.Module = RoFormerTransform(config)
        elif config.embedding_size != config.hidden_size:
            self.transform = nn.Linear(config.hidden_size, config.embedding_size, bias=False)
        else:
            self.transform = nn.Identity()
        self.dropout = nn.Dropout(0.0 if is_full else config.hidden_dropout_prob)
        self.decoder = nn.Linear(config.embedding_size, config.vocab_size, bias=is_full)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size)) if is_full else None

    def forward(self, hidden: Tensor) -> Tensor:
        """Hidden states (..., hidden size) to logits (..., vocabulary)."""
        return self.decoder(self.dropout(self.transform(hidden)))


class RoFormerLMHead(nn.Module):
    """The language-model head, under the name it has in checkpoints."""

    def __init__(self, config: RoFormerConfig) -> None:
        super().__init__()
        self.predictions = RoFormerPredictions(config)

    def forward(self, hidden: Tensor) -> Tensor:
        """Hidden states to logits."""
        return self.predictions(hidden)


class RoFormerClassificationHead(nn.Module):
    """Two dense layers with dropout: the head of stock sequence classification."""

    def __init__(self, config: RoFormerConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.out_proj = nn.Linear(config.hidden_size, config.num_labels)
        self.activation = ACT2FN[config.hidden_act]

    def forward(self, pooled: Float[Tensor, "batch hidden"]) -> Float[Tensor, "batch labels"]:
        """One vector per text to one logit per label."""
        inner = self.activation(self.dense(self.dropout(pooled)))
        return self.out_proj(self.dropout(inner))


class RoFormerPooler(nn.Module):
    """A dense layer on the first token of each text: linear in RoFormer-Sim, tanh in BERT."""

    def __init__(self, config: RoFormerConfig) -> None:
        super().__init__()
        assert config.pooler_activation is not None
        self.dense = linear(config, config.hidden_size, config.hidden_size)
        self.activation = ACT2FN[config.pooler_activation]

    def forward(self, first: Float[Tensor, "batch hidden"]) -> Float[Tensor, "batch hidden"]:
        """Vectors of first tokens to vectors of texts."""
        return self.activation(self.dense(first))


def first_token(
    hidden: Float[Tensor, "batch length hidden"], attention_mask: Tensor | None
) -> Float[Tensor, "batch hidden"]:
    """The vector of the first real token of each text, wherever its padding is."""
    if attention_mask is None:
        return hidden[:, 0]
    _check_tokens(attention_mask)
    rows = torch.arange(hidden.shape[0], device=hidden.device)
    return hidden[rows, first_real(attention_mask)]


def mean_of_tokens(
    hidden: Float[Tensor, "batch length hidden"], attention_mask: Tensor | None
) -> Float[Tensor, "batch hidden"]:
    """The mean of the vectors of all real tokens, [CLS] and [SEP] included."""
    if attention_mask is None:
        return hidden.mean(dim=1)
    _check_tokens(attention_mask)
    weights = attention_mask.bool().unsqueeze(-1)
    # `where`, not a product: what stands at padding may be anything.
    total = torch.where(weights, hidden, 0.0).sum(dim=1)
    return total / weights.sum(dim=1).clamp(min=1)


def _check_tokens(attention_mask: Tensor) -> None:
    """Raise for a mask over pairs of tokens, which does not tell what is padding."""
    if attention_mask.ndim != 2:
        raise ShapeError(
            f"RoFormer: attention_mask has shape {tuple(attention_mask.shape)}, but one vector for "
            "each text needs (batch, length), 1 or True for real tokens."
        )


def pool(config: RoFormerConfig, hidden: Tensor, attention_mask: Tensor | None) -> Tensor:
    """One vector for each text, as ``config.pooling`` says."""
    way = first_token if config.pooling == "first" else mean_of_tokens
    return way(hidden, attention_mask)


def token_loss(
    logits: Tensor, labels: Tensor, num_items_in_batch: Tensor | int | None = None
) -> Tensor:
    """Mean cross entropy over the labelled tokens, in float32 or wider; 0 where there are none."""
    logits = logits.flatten(0, -2)
    labels = labels.flatten().to(logits.device)
    if logits.dtype in (torch.float16, torch.bfloat16):
        logits = logits.float()
    total = cross_entropy(logits, labels, ignore_index=-100, reduction="sum")
    if num_items_in_batch is None:
        return total / (labels != -100).sum().clamp(min=1)
    if isinstance(num_items_in_batch, Tensor):
        num_items_in_batch = num_items_in_batch.to(total.device)
    return total / num_items_in_batch


def check_labels(head: str, labels: Tensor, hidden: Tensor) -> None:
    """Raise unless there is one label for each token."""
    if tuple(labels.shape) != tuple(hidden.shape[:2]):
        raise ShapeError(
            f"{head}: labels have shape {tuple(labels.shape)}; the tokens are "
            f"(batch, length) = {tuple(hidden.shape[:2])}, and they must have the same."
        )


def finish(config: RoFormerConfig, output: Any, return_dict: bool | None) -> Any:
    """Return an object with names or a tuple, as asked here or else in the config."""
    wants_dict = config.return_dict if return_dict is None else return_dict
    return output if wants_dict else output.to_tuple()
