"""`RotaryEmbedding`, `Basis`, and what a model does to its modules in a long life."""

import copy
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import nn

import rotary
from rotary import (
    Basis,
    LayerRotaryEmbeddings,
    RotaryEmbedding,
    RotaryError,
    inverse_power,
    sequence,
)
from rotary.frequencies import axial, dynamic_ntk, linear
from rotary.testing import assert_relative


def test_golden_pair_in_both_layouts():
    """(1, 2, 3, 4) at position 1: golden numbers of the reference notes (pair_layouts_d4)."""
    x = torch.tensor([[1.0, 2.0, 3.0, 4.0]], dtype=torch.float64)
    position = torch.tensor([1])
    golden = {
        "interleaved": [-1.142639663748, 1.922075596544, 2.959850667913, 4.029799501669],
        "half": [-1.984110648556, 1.959900667497, 2.462377902412, 4.019799668335],
    }
    for layout, expected in golden.items():
        rope = RotaryEmbedding(head_dim=4, layout=layout)
        turned = rope(position, dtype=torch.float64)(x)
        torch.testing.assert_close(
            turned, torch.tensor([expected], dtype=torch.float64), rtol=0, atol=1e-12
        )


def test_public_names_are_few():
    assert len(rotary.__all__) <= 20
    for name in rotary.__all__:
        assert hasattr(rotary, name)


D = 16
EXACT = RotaryEmbedding(head_dim=D)(torch.arange(6)).cos


def unspoiled(rope, device="cpu"):
    """The module still makes exactly the tables it made at first."""
    rotation = rope(torch.arange(6, device=device))
    assert rotation.cos.dtype == torch.float32
    return torch.equal(rotation.cos.cpu(), EXACT)


class Model(nn.Module):
    """A model as others build them: it has weights, hands one rotation down, and is cast whole."""

    def __init__(self, frequencies=None, **keywords):
        super().__init__()
        self.project = nn.Linear(D, D)
        given = {"head_dim": D} if frequencies is None else {"frequencies": frequencies}
        self.rope = RotaryEmbedding(**given, **keywords)

    def forward(self, x, position_ids, lengths=None):
        rotation = self.rope(position_ids, lengths=lengths)
        return rotation.for_queries()(self.project(x))


CASTS = {
    "bfloat16": lambda m: m.to(torch.bfloat16),
    "half": lambda m: m.half(),
    "double and back": lambda m: m.double().float(),
    "device": lambda m: m.to("meta").to_empty(device="cpu"),
    "empty": lambda m: m.to_empty(device="cpu"),
    "deepcopy": copy.deepcopy,
    "pickle": lambda m: pickle.loads(pickle.dumps(m)),
    "share_memory": lambda m: m.share_memory(),
    "train and eval": lambda m: m.train().eval(),
}


@pytest.mark.parametrize("is_learnable", [False, True])
@pytest.mark.parametrize("cast", CASTS)
def test_nothing_spoils_it(cast, is_learnable):
    model = CASTS[cast](Model(is_learnable=is_learnable))
    if cast == "empty":  # Parameters that were on a device are empty then, as PyTorch says.
        model.rope.reset_parameters()
    assert unspoiled(model.rope)
    assert set(model.state_dict()) - {"rope.frequency_offset"} == {"project.weight", "project.bias"}


@pytest.mark.parametrize("is_learnable", [False, True])
def test_built_on_meta(is_learnable):
    with torch.device("meta"):
        model = Model(is_learnable=is_learnable)
    assert unspoiled(model.to_empty(device="cpu").rope)
    with torch.device("meta"):  # Tables follow their positions, not the default device.
        assert unspoiled(model.rope)


def test_learned_offsets_are_kept_and_forgotten():
    rope = RotaryEmbedding(head_dim=D, is_learnable=True)
    with torch.no_grad():
        rope.frequency_offset += 0.25
    assert not unspoiled(rope)
    now = rope.current_frequencies().matrix
    np.testing.assert_allclose(now, inverse_power(D).matrix + 0.25)
    other = RotaryEmbedding(head_dim=D, is_learnable=True)
    other.load_state_dict(rope.state_dict())
    assert other.current_frequencies() == rope.current_frequencies()
    moved = rope.to(torch.float64).to(torch.float32)
    assert moved.current_frequencies() == other.current_frequencies()
    rope.reset_parameters()
    assert unspoiled(rope)


def test_a_learnable_offset_of_zero_in_bfloat16_moves_nothing():
    """The trap of learnable frequencies kept as such: 4.4 rad at position 10,000."""
    rope = RotaryEmbedding(head_dim=D, is_learnable=True).to(torch.bfloat16)
    exact = RotaryEmbedding(head_dim=D)
    far = torch.tensor([10_000])
    assert torch.equal(rope(far).cos, exact(far).cos)


