"""Tiny models and batches that several test files share."""

import pathlib
import sys

import pytest
import torch

from rotary.models import RoFormerConfig

sys.path.insert(0, str(pathlib.Path(__file__).parent))  # For the helpers beside the tests.

SIZES = {
    "vocab_size": 50,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "initializer_range": 0.3,
}


@pytest.fixture
def build():
    """A function that builds a tiny model of a class, float64 and in eval mode."""

    def build(cls, *, dtype=torch.float64, **config):
        return cls(RoFormerConfig(**{**SIZES, **config})).to(dtype).eval()

    return build
