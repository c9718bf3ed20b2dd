import pytest
import torch

from rotary.attention.feature_maps import FEATURE_MAPS, elu_plus_one, feature_map_of


def test_elu_plus_one_by_branches():
    x = torch.tensor([-3.0, -1e-9, 0.0, 2.0], dtype=torch.float64, requires_grad=True)
    y = elu_plus_one(x)
    expected = [torch.tensor(-3.0).double().exp().item(), 1 - 1e-9, 1.0, 3.0]
    assert y.tolist() == pytest.approx(expected, rel=1e-15)
    y.sum().backward()
    assert x.grad.tolist() == pytest.approx([expected[0], 1.0, 1.0, 1.0], rel=1e-8)


def test_no_named_map_but_identity_is_negative():
    x = torch.linspace(-90, 90, 64).reshape(4, 16)
    for name, feature_map in FEATURE_MAPS.items():
        for y in (feature_map.queries(x, is_divided=True), feature_map.keys(x)):
            assert y.isfinite().all()
            assert name == "identity" or (y >= 0).all()
        assert feature_map.is_non_negative == (name != "identity")


def test_a_map_can_be_a_name_an_object_a_function_or_a_pair():
    x = torch.randn(3, 4)
    assert feature_map_of("relu") is FEATURE_MAPS["relu"]
    assert feature_map_of(FEATURE_MAPS["exp"]) is FEATURE_MAPS["exp"]
    one = feature_map_of(torch.sigmoid)
    assert torch.equal(one.keys(x), x.sigmoid())
    pair = feature_map_of((torch.sigmoid, torch.exp))
    assert torch.equal(pair.queries(x, is_divided=True), x.sigmoid())
    assert torch.equal(pair.keys(x), x.exp())