def test_edited_frequencies_count_at_once():
    rope = RotaryEmbedding(head_dim=D)
    first = rope(torch.arange(6))
    rope.frequencies = linear(rope.frequencies, 2.0)
    second = rope(torch.arange(6))
    assert not torch.equal(first.cos, second.cos)
    assert torch.equal(second.cos[::2], first.cos[:3])


def test_old_state_dicts_load():
    model, state = Model(), Model().state_dict()
    exact = torch.tensor(inverse_power(D).matrix[0])
    for old in ("inv_freq", "cos_cached", "sin_cached", "freqs"):
        model.load_state_dict({**state, f"rope.{old}": exact.to(torch.bfloat16)})
    model.load_state_dict({**state, "rope.inv_freq": exact.half()})
    with pytest.raises(RuntimeError, match=r"Unexpected.*rope\.other"):
        model.load_state_dict({**state, "rope.other": exact})
    # Frequencies that are others altogether mean that the module was built wrongly.
    with pytest.raises(RuntimeError, match=r"rope\.inv_freq: the checkpoint was made with other"):
        model.load_state_dict({**state, "rope.inv_freq": exact / 8})
    with pytest.raises(RuntimeError, match="with other frequencies, 0, than these"):
        model.load_state_dict({**state, "rope.inv_freq": exact[:0]})
    assert unspoiled(model.rope)


def test_inference_then_training():
    rope = RotaryEmbedding(head_dim=D, is_learnable=True)
    with torch.inference_mode():
        rope(torch.arange(6))(torch.randn(2, 6, D))
    x = torch.randn(2, 6, D, requires_grad=True)
    rope(torch.arange(6))(x).sum().backward()
    assert x.grad is not None
    assert rope.frequency_offset.grad.abs().max() > 0


def test_eight_threads_at_once():
    rope = RotaryEmbedding(head_dim=D)
    lengths = [1 + 7 * i % 50 for i in range(80)]
    expected = {n: rope(torch.arange(n)).sin for n in set(lengths)}
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda n: rope(torch.arange(n)).sin, lengths))
    for n, sin in zip(lengths, found, strict=True):
        assert torch.equal(sin, expected[n])


def test_nothing_grows_with_the_lengths_seen():
    rope = RotaryEmbedding(dynamic_ntk(inverse_power(D), 2.0, 8))
    rope(torch.arange(3), lengths=3)
    before = {key: id(value) for key, value in vars(rope).items()}
    for n in range(1, 40):
        rope(torch.arange(n), lengths=n)
    assert {key: id(value) for key, value in vars(rope).items()} == before
    assert not list(rope.buffers())
    assert not list(rope.parameters())
    assert not [v for v in vars(rope).values() if isinstance(v, torch.Tensor)]


def test_autocast_changes_no_table():
    rope = RotaryEmbedding(axial(D))
    positions = torch.randint(0, 1000, (6, 2))
    expected = rope(positions)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(rope(positions).cos, expected.cos)


def test_from_pretrained(tmp_path):
    """Transformers builds on meta and leaves plain tensor attributes there; floats stay."""
    transformers = pytest.importorskip("transformers")

    class Config(transformers.PreTrainedConfig):
        model_type = "rotary_test"

    class Pretrained(transformers.PreTrainedModel):
        config_class = Config

        def __init__(self, config):
            super().__init__(config)
            self.inner = Model(is_learnable=True)
            self.post_init()

    model = Pretrained(Config())
    with torch.no_grad():
        model.inner.rope.frequency_offset[0, 0] = 0.5
    model.save_pretrained(tmp_path)
    loaded = Pretrained.from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert loaded.inner.project.weight.dtype == torch.bfloat16
    assert loaded.inner.rope.current_frequencies() == model.inner.rope.current_frequencies()
    loaded.inner.rope.reset_parameters()
    assert unspoiled(loaded.inner.rope)


