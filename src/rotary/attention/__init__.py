"""Attention as functions: softmax over packed documents, linear attention, and the encodings."""
