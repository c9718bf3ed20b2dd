"""``angles = positions @ frequencies``, in float64, for every kind of frequencies."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from rotary.errors import ConfigError, DtypeError, ShapeError
from rotary.frequencies import Frequencies, LengthSchedule, XPos

_POSITION_DTYPES = frozenset(
    (
        torch.int64,
        torch.int32,
        torch.int16,
        torch.int8,
        torch.uint8,
        torch.float64,
        torch.float32,
    )
)


def angles_of(
    positions: Tensor,
    source: Frequencies | LengthSchedule | XPos,
    lengths: int | Tensor | None = None,
    offset: Tensor | None = None,
) -> tuple[Tensor, float | Tensor, Tensor | None]:
    """Angles, amplitude and xPos exponents of some positions.

    Args:
        positions: Integer or real, one per token: (length,), (batch, length), or with an axis more.
        source: The frequencies.
        lengths: How long the sequences are, for frequencies that depend on it.
        offset: Added to the frequency matrix: what was learned.

    Returns:
        Angles in radians, float64, of the shape of the tables; the amplitude, a number or a tensor
        that broadcasts with them; for xPos the logarithm of the scale of a query. On the device of
        the positions, except for MPS, which has no float64: there on the CPU.

    Raises:
        ShapeError: If the positions or lengths have another shape.
        DtypeError: If the positions are held in half precision, where neighbours collide.
        ConfigError: If lengths are needed and missing.
    """
    exact = _exact_positions(positions, source.num_axes)
    if isinstance(source, LengthSchedule):
        weights, amplitude = _scheduled(source, lengths, exact)
        return _product(exact, weights), amplitude, None
    decay = None
    if isinstance(source, XPos):
        rates = torch.tensor(source.rates, dtype=torch.float64, device=exact.device)
        decay = (exact - source.centre) * rates
        source = source.frequencies
    weights = source.on(exact)
    if offset is not None:
        weights = weights + offset.to(weights)
    if source.num_heads is not None:
        exact = exact.unsqueeze(-3) if exact.ndim == 3 else exact[None, None]
    return _product(exact, weights), source.amplitude, decay


def _product(exact: Tensor, weights: Tensor) -> Tensor:
    if exact.shape[-1] == 1:
        return exact * weights
    # One multiplication an axis: autocast would take a matrix product to half precision.
    angles = exact[..., :1] * weights[..., :1, :]
    for axis in range(1, exact.shape[-1]):
        angles = angles + exact[..., axis : axis + 1] * weights[..., axis : axis + 1, :]
    return angles


def _exact_positions(positions: object, axes: int) -> Tensor:
    """Positions as float64 of shape (length, axes) or (batch, length, axes)."""
    if not isinstance(positions, Tensor):
        how = "from_numpy" if isinstance(positions, np.ndarray) else "tensor"
        raise DtypeError(
            f"RotaryEmbedding: positions are of type {type(positions).__name__}; give a tensor of "
            f"PyTorch's, torch.{how}(positions)."
        )
    if positions.dtype not in _POSITION_DTYPES:
        why = (
            "which cannot tell neighbouring positions apart"
            if positions.dtype in (torch.float16, torch.bfloat16)
            else "which are no positions"
        )
        raise DtypeError(
            f"RotaryEmbedding: positions are {positions.dtype}, {why}; use integers, float32 or "
            "float64."
        )
    ndim = positions.ndim
    if axes == 1 and ndim in (1, 2):
        positions = positions.unsqueeze(-1)
    elif ndim not in (2, 3) or positions.shape[-1] != axes:
        expected = (
            "(length,), (batch, length) or (batch, length, 1)"
            if axes == 1
            else f"(length, {axes}) or (batch, length, {axes})"
        )
        raise ShapeError(
            f"RotaryEmbedding: positions have shape {tuple(positions.shape)}; for frequencies "
            f"with {axes} position ax{'i' if axes == 1 else 'e'}s expected {expected}."
        )
    if positions.device.type == "mps":  # It has no float64: the CPU makes its tables.
        positions = positions.cpu()
    return positions.double()


def _scheduled(
    schedule: LengthSchedule, lengths: int | Tensor | None, exact: Tensor
) -> tuple[Tensor, float | Tensor]:
    """Weights (axes, planes) or (batch, axes, planes), and the amplitude to go with the tables."""
    if lengths is None:
        raise ConfigError(
            f"RotaryEmbedding: the frequencies of {type(schedule).__name__} depend on how long the "
            "sequences are; give lengths=, a number or a tensor of shape (batch,), cached tokens "
            "included."
        )
    if not isinstance(lengths, Tensor):
        if not torch.compiler.is_compiling():
            found = schedule.at(lengths)
            return found.on(exact), found.amplitude
        # A number that varies would be compiled anew each time.
        lengths = torch.full((1,), lengths, dtype=torch.int64, device=exact.device)
    elif exact.ndim == 3 and lengths.ndim == 1 and lengths.shape[0] not in (1, exact.shape[0]):
        raise ShapeError(
            f"RotaryEmbedding: lengths have shape {tuple(lengths.shape)} and positions "
            f"{tuple(exact.shape[:-1])}; expected one length for each of the {exact.shape[0]} "
            "sequences."
        )
    weights, amplitudes = schedule.at(lengths)
    if weights.device != exact.device:
        weights, amplitudes = weights.to(exact.device), amplitudes.to(exact.device)
    constant = schedule.constant_amplitude
    return weights, amplitudes[:, None, None] if constant is None else constant
