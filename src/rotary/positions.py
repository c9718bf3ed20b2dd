"""Build position tensors; everything that moves, packs or pads tokens is only positions.

Positions are integers or real numbers of any sign, in any order, one per token. With ``A`` axes
(images, video) they have a last dimension of size ``A``; for text it is left out.
"""

from __future__ import annotations

import operator

import torch
from torch import Tensor

from rotary._shapes import Int
from rotary.errors import ConfigError


def sequence(
    length: int, offset: int = 0, *, device: torch.device | str | None = None
) -> Int[Tensor, " length"]:
    """Number the tokens of a text: ``offset, offset + 1, ..., offset + length - 1``.

    Args:
        length: Number of tokens, 0 or more.
        offset: Position of the first token, of any sign; the number of cached tokens when decoding.
        device: Where the tensor lives; PyTorch's default device when left out.

    Returns:
        The positions, int64, of shape (length,).

    Raises:
        ConfigError: If the length is negative, or either is not an integer.

    Example:
        >>> sequence(3, offset=7)
        tensor([7, 8, 9])
    """
    length = _integer("length", length)
    offset = _integer("offset", offset)
    if length < 0:
        raise ConfigError(f"sequence: length is {length}; it is a number of tokens, 0 or more.")
    return torch.arange(offset, offset + length, dtype=torch.int64, device=device)


def _integer(name: str, value: object) -> int:
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise ConfigError(
            f"sequence: {name} is {value!r}, of type {type(value).__name__}; it must be an integer."
        ) from None
