"""Tiny models that know one sentence by heart, so that a tool which spoils them is noticed."""

import torch

from rotary.models import RoFormerConfig

SIZES = {
    "vocab_size": 100,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "initializer_range": 0.3,
}
MASK = 4


def cache_of(output):
    """The cache that a model returned; transformers before 5.24 calls it ``past_key_values``."""
    return output.cache if hasattr(output, "cache") else output.past_key_values


def going_on_from(output):
    """That cache as an argument of ``generate``, under the name this transformers has for it."""
    return {"cache" if hasattr(output, "cache") else "past_key_values": cache_of(output)}


def tiny(cls, **config):
    return cls(RoFormerConfig(**{**SIZES, **config})).eval()


def ragged(rows, columns, side="right", vocab_size=100):
    """Random tokens and a mask; row r is r tokens short, with padding on one side."""
    ids = torch.randint(5, vocab_size, (rows, columns))
    place = torch.arange(columns).expand(rows, columns)
    short = torch.arange(rows)[:, None]
    mask = place < columns - short if side == "right" else place >= short
    return ids, mask.to(torch.int64)


def learn_by_heart(model, ids, steps=60, rate=3e-3):
    """Train a masked language model on a few rows until it can complete them."""
    generator = torch.Generator().manual_seed(0)
    optimizer = torch.optim.AdamW(model.train().parameters(), lr=rate)
    hideable = ids >= 5  # Not the special tokens.
    for _ in range(steps):
        hidden = (torch.rand(ids.shape, generator=generator) < 0.3) & hideable
        hidden[:, 2] = True
        labels = ids.masked_fill(~hidden, -100)
        optimizer.zero_grad()
        model(ids.masked_fill(hidden, MASK), labels=labels).loss.backward()
        optimizer.step()
    return model.eval()
