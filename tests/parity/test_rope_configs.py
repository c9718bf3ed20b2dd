"""`from_config` equals transformers for every class that computes rotary frequencies."""

import contextlib
import inspect
import json

import numpy as np
import pytest
import torch
import transformers
from packaging import version
from rope_classes import build_class, config_class, config_name, rotary_classes

from rotary import LengthSchedule, RotaryEmbedding, from_config

FLAT = {"rope_type": "default", "rope_theta": 10000.0}

# Classes whose default config is of no model that could run; these values make it one.
OVERRIDES = {
    # The head dim that follows from the other defaults is 42 or 73.
    "glm4_moe:Glm4MoeRotaryEmbedding": {"head_dim": 128},
    "glm4v_moe:Glm4vMoeTextRotaryEmbedding": {"head_dim": 128},
    "qwen3_omni_moe:Qwen3OmniMoeThinkerTextRotaryEmbedding": {"head_dim": 128},
    # The sections that the code falls back to are for half of the head.
    "glm4v:Glm4vTextRotaryEmbedding": {"rope_parameters": {**FLAT, "partial_rotary_factor": 0.5}},
    "glm_image:GlmImageTextRotaryEmbedding": {
        "rope_parameters": {**FLAT, "partial_rotary_factor": 0.5}
    },
    "qwen4_exp:Qwen4ExpTextRotaryEmbedding": {
        "rope_parameters": {**FLAT, "partial_rotary_factor": 0.25}
    },
    # The class wants a dict for each layer type, which the default does not have.
    "cohere_compass:CohereCompassRotaryEmbedding": {"rope_parameters": {"full_attention": FLAT}},
}

# Where the annotation names a config that is not the one the class is given.
CONFIGS = {
    "qwen3_omni_moe:Qwen3OmniMoeRotaryEmbedding": "Qwen3OmniMoeTalkerCodePredictorConfig",
}

# What cannot be compared, and why.
UNREACHED = {
    "pp_doclayout_v2:PPDocLayoutV2PositionRelationEmbedding": "no rotation: a bias from boxes",
}

# Of these the frequencies are compared, but not the tables that their forward makes.
ONLY_FREQUENCIES = {
    "gemma4:Gemma4VisionRotaryEmbedding": "rotates each half of a head in the half layout",
    "hunyuan_vl:HunYuanVLRotaryEmbedding": "its default config has no sections to run on",
    "musicflamingo:MusicFlamingoRotaryEmbedding": "takes times in seconds, which enter twice",
}


def sub_configs(config):
    """The config and those inside it: some classes name the outer one and get the inner one."""
    yield config
    for name in getattr(config, "sub_configs", None) or {}:
        inner = getattr(config, name, None)
        if isinstance(inner, transformers.PreTrainedConfig):
            yield from sub_configs(inner)


def build(file, node, name, **overrides):
    """(config, module): the class on the default config, or on the first inside it that works."""
    cls = build_class(node)
    outer = config_class(file, name or config_name(node))
    tried = list(sub_configs(outer(**overrides)))
    for config in tried:
        with contextlib.suppress(AttributeError, KeyError, TypeError, ValueError):
            return config, cls(config)
    return tried[0], cls(tried[0])  # Say what the matter is.


def layer_types(module):
    kinds = getattr(module, "rope_type", None)
    return list(kinds) if isinstance(kinds, dict) else [None]


def difference(config, module, layer_type, key, turns=1.0):
    """What of frequencies, amplitude or tables is not the same; empty if nothing."""
    ours = from_config(config, layer_type=layer_type)
    start = ours.at(0) if isinstance(ours, LengthSchedule) else ours
    prefix = "" if layer_type is None else f"{layer_type}_"
    theirs = getattr(module, f"{prefix}inv_freq").double().numpy() * turns
    amplitude = getattr(module, f"{prefix}attention_scaling", 1.0)
    if abs(start.amplitude - amplitude) > 1e-12:
        return f"amplitude {start.amplitude} and {amplitude}"
    if key not in ONLY_FREQUENCIES:
        tables = forward_difference(ours, module, layer_type)
        if tables is not None:
            return tables
    mine = start.matrix.sum(0)
    if mine.shape != theirs.shape:  # One row, used for every axis.
        theirs = np.tile(theirs, start.num_axes)
    if mine.shape != theirs.shape:
        return f"{mine.shape} planes and {theirs.shape}"
    wrong = np.abs(mine - theirs) > 1e-5 * np.abs(theirs)
    return f"frequencies {mine[wrong][:4]} and {theirs[wrong][:4]}" if wrong.any() else ""


