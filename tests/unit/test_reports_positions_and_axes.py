"""What users of other libraries met, as tests: positions, padding, packing, dims, images.

Each test is named after the report it comes from; the rule it checks stands beside it.
"""

import math

import pytest
import torch

from rotary import Frequencies, RotaryEmbedding, inverse_power, sequence
from rotary.errors import ConfigError, ShapeError
from rotary.frequencies import assign_axes, axial, per_head, sections
from rotary.positions import grid, left_padded, mrope, packed, shard

ROPE = RotaryEmbedding(head_dim=4)


def turn(x, positions, rope=ROPE):
    return rope(torch.as_tensor(positions), dtype=torch.float64)(x)


def vectors(*shape):
    return torch.randn(*shape, dtype=torch.float64)


# --- positions, padding, caches, packing, context parallelism -----------------------------------


def test_huggingface_transformers_22161_left_padding_changes_nothing():
    """Also turboderp-org/exllamav2 200, ML-GSAI/LLaDA 120: [pad, a, b] at [0, 0, 1] is [a, b]."""
    x = vectors(1, 3, 4)
    positions = left_padded(torch.tensor([[0, 1, 1]]))
    assert positions.tolist() == [[0, 0, 1]]
    torch.testing.assert_close(turn(x, positions)[:, 1:], turn(x[:, 1:], [0, 1]))


def test_fla_org_flash_linear_attention_967_negative_positions_turn_back():
    """Also 45, and flash-attention 0251105a: padding rows were uninitialised or out of bounds."""
    x = vectors(4, 4)
    turned = turn(x, sequence(4, offset=-2))
    assert turned.isfinite().all()
    torch.testing.assert_close(turned[2:], turn(x[2:], [0, 1]))
    torch.testing.assert_close(turn(turned[:1], [2]), x[:1])


def test_nvidia_megatron_lm_453_the_values_of_positions_count():
    """Also epfLLM/Megatron-LLM 23, Automodel 2377, nanoVLM 201: ids [0, 1, 0, 1]."""
    x = vectors(1, 4).expand(4, 4)
    turned = turn(x, [0, 1, 0, 1])
    assert torch.equal(turned[:2], turned[2:])
    assert not torch.allclose(turned, turn(x, [0, 1, 2, 3]))


def test_stanford_cs336_assignment1_basics_28_unsorted_and_repeated_positions():
    x = vectors(3, 4)
    whole = turn(x[:, None].expand(3, 6, 4), sequence(6))
    turned = turn(x, [5, 0, 3])
    for row, position in enumerate([5, 0, 3]):
        torch.testing.assert_close(turned[row], whole[row, position])


def test_lucidrains_x_transformers_219_step_by_step_is_the_whole():
    """Also 299, RobertCsordas/moeut 6: four steps with a cache of keys."""
    q, k = vectors(4, 4), vectors(4, 4)
    whole = turn(q, range(4)) @ turn(k, range(4)).mT
    cache = torch.empty(0, 4, dtype=torch.float64)
    for step in range(4):
        now = slice(step, step + 1)
        query, key = ROPE.rotate(q[now], k[now], offset=step)
        cache = torch.cat((cache, key))
        torch.testing.assert_close((query @ cache.mT)[0], whole[step, : step + 1])


def test_dao_ailab_flash_attention_177_packed_positions_restart():
    """cu_seqlens [0, 2, 5]."""
    x = vectors(5, 4)
    turned = turn(x, packed([2, 3]))
    torch.testing.assert_close(turned[:2], turn(x[:2], range(2)))
    torch.testing.assert_close(turned[2:], turn(x[2:], range(3)))


def test_hiyouga_llamafactory_10736_ids_of_another_shape_are_refused():
    """Also 7754, transformers 44911: three-axis ids (3, b, s) read as something else."""
    with pytest.raises(ShapeError, match=r"\(3, 2, 5\).*expected \(length,\), \(batch, length\)"):
        ROPE(torch.zeros(3, 2, 5, dtype=int))
    video = RotaryEmbedding(sections(inverse_power(8), (2, 1, 1)))
    with pytest.raises(ShapeError, match=r"expected \(length, 3\) or \(batch, length, 3\)"):
        video(torch.zeros(3, 2, 5, dtype=int))
    with pytest.raises(ShapeError, match="5 positions and the tables 4"):
        ROPE(sequence(4))(vectors(5, 4))


