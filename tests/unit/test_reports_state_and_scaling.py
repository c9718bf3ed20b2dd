"""What users of other libraries met, as tests: caches, buffers, devices, threads, scaling.

Each test is named after the report it comes from; the rule it checks stands beside it.
"""

import math
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from rotary import (
    Frequencies,
    LayerRotaryEmbeddings,
    RotaryEmbedding,
    from_config,
    inverse_power,
    sequence,
)
from rotary.errors import ConfigError
from rotary.frequencies import axial, dynamic_ntk, linear, longrope, yarn, yarn_mscale
from rotary.positions import grid

# --- caches, buffers, devices, threads ----------------------------------------------------------


def test_lucidrains_rotary_embedding_torch_11_an_offset_counts():
    """Offset 0 then 5, the same length."""
    rope = RotaryEmbedding(head_dim=8)
    x = torch.ones(3, 8)
    first, _ = rope.rotate(x, x)
    second, _ = rope.rotate(x, x, offset=5)
    assert not torch.equal(first, second)
    assert torch.equal(second, rope(torch.tensor([5, 6, 7]))(x))


def test_lucidrains_rotary_embedding_torch_8bb4643_axial_offsets_count():
    rope = RotaryEmbedding(axial(8))
    rope(grid(4, 4))
    moved = rope.angles(grid(4, 4, offset=(0, 10)))
    assert moved[0].tolist() == [0, 0, 10, pytest.approx(10 * 0.01)]


def test_lucidrains_rotary_embedding_torch_15_nothing_is_kept_for_each_length():
    """Also facebookresearch/xformers 728: shorter after longer and back."""
    rope = RotaryEmbedding(head_dim=8)
    before = set(vars(rope))
    longest = rope(sequence(32)).cos
    for length in range(1, 32):
        assert torch.equal(rope(sequence(length)).cos, longest[:length])
    assert set(vars(rope)) == before


def test_lucidrains_rotary_embedding_torch_8bb4643_learned_frequencies_are_never_stale():
    rope = RotaryEmbedding(head_dim=8, is_learnable=True)
    before = rope(sequence(4)).cos
    state = rope.state_dict()
    state["frequency_offset"] = state["frequency_offset"] + 0.5
    rope.load_state_dict(state)
    after = rope(sequence(4)).cos
    expected = torch.cos(sequence(4)[:, None] * (torch.tensor(inverse_power(8).matrix) + 0.5))
    assert not torch.equal(before, after)
    torch.testing.assert_close(after, expected.float())


def test_facebookresearch_xformers_841_the_sequence_axis_is_not_the_heads():
    """Also mlfoundations/open_lm 4, rasbt/LLMs-from-scratch 411: b, s, h, d = 1, 3, 5, 4."""
    rotation = RotaryEmbedding(head_dim=4)(sequence(3))
    x = torch.randn(1, 3, 5, 4)
    turned = rotation(x, length_axis=-3)
    assert torch.equal(turned[:, 0], x[:, 0])  # Position 0, every head.
    assert not torch.equal(turned[:, 1, 0], x[:, 1, 0])
    assert torch.equal(rotation(x.transpose(1, 2)).transpose(1, 2), turned)
    with pytest.raises(ValueError, match="x has 5 positions and the tables 3"):
        rotation(x)


@pytest.mark.parametrize("length", [8, 9, 16])
def test_vllm_project_vllm_17924_positions_past_any_table_are_right(length):
    """Also 14404, 9965, pytorch/torchtune bd2a0fc7c: there is no table to run past."""
    rope = RotaryEmbedding(head_dim=2)
    rope(sequence(8))
    assert rope(torch.tensor([length])).cos.item() == pytest.approx(math.cos(length), abs=1e-7)
    with pytest.raises(ConfigError, match="build longer ones"):
        rope(sequence(8))[length : length + 1]


