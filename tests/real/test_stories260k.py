"""A trained model that nobody here made agrees: stories260K, a Llama-type decoder on `rotary`.

A loss would not do: a base of 5000 loses nothing, but gives other ids.
"""

import json
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from rotary import RotaryEmbedding
from rotary.layouts import weight_interleaved_to_half

HEAD_DIM = 8


def load(path):
    """The weights, float64, by name; each with a first axis for the layers where there are many."""
    data = Path(path).read_bytes()
    dim, hidden, layers, heads, key_heads, vocabulary, _ = struct.unpack("<7i", data[:28])
    values, start = torch.from_numpy(np.frombuffer(data, "<f4", offset=28).copy()).double(), 0
    key_dim = dim // heads * key_heads
    shapes = {
        "embedding": (vocabulary, dim),
        "attention_norm": (layers, dim),
        "query": (layers, dim, dim),
        "key": (layers, key_dim, dim),
        "value": (layers, key_dim, dim),
        "output": (layers, dim, dim),
        "ffn_norm": (layers, dim),
        "gate": (layers, hidden, dim),
        "down": (layers, dim, hidden),
        "up": (layers, hidden, dim),
        "norm": (dim,),
    }
    weights = {}
    for name, shape in shapes.items():
        size = int(np.prod(shape))
        weights[name] = values[start : start + size].view(shape)
        start += size
    return weights


def rms_norm(x, gain):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * gain


class Decoder:
    """One token at a time with a cache of turned keys."""

    def __init__(self, weights, layout, base=10000.0):
        self.weights = weights
        self.rope = RotaryEmbedding(head_dim=HEAD_DIM, base=base, layout=layout)
        self.caches = [[] for _ in weights["query"]]

    def step(self, token, position):
        w = self.weights
        # Once for a step, for all layers.
        rotation = self.rope(torch.tensor([position]), dtype=torch.float64)
        x = w["embedding"][token]
        for i, cache in enumerate(self.caches):
            h = rms_norm(x, w["attention_norm"][i])
            q, k, v = ((w[name][i] @ h).view(-1, 1, HEAD_DIM) for name in ("query", "key", "value"))
            q, k = rotation(q, k)
            cache.append((k, v))
            keys, values = (torch.cat(each, dim=1) for each in zip(*cache, strict=True))
            groups = q.shape[0] // keys.shape[0]
            keys, values = keys.repeat_interleave(groups, 0), values.repeat_interleave(groups, 0)
            mixed = F.scaled_dot_product_attention(q, keys, values)
            x = x + w["output"][i] @ mixed.flatten()
            h = rms_norm(x, w["ffn_norm"][i])
            x = x + w["down"][i] @ (F.silu(w["gate"][i] @ h) * (w["up"][i] @ h))
        return w["embedding"] @ rms_norm(x, w["norm"])

    def greedy(self, count):
        ids = [1]
        for position in range(count - 1):
            ids.append(int(self.step(ids[-1], position).argmax()))
        return ids


@pytest.fixture
def model(shared_data):
    ids = json.loads(Path(shared_data("stories260K_greedy.json")).read_text())["ids"]
    return load(shared_data("stories260K.bin")), ids


def in_half_layout(weights):
    converted = dict(weights)
    for name in ("query", "key"):
        converted[name] = torch.stack(
            [weight_interleaved_to_half(w, head_dim=HEAD_DIM) for w in weights[name]]
        )
    return converted


@torch.no_grad()
def test_the_greedy_ids_in_the_layout_it_was_trained_in(model):
    weights, ids = model
    assert Decoder(weights, "interleaved").greedy(len(ids)) == ids


@torch.no_grad()
def test_the_greedy_ids_in_the_half_layout_after_conversion(model):
    weights, ids = model
    assert Decoder(in_half_layout(weights), "half").greedy(len(ids)) == ids


@torch.no_grad()
@pytest.mark.parametrize(("layout", "base"), [("half", 1e4), ("interleaved", 5e3)])
def test_the_ids_tell_a_wrong_layout_and_a_wrong_base(model, layout, base):
    weights, ids = model
    assert Decoder(weights, layout, base).greedy(len(ids)) != ids
