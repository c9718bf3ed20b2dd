import numpy as np
import pytest

from rotary import Frequencies, inverse_power
from rotary.errors import ConfigError, ShapeError
from rotary.theory import (
    complex_form,
    cosformer_features,
    decaying_generator,
    exponential,
    generators_of,
    matrix_exponential,
    relative_pair,
)


def kernel(generator, m, n):
    for_queries, for_keys = relative_pair(generator)
    return for_queries(np.array([m]))[0].T @ for_keys(np.array([n]))[0]


def test_any_generator_gives_a_relative_pair():
    generator = np.random.default_rng(2).normal(size=(4, 4)) / 2
    np.testing.assert_allclose(
        kernel(generator, 3.0, 1.5), matrix_exponential(-1.5 * generator), rtol=0, atol=1e-12
    )
    np.testing.assert_allclose(
        kernel(generator, 3.0, 1.5), kernel(generator, 5.25, 3.75), rtol=0, atol=1e-10
    )


def test_a_skew_generator_gives_one_encoding_for_both():
    generator = generators_of(inverse_power(8))[0]
    for_queries, for_keys = relative_pair(generator)
    where = np.array([-2.0, 0.5, 9.0])
    np.testing.assert_allclose(for_queries(where), for_keys(where), rtol=0, atol=1e-12)
    np.testing.assert_allclose(for_keys(where), exponential(generator)(where), rtol=0, atol=1e-12)
    bent = decaying_generator(inverse_power(8), 0.9)
    for_queries, for_keys = relative_pair(bent)
    assert np.abs(for_queries(where) - for_keys(where)).max() > 0.1


def test_retention_is_decay_alone():
    """RetNet without a turn: the weight of a key t positions back is keep ** t."""
    generator = decaying_generator(Frequencies([0.0]), keep=0.9)
    for t in (0, 1, 7):
        np.testing.assert_allclose(
            kernel(generator, 20.0, 20.0 - t), 0.9**t * np.eye(2), atol=1e-12
        )


def test_xpos_is_a_turn_and_a_decay_for_each_plane():
    frequencies, keep = inverse_power(6), np.array([0.99, 0.9, 0.5])
    query, key = np.random.default_rng(0).normal(size=(2, 6))
    got = query @ kernel(decaying_generator(frequencies, keep), 11.0, 8.0) @ key
    turned_query = complex_form(query, 11 * frequencies.matrix[0])
    turned_key = complex_form(key, 8 * frequencies.matrix[0])
    expected = (turned_query * turned_key).reshape(3, 2).sum(axis=1) @ keep**3
    assert got == pytest.approx(expected, abs=1e-12)


def test_cosformer_is_relative_and_not_negative():
    generator = np.random.default_rng(0)
    features = generator.uniform(size=(12, 5))
    where = np.arange(12.0)
    doubled = cosformer_features(features, where, length=11)
    weights = doubled @ doubled.T
    angles = np.pi * (where[:, None] - where) / 22
    np.testing.assert_allclose(weights, features @ features.T * np.cos(angles), atol=1e-12)
    assert (weights >= -1e-15).all()
    moved = cosformer_features(features, where + 100, length=11)
    np.testing.assert_allclose(moved @ moved.T, weights, rtol=0, atol=1e-12)
    # RoPE with one frequency, of the planes (f, 0).
    lifted = np.stack([features, np.zeros_like(features)], axis=-1).reshape(12, -1)
    turned = complex_form(lifted, np.repeat(where[:, None] * np.pi / 22, 5, axis=1))
    np.testing.assert_allclose(doubled, turned, rtol=0, atol=1e-12)


def test_turned_features_can_give_negative_weights():
    """Why RoPE in linear attention leaves the denominator alone: the first post's warning."""
    features = np.random.default_rng(0).uniform(size=(200, 8))
    turned = complex_form(features, np.arange(200.0)[:, None] * inverse_power(8).matrix[0])
    assert (turned @ turned.T < 0).mean() > 0.01


def test_errors():
    with pytest.raises(ConfigError, match=r"keep is 1\.5; it must be in \(0, 1\]"):
        decaying_generator(inverse_power(4), 1.5)
    with pytest.raises(ShapeError, match="one number or one for each plane"):
        decaying_generator(inverse_power(4), [0.9, 0.9, 0.9])
    with pytest.raises(ShapeError, match="got 2 matrices"):
        relative_pair(np.zeros((2, 2, 2)))
    with pytest.raises(ShapeError, match=r"features have shape \(3, 1\) and positions \(2,\)"):
        cosformer_features(np.ones((3, 1)), np.ones(2), 4)
