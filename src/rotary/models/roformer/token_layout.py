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

from rotary.errors import DtypeError, ShapeError


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
        position_ids = _default_positions(attention_mask, document_ids, shape, device, num_cached)
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
            order = order | _within_prefix(segments, keys)
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
        position_ids = _default_positions(attention_mask, None, shape, device, num_cached)
    valid = None if attention_mask is None else attention_mask[:, num_cached:].bool()
    return TokenLayout(shape, position_ids, is_causal=is_causal, valid=valid)


def _within_prefix(segments: Tensor, keys: int) -> Tensor:
    """Where query and key are both of segment 0, (batch, 1, length, keys), nothing being cached."""
    prefix = segments.cumsum(-1) == 0
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
        positions = _default_positions(attention_mask, document_ids, shape, device, 0)
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


def _default_positions(
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
        changes = document_ids[:, 1:] != document_ids[:, :-1]
        starts = torch.nn.functional.pad(changes, (1, 0), value=True)
        first = torch.where(starts, place, 0).cummax(dim=1).values
        return place - first
    if attention_mask is None or attention_mask.ndim != 2:
        return place
    return place - attention_mask.bool().to(torch.uint8).argmax(dim=1, keepdim=True)


def check_batch(
    attention_mask: Tensor | None,
    document_ids: Tensor | None,
    position_ids: Tensor | None,
    token_type_ids: Tensor | None,
    *,
    shape: tuple[int, int],
    num_cached: int | Tensor = 0,
) -> None:
    """Raise unless the inputs of a forward pass belong together.

    Raises:
        ShapeError: Naming the input whose shape is wrong, both shapes and what is accepted.
        DtypeError: If positions or document ids are not integers.
    """
    rows, columns = shape
    row_shape = (rows, columns)
    if attention_mask is not None and attention_mask.ndim != 4:
        if tuple(attention_mask.shape) != (rows, columns + num_cached):
            keys = columns + int(num_cached)
            raise _wrong_shape("attention_mask", attention_mask, (rows, keys))
    elif attention_mask is not None and attention_mask.dtype != torch.bool:
        raise DtypeError(
            f"RoFormerModel: an attention_mask of four axes is {attention_mask.dtype}; it must be "
            "boolean, True where a query may attend to a key."
        )
    for name, ids in (("document_ids", document_ids), ("token_type_ids", token_type_ids)):
        if ids is not None and tuple(ids.shape) != row_shape:
            raise _wrong_shape(name, ids, row_shape)
    if position_ids is not None and (
        position_ids.ndim not in (1, 2)
        or position_ids.shape[-1] != columns
        or (position_ids.ndim == 2 and position_ids.shape[0] not in (1, rows))
    ):
        raise _wrong_shape("position_ids", position_ids, row_shape)
    for name, ids in (("document_ids", document_ids), ("position_ids", position_ids)):
        if ids is not None and (ids.is_floating_point() or ids.is_complex()):
            raise DtypeError(
                f"RoFormerModel: {name} are {ids.dtype}; they must be integers, which mixed "
                "precision leaves alone."
            )
    if document_ids is None:
        return
    if num_cached:
        raise ShapeError(
            "RoFormerModel: document_ids cannot go with a cache; generate one document per row."
        )
    if not torch.compiler.is_compiling():
        _check_whole_documents(document_ids)


def _check_whole_documents(document_ids: Tensor) -> None:
    """Raise if a number comes back after another: positions could not restart there."""
    ids = document_ids.clamp(min=0)
    starts = torch.nn.functional.pad(ids[:, 1:] != ids[:, :-1], (1, 0), value=True) & (ids > 0)
    row, column = starts.nonzero(as_tuple=True)
    pairs = torch.stack((row, ids[row, column]), dim=1)
    if len(torch.unique(pairs, dim=0)) == len(pairs):
        return
    seen: set[tuple[int, int]] = set()
    for (r, document), place in zip(pairs.tolist(), column.tolist(), strict=True):
        if (r, document) in seen:
            raise ShapeError(
                f"RoFormerModel: document_ids of row {r} come back to document {document} at token "
                f"{place}, after it had ended; the tokens of a document must be neighbours. Number "
                "the documents of a row 1, 2, 3, ... in order."
            )
        seen.add((r, document))


def _wrong_shape(name: str, tensor: Tensor, expected: tuple[int, int]) -> ShapeError:
    return ShapeError(
        f"RoFormerModel: {name} has shape {tuple(tensor.shape)}; the tokens are "
        f"(batch, length) = {expected}, and it must have the same."
    )
