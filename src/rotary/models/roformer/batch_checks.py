"""What can be wrong with the inputs of a forward pass, said before the layers see them.

Values are read on a CPU only, where that waits for nothing, and not while compiling.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rotary.errors import ConfigError, DtypeError, ShapeError


def check_ids(name: str, ids: Tensor, count: int, hint: str) -> None:
    """Raise unless ids are integers from 0 to ``count - 1``.

    Raises:
        DtypeError: If they are no integers.
        ConfigError: If one is outside.
    """
    if ids.dtype == torch.bool or ids.is_floating_point() or ids.is_complex():
        raise DtypeError(f"RoFormerModel: {name} are {ids.dtype}; they must be integers.")
    if ids.device.type != "cpu" or not ids.numel() or torch.compiler.is_compiling():
        return
    low, high = ids.aminmax()
    if low < 0 or high >= count:
        raise ConfigError(f"RoFormerModel: {name} hold {int(low if low < 0 else high)}, but {hint}")


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
        ConfigError: If a mask of tokens holds something else than 0 and 1.
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
    if attention_mask is not None and attention_mask.ndim == 2:
        _check_mask_values(attention_mask)
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


def _check_mask_values(attention_mask: Tensor) -> None:
    """Raise unless all are 0 or 1; where reading them would wait for a device, floats alone."""
    is_cheap = attention_mask.device.type == "cpu" or attention_mask.is_floating_point()
    if attention_mask.dtype == torch.bool or not is_cheap or torch.compiler.is_compiling():
        return
    others = attention_mask[(attention_mask != 0) & (attention_mask != 1)]
    if others.numel():
        raise ConfigError(
            f"RoFormerModel: attention_mask holds {others[0].item():g}; it has 1 or True for real "
            "tokens and 0 or False for padding, and is not added to scores. Several documents in a "
            "row are told apart by document_ids."
        )


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
