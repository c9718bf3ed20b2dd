"""Cases that the tests of linear attention share: one drawn problem, and its dense answer."""

from dataclasses import dataclass

import torch

from rotary import RotaryEmbedding
from rotary.attention.reference import linear_attention_reference, weights_reference

FORMS = ["numerator", "cosine", "both", "undivided"]


def plain_elu_plus_one(x):
    """Written out, not taken from the library."""
    return torch.where(x >= 0, x + 1, x.exp())


# The reference's own feature maps, with sides (queries, keys).
PLAIN_MAPS = {
    "elu+1": (plain_elu_plus_one, plain_elu_plus_one),
    "relu": (lambda x: x.clamp(min=0), lambda x: x.clamp(min=0)),
    "exp": (torch.exp, torch.exp),
    "softmax": (lambda x: x.exp() / x.exp().sum(-1, keepdim=True),) * 2,
    "softmax_exp": (lambda x: x.exp() / x.exp().sum(-1, keepdim=True), torch.exp),
    "identity": (lambda x: x, lambda x: x),
}


@dataclass
class Case:
    """Queries, keys, values of unequal sizes everywhere, and positions that start anywhere."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    positions: torch.Tensor
    rope: RotaryEmbedding

    @property
    def rotation(self):
        return self.rope(self.positions, dtype=torch.float64)

    def dense(self, form, feature_map="elu+1", *, causal=False, mask=None, rotate=True):
        """The answer of the dense reference; differentiable."""
        repeats = self.q.shape[-3] // self.k.shape[-3]
        k, v = (x.repeat_interleave(repeats, -3) for x in (self.k, self.v))
        angles = self.rope.angles(self.positions) if rotate else None
        on_queries, on_keys = PLAIN_MAPS[feature_map]
        above, below = weights_reference(
            self.q,
            k,
            form=form,
            on_queries=on_queries,
            on_keys=on_keys,
            query_angles=angles,
            key_angles=angles,
            layout=self.rope.layout,
        )
        return linear_attention_reference(
            above,
            below,
            v,
            causal=causal,
            key_padding_mask=mask,
            is_divided=form != "undivided",
        )


def draw(
    *, batch=2, heads=6, key_heads=3, length=37, dim=8, value_dim=5, offset=11, layout="interleaved"
):
    """A float64 case with gradients switched on."""
    shapes = [(heads, dim), (key_heads, dim), (key_heads, value_dim)]
    q, k, v = (
        torch.randn(batch, h, length, d, dtype=torch.float64).requires_grad_() for h, d in shapes
    )
    rope = RotaryEmbedding(head_dim=dim, layout=layout)
    return Case(q, k, v, torch.arange(length) + offset, rope)
