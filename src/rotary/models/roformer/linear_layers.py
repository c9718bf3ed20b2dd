"""Linear attention inside a RoFormer: rows, documents end to end, and a cache of constant size."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, LinearAttentionLayer

from rotary._shapes import Float
from rotary.attention.linear import linear_attention
from rotary.attention.performer import FavorFeatures
from rotary.attention.state import LinearState
from rotary.errors import ConfigError
from rotary.models.roformer.token_layout import TokenLayout
from rotary.rotation import Rotation


class LinearStateLayer(LinearAttentionLayer):
    """What one layer remembers: the two sums of linear attention, float32 or float64."""

    # The number of tokens is a Python number, so a compiled step would be compiled for each.
    is_compileable = False

    def __init__(self) -> None:
        super().__init__(number_of_states=2)

    def state(self) -> LinearState | None:
        """The sums as linear attention takes them; None before the first token."""
        memory, key_sum = self.recurrent_states.values()
        if memory is None:
            return None
        # The positions come from the model, which alone knows of padding.
        position = torch.zeros(memory.shape[0], dtype=torch.int64, device=memory.device)
        return LinearState(memory, key_sum, position)

    def store(self, state: LinearState) -> None:
        """Keep the sums after the newest token. Nothing is written into the old ones."""
        self.device, self.dtype = state.memory.device, state.memory.dtype
        for index, sums in enumerate((state.memory, state.key_sum)):
            self.recurrent_states[index] = sums
            self.is_recurrent_states_initialized[index] = True
            self.has_previous_state[index] = True

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat each sequence of the batch."""
        for index, sums in self.recurrent_states.items():
            if sums is not None:
                self.recurrent_states[index] = sums.repeat_interleave(repeats, dim=0)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep some sequences of the batch."""
        for index, sums in self.recurrent_states.items():
            if sums is not None:
                self.recurrent_states[index] = sums[indices]


class LinearStateCache(Cache):
    """transformers' cache over the states of all layers, of the same size after any text.

    Args:
        num_layers: Layers of the model.

    Example:
        >>> cache = LinearStateCache(num_layers=12)
        >>> cache.get_seq_length()
        0
    """

    def __init__(self, num_layers: int) -> None:
        super().__init__(layers=[LinearStateLayer() for _ in range(num_layers)])
        self.num_tokens = 0

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Tokens taken in, padding included; those of any layer."""
        return self.num_tokens

    def advance(self, num_tokens: int) -> None:
        """Count tokens that all layers have taken in."""
        self.num_tokens += num_tokens

    def reset(self) -> None:
        """Forget everything."""
        super().reset()
        self.num_tokens = 0


def check_cache(cache: Any, *, is_linear: bool) -> None:
    """Raise unless a cache can hold what the model's attention remembers.

    Raises:
        ConfigError: Naming what it is and what is accepted.
    """
    if isinstance(cache, LinearStateCache) and not is_linear:
        raise ConfigError(
            "RoFormerModel: the cache is a LinearStateCache, but softmax attention needs the keys "
            "and values themselves. Leave the cache out, or give transformers.DynamicCache()."
        )
    if not is_linear and not isinstance(cache, Cache):
        raise ConfigError(
            f"RoFormerModel: the cache is a {type(cache).__name__}; it must be one of "
            "transformers' caches, for instance transformers.DynamicCache()."
        )
    if is_linear and not isinstance(cache, LinearStateCache):
        raise ConfigError(
            f"RoFormerModel: the cache is a {type(cache).__name__}, which holds keys and values; "
            "linear attention keeps sums instead. Leave the cache and cache_implementation out, or "
            "give rotary.models.LinearStateCache(num_layers)."
        )


def attend_linearly(
    q: Float[Tensor, "batch length heads dim"],
    k: Float[Tensor, "batch length heads dim"],
    v: Float[Tensor, "batch length heads dim"],
    layout: TokenLayout,
    rotation: Rotation | None,
    *,
    attention_form: str,
    favor: FavorFeatures | None,
    layer_state: LinearStateLayer | None,
) -> Float[Tensor, "batch length heads dim"]:
    """Give each token what linear attention gives it in its document alone.

    Args:
        q: Queries, not rotated: the rotation turns their features.
        k: Keys, not rotated.
        v: Values.
        layout: Where the documents are and which tokens are real.
        rotation: Of all tokens of the layout; None leaves positions out.
        attention_form: ``"numerator"``, ``"cosine"`` or ``"performer"``.
        favor: The random features of this layer, for ``"performer"``.
        layer_state: The past in a decoder with a cache; it takes the new tokens in.
    """
    is_cosine = attention_form == "cosine"
    settings: dict[str, Any] = {
        "form": "cosine" if is_cosine else "numerator",
        "feature_map": favor,  # None is elu+1, and for cosine its own.
        "causal": layout.is_causal,
    }
    if layout.lengths is not None:
        return _attend_in_documents(q, k, v, layout.lengths, rotation, settings)
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    settings |= {"rotation": rotation, "key_padding_mask": layout.valid}
    if layer_state is None:
        return linear_attention(q, k, v, **settings).transpose(1, 2)
    mixed, state = linear_attention(
        q, k, v, state=layer_state.state(), return_state=True, **settings
    )
    layer_state.store(state)
    return mixed.transpose(1, 2)


def _attend_in_documents(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lengths: tuple[int, ...],
    rotation: Rotation | None,
    settings: dict[str, Any],
) -> Tensor:
    """One call for all documents of a length, which lie side by side."""
    counts = [(length, len(list(group))) for length, group in groupby(lengths)]
    sizes = [length * count for length, count in counts]
    mixed, start = [], 0
    parts = zip(*(torch.split(x[0], sizes) for x in (q, k, v)), strict=True)
    for (length, count), part in zip(counts, parts, strict=True):
        each = [x.unflatten(0, (count, length)).transpose(1, 2) for x in part]
        stop = start + length * count
        turn = None if rotation is None else _of_documents(rotation[start:stop], count)
        result = linear_attention(*each, rotation=turn, **settings)
        mixed.append(result.transpose(1, 2).flatten(0, 1))
        start = stop
    return torch.cat(mixed).unsqueeze(0) if mixed else v


def _of_documents(rotation: Rotation, count: int) -> Rotation:
    """The rotation of documents of one length, (documents, length, planes)."""
    shape = (count, -1, rotation.num_planes)
    return Rotation(
        rotation.cos.reshape(shape),
        rotation.sin.reshape(shape),
        rotation.layout,
        rotation.amplitude,
    )
