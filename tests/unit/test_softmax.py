import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from rotary import ShapeError
from rotary.attention import packed_attention
from rotary.errors import DtypeError


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


@pytest.mark.parametrize("lengths", [[], [0], [0, 0]])
def test_no_tokens_have_a_result_and_a_gradient(lengths):
    q, k, v = (torch.zeros(h, 0, 4, requires_grad=True) for h in (4, 2, 2))
    out = packed_attention(q, k, v, lengths)
    assert out.shape == (4, 0, 4)
    out.sum().backward()
    assert all(x.grad.shape == x.shape for x in (q, k, v))


@pytest.mark.parametrize("key_heads", [1, 2, 4])
def test_groups_of_heads_share_their_keys(key_heads):
    q = torch.randn(4, 7, 3, dtype=torch.float64)
    k, v = torch.randn(2, key_heads, 7, 3, dtype=torch.float64)
    inputs = [x.requires_grad_() for x in (q, k, v)]
    out = packed_attention(*inputs, [3, 4], is_causal=True)
    full = [x.repeat_interleave(4 // key_heads, 0) for x in (k, v)]
    expected = scaled_dot_product_attention(q, *full, attn_mask=block_mask([3, 4], True))
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-14)
    cotangent = torch.randn_like(out)
    ours, right = (torch.autograd.grad(x, inputs, cotangent) for x in (out, expected))
    for got, wanted in zip(ours, right, strict=True):
        torch.testing.assert_close(got, wanted, rtol=0, atol=1e-13)


@pytest.mark.parametrize(
    ("shapes", "says"),
    [
        (((4, 7, 8), (3, 7, 8), (3, 7, 8)), "4 heads cannot share 3 key heads"),
        (((1, 7, 8), (4, 7, 8), (4, 7, 8)), "1 heads cannot share 4 key heads"),
        (((4, 7, 8), (4, 7, 8), (1, 7, 8)), "keys have 4 heads and values 1"),
        (((4, 7, 8), (4, 7, 6), (4, 7, 8)), "queries have 8 channels and keys 6"),
    ],
)
def test_heads_and_channels_have_to_belong_together(shapes, says, wrong_types):
    with pytest.raises(ShapeError, match=says):
        packed_attention(*(torch.zeros(shape) for shape in shapes), [3, 4])


def test_lengths_are_whole_numbers(wrong_types):
    x = torch.randn(2, 7, 4)
    with pytest.raises(DtypeError, match=r"lengths is \[3\.0, 4\.0\]; expected one whole number"):
        packed_attention(x, x, x, [3.0, 4.0])
    whole = packed_attention(x, x, x, torch.tensor([3, 4]))
    assert torch.equal(whole, packed_attention(x, x, x, [3, 4]))


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


def new_varlen(
    q, k, v, ends, ends_k, longest, longest_k, *, scale=None, window_size=(-1, -1), enable_gqa=False
):
    assert window_size in ((-1, -1), (-1, 0))
    assert enable_gqa == (q.shape[1] != k.shape[1])
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    return old_varlen(q, k, v, ends, ends_k, longest, longest_k, window_size[1] == 0, scale)


def old_varlen(q, k, v, ends, ends_k, longest, longest_k, is_causal=False, scale=None):
    assert ends.dtype == torch.int32
    assert longest == longest_k == ends.diff().max()
    out = []
    for a, b in zip(ends[:-1].tolist(), ends_k[1:].tolist(), strict=True):
        document = (x[a:b].transpose(0, 1) for x in (q, k, v))
        mixed = scaled_dot_product_attention(*document, is_causal=is_causal, scale=scale)
        out.append(mixed.transpose(0, 1))
    return torch.cat(out)


def varlen_of_torch_2_10(q, k, v, ends, ends_k, longest, longest_k, is_causal=False):
    return old_varlen(q, k, v, ends, ends_k, longest, longest_k, is_causal)


@pytest.mark.parametrize("kernel", [new_varlen, varlen_of_torch_2_10])
@pytest.mark.parametrize("is_causal", [False, True])
def test_the_gpu_kernel_is_called_rightly_in_old_and_new_pytorch(monkeypatch, kernel, is_causal):
    """The kernel itself needs a GPU; a stand-in with its signature shows what it would be given."""
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", kernel)
    monkeypatch.setattr("rotary.attention.softmax._has_varlen_flash", lambda q, v: True)
    mask = block_mask([4, 2, 3], is_causal)
    for key_heads in (1, 2):
        q = torch.randn(2, 9, 8, dtype=torch.float64)
        k, v = torch.randn(2, key_heads, 9, 8, dtype=torch.float64)
        got = packed_attention(q, k, v, [4, 2, 3], is_causal=is_causal, scale=0.3)
        right = scaled_dot_product_attention(
            q, k, v, attn_mask=mask, scale=0.3, enable_gqa=key_heads == 1
        )
        torch.testing.assert_close(got, right, rtol=0, atol=1e-14)
