"""What users of other libraries met, as tests: layouts, checkpoints, precision, dtypes.

Each test is named after the report it comes from; the rule it checks stands beside it.
"""

import math

import pytest
import torch
from torch import nn

from rotary import RotaryEmbedding, Rotation, inverse_power, rotate, sequence
from rotary.errors import ConfigError, DtypeError, ShapeError
from rotary.layouts import (
    half_to_interleaved,
    interleaved_to_half,
    weight_half_to_interleaved,
    weight_interleaved_to_half,
)

ONE_TO_FOUR = torch.tensor([[1.0, 2.0, 3.0, 4.0]], dtype=torch.float64)


def turn(x, positions, layout, dim=None):
    rope = RotaryEmbedding(head_dim=dim or x.shape[-1], layout=layout)
    return rope(torch.as_tensor(positions), dtype=torch.float64)(x)


# --- layout and checkpoint conversion -----------------------------------------------------------


def test_huggingface_transformers_25199_permuted_weights_give_equal_scores():
    """Also 31859 and Dao-AILab/flash-attention 288: Meta's weights are interleaved, HF's half."""
    x = torch.randn(3, 5, dtype=torch.float64)
    query, key = torch.randn(2, 4, 5, dtype=torch.float64)

    def scores(query, key, layout):
        q, k = turn(x @ query.T, [0, 1, 2], layout), turn(x @ key.T, [0, 1, 2], layout)
        return q @ k.T

    converted = [weight_interleaved_to_half(w, head_dim=4) for w in (query, key)]
    before, after = scores(query, key, "interleaved"), scores(*converted, "half")
    torch.testing.assert_close(after, before, rtol=0, atol=1e-13)
    assert not torch.allclose(scores(query, key, "half"), before)


def test_huggingface_transformers_39687_the_layout_is_a_property_of_the_checkpoint():
    q = torch.arange(4, dtype=torch.float64)[None]
    c, s, c2, s2 = math.cos(1), math.sin(1), math.cos(0.01), math.sin(0.01)
    interleaved = [[-s, c, 2 * c2 - 3 * s2, 2 * s2 + 3 * c2]]
    half = [[-2 * s, c2 - 3 * s2, 2 * c, s2 + 3 * c2]]
    for layout, expected in (("interleaved", interleaved), ("half", half)):
        found = turn(q, [1], layout)
        torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64))


def test_huggingface_nanotron_427_converters_say_their_direction():
    """There is no default: each direction has a name, and the round trip is exact."""
    weight = torch.randn(8, 3)
    there = weight_interleaved_to_half(weight, head_dim=8)
    assert torch.equal(weight_half_to_interleaved(there, head_dim=8), weight)
    assert not torch.equal(weight_interleaved_to_half(there, head_dim=8), weight)
    with pytest.raises(TypeError, match="head_dim"):
        weight_interleaved_to_half(weight)


def test_nurl_lang_nurl_584_biases_and_partial_spans_are_converted_too():
    """Also ooples/AiDotNet 2074: rotary_dim 2 of 4 with a bias."""
    layer = nn.Linear(3, 8, dtype=torch.float64)
    x = torch.randn(5, 3, dtype=torch.float64)

    def heads():
        return layer(x).unflatten(-1, (2, 4)).transpose(0, 1)

    before = interleaved_to_half(turn(heads(), range(5), "interleaved", dim=4), rotary_dim=4)
    partial = turn(heads(), range(5), "interleaved", dim=2)
    with torch.no_grad():
        bias = layer.bias.clone()
        layer.weight.copy_(weight_interleaved_to_half(layer.weight, head_dim=4))
        layer.bias.copy_(weight_interleaved_to_half(layer.bias, head_dim=4))
    torch.testing.assert_close(turn(heads(), range(5), "half", dim=4), before)
    # A span of two channels is one plane, the same in both layouts: nothing moves.
    assert torch.equal(weight_interleaved_to_half(bias, head_dim=4, rotary_dim=2), bias)
    assert torch.equal(half_to_interleaved(partial, rotary_dim=2), partial)


def test_huggingface_transformers_47403_tables_know_their_layout():
    """Interleaved tables with a half rotation: here the tables carry the layout with them."""
    half, interleaved = (
        RotaryEmbedding(head_dim=4, layout=name)(sequence(2)) for name in ("half", "interleaved")
    )
    assert (half.layout, interleaved.layout) == ("half", "interleaved")
    assert torch.equal(half.cos, interleaved.cos)  # One value for each plane, never repeated.
    with pytest.raises(ShapeError, match="4 planes"):  # Repeated ones are refused.
        rotate(torch.ones(2, 4), half.cos.repeat_interleave(2, -1), half.sin.repeat(1, 2),
               layout="half")  # fmt: skip
    with pytest.raises(ConfigError, match="pair different channels"):
        half @ interleaved


def test_huggingface_transformers_47403_a_subset_of_the_heads():
    x = torch.randn(1, 3, 5, 4)
    turned = x.clone()
    rotation = RotaryEmbedding(head_dim=4)(sequence(5))
    rotation(turned[:, :1], inplace=True)
    torch.testing.assert_close(turned[:, :1], rotation(x[:, :1]))
    assert torch.equal(turned[:, 1:], x[:, 1:])


