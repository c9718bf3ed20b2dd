"""What linear attention refuses, and what it says then."""

import pytest
import torch

from rotary import RotaryEmbedding, Rotation
from rotary.attention import linear_attention
from rotary.attention.feature_maps import feature_map_of
from rotary.errors import ConfigError, DtypeError, ShapeError


@pytest.fixture(autouse=True)
def _not_before_the_library_speaks(request):
    if request.config.getoption("--enforce-shapes"):
        pytest.skip("the annotations refuse these arguments before the library does")


@pytest.mark.parametrize(
    ("value", "says"),
    [("elu1", "Did you mean 'elu\\+1'"), (3, "accepted are the names"), ((torch.exp,), "pair")],
)
def test_what_is_no_feature_map(value, says):
    with pytest.raises(ConfigError, match=says):
        feature_map_of(value)


@pytest.fixture
def qkv():
    return torch.randn(3, 2, 4, 5, 6)


def attend(qkv, **options):
    q, k, v = qkv
    return linear_attention(q, k, v, **options)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"form": "numerater"}, "Did you mean 'numerator'"),
        ({"form": "cosine", "feature_map": "relu"}, "leave feature_map out"),
        ({"form": "rotate_first"}, "'elu\\+1' is not relative"),
        ({"form": "rotate_first", "feature_map": torch.exp}, "'custom' is not relative"),
        ({"feature_map": "identity"}, "can be negative"),
        ({"feature_map": "softmax_positions", "causal": True}, "use 'softmax_exp'"),
        ({"causal": True, "chunk_size": 0}, "chunk_size is 0"),
        (
            {"form": "cosine", "rotation": Rotation(*torch.ones(2, 5, 3), "half", 1.5)},
            "amplitude 1.5",
        ),
        (
            {"form": "cosine", "rotation": Rotation(*torch.ones(2, 5, 3), "half", torch.ones(3))},
            r"an amplitude of shape \(3,\)",
        ),
    ],
)
def test_contradictions(qkv, options, says):
    with pytest.raises(ConfigError, match=says):
        attend(qkv, **options)


def test_rotations_that_do_not_fit(qkv):
    rope = RotaryEmbedding(head_dim=6)
    with pytest.raises(ShapeError, match="rotation holds 7 positions, but there are 5 tokens"):
        attend(qkv, rotation=rope(torch.arange(7)))
    with pytest.raises(ShapeError, match="key_rotation holds 4 positions"):
        attend(qkv, rotation=rope(torch.arange(5)), key_rotation=rope(torch.arange(4)))
    with pytest.raises(ShapeError, match=r"has 4 planes.*head_dim=6"):
        attend(qkv, rotation=RotaryEmbedding(head_dim=8)(torch.arange(5)))
    q, k, v = qkv
    with pytest.raises(ShapeError, match=r"1 queries.*are 5 keys.*give key_rotation"):
        linear_attention(q[:, :, :1], k, v, rotation=rope(torch.tensor([3])))
    partial = RotaryEmbedding(head_dim=4)(torch.arange(5))
    assert attend(qkv, rotation=partial).shape == (2, 4, 5, 6)


def test_states_of_another_call_are_refused(qkv):
    _, state = attend(qkv, causal=True, return_state=True)
    with pytest.raises(ShapeError, match="belongs to one layer"):
        attend(qkv[:, :1], causal=True, state=state)
    with pytest.raises(ShapeError, match="and None"):
        attend(qkv, causal=True, state=state, form="undivided")
    half = state._replace(memory=state.memory.bfloat16())
    with pytest.raises(DtypeError, match="stays float32"):
        attend(qkv, causal=True, state=half)


def test_shapes_that_do_not_belong_together():
    q = torch.randn(2, 4, 5, 6)
    wrong = {
        "5 and 3": (q, q[:, :, :3], q[:, :, :3]),
        "4 heads cannot share 3 key heads": (q, q[:, :3], q[:, :3]),
        "6 channels and keys 4": (q, q[..., :4], q),
        "differ in batch, heads or length": (q, q, q[:, :, :3]),
        "differ in batch": (q, q[:1], q[:1]),
        "same number of axes": (q, q[0], q[0]),
    }
    for says, (a, b, c) in wrong.items():
        with pytest.raises(ShapeError, match=says):
            linear_attention(a, b, c, causal=True)
    with pytest.raises(DtypeError, match=r"q is torch\.int64"):
        linear_attention(q.long(), q, q)


def test_masks_over_pairs_are_refused():
    q = torch.randn(2, 4, 5, 6)
    for shape in ((5, 5), (2, 4, 5), (2, 1, 5, 5), (4,), (3, 5)):
        with pytest.raises(ShapeError, match="one value per key"):
            linear_attention(q, q, q, key_padding_mask=torch.ones(shape, dtype=torch.bool))
    with pytest.raises(DtypeError, match=r"mask\.bool\(\)"):
        linear_attention(q, q, q, key_padding_mask=torch.ones(2, 5))
