"""RoFormers with linear attention: against a dense reference, padded, packed, moved, saved."""

import pytest
import torch

from rotary.errors import ConfigError, ShapeError
from rotary.models import RoFormerConfig, RoFormerForCausalLM, RoFormerForMaskedLM, RoFormerModel

FORMS = ("numerator", "cosine", "performer")
WAYS = ("rotary_packed", "sdpa")


@pytest.fixture(params=FORMS)
def form(request):
    return request.param


def turned(x, positions):
    """RoFormer's rotation by complex numbers, from the paper's definition; x is (..., L, D)."""
    dim = x.shape[-1]
    theta = 10000.0 ** (-2 * torch.arange(dim // 2, dtype=torch.float64) / dim)
    phase = torch.exp(1j * positions[:, None].to(torch.float64) * theta)
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * phase).flatten(-2)


def dense(layer, hidden, *, rotates=True):
    """What a layer's attention is by its definition, every weight of every pair written down."""
    config = layer.config
    q, k, v = (
        part(hidden).unflatten(-1, (config.num_attention_heads, -1)).transpose(1, 2)
        for part in (layer.query, layer.key, layer.value)
    )
    positions = torch.arange(hidden.shape[1])

    def turn(x):
        return turned(x, positions) if rotates else x

    if config.attention_form == "cosine":
        q, k = (x / x.norm(dim=-1, keepdim=True) for x in (q, k))
        above = below = 1 + turn(q) @ turn(k).mT
    else:
        if config.attention_form == "numerator":
            q, k = (torch.where(x > 0, x + 1, x.exp()) for x in (q, k))
        else:
            draws = layer.favor.projection.double()
            q, k = (x / config.head_dim**0.25 for x in (q, k))
            q, k = (torch.exp(x @ draws.mT - x.square().sum(-1, keepdim=True) / 2) for x in (q, k))
        above, below = turn(q) @ turn(k).mT, q @ k.mT
    if config.is_decoder:
        above, below = above.tril(), below.tril()
    return (above / below.sum(-1, keepdim=True) @ v).transpose(1, 2).flatten(2)


@pytest.mark.parametrize("is_decoder", [False, True])
@pytest.mark.parametrize("changes", [{}, {"position_encoding": "none"}, {"nope_layers": [0]}])
def test_a_layer_is_the_dense_sum_over_all_pairs(build, form, is_decoder, changes):
    model = build(RoFormerModel, attention_form=form, is_decoder=is_decoder, **changes)
    seen = {}
    for index, layer in enumerate(model.encoder.layer):
        layer.attention.self.register_forward_hook(
            lambda module, args, out, index=index: seen.update({index: (module, args[0], out[0])})
        )
    model(torch.randint(0, 50, (2, 70)))
    for index, (layer, hidden, got) in seen.items():
        rotates = "position_encoding" not in changes and index not in changes.get("nope_layers", ())
        right = dense(layer, hidden, rotates=rotates)
        torch.testing.assert_close(got, right, rtol=0, atol=1e-11)
    assert len(seen) == 2


def test_the_random_features_of_a_layer_are_its_own_and_turn_all(build):
    model = build(RoFormerModel, attention_form="performer", num_features=12)
    first, second = (layer.attention.self.favor.projection for layer in model.encoder.layer)
    assert first.shape == (12, 8)
    assert not torch.equal(first, second)
    assert model.positions.rope.ropes[0].frequencies.num_planes == 6
    other = build(RoFormerModel, attention_form="performer", num_features=12, feature_seed=1)
    assert not torch.equal(other.encoder.layer[0].attention.self.favor.projection, first)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("cls", [RoFormerForMaskedLM, RoFormerForCausalLM])
def test_padding_left_and_right_changes_nothing(build, form, way, cls):
    model = build(cls, attention_form=form, is_decoder=cls is RoFormerForCausalLM)
    model.set_attn_implementation(way)
    ids = torch.randint(0, 50, (3, 9))
    mask = torch.ones(3, 9, dtype=torch.long)
    mask[0, :3] = mask[1, 7:] = 0
    got = model(ids, attention_mask=mask).logits
    for row, a, b in ((0, 3, 9), (1, 0, 7), (2, 0, 9)):
        alone = model(ids[row : row + 1, a:b]).logits
        torch.testing.assert_close(got[row : row + 1, a:b], alone, rtol=0, atol=1e-12)
    assert got.isfinite().all()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("cls", [RoFormerForMaskedLM, RoFormerForCausalLM])
def test_packed_documents_do_not_see_each_other(build, form, way, cls):
    model = build(cls, attention_form=form, is_decoder=cls is RoFormerForCausalLM)
    model.set_attn_implementation(way)
    ids = torch.randint(0, 50, (2, 11))
    documents = torch.tensor([[1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 0], [1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2]])
    got = model(ids, document_ids=documents).logits
    for row, a, b in ((0, 0, 3), (0, 3, 7), (0, 7, 10), (1, 0, 9), (1, 9, 11)):
        alone = model(ids[row : row + 1, a:b]).logits
        torch.testing.assert_close(got[row : row + 1, a:b], alone, rtol=0, atol=1e-12)


def test_gradients_of_packed_documents_are_those_of_each_alone(build, form):
    model = build(RoFormerModel, attention_form=form)
    ids = torch.randint(0, 50, (1, 10))
    documents = torch.tensor([[1, 1, 1, 1, 2, 2, 2, 3, 3, 3]])
    cotangent = torch.randn(1, 10, 16, dtype=torch.float64)
    weights = [model.embeddings.word_embeddings.weight, *model.encoder.layer[0].parameters()]
    packed = model(ids, document_ids=documents).last_hidden_state
    got = torch.autograd.grad((packed * cotangent).sum(), weights)
    total = sum(
        (model(ids[:, a:b]).last_hidden_state * cotangent[:, a:b]).sum()
        for a, b in ((0, 4), (4, 7), (7, 10))
    )
    for one, other in zip(got, torch.autograd.grad(total, weights), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-10)


def test_only_distances_count(build, form):
    model = build(RoFormerModel, attention_form=form)
    ids = torch.randint(0, 50, (2, 9))
    places = torch.arange(9)
    plain = model(ids).last_hidden_state
    moved = model(ids, position_ids=places + 1234).last_hidden_state
    torch.testing.assert_close(moved, plain, rtol=0, atol=1e-9)
    spread = model(ids, position_ids=places * 3).last_hidden_state
    assert (spread - plain).abs().max() > 1e-3


def test_half_precision_leaves_the_draws_alone(build):
    exact = build(RoFormerModel, attention_form="performer", dtype=torch.float32)
    draws = [buffer.clone() for buffer in exact.buffers()]
    half = exact.to(torch.bfloat16)
    assert [b.dtype for b in half.buffers()] == [torch.float32] * 2
    assert all(torch.equal(a, b) for a, b in zip(draws, half.buffers(), strict=True))
    assert half(torch.randint(0, 50, (1, 5))).last_hidden_state.dtype == torch.bfloat16


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_draws_are_saved_and_loaded(build, tmp_path, dtype):
    model = build(RoFormerForMaskedLM, attention_form="performer", dtype=torch.float32)
    model.train().set_training_step(5000)
    assert model.config.redraw_interval == 1000
    model.save_pretrained(tmp_path)
    loaded = RoFormerForMaskedLM.from_pretrained(tmp_path, dtype=dtype)
    kept = dict(model.named_buffers())
    fresh = dict(build(RoFormerForMaskedLM, attention_form="performer").named_buffers())
    assert len(kept) == 2
    for name, draws in loaded.named_buffers():
        assert torch.equal(draws, kept[name])
        assert not torch.equal(draws, fresh[name].float())
    ids = torch.randint(0, 50, (1, 6))
    if dtype == torch.float32:
        assert torch.equal(loaded(ids).logits, model.eval()(ids).logits)


def test_the_draws_of_a_step_are_a_pure_function_of_it(build):
    model = build(RoFormerForMaskedLM, attention_form="performer", redraw_interval=3).train()

    def draws(step):
        model.set_training_step(step)
        return torch.cat([buffer.flatten() for buffer in model.buffers()])

    first, later = draws(0), draws(7)
    assert torch.equal(draws(2), first)
    assert torch.equal(draws(6), later)
    assert not torch.equal(later, first)
    with pytest.raises(ConfigError, match="frozen in eval mode"):
        model.eval().set_training_step(0)
    fixed = build(RoFormerForMaskedLM, attention_form="performer", redraw_interval=None).train()
    before = [buffer.clone() for buffer in fixed.buffers()]
    fixed.set_training_step(10**6)
    assert all(torch.equal(a, b) for a, b in zip(before, fixed.buffers(), strict=True))
    build(RoFormerForMaskedLM).set_training_step(5)  # Nothing to draw, nothing to refuse.


def test_a_softmax_checkpoint_is_converted_by_training_on(build, form, tmp_path):
    """Same weights, another attention: it starts from what was learnt and learns on."""
    torch.manual_seed(3)
    softmax = build(
        RoFormerForCausalLM, is_decoder=True, initializer_range=0.1, dtype=torch.float32
    )
    text = torch.arange(12).repeat(3, 2)[:, :20] + torch.tensor([[3], [17], [31]])

    def train(model, steps):
        optimizer = torch.optim.Adam(model.train().parameters(), lr=5e-3)
        losses = []
        for _ in range(steps):
            loss = model(text, labels=text).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    untrained = train(softmax, 30)[0]
    softmax.save_pretrained(tmp_path)
    model = RoFormerForCausalLM.from_pretrained(tmp_path, attention_form=form)
    own = {name: w for name, w in model.state_dict().items() if ".favor." not in name}
    for name, weight in softmax.state_dict().items():
        assert torch.equal(weight, own.pop(name))
    assert not own
    drawn = dict(build(RoFormerForCausalLM, is_decoder=True, attention_form=form).named_buffers())
    for name, buffer in model.named_buffers():  # Not left at what memory held.
        assert torch.equal(buffer, drawn[name].float())
    losses = train(model, 12)
    assert losses[0] < 0.6 * untrained  # Much of what was learnt is still there,
    assert losses[-1] < 0.7 * losses[0]  # and training on lowers the loss further.
    model.save_pretrained(tmp_path)
    back = RoFormerForCausalLM.from_pretrained(tmp_path, attention_form="softmax")
    assert not dict(back.named_buffers())


def test_the_file_says_that_stock_cannot_read_it(build, form, tmp_path):
    model = build(RoFormerForMaskedLM, attention_form=form)
    assert model.config.differences_from_stock() == ["attention_form"]
    assert model.config.to_dict()["model_type"] == "rotary_roformer"
    model.config.save_pretrained(tmp_path)
    again = RoFormerConfig.from_pretrained(tmp_path)
    assert again.attention_form == form
    assert again.num_features == (16 if form == "performer" else None)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"attention_form": "linear"}, "attention_form is 'linear'; accepted are 'softmax'"),
        (
            {"attention_form": "numerator", "rotary_value": True},
            "rotary_value is True, but attention_form is 'numerator'",
        ),
        (
            {"attention_form": "cosine", "is_prefix_lm": True, "is_decoder": True},
            "is_prefix_lm is True, but attention_form is 'cosine'",
        ),
        (
            {"attention_form": "performer", "num_features": 15},
            "num_features is 15; rotary turns the features in pairs, so the number must be even: "
            "16 would do",
        ),
        (
            {"attention_form": "performer", "num_features": 0, "redraw_interval": 0},
            "redraw_interval is 0; it is a whole number, 1 or more, or None",
        ),
        (
            {"attention_form": "performer", "feature_seed": None},
            "feature_seed is None; it is a whole number, 0 or more.",
        ),
    ],
)
def test_what_cannot_be_is_said(changes, expected):
    with pytest.raises(ConfigError) as caught:
        RoFormerConfig(**changes)
    assert expected in str(caught.value)


def test_what_is_given_beside_a_file_is_checked_too(tmp_path):
    RoFormerConfig().save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="attention_form is 'numerater'"):
        RoFormerConfig.from_pretrained(tmp_path, attention_form="numerater")
    config = RoFormerConfig.from_pretrained(tmp_path, attention_form="performer", num_labels=3)
    assert (config.num_features, config.num_labels) == (266, 3)


def test_an_odd_number_of_features_is_fine_where_nothing_turns(build):
    model = build(
        RoFormerModel, attention_form="performer", num_features=15, position_encoding="none"
    )
    assert model(torch.tensor([[1, 2, 3]])).last_hidden_state.isfinite().all()


def test_masks_over_pairs_and_probabilities_are_refused(build, form):
    model = build(RoFormerModel, attention_form=form)
    ids = torch.randint(0, 50, (1, 4))
    with pytest.raises(ShapeError, match="a mask over pairs of tokens"):
        model(ids, attention_mask=torch.ones(1, 1, 4, 4, dtype=torch.bool))
    model.set_attn_implementation("eager")
    with pytest.raises(ConfigError, match="never forms probabilities; only 'softmax' does"):
        model(ids, output_attentions=True)
