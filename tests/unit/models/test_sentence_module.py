"""Sentence vectors through sentence-transformers itself."""

import numpy as np
import pytest
import sentence_transformers
import torch
from tiny_tokenizer import save_tokenizer

from rotary.models import RoFormerForSentenceEmbedding

TEXTS = ["a small cat sat", "the old mat and the cat slept on the mat", "slept"]


@pytest.fixture
def folder(build, tmp_path):
    model = build(RoFormerForSentenceEmbedding, dtype=torch.float32, pooling="mean")
    model.save_pretrained(tmp_path / "model")
    save_tokenizer(tmp_path / "model")
    return tmp_path / "model"


def vectors_one_by_one(folder):
    model = RoFormerForSentenceEmbedding.from_pretrained(folder)
    tokenizer = save_tokenizer(folder)
    with torch.no_grad():
        one = [model(**tokenizer(t, return_tensors="pt")).sentence_embedding for t in TEXTS]
    return torch.cat(one).numpy()


def test_it_encodes_saves_and_loads(folder, tmp_path):
    from rotary.models.roformer.sentence_module import RoFormerSentenceModule

    module = RoFormerSentenceModule.load(str(folder))
    tool = sentence_transformers.SentenceTransformer(modules=[module], device="cpu")
    right = vectors_one_by_one(folder)
    np.testing.assert_allclose(tool.encode(TEXTS), right, rtol=0, atol=1e-6)
    assert tool.get_embedding_dimension() == 16
    tool.save(str(tmp_path / "saved"))
    back = sentence_transformers.SentenceTransformer(
        str(tmp_path / "saved"), device="cpu", trust_remote_code=True
    )
    np.testing.assert_allclose(back.encode(TEXTS), right, rtol=0, atol=1e-6)
    similarity = back.similarity(back.encode(TEXTS), back.encode(TEXTS))
    np.testing.assert_allclose(similarity, right @ right.T, rtol=0, atol=1e-5)


def test_its_own_pooling_over_our_encoder_gives_the_same(folder):
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer

    from rotary.models import register

    register()
    encoder = Transformer(str(folder))
    pooling = Pooling(encoder.get_embedding_dimension(), "mean")
    tool = sentence_transformers.SentenceTransformer(
        modules=[encoder, pooling, Normalize()], device="cpu"
    )
    np.testing.assert_allclose(tool.encode(TEXTS), vectors_one_by_one(folder), rtol=0, atol=1e-6)
