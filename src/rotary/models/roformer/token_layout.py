"""How the tokens of a batch are laid out for the layers: as rows with a mask, or end to end.

Rows with a mask compute the padding as well. End to end, the real tokens of all documents follow
each other in one long row, and attention is told the length of each document. Both give a token
the result that its document gives it alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rotary.errors import ConfigError, ShapeError


@dataclass(frozen=True)
class TokenLayout:
    """Where each token goes, what it may attend to and its position.

    Args:
        shape: Rows and columns of the batch.
        positions: Position of each token the layers see: (length,), (batch, length) or, end to end,
            (tokens,).
        mask: True where a query may attend to a key, or None where every query may:
            (batch, 1, 1 or length, keys).
        is_causal: A token sees only itself and what came before, and the mask does not say so yet.
        index: End to end: place in the flattened batch of each token.
        lengths: End to end: tokens of each document.
        valid: For linear attention, in place of the mask: which tokens are real, (batch, length);
            None where all are.
    """

    shape: tuple[int, int]
    positions: Tensor
    mask: Tensor | None = None
    is_causal: bool = False
    index: Tensor | None = None
    lengths: tuple[int, ...] | None = None
    valid: Tensor | None = None

    def attention_arguments(self, implementation: str) -> dict[str, Any]:
        """What an attention function needs to know about documents laid end to end."""
        if self.lengths is None:
            return {}
        if not implementation.startswith("flash"):
            return {"lengths": self.lengths}
        ends = torch.tensor([0, *self.lengths]).cumsum(0).to(self.positions.device, torch.int32)
        longest = max(self.lengths, default=0)
        return {
            "cu_seq_lens_q": ends,
            "cu_seq_lens_k": ends,
            "max_length_q": longest,
            "max_length_k": longest,
        }

    def lay(self, x: Tensor) -> Tensor:
        """Bring a tensor of the batch's shape (batch, length, ...) into this layout."""
        return x if self.index is None else x.flatten(0, 1)[self.index].unsqueeze(0)

    def unlay(self, x: Tensor) -> Tensor:
        """Bring (1, tokens, ...) back to (batch, length, ...); padding becomes zeros."""
        if self.index is None:
            return x
        rows, columns = self.shape
        out = x.new_zeros((rows * columns, *x.shape[2:]))
        return out.index_copy(0, self.index, x[0]).reshape(rows, columns, *x.shape[2:])


def lay_in_rows(
    attention_mask: Tensor | None,
    document_ids: Tensor | None,
    position_ids: Tensor | None,
    *,
    shape: tuple[int, int],
    is_causal: bool,
    device: torch.device,
    segments: Tensor | None = None,
    num_cached: int | Tensor = 0,
    num_keys: int | None = None,
) -> TokenLayout:
    """Keep the rows; padding and other documents are masked out.

    Args:
        attention_mask: True or 1 for tokens to attend to, (batch, keys); or, ready made, which
            query may attend to which key, bool (batch, 1 or heads, length, keys).
        document_ids: See :func:`lay_end_to_end`.
        position_ids: See :func:`lay_end_to_end`.
        shape: Rows and columns of the batch.
        is_causal: Whether a token sees only itself and what came before.
        device: Of the layout.
        segments: A prefix model's segments: those of segment 0 see each other whatever their order.
        num_cached: Tokens whose keys are already in the cache.
        num_keys: Keys that attention gets: those in the cache, also its free places, and the new.
    """
    columns = shape[1]
    keys = columns if num_keys is None else num_keys
    mask = None
    if attention_mask is not None and attention_mask.ndim == 4:
        # Ready made, so the order of the tokens is in it too (UniLM lets a prefix see itself).
        mask, attention_mask, is_causal = attention_mask, None, False
    if position_ids is None:
        position_ids = default_positions(attention_mask, document_ids, shape, device, num_cached)
    if attention_mask is not None:
        mask = attention_mask.bool()[:, None, None, :]
        if mask.shape[-1] < keys:
            mask = torch.nn.functional.pad(mask, (0, keys - mask.shape[-1]))
    if document_ids is not None:
        same = document_ids[:, None, :, None] == document_ids[:, None, None, :]
        same = same & (document_ids > 0)[:, None, None, :]
        mask = same if mask is None else mask & same
    # PyTorch's own causal flag counts from the first key, so with a cache the mask says it.
    if is_causal and (mask is not None or segments is not None or keys != columns):
        place = torch.arange(columns, device=device) + num_cached
        order = torch.arange(keys, device=device) <= place[:, None]
        if segments is not None:
            real = None if attention_mask is None else attention_mask.bool()
            order = order | _within_prefix(segments, real, document_ids, keys)
        if columns > 1 or keys > 1:
            mask = order if mask is None else mask & order
        is_causal = False
    if mask is not None and torch.compiler.is_exporting():
        # onnxruntime's Attention (opset 23) does not broadcast the axis of the queries.
        mask = mask.expand(-1, -1, columns, -1)
    return TokenLayout(shape, position_ids, mask, is_causal)


