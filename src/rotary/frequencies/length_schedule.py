"""``LengthSchedule``: frequencies that depend on how long a sequence is."""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from typing import overload

import torch
from torch import Tensor

from rotary.errors import ConfigError, DtypeError, ShapeError
from rotary.frequencies.base import Frequencies, Recipe


class LengthSchedule(ABC):
    """A rule from the length of a sequence to its frequencies; it keeps no state.

    The length is that of the whole sequence, cached tokens included. Each row of a batch has its
    own, so no row changes another's result; and in generation the length is fixed for a sequence
    when it is first read (at prefill), so that keys in a cache stay valid.

    Subclasses are frozen values that write two methods, for one length and for a batch.
    """

    __slots__ = ()

    @property
    @abstractmethod
    def frequencies(self) -> Frequencies:
        """The frequencies before any scaling."""

    @property
    @abstractmethod
    def recipe(self) -> Recipe:
        """How to make this schedule again, as plain JSON."""

    @property
    def constant_amplitude(self) -> float | None:
        """The amplitude, where it is the same for every length; otherwise None."""
        return self.frequencies.amplitude

    @property
    def num_axes(self) -> int:
        """Number of position axes."""
        return self.frequencies.num_axes

    @property
    def num_planes(self) -> int:
        """Number of planes, half the number of channels that turn."""
        return self.frequencies.num_planes

    @property
    def num_heads(self) -> int | None:
        """Always None: a schedule is shared by all heads."""
        return None

    @overload
    def at(self, lengths: int) -> Frequencies: ...

    @overload
    def at(self, lengths: Tensor) -> tuple[Tensor, Tensor]: ...

    def at(self, lengths: int | Tensor) -> Frequencies | tuple[Tensor, Tensor]:
        """The frequencies of sequences of these lengths.

        Args:
            lengths: One length, 0 for nothing seen yet; or an integer tensor (batch,), which is
                never read by the host.

        Returns:
            For one length, ``Frequencies``. For a tensor, a matrix (batch, axes, planes) and
            amplitudes (batch,), float64 on the device of the lengths (on the CPU for MPS).

        Raises:
            ConfigError: If a length is not an integer or is negative.
            ShapeError: If the tensor is not (batch,).
            DtypeError: If it is not of integers.
        """
        if isinstance(lengths, Tensor):
            if lengths.ndim != 1:
                raise ShapeError(
                    f"{type(self).__name__}: lengths have shape {tuple(lengths.shape)}; expected "
                    "(batch,), one length for each sequence."
                )
            kind = lengths.dtype
            if kind.is_floating_point or kind.is_complex or kind == torch.bool:
                raise DtypeError(
                    f"{type(self).__name__}: lengths are {lengths.dtype}; they must be integers."
                )
            device = torch.device("cpu") if lengths.device.type == "mps" else lengths.device
            return self._at_tensor(lengths.to(device=device, dtype=torch.float64))
        try:
            length = operator.index(lengths)
        except TypeError:
            length = -1
        if length < 0 or isinstance(lengths, bool):
            raise ConfigError(
                f"{type(self).__name__}: length is {lengths!r}; it must be an integer >= 0, or an "
                "integer tensor of shape (batch,)."
            )
        return self._at_int(length)

    @abstractmethod
    def _at_int(self, length: int) -> Frequencies: ...

    @abstractmethod
    def _at_tensor(self, lengths: Tensor) -> tuple[Tensor, Tensor]: ...