def test_lucidrains_rotary_embedding_torch_48_tables_follow_the_device():
    """Also transformers 32312, 26448, 22234, 45859: primed on the CPU, then called elsewhere."""
    rope = RotaryEmbedding(head_dim=8)
    rope(sequence(4))
    rotation = rope(sequence(4, device="meta"))
    assert rotation.device.type == "meta"
    assert rotation(torch.ones(2, 4, 8, device="meta")).device.type == "meta"
    assert rope(sequence(4)).device.type == "cpu"


def test_dao_ailab_flash_attention_299_training_after_inference_mode():
    rope = RotaryEmbedding(head_dim=8)
    with torch.inference_mode():
        rope(sequence(4))
    x = torch.randn(2, 4, 8, requires_grad=True)
    rope(sequence(4))(x).sum().backward()
    assert x.grad.abs().max() > 0


def test_huggingface_transformers_45902_meta_then_to_empty():
    """Also 34234: the first frequency was 6.9e-18 instead of 1."""
    with torch.device("meta"):
        model = nn.ModuleDict({"rope": RotaryEmbedding(head_dim=8), "layer": nn.Linear(8, 8)})
    rope = model.to_empty(device="cpu")["rope"]
    assert rope.frequencies.matrix[0, 0] == 1.0
    assert rope(torch.tensor([1])).cos[0, 0].item() == pytest.approx(math.cos(1.0), abs=1e-7)


def test_eleutherai_gpt_neox_1161_strict_loads_with_and_without_inv_freq():
    """Also 1168, meta-pytorch/gpt-fast 42, transformers 35255."""
    model = nn.ModuleDict({"rope": RotaryEmbedding(head_dim=8), "layer": nn.Linear(2, 2)})
    state = model.state_dict()
    assert not any("rope" in key for key in state)
    model.load_state_dict(state, strict=True)
    inv_freq = torch.tensor(inverse_power(8).matrix[0], dtype=torch.float32)
    model.load_state_dict({**state, "rope.inv_freq": inv_freq}, strict=True)


def test_paddlepaddle_paddlefleet_2067_layers_share_tables():
    """Also NVIDIA/TensorRT-LLM 13859: fifty layers, two distinct frequencies."""
    kinds = [inverse_power(8), inverse_power(8, base=1e6)]
    rotations = LayerRotaryEmbeddings([kinds[i % 2] for i in range(50)])(sequence(4))
    assert len({r.cos.data_ptr() for r in rotations}) == 2
    assert rotations[0].cos.data_ptr() == rotations[48].cos.data_ptr()


@pytest.mark.compiles
def test_vllm_project_vllm_33800_compiled_twice_nothing_is_reassigned():
    """Also 11596: a buffer that forward assigns, under compilation."""
    rope = RotaryEmbedding(head_dim=8)
    before = dict(vars(rope))
    compiled = torch.compile(lambda p, x: rope(p)(x), backend="aot_eager", fullgraph=True)
    for length in (4, 9, 4):
        x = torch.randn(2, length, 8)
        torch.testing.assert_close(compiled(sequence(length), x), rope(sequence(length))(x))
    assert vars(rope) == before


def test_reflexioai_reflexio_311_eight_threads():
    """Also Blaizzy/mlx-vlm 1854: random lengths from many threads, no shared state to race on."""
    rope = RotaryEmbedding(dynamic_ntk(inverse_power(8), 4.0, 8))

    def call(length):
        rotation = rope(sequence(length), lengths=length)
        return rotation.cos.shape[0] == length, rotation.cos[-1, -1].item()

    lengths = [1 + (i * 13) % 40 for i in range(200)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(call, lengths))
    assert found == [call(length) for length in lengths]


def test_huggingface_transformers_24576_stored_frequencies_can_be_given():
    """ESM needs the frequencies that its checkpoint holds, rounded to half precision."""
    stored = torch.tensor(inverse_power(8).matrix[0]).half()
    rope = RotaryEmbedding(Frequencies(stored.double().numpy()))
    assert rope.angles(torch.tensor([1]))[0].tolist() == stored.double().tolist()


