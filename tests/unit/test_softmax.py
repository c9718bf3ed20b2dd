import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from rotary import ShapeError
from rotary.attention import packed_attention


def block_mask(lengths, is_causal):
    document = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    mask = document[:, None] == document
    return mask.tril() if is_causal else mask


@pytest.mark.parametrize("lengths", [[4], [3, 3, 1, 5, 5, 5, 2], [1, 1, 1], [0, 3, 0, 0, 2]])
@pytest.mark.parametrize("is_causal", [False, True])
def test_each_document_attends_to_itself_alone(lengths, is_causal):
    """Against one call with a block-diagonal mask, forward and gradients; H == D == 3 heads."""
    q, k, v = (torch.randn(3, sum(lengths), 3, dtype=torch.float64) for _ in range(3))
    inputs = [x.requires_grad_() for x in (q, k, v)]
    cotangent = torch.randn(3, sum(lengths), 3, dtype=torch.float64)
    packed = packed_attention(*inputs, lengths, is_causal=is_causal, scale=0.7)
    whole = scaled_dot_product_attention(
        *inputs, attn_mask=block_mask(lengths, is_causal), scale=0.7
    )
    torch.testing.assert_close(packed, whole, rtol=0, atol=1e-14)
    ours = torch.autograd.grad(packed, inputs, cotangent)
    right = torch.autograd.grad(whole, inputs, cotangent)
    for got, expected in zip(ours, right, strict=True):
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-14)


def test_no_documents_give_no_tokens():
    empty = torch.zeros(2, 0, 4)
    assert packed_attention(empty, empty, empty, []).shape == (2, 0, 4)


def test_merging_the_heads_copies_nothing():
    x = torch.randn(2, 7, 4)
    packed = packed_attention(x, x, x, [3, 4])
    assert packed.transpose(0, 1).is_contiguous()


def test_lengths_have_to_add_up():
    x = torch.randn(2, 7, 4)
    with pytest.raises(ShapeError, match="2 documents add up to 8 tokens") as caught:
        packed_attention(x, x, x, [3, 5])
    assert "(2, 7, 4)" in str(caught.value)
    with pytest.raises(ShapeError, match="no negative length"):
        packed_attention(x, x, x, [8, -1])
