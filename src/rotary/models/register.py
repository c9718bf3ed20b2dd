"""Put our models into transformers' Auto classes, so that scripts written for them find ours."""

from __future__ import annotations

import transformers

from rotary.models.roformer import (
    RoFormerConfig,
    RoFormerForCausalLM,
    RoFormerForMaskedLM,
    RoFormerForMultipleChoice,
    RoFormerForQuestionAnswering,
    RoFormerForSequenceClassification,
    RoFormerForTokenClassification,
    RoFormerModel,
    RoFormerTokenizer,
    RotaryRoFormerConfig,
)

AUTO_CLASSES = {
    "AutoModel": RoFormerModel,
    "AutoModelForCausalLM": RoFormerForCausalLM,
    "AutoModelForMaskedLM": RoFormerForMaskedLM,
    "AutoModelForMultipleChoice": RoFormerForMultipleChoice,
    "AutoModelForPreTraining": RoFormerForMaskedLM,
    "AutoModelForQuestionAnswering": RoFormerForQuestionAnswering,
    "AutoModelForSequenceClassification": RoFormerForSequenceClassification,
    "AutoModelForTokenClassification": RoFormerForTokenClassification,
}


def register() -> None:
    """Let ``AutoModel...``, ``AutoConfig``, ``AutoTokenizer`` and pipelines build what is ours.

    Takes the place of transformers' own RoFormer for folders of model type ``roformer``, and adds
    ``rotary_roformer``. Nothing else changes, it may be called more than once, and it lasts until
    the process ends.

    Example:
        >>> from transformers import AutoModelForMaskedLM
        >>> register()
        >>> config = RoFormerConfig(
        ...     vocab_size=100, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        ...     intermediate_size=32,
        ... )
        >>> type(AutoModelForMaskedLM.from_config(config)).__module__
        'rotary.models.roformer.masked_lm'
    """
    for config_class in (RoFormerConfig, RotaryRoFormerConfig):
        transformers.AutoConfig.register(config_class.model_type, config_class, exist_ok=True)
        transformers.AutoTokenizer.register(config_class, RoFormerTokenizer, exist_ok=True)
        for name, model_class in AUTO_CLASSES.items():
            # The public `register` refuses a model that serves two config classes.
            mapping = getattr(transformers, name)._model_mapping
            mapping.register(config_class, model_class, exist_ok=True)
