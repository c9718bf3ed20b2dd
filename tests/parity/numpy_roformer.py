"""RoFormer in NumPy float64, written from the notes on the official code, not from ours.

V1 (post-norm, erf GELU, biases), with a mask of any kind; RoFormer-V2 (no biases, a norm without
weights, ReLU, the bare embedding as head); and norms put before the sub-layers.
"""

import math

import numpy as np

_erf = np.vectorize(math.erf)


def forward(
    weights,
    ids,
    segments,
    mask,
    *,
    num_heads,
    num_layers,
    version=1,
    pre_norm=False,
    unrotated=(),
    eps=1e-12,
    base=10000.0,
):
    """Hidden states (length, hidden) and logits of one text; mask is (length, length)."""

    def w(name):
        return weights[name]

    def dense(x, name):
        y = x @ w(f"{name}.weight").T
        return y + w(f"{name}.bias") if version == 1 else y

    def norm(x, name):
        if version == 2:
            return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps)
        centred = x - x.mean(-1, keepdims=True)
        scaled = centred / np.sqrt((centred * centred).mean(-1, keepdims=True) + eps)
        return scaled * w(f"{name}.weight") + w(f"{name}.bias")

    def activate(x):
        return np.maximum(x, 0) if version == 2 else 0.5 * x * (1 + _erf(x / math.sqrt(2)))

    def turn(x):  # (heads, length, dim): multiply pair (2i, 2i+1), as a complex number, by e^(im)
        dim = x.shape[-1]
        theta = base ** (-2 * np.arange(dim // 2) / dim)
        pairs = (x[..., 0::2] + 1j * x[..., 1::2]) * np.exp(
            1j * np.arange(x.shape[1])[:, None] * theta
        )
        return np.stack((pairs.real, pairs.imag), -1).reshape(x.shape)

    def attend(x, layer):
        name = f"roformer.encoder.layer.{layer}.attention.self"
        q, k, v = (
            dense(x, f"{name}.{part}").reshape(len(x), num_heads, -1).transpose(1, 0, 2)
            for part in ("query", "key", "value")
        )
        if layer not in unrotated:
            q, k = turn(q), turn(k)
        scores = q @ k.transpose(0, 2, 1) / math.sqrt(q.shape[-1])
        scores = np.where(mask, scores, -np.inf)
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        return (shares @ v).transpose(1, 0, 2).reshape(len(x), -1)

    x = w("roformer.embeddings.word_embeddings.weight")[ids]
    x = x + w("roformer.embeddings.token_type_embeddings.weight")[segments]
    x = norm(x, "roformer.embeddings.LayerNorm")
    if "roformer.embeddings_project.weight" in weights:
        x = dense(x, "roformer.embeddings_project")
    for layer in range(num_layers):
        name = f"roformer.encoder.layer.{layer}"
        inner = norm(x, f"{name}.attention.output.LayerNorm") if pre_norm else x
        x = x + dense(attend(inner, layer), f"{name}.attention.output.dense")
        x = x if pre_norm else norm(x, f"{name}.attention.output.LayerNorm")
        inner = norm(x, f"{name}.output.LayerNorm") if pre_norm else x
        wide = activate(dense(inner, f"{name}.intermediate.dense"))
        x = x + dense(wide, f"{name}.output.dense")
        x = x if pre_norm else norm(x, f"{name}.output.LayerNorm")
    if pre_norm:
        x = norm(x, "roformer.encoder.LayerNorm")
    embedding = w("roformer.embeddings.word_embeddings.weight")
    if version == 2:
        top = x
        if "cls.predictions.transform.weight" in weights:
            top = x @ w("cls.predictions.transform.weight").T
        return x, top @ embedding.T
    top = activate(dense(x, "cls.predictions.transform.dense"))
    top = norm(top, "cls.predictions.transform.LayerNorm")
    return x, top @ embedding.T + w("cls.predictions.bias")
