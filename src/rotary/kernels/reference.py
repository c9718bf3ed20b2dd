"""The rotation as the papers write it: float64 block-diagonal matrices. Slow, plainly right.

It takes angles, never tables from the object under test.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rotary._shapes import Float
from rotary.kernels.contract import Layout, check_layout


def rotation_matrix(
    angles: Float[Tensor, "*shape planes"], dim: int, *, layout: Layout
) -> Float[Tensor, "*shape dim dim"]:
    """The matrix that turns plane ``p`` by ``angles[..., p]`` (RoFormer, eq. 15).

    Channels that belong to no plane are left alone: the matrix has ones there.

    Args:
        angles: Radians, one for each plane.
        dim: Number of channels, at least twice the planes.
        layout: Which two channels form a plane.

    Returns:
        Orthogonal matrices, float64.
    """
    check_layout(layout)
    angles = angles.to(torch.float64)
    planes = angles.shape[-1]
    matrix = torch.eye(dim, dtype=torch.float64, device=angles.device)
    matrix = matrix.expand(*angles.shape[:-1], dim, dim).clone()
    for p in range(planes):
        first, second = (2 * p, 2 * p + 1) if layout == "interleaved" else (p, p + planes)
        cos, sin = angles[..., p].cos(), angles[..., p].sin()
        matrix[..., first, first] = cos
        matrix[..., first, second] = -sin
        matrix[..., second, first] = sin
        matrix[..., second, second] = cos
    return matrix


def rotate_reference(
    x: Float[Tensor, "*shape dim"],
    angles: Float[Tensor, "*angles planes"],
    *,
    layout: Layout,
    amplitude: float = 1.0,
) -> Float[Tensor, "*shape dim"]:
    """Multiply every vector by its rotation matrix, in float64.

    Args:
        x: Vectors, any floating dtype; channels last.
        angles: Radians; the axes before the planes must broadcast with those of ``x``.
        layout: Which two channels form a plane.
        amplitude: A factor on the channels that turn.

    Returns:
        The turned vectors, float64.
    """
    dim, planes = x.shape[-1], angles.shape[-1]
    matrix = rotation_matrix(angles, dim, layout=layout)
    scale = torch.ones(dim, dtype=torch.float64, device=x.device)
    scale[: 2 * planes] = amplitude
    return (matrix @ x.to(torch.float64).unsqueeze(-1)).squeeze(-1) * scale
