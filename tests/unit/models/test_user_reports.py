"""What users of earlier RoFormers ran into, each as a test named after the report."""

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch._subclasses.fake_tensor import FakeTensorMode

from rotary.errors import ConfigError, RunError
from rotary.models import (
    RoFormerConfig,
    RoFormerForMaskedLM,
    RoFormerForSentenceEmbedding,
    RoFormerModel,
)

TABLE = "roformer.encoder.embed_positions.weight"


@pytest.fixture
def folder(build, tmp_path):
    """A checkpoint, and a way to change its weights."""
    model = build(RoFormerForMaskedLM, dtype=torch.float32, max_position_embeddings=8)
    model.save_pretrained(tmp_path)

    def change(weights):
        save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
        return tmp_path

    return model, load_file(tmp_path / "model.safetensors"), change


def test_junnyu_36_9_15_20_paddlenlp_2741_zhuiyi_6_length_has_no_end(build):
    """A text longer than max_position_embeddings hit an assert, an index or a broadcast error."""
    model = build(RoFormerModel, max_position_embeddings=8, num_hidden_layers=1)
    ids = torch.randint(0, 50, (1, 3000))
    assert model(ids).last_hidden_state.isfinite().all()
    assert not any("position" in name for name in model.state_dict())


@pytest.mark.parametrize("path", ["/nowhere/at/all", "./nowhere", "../nowhere", "~/nowhere"])
def test_a_path_that_leads_nowhere_is_not_taken_for_a_name_of_the_hub(path):
    """It was "Repo id must be in the form 'repo_name' or 'namespace/repo_name'"."""
    with pytest.raises(RunError, match=f"^{path}: there is no such folder\\.$"):
        RoFormerModel.from_pretrained(path)


def test_junnyu_12_a_table_of_another_size_is_no_mismatch(folder):
    """from_pretrained of sim_char_small: size mismatch for embed_positions, 512 against 1536."""
    model, weights, change = folder
    path = change({**weights, TABLE: torch.zeros(512, 8)})
    back, info = RoFormerForMaskedLM.from_pretrained(path, output_loading_info=True)
    assert not info["unexpected_keys"]
    ids = torch.randint(0, 50, (1, 9))
    torch.testing.assert_close(back(ids).logits, model(ids).logits)


def test_junnyu_6_30_no_weight_is_silently_missing(folder):
    """All keys were missing for want of a prefix, and the model predicted at random."""
    model, weights, change = folder
    ids = torch.randint(0, 50, (1, 9))
    bare = {n.removeprefix("roformer."): t for n, t in weights.items() if n.startswith("roformer")}
    encoder = RoFormerModel.from_pretrained(change(bare))
    expected = model.roformer(ids).last_hidden_state
    torch.testing.assert_close(encoder(ids).last_hidden_state, expected)
    strange = {f"bert.{n.removeprefix('roformer.')}": t for n, t in weights.items()}
    with pytest.raises(ConfigError, match=r"missing: roformer\.embeddings"):
        RoFormerForMaskedLM.from_pretrained(change(strange))


def test_junnyu_13_14_19_the_pooler_of_sim_is_loaded_or_asked_for(folder):
    """Sim's pooler was dropped: inference was fine, the training loss did not fall."""
    _, weights, change = folder
    pooler = {
        "roformer.pooler.dense.weight": torch.randn(16, 16),
        "roformer.pooler.dense.bias": torch.randn(16),
    }
    path = change({**weights, **pooler})
    with pytest.raises(ConfigError, match="has a pooler"):
        RoFormerForSentenceEmbedding.from_pretrained(path)
    model = RoFormerForSentenceEmbedding.from_pretrained(path, pooler_activation="linear")
    assert torch.equal(model.roformer.pooler.dense.weight, pooler["roformer.pooler.dense.weight"])


