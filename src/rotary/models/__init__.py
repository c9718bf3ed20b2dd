"""Models to train and to use: Hugging Face models in the full sense."""

from rotary.models.roformer import RoFormerConfig, RoFormerForMaskedLM, RoFormerModel

__all__ = ["RoFormerConfig", "RoFormerForMaskedLM", "RoFormerModel"]
