"""RoFormer: a transformer whose only knowledge of positions is the rotation of queries and keys."""

from rotary.models.roformer.causal_lm import RoFormerForCausalLM
from rotary.models.roformer.configuration_roformer import RoFormerConfig, RotaryRoFormerConfig
from rotary.models.roformer.linear_layers import LinearStateCache
from rotary.models.roformer.masked_lm import RoFormerForMaskedLM
from rotary.models.roformer.modeling_roformer import RoFormerModel
from rotary.models.roformer.pretrained import RoFormerPreTrainedModel
from rotary.models.roformer.sequence_heads import (
    RoFormerForMultipleChoice,
    RoFormerForPairMatching,
    RoFormerForSentenceEmbedding,
    RoFormerForSequenceClassification,
)
from rotary.models.roformer.token_heads import (
    RoFormerForQuestionAnswering,
    RoFormerForTokenClassification,
)
from rotary.models.roformer.tokenization_roformer import RoFormerTokenizer
from rotary.models.roformer.vocabulary import check_fits, read_vocabulary, train_vocabulary

__all__ = [
    "LinearStateCache",
    "RoFormerConfig",
    "RoFormerForCausalLM",
    "RoFormerForMaskedLM",
    "RoFormerForMultipleChoice",
    "RoFormerForPairMatching",
    "RoFormerForQuestionAnswering",
    "RoFormerForSentenceEmbedding",
    "RoFormerForSequenceClassification",
    "RoFormerForTokenClassification",
    "RoFormerModel",
    "RoFormerPreTrainedModel",
    "RoFormerTokenizer",
    "RotaryRoFormerConfig",
    "check_fits",
    "read_vocabulary",
    "train_vocabulary",
]
