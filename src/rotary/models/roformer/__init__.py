"""RoFormer: a transformer whose only knowledge of positions is the rotation of queries and keys."""

from rotary.models.roformer.tokenization_roformer import RoFormerTokenizer
from rotary.models.roformer.vocabulary import read_vocabulary, train_vocabulary

__all__ = ["RoFormerTokenizer", "read_vocabulary", "train_vocabulary"]
