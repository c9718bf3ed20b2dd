"""Models to train and to use: Hugging Face models in the full sense."""

from rotary.errors import missing

try:
    from rotary.models.register import register
    from rotary.models.roformer import (
        LinearStateCache,
        RoFormerConfig,
        RoFormerForCausalLM,
        RoFormerForMaskedLM,
        RoFormerForMultipleChoice,
        RoFormerForPairMatching,
        RoFormerForQuestionAnswering,
        RoFormerForSentenceEmbedding,
        RoFormerForSequenceClassification,
        RoFormerForTokenClassification,
        RoFormerModel,
        RoFormerTokenizer,
        RotaryRoFormerConfig,
        check_fits,
        train_vocabulary,
    )
except ModuleNotFoundError as error:
    if (error.name or "rotary").partition(".")[0] == "rotary":
        raise
    raise missing("rotary.models", error.name, "models") from error

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
    "RoFormerTokenizer",
    "RotaryRoFormerConfig",
    "check_fits",
    "register",
    "train_vocabulary",
]
