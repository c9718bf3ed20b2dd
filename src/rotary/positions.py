"""Build position tensors; everything that moves, packs or pads tokens is only positions.

Positions are integers or real numbers of any sign, in any order, one per token. With ``A`` axes
(images, video) they have a last dimension of size ``A``; for text it is left out. Position 0, or 0
on every axis, is the identity: a token that is not to be rotated gets it.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any, Literal, cast

import torch
from torch import Tensor

from rotary._shapes import Bool, Int, Integer, Num
from rotary.errors import ConfigError, DtypeError, ShapeError, one_of

__all__ = ["grid", "left_padded", "mrope", "packed", "sequence", "shard"]

_AXES = {1: "w", 2: "hw", 3: "thw"}


def sequence(
    length: int,
    offset: int | Integer[Tensor, "*batch"] = 0,
    *,
    device: torch.device | str | None = None,
) -> Int[Tensor, "*batch length"]:
    """Number the tokens of a text: ``offset, offset + 1, ..., offset + length - 1``.

    Args:
        length: Number of tokens, 0 or more.
        offset: Position of the first token, of any sign; the number of cached tokens when decoding.
            An integer tensor (batch,) where every sequence has its own.
        device: Where the tensor lives; that of the offset, or PyTorch's default, when left out.

    Returns:
        The positions, int64, of shape (length,); (batch, length) for a tensor of offsets.

    Raises:
        ConfigError: If the length is negative, or either is not an integer.
        ShapeError: If a tensor of offsets is not (batch,).

    Example:
        >>> sequence(3, offset=7)
        tensor([7, 8, 9])
        >>> sequence(2, offset=torch.tensor([0, 5]))
        tensor([[0, 1],
                [5, 6]])
    """
    length = _integer("sequence", "length", length)
    if length < 0:
        raise ConfigError(f"sequence: length is {length}; it is a number of tokens, 0 or more.")
    if isinstance(offset, Tensor):
        _whole("sequence", "offset", offset)
        if offset.ndim > 1:
            raise ShapeError(
                f"sequence: offset has shape {tuple(offset.shape)}; expected (batch,), one for "
                "each sequence."
            )
        start = offset.to(device=device, dtype=torch.int64)
        return start.unsqueeze(-1) + torch.arange(length, device=start.device)
    offset = _integer("sequence", "offset", offset)
    return torch.arange(offset, offset + length, dtype=torch.int64, device=device)


def grid(
    *sizes: int,
    axes: str | Sequence[str] | None = None,
    order: str | Sequence[str] | None = None,
    coordinates: Literal["pixel", "normalised"] = "pixel",
    scale: float | Sequence[float] = 1.0,
    offset: float | Sequence[float] = 0.0,
    num_prefix_tokens: int = 0,
    device: torch.device | str | None = None,
) -> Num[Tensor, "length axes"]:
    """Number the cells of an image or a video, row by row.

    Tokens always run with the last size fastest, as ``x.flatten()`` does. Which column of the
    result holds which axis is ``order``.

    Args:
        *sizes: Cells along each axis: ``grid(height, width)``, ``grid(frames, height, width)``.
        axes: A name for each size, one letter each or a list: ``"w"``, ``"hw"``, ``"thw"`` for
            one, two, three sizes, if left out.
        order: The columns, by name; the order of the sizes if left out. ``"wh"`` puts x first.
        coordinates: ``"pixel"`` counts 0, 1, 2, ...; ``"normalised"`` puts the centres of the cells
            into [-1, 1], whatever the number: ``(2i + 1) / n - 1``.
        scale: Multiplies the coordinates, one number or one for each size: ``trained / now`` on
            each axis keeps a model inside the range it was trained on at another resolution.
        offset: Added after scaling, one number or one for each size.
        num_prefix_tokens: Rows of zeros put in front, for class and register tokens: no rotation.
        device: Where the tensor lives.

    Returns:
        (num_prefix_tokens + cells, axes): int64 while everything is whole and below 2**53, float64
        otherwise.

    Raises:
        ConfigError: If a size is below 1 or names, scales or offsets do not fit the sizes.

    Example:
        >>> grid(2, 3).tolist()
        [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]]
        >>> grid(1, 2, order="wh", num_prefix_tokens=1).tolist()
        [[0, 0], [0, 0], [1, 0]]
    """
    counts = [_integer("grid", "size", size) for size in sizes]
    if not counts or min(counts) < 1:
        raise ConfigError(
            f"grid: sizes are {list(sizes)}; give the number of cells along each axis, each at "
            "least 1, for instance grid(height, width)."
        )
    names = list(_AXES.get(len(counts), "") if axes is None else axes)
    if len(names) != len(counts) or len(set(names)) != len(names):
        raise ConfigError(
            f"grid: axes are {axes!r} for {len(counts)} sizes; give one different name for each."
        )
    columns = list(names if order is None else order)
    if sorted(columns) != sorted(names):
        raise ConfigError(f"grid: order is {order!r}; it must name each of the axes {names} once.")
    if coordinates not in ("pixel", "normalised"):
        raise ConfigError("grid: " + one_of("coordinates", coordinates, ("pixel", "normalised")))
    prefix = _integer("grid", "num_prefix_tokens", num_prefix_tokens)
    if prefix < 0:
        raise ConfigError(f"grid: num_prefix_tokens is {prefix}; it must be 0 or more.")
    scales = _per_axis("scale", scale, len(counts))
    offsets = _per_axis("offset", offset, len(counts))
    # Beyond that, float64 has no neighbours of a whole number either.
    is_whole = coordinates == "pixel" and all(
        by.is_integer() and shift.is_integer() and count * abs(by) + abs(shift) < 2**53
        for count, by, shift in zip(counts, scales, offsets, strict=True)
    )
    dtype = torch.int64 if is_whole else torch.float64
    lines = []
    for count, by, shift in zip(counts, scales, offsets, strict=True):
        line = torch.arange(count, dtype=dtype, device=device)
        if coordinates == "normalised":
            line = (2 * line + 1) / count - 1
        lines.append(line * int(by) + int(shift) if is_whole else line * by + shift)
    cells = dict(zip(names, torch.meshgrid(*lines, indexing="ij"), strict=True))
    positions = torch.stack([cells[name].flatten() for name in columns], dim=-1)
    front = torch.zeros((prefix, len(counts)), dtype=dtype, device=device)
    return torch.cat((front, positions)) if prefix else positions


def packed(
    lengths: Sequence[int] | Integer[Tensor, " documents"],
    *,
    device: torch.device | str | None = None,
) -> Int[Tensor, " length"]:
    """Number the tokens of documents that lie behind one another in a row: each starts at 0.

    Args:
        lengths: Tokens of each document, 0 or more, in order.
        device: Where the tensor lives; that of the lengths if they are a tensor.

    Returns:
        The positions, int64, of shape (sum of the lengths,).

    Raises:
        ConfigError: If a length is negative or not an integer.
        ShapeError: If a tensor of lengths is not (documents,).

    Example:
        >>> packed([2, 3])
        tensor([0, 1, 0, 1, 2])
    """
    if isinstance(lengths, Tensor):
        _whole("packed", "lengths", lengths)
        if lengths.ndim != 1:
            raise ShapeError(
                f"packed: lengths have shape {tuple(lengths.shape)}; expected (documents,)."
            )
        device = lengths.device if device is None else device
        lengths = lengths.tolist()
    counts = [_integer("packed", "length", length) for length in lengths]
    if any(count < 0 for count in counts):
        raise ConfigError(f"packed: lengths are {counts}; each must be 0 or more.")
    sizes = torch.tensor(counts, dtype=torch.int64, device=device)
    starts = sizes.cumsum(0) - sizes
    every = torch.arange(sum(counts), dtype=torch.int64, device=device)
    return every - torch.repeat_interleave(starts, sizes, output_size=sum(counts))


def left_padded(
    mask: Bool[Tensor, "batch length"] | Integer[Tensor, "batch length"],
) -> Int[Tensor, "batch length"]:
    """Number the real tokens of each row from 0; padding in front of them gets 0 as well.

    So a sequence gives the same result with and without padding. Padding behind the tokens, or
    between them, repeats the number of the token before it.

    Args:
        mask: True or 1 where there is a token, (batch, length) or (length,).

    Returns:
        The positions, int64, of the shape of the mask.

    Raises:
        ShapeError: If the mask has another rank.
        DtypeError: If it is floating point, as additive attention masks are.

    Example:
        >>> left_padded(torch.tensor([[0, 1, 1], [1, 1, 1]]))
        tensor([[0, 0, 1],
                [0, 1, 2]])
    """
    if mask.ndim not in (1, 2):
        raise ShapeError(
            f"left_padded: the mask has shape {tuple(mask.shape)}; expected (batch, length), True "
            "or 1 where there is a token."
        )
    if mask.dtype.is_floating_point or mask.dtype.is_complex:
        raise DtypeError(
            f"left_padded: the mask is {mask.dtype}; give booleans or integers, True or 1 where "
            "there is a token (an additive mask is 0 there)."
        )
    return (mask.bool().long().cumsum(-1) - 1).clamp(min=0)


def shard(
    length: int | Sequence[int],
    rank: int,
    world: int,
    scheme: Literal["contiguous", "zigzag"] = "contiguous",
    *,
    is_row: bool = False,
    device: torch.device | str | None = None,
) -> Int[Tensor, " share"]:
    """Number the tokens that one rank of a context-parallel group holds.

    Contiguous, rank ``r`` holds the ``r``-th of ``world`` equal pieces. Zigzag, the sequence is cut
    into ``2 * world`` pieces and rank ``r`` holds pieces ``r`` and ``2 * world - 1 - r``, so that
    under a causal mask all ranks have the same work.

    Args:
        length: Tokens of the whole sequence; a list, of every document of a packed row, each of
            which is cut up for itself.
        rank: This rank, from 0.
        world: Number of ranks.
        scheme: ``"contiguous"`` or ``"zigzag"``.
        is_row: Of a packed row, give the places in the row instead of the positions in the
            documents: the index with which to take this rank's tokens.
        device: Where the tensor lives.

    Returns:
        int64, (length / world,).

    Raises:
        ConfigError: If a length does not divide evenly, or the rank is not in the group.

    Example:
        >>> shard(8, rank=0, world=2, scheme="zigzag")
        tensor([0, 1, 6, 7])
        >>> shard([4, 4], 0, 2, "zigzag"), shard([4, 4], 0, 2, "zigzag", is_row=True)
        (tensor([0, 3, 0, 3]), tensor([0, 3, 4, 7]))
    """
    if scheme not in ("contiguous", "zigzag"):
        raise ConfigError("shard: " + one_of("scheme", scheme, ("contiguous", "zigzag")))
    rank, world = _integer("shard", "rank", rank), _integer("shard", "world", world)
    if not 0 <= rank < world:
        raise ConfigError(f"shard: rank is {rank} in a group of {world}; it runs from 0.")
    is_list = not hasattr(length, "__index__")
    lengths = list(length) if is_list else [length]  # type: ignore[arg-type]
    pieces = world if scheme == "contiguous" else 2 * world
    mine = [rank] if scheme == "contiguous" else [rank, pieces - 1 - rank]
    parts, start = [], 0
    for document in lengths:
        count = _integer("shard", "length", document)
        if count < 0 or count % pieces:
            raise ConfigError(
                f"shard: length is {count}; {scheme} over {world} ranks needs a multiple of "
                f"{pieces}. Pad it to {-(-max(count, 0) // pieces) * pieces}."
            )
        size, first = count // pieces, start if is_row else 0
        parts += [
            torch.arange(first + p * size, first + (p + 1) * size, device=device) for p in mine
        ]
        start += count
    return torch.cat(parts) if parts else torch.arange(0, device=device)


def mrope(
    *segments: int | Sequence[int],
    offset: int = 0,
    time_scale: float = 1.0,
    device: torch.device | str | None = None,
) -> Num[Tensor, "length three"]:
    """Number the tokens of text mixed with images and videos (Qwen2-VL, arXiv 2409.12191, 2.1).

    Text counts on, the same on all three axes. An image or video of (frames, height, width) starts
    where the text has arrived and adds the cell's own coordinates; the text after it goes on behind
    the largest coordinate.

    Args:
        *segments: In order: a number of text tokens, or ``(frames, height, width)`` of an image
            (one frame) or video, in cells after merging.
        offset: Position of the first token.
        time_scale: Positions between two frames: 1 in Qwen2-VL; in Qwen2.5-VL ``tokens_per_second
            * seconds_per_grid``.
        device: Where the tensor lives.

    Returns:
        (length, 3), time, height, width: int64, or float64 if ``time_scale`` is a fraction.
        Transformers 5.24 keeps those of text and images as (3, batch, length). Of a video it
        truncates fractional times, and the text behind goes on after the larger of height and
        width, even where the frames reach further: a model trained so wants its numbers.

    Raises:
        ConfigError: If a segment is neither, or a number is out of range.

    Example:
        >>> mrope(1, (1, 2, 2), 1).T
        tensor([[0, 1, 1, 1, 1, 3],
                [0, 1, 1, 2, 2, 3],
                [0, 1, 2, 1, 2, 3]])
    """
    start: float = _integer("mrope", "offset", offset)
    parts = []
    is_whole = float(time_scale).is_integer()
    if not time_scale >= 0:
        raise ConfigError(f"mrope: time_scale is {time_scale!r}; it must be 0 or more.")
    for segment in segments:
        if hasattr(segment, "__index__"):
            count = _integer("mrope", "segment", segment)
            if count < 0:
                raise ConfigError(f"mrope: a text has {count} tokens; it must be 0 or more.")
            line = torch.arange(count, dtype=torch.float64, device=device) + start
            parts.append(line.unsqueeze(-1).expand(-1, 3))
            start += count
            continue
        sizes = list(segment) if isinstance(segment, (Sequence, Tensor)) else []
        if len(sizes) != 3:
            raise ConfigError(
                f"mrope: a segment is {segment!r}; give a number of text tokens, or (frames, "
                "height, width) of an image or video."
            )
        cells = grid(*sizes, scale=(time_scale, 1.0, 1.0), device=device).double() + start
        parts.append(cells)
        frames, height, width = (_integer("mrope", "size", size) for size in sizes)
        # The last coordinate on any axis, known without reading the tensor.
        start += max((frames - 1) * time_scale, height - 1, width - 1) + 1
    if not parts:
        return torch.zeros((0, 3), dtype=torch.int64, device=device)
    positions = torch.cat(parts)
    return positions.long() if is_whole else positions


def _integer(function: str, name: str, value: object) -> int:
    if isinstance(value, int | torch.SymInt):
        return cast(int, value)  # As it is: an index would pin a compiler's symbol to one number.
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except (TypeError, RuntimeError):
        raise ConfigError(
            f"{function}: {name} is {value!r}, of type {type(value).__name__}; it must be an "
            "integer."
        ) from None


def _whole(function: str, name: str, value: Tensor) -> None:
    if value.dtype.is_floating_point or value.dtype.is_complex or value.dtype == torch.bool:
        raise DtypeError(f"{function}: {name} is {value.dtype}; it must be of an integer dtype.")


def _per_axis(name: str, value: float | Sequence[float], count: int) -> list[float]:
    each_size: Any = value if hasattr(value, "__len__") else [value] * count
    try:
        values = [float(each) for each in each_size]
    except (TypeError, ValueError):
        values = [math.nan] * count
    if not all(map(math.isfinite, values)):
        raise ConfigError(
            f"grid: {name} is {value!r}; give a finite number, or one for each of {count} sizes."
        )
    if len(values) != count:
        raise ConfigError(
            f"grid: {name} has {len(values)} numbers for {count} sizes; give one, or one for each."
        )
    return values
