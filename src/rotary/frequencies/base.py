"""The value at the centre of the library: a frequency matrix and its amplitude."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.compiler import is_compiling

from rotary.errors import ConfigError, ShapeError

Recipe = dict[str, Any]
"""How a value was made, in plain JSON: ``{"type": "linear", "factor": 4.0, ...}``."""


class Frequencies:
    """How fast each plane turns along each position axis: ``angles = positions @ matrix``.

    An immutable value: it can be compared, hashed, pickled and put into a config. Everything that
    distinguishes the variants of RoPE is in the entries of the matrix.

    Args:
        matrix: Radians per unit of position, shape (axes, planes); or (planes,) for one axis; or
            (heads, axes, planes) where every head has its own. Kept as float64.
        amplitude: A factor on the turned vector (the attention factor of YaRN and LongRoPE); it is
            not part of the rotation. Scores grow by its square.
        recipe: How the values were made, for :func:`rotary.to_config` alone; no computation reads
            it and two values with the same numbers are equal. Left out by users.

    Raises:
        ShapeError: If the matrix has another rank, no axis or no plane.
        ConfigError: If an entry or the amplitude is not a finite number, or the amplitude is not
            positive.

    Example:
        >>> Frequencies([1.0, 0.1]).matrix.shape
        (1, 2)
    """

    __slots__ = ("_amplitude", "_matrix", "_memory", "_recipe", "_rows")

    _matrix: npt.NDArray[np.float64]
    _memory: npt.NDArray[np.float64]
    _amplitude: float
    _recipe: Recipe | None
    _rows: Any

    def __init__(
        self, matrix: npt.ArrayLike, amplitude: float = 1.0, *, recipe: Recipe | None = None
    ) -> None:
        try:
            values = np.array(matrix, dtype=np.float64)
            amplitude = float(amplitude)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"Frequencies: {error}; the entries must be real numbers.") from None
        if values.ndim == 1:
            values = values[None, :]
        if values.ndim not in (2, 3) or 0 in values.shape:
            raise ShapeError(
                f"Frequencies: the matrix has shape {np.shape(matrix)}; accepted are (planes,), "
                "(axes, planes) and (heads, axes, planes), each at least 1."
            )
        if not np.isfinite(values).all():
            raise ConfigError("Frequencies: the matrix has entries that are not finite numbers.")
        if not (np.isfinite(amplitude) and amplitude > 0):
            raise ConfigError(
                f"Frequencies: amplitude is {amplitude!r}; it must be a positive, finite number."
            )
        public = values.view()
        public.setflags(write=False)
        object.__setattr__(self, "_matrix", public)
        object.__setattr__(self, "_memory", values)
        object.__setattr__(self, "_amplitude", amplitude)
        object.__setattr__(self, "_recipe", copy.deepcopy(recipe))
        # Plain floats beside the array: what a compiler turns into constants.
        object.__setattr__(self, "_rows", values.tolist())

    @property
    def matrix(self) -> npt.NDArray[np.float64]:
        """Radians per unit of position, (axes, planes) or (heads, axes, planes); read-only."""
        return self._matrix

    @property
    def rows(self) -> Any:
        """The matrix as nested lists of floats; the caller must not change them."""
        return self._rows

    def on(self, other: Tensor) -> Tensor:
        """The matrix as a float64 tensor beside another, made anew each time."""
        if type(other) is Tensor and other.device.type == "cpu" and not is_compiling():
            return torch.from_numpy(self._memory).clone()  # Twice as fast as from a list.
        return torch.tensor(self._rows, dtype=torch.float64, device=other.device)

    @property
    def amplitude(self) -> float:
        """The factor on the turned vector."""
        return self._amplitude

    @property
    def recipe(self) -> Recipe:
        """How to make this value again, as plain JSON; the bare numbers where nothing is known."""
        if self._recipe is not None:
            return copy.deepcopy(self._recipe)
        return {"type": "explicit", "matrix": self._matrix.tolist(), "amplitude": self._amplitude}

    @property
    def num_axes(self) -> int:
        """Number of position axes: 1 for text, 2 for images, 3 for video."""
        return self._matrix.shape[-2]

    @property
    def num_planes(self) -> int:
        """Number of planes, half the number of channels that turn."""
        return self._matrix.shape[-1]

    @property
    def num_heads(self) -> int | None:
        """Number of heads that have their own matrix; None where all share one."""
        return self._matrix.shape[0] if self._matrix.ndim == 3 else None

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(
            f"Frequencies is immutable; build a new one instead of setting {name}."
        )

    def __delattr__(self, name: str) -> None:
        raise AttributeError("Frequencies is immutable.")

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (np.array(self._matrix), self._amplitude, self._recipe)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Frequencies):
            return NotImplemented
        return self._amplitude == other._amplitude and np.array_equal(self._matrix, other._matrix)

    def __hash__(self) -> int:
        # -0.0 equals 0.0, so it must hash like it.
        return hash((self._matrix.shape, (self._matrix + 0.0).tobytes(), self._amplitude))

    def __repr__(self) -> str:
        amplitude = "" if self._amplitude == 1.0 else f", amplitude={self._amplitude:g}"
        fastest, slowest = np.abs(self._matrix).max(), np.abs(self._matrix).min()
        return (
            f"Frequencies({'x'.join(map(str, self._matrix.shape))}, "
            f"{fastest:.4g} to {slowest:.4g} rad{amplitude})"
        )


def _rebuild(
    matrix: npt.NDArray[np.float64], amplitude: float, recipe: Recipe | None
) -> Frequencies:
    return Frequencies(matrix, amplitude, recipe=recipe)


def make_recipe(type_: str, **arguments: Any) -> Recipe:
    """The recipe of a function call; values of the library become recipes of their own."""
    plain: Recipe = {"type": type_}
    for name, value in arguments.items():
        plain[name] = value.recipe if hasattr(value, "recipe") else value
    return plain


def one_axis(function: str, frequencies: object) -> npt.NDArray[np.float64]:
    """The (planes,) values of frequencies with one axis and no heads, or an error."""
    if not isinstance(frequencies, Frequencies):
        raise ConfigError(
            f"{function}: frequencies are {frequencies!r}, of type {type(frequencies).__name__}; "
            "give Frequencies, for instance inverse_power(64)."
        )
    if frequencies.matrix.shape[:-1] != (1,):
        raise ShapeError(
            f"{function}: the frequencies have shape {frequencies.matrix.shape}; it needs one "
            "position axis and no heads, (1, planes). Scale the frequencies of one axis first, "
            "then spread them with axial or sections."
        )
    return frequencies.matrix[0]
