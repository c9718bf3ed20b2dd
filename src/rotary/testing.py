"""Checks for rotary code, ours and yours: a tolerance that follows the dtype, and the laws.

Nothing here needs a test framework; each check returns nothing or raises ``AssertionError``.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from rotary.errors import ShapeError


def assert_matches_reference(
    actual: Tensor, *, reference: Tensor, plain: Tensor | None = None, what: str = "result"
) -> None:
    """Compare element by element with a float64 reference; the tolerance follows the dtype.

    Accepted is ``|actual - reference| <= 2 * max |plain - reference| + one rounding``, the rounding
    being that of the dtype of ``actual`` at the largest magnitude of the same vector (its last
    dimension, which a rotation mixes). ``plain`` is what straightforward PyTorch gives in the same
    dtype; without it the reference rounded once to that dtype takes its place. Infinities, and what
    overflows the dtype, must be the same ones and widen no tolerance; a NaN never passes.

    Args:
        actual: What is under test, any floating dtype.
        reference: The right answer, float64, of the same shape.
        plain: The plain low-precision computation, of the same shape.
        what: A name for the message.

    Raises:
        AssertionError: With the worst element, its values and the tolerance.
        ShapeError: If the shapes differ, or the reference is not float64.
    """
    if reference.dtype != torch.float64:
        raise ShapeError(f"assert_matches_reference: reference is {reference.dtype}, not float64.")
    if actual.shape != reference.shape:
        raise ShapeError(
            f"assert_matches_reference: {what} has shape {tuple(actual.shape)}, the reference "
            f"{tuple(reference.shape)}."
        )
    if actual.numel() == 0:
        return
    got = actual.detach().to(torch.float64)
    right = reference.detach()
    simple = (right.to(actual.dtype) if plain is None else plain.detach()).to(torch.float64)
    is_finite = right.isfinite() & simple.isfinite()
    sizes = torch.where(is_finite, right.abs(), 0.0)
    magnitude = sizes if right.ndim == 0 else sizes.amax(dim=-1, keepdim=True)
    rounding = torch.finfo(actual.dtype).eps * magnitude + torch.finfo(actual.dtype).tiny
    tolerance = 2 * torch.where(is_finite, (simple - right).abs(), 0.0).max() + rounding
    error = (got - right).abs()
    # A NaN fails: the comparisons are written so that only a proven <= or == passes.
    same = (got == right) | ((got == simple) & right.isfinite())
    bad = ~torch.where(is_finite, error <= tolerance, same)
    if not bad.any():
        return
    excess = torch.where(bad, torch.nan_to_num(error / tolerance, nan=torch.inf), 0.0)
    index = tuple(int(i) for i in torch.unravel_index(excess.argmax(), excess.shape))
    limit = tolerance.expand_as(error)[index].item()
    raise AssertionError(
        f"{what} differs from the reference in {int(bad.sum())} of {bad.numel()} elements. Worst "
        f"at {index}: {got[index].item():.9g}, expected {right[index].item():.9g}, difference "
        f"{error[index].item():.3g}, tolerated {limit:.3g} ({actual.dtype})."
    )


def assert_relative(
    turn: Callable[[Tensor, Tensor], Tensor],
    dim: int,
    *,
    num_axes: int = 1,
    shifts: tuple[float, ...] = (1, 7, -31, 1000),
    seed: int = 0,
) -> None:
    """Check that scores of turned vectors do not notice a common shift of all positions.

    Args:
        turn: ``turn(x, positions)`` gives the turned ``x`` of shape (length, dim), float64;
            positions are int64, (length,) for one axis and (length, axes) for more.
        dim: Number of channels.
        num_axes: Number of position axes.
        shifts: The shifts to try, along every axis on its own and along all together.
        seed: Of the vectors.

    Raises:
        AssertionError: If a score moves by more than rounding.

    Example:
        >>> from rotary import RotaryEmbedding
        >>> rope = RotaryEmbedding(head_dim=8)
        >>> assert_relative(lambda x, positions: rope(positions, dtype=x.dtype)(x), dim=8)
    """
    generator = torch.Generator().manual_seed(seed)
    length = 9
    query = torch.randn(length, dim, dtype=torch.float64, generator=generator)
    key = torch.randn(length, dim, dtype=torch.float64, generator=generator)
    shape = (length,) if num_axes == 1 else (length, num_axes)
    positions = torch.randint(-50, 50, shape, generator=generator)
    scores = turn(query, positions) @ turn(key, positions).mT
    directions = [torch.ones(num_axes, dtype=torch.int64)]
    directions += list(torch.eye(num_axes, dtype=torch.int64)) if num_axes > 1 else []
    bound = 1e-12 * (1 + query.norm(dim=-1, keepdim=True) * key.norm(dim=-1))
    for shift in shifts:
        for direction in directions:
            step = (direction * shift).squeeze(0) if num_axes == 1 else direction * shift
            moved = turn(query, positions + step) @ turn(key, positions + step).mT
            error = (moved - scores).abs()
            # Angles grow with the shift, and with them their rounding.
            if not (error <= bound * (1 + abs(shift))).all():
                raise AssertionError(
                    f"scores moved by up to {error.max().item():.3g} when every position was "
                    f"shifted by {step.tolist()}; a relative encoding gives the same scores."
                )