def test_nvidia_megatron_lm_5243_context_parallel_and_packed():
    """Also 560: rank 0 of 2, cu [0, 4, 8]."""
    assert shard([4, 4], 0, 2, "zigzag", is_row=True).tolist() == [0, 3, 4, 7]
    assert shard([4, 4], 0, 2, "zigzag").tolist() == [0, 3, 0, 3]
    x, row = vectors(8, 4), packed([4, 4])
    for rank in range(2):
        mine = shard([4, 4], rank, 2, "zigzag", is_row=True)
        turned = turn(x[mine], shard([4, 4], rank, 2, "zigzag"))
        torch.testing.assert_close(turned, turn(x, row)[mine])


def test_radixark_miles_1382_the_last_rank_has_the_last_positions():
    """The table was sized by the length of one rank; eight ranks."""
    assert shard(64, 7, 8)[-1] == 63
    assert shard(64, 0, 8, "zigzag")[-1] == 63
    far = ROPE(shard(64, 7, 8))
    assert far.cos[-1, 0].item() == pytest.approx(math.cos(63), abs=1e-7)


def test_nvidia_kvpress_31_keys_can_be_moved():
    """Also transformers 33691, candle 2901, openvino 27088: R prune R^-1 R k, and 3 then -3."""
    k = vectors(1, 6, 4)
    torch.testing.assert_close(turn(turn(k, [3] * 6), [-3] * 6), k)
    cached = turn(k, range(6))
    kept = torch.tensor([0, 1, 4, 5])
    moved = ROPE.move(cached[:, kept], kept, sequence(4))
    torch.testing.assert_close(moved, turn(k[:, kept], range(4)))
    back = ROPE(kept, dtype=torch.float64).inverse()(cached[:, kept])
    torch.testing.assert_close(back, k[:, kept])


def test_flashinfer_ai_flashinfer_568_tree_decoding():
    """Also 152: two drafts at the same position, ids [4, 5, 5, 6]."""
    x = vectors(4, 4)
    turned = turn(x, [4, 5, 5, 6])
    for row, position in enumerate([4, 5, 5, 6]):
        torch.testing.assert_close(turned[row : row + 1], turn(x[row : row + 1], [position]))


# --- dims, partial rotation, gradients ----------------------------------------------------------


def test_lucidrains_rotary_embedding_torch_45_odd_dims_are_refused_at_once():
    """Also transformers 35233, 48101, fla 1177: dim 9; and head 33 with 32 that turn is fine."""
    with pytest.raises(ConfigError, match=r"dim is 9.*even.*dim=8"):
        RotaryEmbedding(head_dim=9)
    x = vectors(2, 5, 33)
    turned = turn(x, range(5), RotaryEmbedding(inverse_power(32)))
    assert torch.equal(turned[..., 32], x[..., 32])
    assert RotaryEmbedding(head_dim=2)(sequence(2)).num_planes == 1


@pytest.mark.parametrize("layout", ["interleaved", "half"])
def test_huggingface_transformers_48630_the_tail_is_bit_equal(layout):
    """Also maxtext 4615, vllm 43770, labml 215: rotary dim 2 of 4."""
    x = vectors(3, 4).bfloat16()
    rope = RotaryEmbedding(inverse_power(2), layout=layout)
    turned = rope(sequence(3))(x)
    assert torch.equal(turned[:, 2:], x[:, 2:])
    assert not torch.equal(turned[1:, :2], x[1:, :2])
    assert rope(sequence(3)).cos.shape == (3, 1)


def test_huggingface_transformers_48622_queries_alone():
    """Also Liger-Kernel 1451, transformers 45564: kernels that want q and k together."""
    q = vectors(2, 3, 5, 4)
    assert turn(q, range(5)).shape == q.shape
    assert ROPE(sequence(5))(q.float(), q[:, :1].float())[1].shape == (2, 1, 5, 4)