def test_junnyu_48_a_v2_checkpoint_is_built_or_refused(build, tmp_path):
    """V2 loaded as V1 without an error and predicted noise."""
    v2 = {"norm_type": "rms_norm", "use_bias": False, "hidden_act": "relu"}
    model = build(RoFormerForMaskedLM, dtype=torch.float32, **v2)
    model.save_pretrained(tmp_path)
    back = RoFormerForMaskedLM.from_pretrained(tmp_path)
    ids = torch.randint(0, 50, (1, 9))
    torch.testing.assert_close(back(ids).logits, model(ids).logits)
    v1 = build(RoFormerForMaskedLM, dtype=torch.float32).config
    with pytest.raises(ConfigError, match="RoFormer-V2"):
        RoFormerForMaskedLM.from_pretrained(tmp_path, config=v1)


def test_transformers_44705_positions_are_taken_and_unknown_names_refused(build):
    """position_ids, and any made-up keyword, were accepted and ignored."""
    model, ids = build(RoFormerModel), torch.randint(0, 50, (1, 5))
    plain = model(ids).last_hidden_state
    moved = model(ids, position_ids=torch.tensor([[0, 1, 2, 3, 40]])).last_hidden_state
    assert (moved - plain).abs().max() > 1e-3
    with pytest.raises(TypeError, match="positions_ids"):
        model(ids, positions_ids=torch.arange(5)[None])


def test_fengshenbang_7_the_place_of_the_norm_is_in_the_config(build, tmp_path):
    """Their RoFormer normalises before the sub-layers; read as post-norm it is another model."""
    model = build(RoFormerForMaskedLM, dtype=torch.float32, norm_position="pre")
    model.save_pretrained(tmp_path)
    assert RoFormerForMaskedLM.from_pretrained(tmp_path).config.norm_position == "pre"
    post = build(RoFormerForMaskedLM, dtype=torch.float32).config
    with pytest.raises(ConfigError, match=r"without a place here: roformer\.encoder\.LayerNorm"):
        RoFormerForMaskedLM.from_pretrained(tmp_path, config=post)


def test_bert4keras_456_custom_positions_have_an_effect_and_only_their_differences(build):
    """They were taken and ignored."""
    model = build(RoFormerModel)
    ids = torch.randint(0, 50, (1, 6))
    positions = torch.tensor([[0, 1, 2, 5, 6, 7]])
    plain = model(ids).last_hidden_state
    given = model(ids, position_ids=positions).last_hidden_state
    assert (given - plain).abs().max() > 1e-3
    moved = model(ids, position_ids=positions + 1000).last_hidden_state
    torch.testing.assert_close(moved, given, rtol=0, atol=1e-10)


def test_transformers_28005_37946_sdpa_from_the_start(build):
    """RoFormer never got it there; all three kinds give the same."""
    model = build(RoFormerModel)
    ids = torch.randint(0, 50, (2, 9))
    mask = torch.tensor([[1] * 9, [1] * 6 + [0] * 3])
    found = {}
    for kind in ("eager", "sdpa", "rotary_packed"):
        model.set_attn_implementation(kind)
        found[kind] = model(ids, attention_mask=mask).last_hidden_state[mask.bool()]
    torch.testing.assert_close(found["sdpa"], found["eager"], rtol=0, atol=1e-12)
    torch.testing.assert_close(found["rotary_packed"], found["eager"], rtol=0, atol=1e-12)


def test_x_transformers_247_cross_attention_is_refused_not_rotated_wrongly():
    """Keys of another text have positions of their own; a RoFormer here has none such."""
    with pytest.raises(ConfigError, match="no cross attention"):
        RoFormerConfig(add_cross_attention=True)


def test_rotary_embedding_torch_36_no_value_is_read_to_make_a_rotation(build):
    """Half the time went into ``.item()``; a fake tensor has no value that could be read."""
    model = build(RoFormerModel, dtype=torch.float32)
    with FakeTensorMode(allow_non_fake_inputs=True):
        positions = torch.arange(6)
        q = torch.empty(1, 2, 6, 8)
        rotation = model.positions.rope(positions, lengths=None, dtype=torch.float32)[0]
        assert rotation(q).shape == q.shape
