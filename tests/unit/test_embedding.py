import torch

import rotary
from rotary import RotaryEmbedding


def test_golden_pair_in_both_layouts():
    """(1, 2, 3, 4) at position 1: golden numbers of the reference notes (pair_layouts_d4)."""
    x = torch.tensor([[1.0, 2.0, 3.0, 4.0]], dtype=torch.float64)
    position = torch.tensor([1])
    golden = {
        "interleaved": [-1.142639663748, 1.922075596544, 2.959850667913, 4.029799501669],
        "half": [-1.984110648556, 1.959900667497, 2.462377902412, 4.019799668335],
    }
    for layout, expected in golden.items():
        rope = RotaryEmbedding(head_dim=4, layout=layout)
        turned = rope(position, dtype=torch.float64)(x)
        torch.testing.assert_close(
            turned, torch.tensor([expected], dtype=torch.float64), rtol=0, atol=1e-12
        )


def test_public_names_are_few():
    assert len(rotary.__all__) <= 20
    for name in rotary.__all__:
        assert hasattr(rotary, name)
