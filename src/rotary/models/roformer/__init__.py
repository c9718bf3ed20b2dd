"""RoFormer: a transformer whose only knowledge of positions is the rotation of queries and keys."""

from rotary.models.roformer.configuration_roformer import RoFormerConfig, RotaryRoFormerConfig
from rotary.models.roformer.modeling_roformer import (
    RoFormerForMaskedLM,
    RoFormerModel,
    RoFormerPreTrainedModel,
)

__all__ = [
    "RoFormerConfig",
    "RoFormerForMaskedLM",
    "RoFormerModel",
    "RoFormerPreTrainedModel",
    "RotaryRoFormerConfig",
]