@pytest.mark.parametrize("layout", ["interleaved", "half"])
@pytest.mark.parametrize("inplace", [False, True])
def test_huggingface_candle_3612_gradients_flow(layout, inplace):
    """Also flash-attention 569: backward of every flag; quack c8ec317: in place beside a reader."""
    rotation = RotaryEmbedding(head_dim=4, layout=layout)(sequence(3), dtype=torch.float64)

    def loss(weight):
        x = weight * 2
        y = rotation(x, inplace=inplace)
        return y.square().sum() + (y * torch.arange(4)).sum()

    weight = vectors(2, 3, 4).requires_grad_()
    assert torch.autograd.gradcheck(loss, (weight,))


def test_deepspeedai_deepspeed_8052_three_tokens_and_four_heads():
    x = vectors(2, 3, 4, 4)  # batch, length 3, heads 4
    turned = ROPE(sequence(3), dtype=torch.float64)(x, length_axis=-3)
    torch.testing.assert_close(turned[:, 2, 1], turn(x[:, 2, 1:2], [2])[:, 0])
    with pytest.raises(ShapeError, match="length_axis=-3"):
        ROPE(sequence(3), dtype=torch.float64)(x)


@pytest.mark.compiles
@pytest.mark.filterwarnings("error")
def test_pytorch_torchtitan_15_real_arithmetic_only():
    """Also pytorch 97562, diffusers 12668, onnx 6480, coremltools 2258, xla 9215: no complex."""
    seen = []

    def backend(graph, inputs):
        seen.extend(str(node.target) for node in graph.graph.nodes)
        return graph.forward

    x = vectors(2, 3, 4)
    compiled = torch.compile(lambda p, x: ROPE(p)(x), backend=backend, fullgraph=True)
    compiled(sequence(3), x)
    assert seen
    assert not [name for name in seen if "complex" in name or "polar" in name]


# --- images, video, sections --------------------------------------------------------------------


def test_huggingface_pytorch_image_models_2541_height_and_width_are_not_swapped():
    """Only seen where they differ: a grid of 2 x 3."""
    rope = RotaryEmbedding(axial(8))
    angles = rope.angles(grid(2, 3))
    assert angles[1].tolist() == [0, 0, 1, pytest.approx(0.01)]  # Row 0, column 1.
    assert angles[3].tolist() == [1, pytest.approx(0.01), 0, 0]  # Row 1, column 0.


def test_meituan_automl_visionllama_4_the_order_of_axes_has_a_name():
    rows_first, x_first = grid(3, 5, order="hw"), grid(3, 5, order="wh")
    assert rows_first[1].tolist() == [0, 1]
    assert x_first[1].tolist() == [1, 0]
    with pytest.raises(ConfigError, match="order is 'xy'"):
        grid(3, 5, order="xy")


def test_naver_ai_rope_vit_ce85c2e_the_same_count_is_not_the_same_grid():
    """14 x 14 and then 7 x 28: both 196."""
    rope = RotaryEmbedding(axial(8))
    square, wide = rope(grid(14, 14)), rope(grid(7, 28))
    assert square.cos.shape == wide.cos.shape
    assert wide.cos[27, 2].item() == pytest.approx(math.cos(27), abs=1e-7)
    assert not torch.equal(square.cos, wide.cos)


def test_vllm_project_vllm_omni_1784_sections_in_blocks_or_in_turn():
    """Also MNN 4133, vllm-gaudi 1437: the axis of each plane as explicit data, (2, 1, 1)."""
    plain = Frequencies([1.0, 0.5, 0.25, 0.125])
    blocks = sections(plain, (2, 1, 1))
    in_turn = sections(plain, (2, 1, 1), is_interleaved=True)
    assert blocks == assign_axes(plain, [0, 0, 1, 2])
    assert in_turn == assign_axes(plain, [0, 1, 2, 0])
    angles = RotaryEmbedding(in_turn).angles(torch.tensor([[1.0, 10.0, 100.0]]))
    assert angles[0].tolist() == [1.0, 5.0, 25.0, 0.125]