def test_fully_shard_with_mixed_precision():
    """Under FSDP2 the tables that arrive at a layer are float32 and exact."""
    script = """
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from rotary import RotaryEmbedding
import os, tempfile
dist.init_process_group(
    "gloo", init_method="file://" + os.path.join(tempfile.mkdtemp(), "store"), rank=0, world_size=1
)
class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.project = nn.Linear(16, 16)
    def forward(self, x, rotation):
        self.seen = rotation
        return rotation(self.project(x))
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.rope = RotaryEmbedding(head_dim=16)
        self.layer = Layer()
    def forward(self, x, position_ids):
        return self.layer(x, self.rope(position_ids))
model = Model()
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, cast_forward_inputs=True)
mesh = init_device_mesh("cpu", (1,))
fully_shard(model.layer, mesh=mesh, mp_policy=policy)
fully_shard(model, mesh=mesh, mp_policy=policy)
positions = torch.arange(4095, 4099)
out = model(torch.randn(2, 4, 16), positions)
out.sum().backward()
assert out.dtype == torch.bfloat16, out.dtype
seen = model.layer.seen
assert seen.cos.dtype == torch.float32, seen.cos.dtype
assert torch.equal(seen.cos, RotaryEmbedding(head_dim=16)(positions).cos)
dist.destroy_process_group()
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_cache_held_by_the_caller():
    """The third source text's cache: built once, sliced, longer is an error, moves, no state."""

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.rope = RotaryEmbedding(head_dim=D, layout="half")
            self.tables = self.rope(sequence(8))

        def forward(self, x):
            return self.tables[: x.shape[-2]](x)

    attention = Attention()
    x = torch.randn(2, 8, D)
    whole = attention(x)
    assert torch.equal(attention(x[:, :3]), whole[:, :3])  # Shorter after longer, as if fresh.
    assert torch.equal(attention(x), whole)
    assert attention.state_dict() == {}
    with pytest.raises(RotaryError, match="hold 8 positions; build longer ones"):
        attention(torch.randn(2, 9, D))
    attention.to(torch.bfloat16)
    assert torch.equal(attention(x), whole)
    with pytest.raises(RotaryError, match="move one of them, for instance with rotation"):
        attention(x.to("meta"))
    attention.tables = attention.tables.to("meta")
    assert attention(x.to("meta")).is_meta
    # The equations of that text: x * cos + rotate(x) * sin with planes (i, i + d/2).
    angle = sequence(8)[:, None] * 10000.0 ** (-torch.arange(0, D, 2).double() / D)
    cos, sin = (t.repeat(1, 2).float() for t in (angle.cos(), angle.sin()))
    front, back = x.chunk(2, dim=-1)
    torch.testing.assert_close(whole, x * cos + torch.cat((-back, front), -1) * sin)


def test_layers_share_what_is_equal():
    ropes = LayerRotaryEmbeddings(
        [inverse_power(D), None, linear(inverse_power(D), 2.0), inverse_power(D)]
    )
    rotations = ropes(sequence(5))
    assert len(rotations) == 4
    assert rotations[0] is rotations[3]
    assert rotations[1] is None
    assert torch.equal(rotations[2].cos[::2], rotations[0].cos[:3])
    assert ropes.state_dict() == {}
    with pytest.raises(RotaryError, match="at least one layer"):
        LayerRotaryEmbeddings([])


class TestBasis:
    def test_starts_as_the_identity_and_stays_orthogonal(self):
        basis, x = Basis(D), torch.randn(2, 3, 5, D)
        assert torch.equal(basis(x), x)
        nn.init.normal_(basis.generator)
        eye = torch.eye(D)
        torch.testing.assert_close(basis.matrix() @ basis.matrix().mT, eye, rtol=0, atol=1e-5)
        assert (basis(x) - x).abs().max() > 0.1
        basis.reset_parameters()
        assert torch.equal(basis(x), x)

    @pytest.mark.parametrize("num_heads", [None, 3])
    def test_merging_changes_nothing(self, num_heads):
        basis = Basis(D, num_heads).double()
        nn.init.normal_(basis.generator)
        project = nn.Linear(7, 3 * D, dtype=torch.float64)
        x = torch.randn(2, 5, 7, dtype=torch.float64)

        def heads():
            return project(x).unflatten(-1, (3, D)).transpose(1, 2)

        expected = basis(heads())
        with torch.no_grad():
            project.weight.copy_(basis.merge_into(project.weight))
            project.bias.copy_(basis.merge_into(project.bias))
        torch.testing.assert_close(heads(), expected, rtol=0, atol=1e-12)

    def test_scores_stay_relative(self):
        basis, rope = Basis(D).double(), RotaryEmbedding(axial(D))
        nn.init.normal_(basis.generator)

        def turn(x, positions):
            return rope(positions, dtype=x.dtype)(basis(x))

        assert_relative(turn, dim=D, num_axes=2)

    def test_it_learns_and_survives(self):
        basis = Basis(4)
        basis(torch.randn(5, 4)).pow(3).sum().backward()
        assert basis.generator.grad.abs().max() > 0
        with torch.device("meta"):
            empty = Basis(4)
        assert not empty.to_empty(device="cpu").generator.any()
        x = torch.randn(2, 4).bfloat16()
        assert basis.to(torch.bfloat16)(x).dtype == torch.bfloat16
        with torch.autocast("cpu", torch.bfloat16):
            assert basis.matrix().dtype == torch.float32

    def test_what_is_wrong_is_said(self):
        with pytest.raises(RotaryError, match="length, 4"):
            Basis(4)(torch.ones(2, 5))
        with pytest.raises(RotaryError, match="2, length, 4"):
            Basis(4, num_heads=2)(torch.ones(3, 5, 4))
        with pytest.raises(RotaryError, match="any number of heads of 4"):
            Basis(4).merge_into(torch.ones(6, 2))
        with pytest.raises(RotaryError, match="at least 1"):
            Basis(0)
