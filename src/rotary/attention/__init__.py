"""Attention as functions: softmax over packed documents, linear attention, and the encodings."""

from rotary.attention.softmax import packed_attention

__all__ = ["packed_attention"]
