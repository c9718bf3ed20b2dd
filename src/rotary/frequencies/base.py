"""The value at the centre of the library: a frequency matrix and its amplitude."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from rotary.errors import ConfigError, ShapeError


class Frequencies:
    """How fast each plane turns along each position axis: ``angles = positions @ matrix``.

    An immutable value: it can be compared, hashed, pickled and put into a config. Everything that
    distinguishes the variants of RoPE is in the entries of the matrix.

    Args:
        matrix: Radians per unit of position, shape (axes, planes); or (planes,) for one axis; or
            (heads, axes, planes) where every head has its own. Kept as float64.
        amplitude: A factor on the turned vector (the attention factor of YaRN and LongRoPE); it is
            not part of the rotation. Scores grow by its square.

    Raises:
        ShapeError: If the matrix has another rank or no axis.
        ConfigError: If an entry or the amplitude is not a finite number, or the amplitude is not
            positive.

    Example:
        >>> Frequencies([1.0, 0.1]).matrix.shape
        (1, 2)
    """

    __slots__ = ("_amplitude", "_matrix")

    _matrix: npt.NDArray[np.float64]
    _amplitude: float

    def __init__(self, matrix: npt.ArrayLike, amplitude: float = 1.0) -> None:
        values = np.array(matrix, dtype=np.float64)
        if values.ndim == 1:
            values = values[None, :]
        if values.ndim not in (2, 3) or values.shape[-2] == 0:
            raise ShapeError(
                f"Frequencies: the matrix has shape {np.shape(matrix)}; accepted are (planes,), "
                "(axes, planes) and (heads, axes, planes), with at least one axis."
            )
        if not np.isfinite(values).all():
            raise ConfigError("Frequencies: the matrix has entries that are not finite numbers.")
        if not (np.isfinite(amplitude) and amplitude > 0):
            raise ConfigError(
                f"Frequencies: amplitude is {amplitude!r}; it must be a positive, finite number."
            )
        values.setflags(write=False)
        object.__setattr__(self, "_matrix", values)
        object.__setattr__(self, "_amplitude", float(amplitude))

    @property
    def matrix(self) -> npt.NDArray[np.float64]:
        """Radians per unit of position, (axes, planes) or (heads, axes, planes); read-only."""
        return self._matrix

    @property
    def amplitude(self) -> float:
        """The factor on the turned vector."""
        return self._amplitude

    @property
    def num_axes(self) -> int:
        """Number of position axes: 1 for text, 2 for images, 3 for video."""
        return self._matrix.shape[-2]

    @property
    def num_planes(self) -> int:
        """Number of planes, half the number of channels that turn."""
        return self._matrix.shape[-1]

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(
            f"Frequencies is immutable; build a new one instead of setting {name}."
        )

    def __delattr__(self, name: str) -> None:
        raise AttributeError("Frequencies is immutable.")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (np.asarray(self._matrix), self._amplitude)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Frequencies):
            return NotImplemented
        return self._amplitude == other._amplitude and np.array_equal(self._matrix, other._matrix)

    def __hash__(self) -> int:
        return hash((self._matrix.shape, self._matrix.tobytes(), self._amplitude))

    def __repr__(self) -> str:
        amplitude = "" if self._amplitude == 1.0 else f", amplitude={self._amplitude:g}"
        fastest, slowest = np.abs(self._matrix).max(), np.abs(self._matrix).min()
        return (
            f"Frequencies({'x'.join(map(str, self._matrix.shape))}, "
            f"{fastest:.4g} to {slowest:.4g} rad{amplitude})"
        )