@pytest.mark.usefixtures("wrong_types")
def test_lucidrains_x_transformers_250_the_pairs_have_a_name():
    """Also lucidrains/rotary-embedding-torch 47, which asks for the second layout."""
    for layout, pairs in (("interleaved", [(0, 1), (2, 3)]), ("half", [(0, 2), (1, 3)])):
        for plane, pair in enumerate(pairs):
            unit = torch.zeros(1, 4, dtype=torch.float64)
            unit[0, pair[0]] = 1
            moved = turn(unit, [1], layout)
            assert moved.nonzero()[:, 1].tolist() == list(pair)
            assert moved[0, pair[1]] == pytest.approx(math.sin(100.0**-plane))
    with pytest.raises(ConfigError, match="'interleaved', 'half'"):
        RotaryEmbedding(head_dim=4, layout=True)


# --- precision and dtypes -----------------------------------------------------------------------


def test_eleutherai_gpt_neox_1003_half_modules_have_exact_angles():
    """Position 1857 of plane 1 of 32 channels was 1044.2678 instead of 1044.2...: 0.78 off."""
    exact = math.cos(1857 * 10000 ** (-2 / 32))
    for cast in (torch.float16, torch.bfloat16):
        rope = RotaryEmbedding(head_dim=32).to(cast)
        assert rope(sequence(2048)).cos[1857, 1].item() == pytest.approx(exact, abs=1e-7)


def test_huggingface_transformers_29496_a_longer_call_after_a_cast():
    """Also 25681, 29285: regrown tables were computed from frequencies already rounded."""
    rope = RotaryEmbedding(head_dim=32)
    expected = rope(sequence(64))
    rope.bfloat16()
    rope(sequence(8))
    assert torch.equal(rope(sequence(64)).sin, expected.sin)


def test_modalities_462_phase_error_of_a_bfloat16_module():
    """4096 / 32 = 128 channels: the error was 0.62 rad at 512 and pi at 4096; 3e-3 was the aim."""
    rope = RotaryEmbedding(head_dim=128).bfloat16()
    rotation = rope(torch.tensor([512, 4096]))
    angles = torch.tensor([[512.0], [4096.0]], dtype=torch.float64) * torch.tensor(
        [10000 ** (-2 * p / 128) for p in range(64)], dtype=torch.float64
    )
    found = torch.atan2(rotation.sin.double(), rotation.cos.double())
    error = (found - angles + math.pi) % (2 * math.pi) - math.pi
    assert error.abs().max() < 1e-6


def test_huggingface_candle_3520_positions_are_never_half_precision():
    """15962 became 15936 or 15968."""
    rope = RotaryEmbedding(head_dim=2)
    rotation = rope(torch.tensor([15962]))
    assert rotation.cos.item() == pytest.approx(math.cos(15962), abs=1e-7)
    for dtype in (torch.bfloat16, torch.float16):
        with pytest.raises(DtypeError, match="cannot tell neighbouring positions apart"):
            rope(torch.tensor([15962]).to(dtype))


def test_lucidrains_rotary_embedding_torch_8bb4643_rows_256_and_257_differ():
    """bfloat16 queries first, float32 afterwards: neither poisons the other."""
    rope = RotaryEmbedding(head_dim=8)
    x = torch.ones(300, 8)
    low, _ = rope.rotate(x.bfloat16(), x.bfloat16())
    assert not torch.equal(low[256], low[257])
    full, _ = rope.rotate(x, x)
    fresh, _ = RotaryEmbedding(head_dim=8).rotate(x, x)
    assert torch.equal(full, fresh)
    assert (low.float() - full).abs().max() < 1e-2


def test_kellerjordan_modded_nanogpt_39_tables_are_not_half_precision():
    """Also pytorch/torchchat 1104: cos(1) is 0.5403, not the 0.5391 of bfloat16."""
    rotation = RotaryEmbedding(head_dim=2).bfloat16()(torch.tensor([1]))
    assert rotation.cos.dtype == torch.float32
    assert rotation.cos.item() == pytest.approx(0.5403023, abs=1e-7)
    table = rotation.cos.bfloat16()
    with pytest.raises(DtypeError, match="lose the position"):
        rotate(torch.ones(1, 2), table, table, layout="half")


def test_nvidia_megatron_lm_744_a_cast_rounds_no_frequency():
    """Also NVIDIA-NeMo/Automodel 2549."""
    rope = RotaryEmbedding(head_dim=64)
    rope.to(torch.bfloat16)
    assert rope.frequencies == inverse_power(64)
    assert rope.frequencies.matrix[0, 1] == 10000 ** (-2 / 64)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_nvidia_megatron_lm_643_the_output_has_the_dtype_of_the_input(dtype):
    """Also transformers 24261, vllm-project/flash-attention 167, sgl-project/sglang 13124."""
    rotation = RotaryEmbedding(head_dim=8)(sequence(3))
    assert rotation(torch.ones(2, 3, 8, dtype=dtype)).dtype == dtype


def test_huggingface_transformers_27700_autocast_reaches_no_angle():
    """Also 29431, 49006, aqlaboratory/openfold-3 353: not by relying on an autocast context."""
    rope = RotaryEmbedding(head_dim=32)
    positions = torch.tensor([3, 1000, 30_000])
    expected = rope(positions)
    with torch.autocast("cpu", torch.bfloat16):
        found = rope(positions)
    assert torch.equal(found.cos, expected.cos)
    assert isinstance(found, Rotation)
