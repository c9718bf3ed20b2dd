"""Our RoFormers against a NumPy forward pass written from the notes, float64."""

import numpy as np
import pytest
import torch
from numpy_roformer import forward

from rotary.models import RoFormerConfig, RoFormerForCausalLM, RoFormerForMaskedLM

SIZES = {
    "vocab_size": 40,
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "initializer_range": 0.3,
}
V2 = {"norm_type": "rms_norm", "use_bias": False, "hidden_act": "relu"}


def model_of(cls, **config):
    model = cls(RoFormerConfig(**{**SIZES, **config})).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))
    return model


@pytest.mark.parametrize(
    ("cls", "config", "reference"),
    [
        (RoFormerForMaskedLM, {}, {}),
        (RoFormerForMaskedLM, {"embedding_size": 12}, {}),
        (RoFormerForMaskedLM, {"rope_parameters": {"rope_theta": 50.0}}, {"base": 50.0}),
        (RoFormerForMaskedLM, {"norm_position": "pre"}, {"pre_norm": True}),
        (RoFormerForMaskedLM, {"nope_layers": [0, 2]}, {"unrotated": (0, 2)}),
        (RoFormerForMaskedLM, {"position_encoding": "none"}, {"unrotated": (0, 1, 2)}),
        (RoFormerForMaskedLM, V2, {"version": 2}),
        (RoFormerForMaskedLM, {**V2, "embedding_size": 12}, {"version": 2}),
        (RoFormerForCausalLM, {"is_decoder": True}, {}),
        (RoFormerForCausalLM, {"is_decoder": True, "norm_position": "pre"}, {"pre_norm": True}),
    ],
)
def test_hidden_states_and_logits(cls, config, reference):
    model = model_of(cls, **config)
    weights = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    ids, segments = torch.randint(0, 40, (9,)), torch.tensor([0] * 4 + [1] * 5)
    mask = np.ones((9, 9), dtype=bool)
    if config.get("is_decoder"):
        mask = np.tril(mask)
    hidden, logits = forward(
        weights,
        ids.numpy(),
        segments.numpy(),
        mask,
        num_heads=2,
        num_layers=3,
        **reference,
    )
    output = model(ids[None], token_type_ids=segments[None], output_hidden_states=True)
    assert np.abs(logits).max() > 1
    np.testing.assert_allclose(output.hidden_states[-1][0].detach(), hidden, rtol=0, atol=1e-12)
    np.testing.assert_allclose(output.logits[0].detach(), logits, rtol=0, atol=1e-12)


def test_v2_has_no_biases_and_no_norm_weights():
    names = [name for name, _ in model_of(RoFormerForMaskedLM, **V2).named_parameters()]
    assert not any("bias" in name or "Norm" in name for name in names)
    assert len(names) == 2 + 3 * 6


def test_v2_starts_from_its_own_deviation():
    """Truncated normal of std 1.13684723 / sqrt(fan) / sqrt(layers): 1 / sqrt(fan * layers)."""
    model = RoFormerForMaskedLM(
        RoFormerConfig(
            **V2,
            vocab_size=12000,
            num_hidden_layers=2,
            initializer_range=None,
            hidden_size=384,
            num_attention_heads=6,
            intermediate_size=1536,
        )
    )
    layer = model.roformer.encoder.layer[0]
    for weight, fan in (
        (model.roformer.embeddings.word_embeddings.weight, 384),
        (layer.attention.self.query.weight, 384),
        (layer.output.dense.weight, 1536),
    ):
        assert weight.std().item() == pytest.approx((fan * 2) ** -0.5, rel=0.01)