def forward_difference(ours, module, layer_type):
    """Compare the tables themselves, each axis with positions of its own; None if we cannot."""
    parameters = list(inspect.signature(module.forward).parameters)
    if parameters[:2] != ["x", "position_ids"]:
        return None
    axes = ours.num_axes
    positions = torch.arange(7 * axes).reshape(7, axes) * 3 % 17
    is_vision = getattr(module, "rope_type", None) == "axial"
    ids = positions if is_vision else positions.T[:, None] if axes > 1 else positions.T
    keywords = {} if layer_type is None else {"layer_type": layer_type}
    tables = module(torch.zeros(1), ids, **keywords)
    if isinstance(tables, torch.Tensor):
        tables = tables.real, tables.imag
    cos, sin = tables
    cos, sin = (table.reshape(7, -1).double() for table in (cos, sin))
    rope = RotaryEmbedding(ours)
    rotation = rope(positions[:, 0] if axes == 1 else positions, lengths=7, dtype=torch.float64)
    planes = rotation.num_planes
    if cos.shape[-1] == planes:
        picked = slice(None)
    else:
        is_half = torch.equal(cos[:, :planes], cos[:, planes:])
        picked = slice(0, planes) if is_half else slice(0, None, 2)
    for mine, theirs in ((rotation.cos, cos[:, picked]), (rotation.sin, sin[:, picked])):
        mine = mine * rotation.amplitude
        if mine.shape != theirs.shape:
            return f"tables {tuple(mine.shape)} and {tuple(theirs.shape)}"
        if not torch.allclose(mine, theirs, rtol=0, atol=2e-5):
            return f"tables differ by {(mine - theirs).abs().max():.2g}"
    return ""


@pytest.fixture(autouse=True)
def _quiet():
    transformers.logging.set_verbosity_error()


@pytest.mark.slow
@pytest.mark.skipif(
    version.parse(transformers.__version__) < version.parse("5.24"),
    reason="compared with the classes of transformers 5.24, which corrected some of their own",
)
@pytest.mark.filterwarnings("ignore")  # Of other people's default configs.
def test_every_class_of_transformers_that_computes_frequencies():
    reached, unreached, wrong = [], {}, {}
    for file, node in rotary_classes():
        key = f"{file.parent.name}:{node.name}"
        if key in UNREACHED:
            unreached[key] = UNREACHED[key]
            continue
        try:
            config, module = build(file, node, CONFIGS.get(key), **OVERRIDES.get(key, {}))
        except Exception as error:
            unreached[key] = f"{type(error).__name__}: {error}"
            continue
        # Of its coordinates these count turns, which their forward multiplies by 2 pi.
        turns = 2 * np.pi if "dinov3" in key else 1.0
        for layer_type in layer_types(module):
            try:
                problem = difference(config, module, layer_type, key, turns)
            except Exception as error:
                problem = f"{type(error).__name__}: {error}"
            if problem:
                wrong[f"{key} {layer_type or ''}"] = problem
        reached.append(key)
    print(f"{len(reached)} classes reached, not reached: {json.dumps(unreached, indent=1)}")
    assert wrong == {}, json.dumps(wrong, indent=1)
    assert set(unreached) == set(UNREACHED)
    assert len(reached) >= 200


SCALINGS = {
    "linear": {"factor": 4.0},
    "dynamic": {"factor": 4.0},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 512, "beta_fast": 16},
    "llama3": {
        "factor": 4.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 512,
    },
    "longrope": {"factor": 4.0, "original_max_position_embeddings": 512},
    "proportional": {"partial_rotary_factor": 0.25, "factor": 2.0},
}


@pytest.mark.parametrize("kind", SCALINGS)
@pytest.mark.parametrize("length", [None, 300, 5000])
@pytest.mark.parametrize("share", [1.0, 0.5])
def test_every_scaling_of_transformers(kind, length, share):
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    rope = {"rope_type": kind, "rope_theta": 5e5, **SCALINGS[kind]}
    if share != 1.0:
        rope["partial_rotary_factor"] = share
    if kind == "longrope":
        planes = int(32 * share)
        rope |= {"short_factor": [1.5] * planes, "long_factor": list(range(1, planes + 1))}
    given = {"hidden_size": 256, "num_attention_heads": 4, "max_position_embeddings": 2048}
    config = transformers.LlamaConfig(**given, rope_parameters=dict(rope))
    theirs, amplitude = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"), seq_len=length)
    for source in (config, {**given, "rope_parameters": rope}, {**given, "rope_scaling": rope}):
        ours = from_config(source, length=0 if length is None else length)
        assert ours.amplitude == pytest.approx(amplitude, rel=1e-12)
        np.testing.assert_allclose(ours.matrix[0], theirs.double().numpy(), rtol=3e-6, atol=1e-12)


@pytest.mark.filterwarnings("ignore")  # Transformers', of keys that its "dynamic" does not know.
def test_hunyuan_s_dynamic_with_a_fixed_alpha():
    """Its checkpoints say "dynamic", with the factor that transformers wants there."""
    from transformers.models.hunyuan_v1_dense import modeling_hunyuan_v1_dense as theirs

    rope = {
        "rope_type": "dynamic", "rope_theta": 1e4, "alpha": 1000.0, "factor": 1.0, "beta_fast": 32,
        "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 0.0,
    }  # fmt: skip
    config = transformers.HunYuanDenseV1Config(head_dim=128, rope_parameters=dict(rope))
    expected = theirs.HunYuanDenseV1RotaryEmbedding(config)
    without = {key: value for key, value in rope.items() if key != "factor"}
    for source in (config, *({"head_dim": 128, "rope_parameters": d} for d in (rope, without))):
        ours = from_config(source)
        assert ours.amplitude == expected.attention_scaling
        np.testing.assert_allclose(
            ours.matrix[0], expected.inv_freq.double().numpy(), rtol=3e-6, atol=1e-12
        )
    np.testing.assert_allclose(ours.matrix[0, :3], [1.0, 0.7760, 0.6022], atol=5e-5)