# --- scaling that depends on the length ---------------------------------------------------------


def scores(rope, q, k, length):
    rotation = rope(sequence(q.shape[-2]), lengths=length, dtype=q.dtype)
    return rotation(q) @ rotation(k).mT


SCHEDULES = {
    "dynamic": dynamic_ntk(inverse_power(8), 2.0, 8),
    "longrope": longrope(inverse_power(8), [1.0] * 4, [2.0, 3.0, 4.0, 5.0], 8),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_huggingface_transformers_25104_cached_keys_stay_valid(name):
    """Also vllm 27414, transformers 33129: prefill 7 or 8 of 8, decode past 8.

    The length is fixed for a sequence at its prefill, so step by step is the whole at once.
    """
    rope = RotaryEmbedding(SCHEDULES[name])
    q, k = torch.randn(2, 1, 10, 8, dtype=torch.float64)
    whole = scores(rope, q, k, 8)
    keys = rope(sequence(8), lengths=8, dtype=q.dtype)(k[:, :8])
    for step in (8, 9):
        now = rope(sequence(1, step), lengths=8, dtype=q.dtype)
        keys = torch.cat((keys, now(k[:, step : step + 1])), dim=-2)
        torch.testing.assert_close(
            now(q[:, step : step + 1]) @ keys.mT, whole[:, step : step + 1, : step + 1]
        )
    # Or the keys are moved to the frequencies of the longer sequence.
    moved = rope.move(keys, sequence(10), sequence(10), lengths=10, old_lengths=8)
    torch.testing.assert_close(moved, rope(sequence(10), lengths=10, dtype=q.dtype)(k))
    assert not torch.allclose(moved, keys)


@pytest.mark.parametrize("name", SCHEDULES)
def test_qwenlm_qwen_401_a_long_row_changes_no_other(name):
    """Also vllm 1860: a batch of lengths 4 and 32, and 4 alone."""
    rope = RotaryEmbedding(SCHEDULES[name])
    x = torch.randn(2, 4, 8)
    both = rope(sequence(4), lengths=torch.tensor([4, 32]))(x)
    alone = rope(sequence(4), lengths=torch.tensor([4]))(x[:1])
    torch.testing.assert_close(both[:1], alone, rtol=0, atol=0)
    assert not torch.allclose(both[1:], rope(sequence(4), lengths=4)(x[1:]))


@pytest.mark.compiles
@pytest.mark.parametrize("name", SCHEDULES)
def test_vllm_project_vllm_58064_no_host_read_of_lengths(name):
    """Also pytorch 163791, transformers 35716: no branch on data, one graph, no value needed."""
    rope = RotaryEmbedding(SCHEDULES[name])
    lengths = torch.tensor([4, 32], device="meta")
    assert rope(sequence(4, device="meta"), lengths=lengths).cos.shape == (2, 4, 4)
    compiled = torch.compile(
        lambda p, n: rope(p, lengths=n).cos, backend="aot_eager", fullgraph=True
    )
    lengths = torch.tensor([4, 32])
    torch.testing.assert_close(
        compiled(sequence(4), lengths), rope(sequence(4), lengths=lengths).cos
    )


def test_snowflakedb_arcticinference_260_several_bases_at_once():
    rope = RotaryEmbedding(SCHEDULES["dynamic"])
    lengths = torch.tensor([8, 16, 32, 64])
    slowest = rope.angles(torch.tensor([1]), lengths=lengths)[:, 0, -1]
    assert slowest.diff().lt(0).all()


def test_ggml_org_llama_cpp_8995_the_choice_is_the_callers():
    """Short prompts keep the short divisors, however long the context may become."""
    schedule = SCHEDULES["longrope"]
    assert schedule.at(4) == schedule.at(8) == inverse_power(8)
    assert schedule.at(9) != schedule.at(8)


def test_huggingface_transformers_reset_a_short_call_after_a_long_one_is_fresh():
    """The state test of rope_scaling_expected.json, config C: lengths 32 then 4."""
    rope = RotaryEmbedding(dynamic_ntk(inverse_power(8), 4.0, 8))
    fresh = rope(sequence(4), lengths=4).cos
    long = rope.angles(torch.tensor([1]), lengths=32)[0]
    base = 305673.50940369844
    expected = torch.tensor([base ** (-2 * p / 8) for p in range(4)], dtype=torch.float64)
    torch.testing.assert_close(long, expected, rtol=1e-12, atol=0)
    assert torch.equal(rope(sequence(4), lengths=4).cos, fresh)


# --- parameters of scaling ----------------------------------------------------------------------

YARN = {"rope_type": "yarn", "original_max_position_embeddings": 8, "rope_theta": 10000.0}


def test_huggingface_transformers_38224_the_written_factor_wins():
    """Factor 4, original 8, max 16: 4, not 16 / 8."""
    config = {"head_dim": 8, "max_position_embeddings": 16}
    found = from_config({**config, "rope_parameters": {**YARN, "factor": 4.0}})
    assert found == yarn(inverse_power(8), 4.0, 8)
    assert found != from_config({**config, "rope_parameters": YARN})


def test_turboderp_org_exllamav3_259_equal_mscales_give_amplitude_one():
    """Also sgl-project/sglang 22711: the factor goes into the softmax scale, which is exposed."""
    plain = inverse_power(64)
    assert yarn(plain, 16.0, 4096, mscale=1.0, mscale_all_dim=1.0).amplitude == 1.0
    assert yarn(plain, 16.0, 4096).amplitude == pytest.approx(1.2772588722239782, rel=1e-15)
    assert yarn_mscale(16.0) == pytest.approx(1.2772588722239782, rel=1e-15)


def test_deepseek_ai_deepseek_r1_684_an_unknown_key_is_never_dropped():
    rope = {**YARN, "factor": 4.0, "attn_factor": 1.0}
    with pytest.raises(ConfigError, match=r"unknown key 'attn_factor'.*'attention_factor'"):
        from_config({"head_dim": 8, "rope_parameters": rope})


def test_nvidia_megatron_lm_6305_the_factor_reaches_the_embedding():
    rope = {
        "rope_type": "llama3", "rope_theta": 1e4, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }  # fmt: skip
    found = [
        from_config({"head_dim": 128, "rope_parameters": {**rope, "factor": factor}})
        for factor in (8.0, 32.0)
    ]
    assert found[0].matrix[0, -1] == pytest.approx(4 * found[1].matrix[0, -1])


def test_deepspeedai_deepspeed_8345_the_base_is_read_wherever_it_stands():
    """`rope_theta` moved into `rope_parameters`, and readers fell back to 10000."""
    expected = inverse_power(8, 1e6)
    inside = {"head_dim": 8, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}
    assert from_config(inside) == from_config({"head_dim": 8, "rope_theta": 1e6}) == expected
    with pytest.raises(ConfigError, match="'rope_theta' is missing"):
        from_config({"head_dim": 8, "rope_parameters": {"rope_type": "default"}})


def test_huggingface_transformers_5_24_nested_truncate_is_read():
    """It takes `truncate` from the top level: inv_freq[17] is 0.0834790 there, not 0.0837744."""
    nested = {**YARN, "factor": 10.0, "original_max_position_embeddings": 2048, "truncate": False}
    config = {"head_dim": 128, "rope_parameters": {"full_attention": nested}}
    found = from_config(config, layer_type="full_attention")
    assert found.matrix[0, 17] == pytest.approx(0.08377442334, rel=1e-9)


def test_starthua_comfyui_cxh_joy_caption_35_type_and_rope_type():
    for key in ("type", "rope_type"):
        config = {"head_dim": 8, "rope_theta": 1e4, "rope_scaling": {key: "linear", "factor": 2.0}}
        assert from_config(config) == linear(inverse_power(8), 2.0)
