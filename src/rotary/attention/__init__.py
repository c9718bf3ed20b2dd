"""Attention under rotary positions: functions first."""

from rotary.attention.softmax import packed_attention

__all__ = ["packed_attention"]
