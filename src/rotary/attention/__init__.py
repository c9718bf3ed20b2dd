"""Attention as functions: softmax over packed documents, linear attention, and the encodings."""

from rotary.attention.linear import linear_attention
from rotary.attention.performer import FavorFeatures
from rotary.attention.softmax import packed_attention
from rotary.attention.state import LinearState

__all__ = ["FavorFeatures", "LinearState", "linear_attention", "packed_attention"]