def lay_for_linear(
    attention_mask: Tensor | None,
    position_ids: Tensor | None,
    *,
    shape: tuple[int, int],
    is_causal: bool,
    device: torch.device,
    num_cached: int | Tensor = 0,
) -> TokenLayout:
    """Keep the rows for linear attention, which leaves padding out of its sums.

    Args:
        attention_mask: True or 1 for real tokens, cached ones included, (batch, keys).
        position_ids: See :func:`lay_end_to_end`.
        shape: Rows and columns of the batch.
        is_causal: Whether a token sees only itself and what came before.
        device: Of the layout.
        num_cached: Tokens that the state has taken in.

    Raises:
        ShapeError: If the mask is one over pairs of tokens.
    """
    if attention_mask is not None and attention_mask.ndim == 4:
        raise ShapeError(
            f"RoFormerModel: attention_mask has shape {tuple(attention_mask.shape)}, a mask over "
            "pairs of tokens, which linear attention never forms. Give (batch, length), True or 1 "
            "for real tokens; or use attention_form='softmax'."
        )
    if position_ids is None:
        position_ids = default_positions(attention_mask, None, shape, device, num_cached)
    valid = None if attention_mask is None else attention_mask[:, num_cached:].bool()
    return TokenLayout(shape, position_ids, is_causal=is_causal, valid=valid)


def prefix_segments(
    token_type_ids: Tensor | None,
    shape: tuple[int, int],
    device: torch.device,
    num_cached: int | Tensor,
) -> Tensor | None:
    """The segments of a prefix model's text where it begins; None for what is written after it.

    Raises:
        ConfigError: If a prefix goes on behind a cache, whose tokens have not seen it.
    """
    if int(num_cached) == 0:
        if token_type_ids is None:
            return torch.zeros(shape, dtype=torch.int64, device=device)
        return token_type_ids
    if token_type_ids is None or bool((token_type_ids == 0).any()):
        raise ConfigError(
            "RoFormerModel: tokens of segment 0 come behind a cache, but in a prefix model "
            "(is_prefix_lm) they would have to be seen by the tokens that are in it. Read the "
            "prefix in one call (no prefill_chunk_size), and give token_type_ids of 1 after it."
        )
    return None


def _within_prefix(
    segments: Tensor, real: Tensor | None, document_ids: Tensor | None, keys: int
) -> Tensor:
    """Where query and key are both in a prefix, (batch, 1, length, keys), nothing being cached.

    The prefix of a document ends where another segment than 0 begins; padding has no say in it.
    """
    is_other = segments != 0 if real is None else (segments != 0) & real
    others = is_other.cumsum(-1)
    if document_ids is not None:
        before = others - is_other.long()
        others = others - torch.where(_starts(document_ids), before, 0).cummax(dim=1).values
    prefix = others == 0
    key = torch.nn.functional.pad(prefix, (0, keys - prefix.shape[-1]))
    return (prefix[:, :, None] & key[:, None, :])[:, None]


def lay_end_to_end(
    attention_mask: Tensor | None,
    document_ids: Tensor | None,
    position_ids: Tensor | None,
    *,
    shape: tuple[int, int],
    is_causal: bool,
    device: torch.device,
) -> TokenLayout:
    """Drop the padding and put the documents one after the other, equal lengths side by side.

    Args:
        attention_mask: True or 1 for real tokens, (batch, length).
        document_ids: 0 for padding, 1, 2, ... for the documents of a row, (batch, length).
        position_ids: Of each token, (length,) or (batch, length); counted from the first token of
            each document when None.
        shape: Rows and columns of the batch.
        is_causal: Whether a token sees only itself and what came before.
        device: Of the layout.
    """
    rows, columns = shape
    documents = torch.ones(shape, dtype=torch.int64, device=device)
    if document_ids is not None:
        documents = document_ids.to(torch.int64).clamp(min=0)
    if attention_mask is not None:
        documents = documents * attention_mask.bool()
    positions = position_ids
    if positions is None:
        positions = default_positions(attention_mask, document_ids, shape, device, 0)
    index = documents.flatten().nonzero().squeeze(-1)
    if document_ids is None and len(index) == rows * columns:
        return TokenLayout(shape, positions, None, is_causal)
    row_start = torch.arange(rows, device=device)[:, None] * (documents.max() + 1 if rows else 1)
    key = (documents + row_start).flatten()[index]
    if len(key) > 1 and bool((key[1:] < key[:-1]).any()):
        order = key.argsort(stable=True)
        index, key = index[order], key[order]
    _, inverse, counts = torch.unique_consecutive(key, return_inverse=True, return_counts=True)
    lengths = tuple(counts.tolist())
    if len(set(lengths)) < len(lengths):
        index = index[counts[inverse].argsort(stable=True)]
        lengths = tuple(sorted(lengths))
    positions = positions.expand(shape).flatten()[index]
    return TokenLayout(shape, positions, None, is_causal, index, lengths)


def default_positions(
    attention_mask: Tensor | None,
    document_ids: Tensor | None,
    shape: tuple[int, int],
    device: torch.device,
    num_cached: int | Tensor,
) -> Tensor:
    """Count from the first real token of each document; holes in a document count as tokens."""
    columns = shape[1]
    place = torch.arange(columns, device=device) + num_cached
    if document_ids is not None:
        first = torch.where(_starts(document_ids), place, 0).cummax(dim=1).values
        return place - first
    if attention_mask is None or attention_mask.ndim != 2:
        return place
    return place - first_real(attention_mask)[:, None]


def first_real(attention_mask: Tensor) -> Tensor:
    """Place of the first real token of each row, (batch,); 0 where there is none."""
    if attention_mask.shape[1] == 0:
        return attention_mask.new_zeros(attention_mask.shape[0], dtype=torch.int64)
    return attention_mask.bool().to(torch.uint8).argmax(dim=1)


def _starts(document_ids: Tensor) -> Tensor:
    """Where a document, or padding, begins, (batch, length)."""
    changes = document_ids[:, 1:] != document_ids[:, :-1]
    return torch.nn.functional.pad(changes, (1, 0), value=True)[:, : document_ids.shape[1]]
