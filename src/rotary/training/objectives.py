"""What a model is trained to do, with the words that its numbers are given in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rotary.models.roformer import RoFormerForCausalLM, RoFormerForMaskedLM
from rotary.training.run_config import ObjectiveName


@dataclass(frozen=True)
class Objective:
    """An objective.

    Attributes:
        name: How a run config calls it.
        title: How a reader does.
        unit: What losses are counted in.
        accuracy: What the accuracy is of.
        model_class: The model that it trains.
        is_causal: Whether tokens see only what came before them.
    """

    name: ObjectiveName
    title: str
    unit: str
    accuracy: str
    model_class: Any
    is_causal: bool


MASKED = Objective(
    name="masked",
    title="masked language modelling",
    unit="nats per masked token",
    accuracy="masked accuracy",
    model_class=RoFormerForMaskedLM,
    is_causal=False,
)
CAUSAL = Objective(
    name="causal",
    title="causal language modelling",
    unit="nats per token",
    accuracy="next-token accuracy",
    model_class=RoFormerForCausalLM,
    is_causal=True,
)
OBJECTIVES: dict[str, Objective] = {objective.name: objective for objective in (MASKED, CAUSAL)}