@pytest.mark.parametrize("layout", ["interleaved", "half"])
@pytest.mark.parametrize("is_interleaved", [False, True])
def test_xllm_ai_xllm_2120_axes_and_channels_are_two_questions(layout, is_interleaved):
    """Dealing planes out in turn, and pairing channels next to each other, are independent."""
    frequencies = sections(inverse_power(8), (2, 1, 1), is_interleaved=is_interleaved)
    rope = RotaryEmbedding(frequencies, layout=layout)
    x = vectors(1, 8)
    turned = turn(x, [[0, 3, 0]], rope)  # Height alone moves one plane, two channels.
    plane = 1 if is_interleaved else 2
    channels = [2 * plane, 2 * plane + 1] if layout == "interleaved" else [plane, plane + 4]
    assert (turned != x).nonzero()[:, 1].tolist() == channels


def test_huggingface_pytorch_image_models_2478_prefix_tokens_are_not_turned():
    """Also rope-vit 6, x-transformers 249: one class token, then 2 x 2, in this order."""
    rope = RotaryEmbedding(axial(8))
    x = vectors(5, 8)
    turned = turn(x, grid(2, 2, num_prefix_tokens=1), rope)
    assert torch.equal(turned[0], x[0])
    torch.testing.assert_close(turned[1:], turn(x[1:], grid(2, 2), rope))


def test_naver_ai_rope_vit_7_resolutions_change_by_a_scale_for_each_axis():
    """Also 10, 15, timm 2554: 4 x 4, then 8 x 4."""
    rope = RotaryEmbedding(axial(8))
    trained = rope.angles(grid(4, 4))
    now = rope.angles(grid(8, 4, scale=(4 / 8, 1)))
    torch.testing.assert_close(now.reshape(8, 4, 4)[::2], trained.reshape(4, 4, 4))


def test_lucidrains_rotary_embedding_torch_41_heads_choose_their_axis_or_none():
    """Also 13, 19: the first head follows the rows, the second the columns, the third nothing."""
    row = inverse_power(8).matrix[0]
    zero = 0 * row
    rope = RotaryEmbedding(per_head(Frequencies([row, zero]), Frequencies([zero, row]), None))
    x = vectors(1, 3, 6, 8)
    turned = turn(x, grid(2, 3), rope)
    plain = RotaryEmbedding(head_dim=8)
    torch.testing.assert_close(turned[:, 0], turn(x[:, 0], grid(2, 3)[:, 0], plain))
    torch.testing.assert_close(turned[:, 1], turn(x[:, 1], grid(2, 3)[:, 1], plain))
    assert torch.equal(turned[:, 2], x[:, 2])


def test_lightricks_ltx_video_224_rotation_before_the_heads_are_split():
    """The whole width as one head is allowed: (batch, length, width)."""
    x = vectors(2, 5, 24)
    rope = RotaryEmbedding(axial(24, 3))
    positions = grid(5, 1, 1)
    torch.testing.assert_close(turn(x, positions, rope), turn(x[:, None], positions, rope)[:, 0])


def test_huggingface_lerobot_3648_text_after_an_image_goes_on_behind_it():
    """Also transformers 45381, vllm 16878: index building is where mixed inputs go wrong."""
    positions = mrope(2, (1, 2, 4), 1)
    assert positions[-1].tolist() == [6, 6, 6]  # Behind the widest axis, not behind the tokens.
    assert positions[2:10].amax(0).tolist() == [2, 3, 5]


# --- relative positions and linear attention (the order of operations is the caller's) ----------


def test_lucidrains_x_transformers_34_scores_of_features_do_not_notice_the_offset():
    """Also performer-pytorch 72: rotate after the feature map, in the numerator."""
    q, k = vectors(1, 4).exp(), vectors(1, 4).exp()
    near, far = (turn(q, [m]) @ turn(k, [m + 3]).mT for m in (0, 1000))
    torch.testing.assert_close(near, far, rtol=1e-10, atol=0)
