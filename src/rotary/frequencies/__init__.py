"""Frequency matrices: the one place where the variants of RoPE differ.

Start with one of

* :func:`inverse_power` (RoFormer), :class:`Frequencies` (any numbers), :func:`proportional`;
* :func:`axial`, :func:`mixed` for positions of several axes.

and change it with

* :func:`linear`, :func:`ntk`, :func:`yarn`, :func:`llama3` for longer contexts;
* :func:`dynamic_ntk`, :func:`longrope`, which depend on the length: a :class:`LengthSchedule`;
* :func:`sections`, :func:`assign_axes`, :func:`per_head` to deal planes and heads out to axes;
* :func:`xpos` for scores that fall with the distance.

:func:`from_config` reads a model's config and :func:`to_config` writes one.
"""

from rotary.frequencies.axial import axial
from rotary.frequencies.base import Frequencies
from rotary.frequencies.config import from_config
from rotary.frequencies.dynamic_ntk import DynamicNTK, dynamic_ntk
from rotary.frequencies.inverse_power import inverse_power
from rotary.frequencies.length_schedule import LengthSchedule
from rotary.frequencies.linear import linear
from rotary.frequencies.llama3 import llama3
from rotary.frequencies.longrope import LongRope, longrope
from rotary.frequencies.mixed import mixed
from rotary.frequencies.ntk import ntk
from rotary.frequencies.per_head import per_head
from rotary.frequencies.proportional import proportional
from rotary.frequencies.recipes import from_recipe
from rotary.frequencies.sections import assign_axes, sections
from rotary.frequencies.to_config import to_config
from rotary.frequencies.xpos import XPos, xpos
from rotary.frequencies.yarn import yarn, yarn_mscale

__all__ = [
    "DynamicNTK",
    "Frequencies",
    "LengthSchedule",
    "LongRope",
    "XPos",
    "assign_axes",
    "axial",
    "dynamic_ntk",
    "from_config",
    "from_recipe",
    "inverse_power",
    "linear",
    "llama3",
    "longrope",
    "mixed",
    "ntk",
    "per_head",
    "proportional",
    "sections",
    "to_config",
    "xpos",
    "yarn",
    "yarn_mscale",
]
