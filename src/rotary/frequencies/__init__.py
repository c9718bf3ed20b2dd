"""Frequency matrices: the one place where the variants of RoPE differ."""

from rotary.frequencies.base import Frequencies
from rotary.frequencies.inverse_power import inverse_power

__all__ = ["Frequencies", "inverse_power"]
