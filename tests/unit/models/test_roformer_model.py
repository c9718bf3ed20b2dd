import pytest
import torch

from rotary.errors import ConfigError, DtypeError, ShapeError
from rotary.models import RoFormerConfig, RoFormerForMaskedLM, RoFormerModel

TINY = {
    "vocab_size": 50,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "initializer_range": 0.3,
}
WAYS = ("rotary_packed", "sdpa", "eager")


def model_of(cls=RoFormerModel, *, dtype=torch.float64, **config):
    return cls(RoFormerConfig(**{**TINY, **config})).to(dtype).eval()


def hidden_of(model, ids, **inputs):
    return model(ids, **inputs).last_hidden_state


@pytest.fixture
def row():
    """Two packed rows: documents of 5, 3, 4 and 4, 8, 1 tokens, then padding."""
    documents = torch.tensor([[1] * 5 + [2] * 3 + [3] * 4 + [0] * 2, [1] * 4 + [2] * 8 + [7, 0]])
    return torch.randint(0, 50, documents.shape), documents


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "config",
    [
        {},
        {"norm_position": "pre"},
        {"rotary_layout": "half", "nope_layers": [1]},
        {"rotary_value": True},
    ],
)
def test_a_packed_row_gives_each_document_what_it_has_alone(row, way, config):
    model = model_of(**config)
    model.set_attn_implementation(way)
    ids, documents = row
    packed = hidden_of(model, ids, document_ids=documents)
    for r in range(len(ids)):
        for number in documents[r].unique():
            if number == 0:
                continue
            inside = documents[r] == number
            alone = hidden_of(model, ids[r, inside][None])[0]
            torch.testing.assert_close(packed[r, inside], alone, rtol=0, atol=1e-12)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_nothing(way, side):
    model = model_of(rotary_value=True)
    model.set_attn_implementation(way)
    ids, length, pad = torch.randint(0, 50, (2, 9)), 9, 4
    alone = hidden_of(model, ids)
    where = slice(pad, None) if side == "left" else slice(None, length)
    padded = torch.randint(0, 50, (2, length + pad))
    mask = torch.zeros(2, length + pad, dtype=torch.long)
    padded[:, where], mask[:, where] = ids, 1
    mask[1], padded[1, where] = mask[0], ids[1]
    got = hidden_of(model, padded, attention_mask=mask)[:, where]
    torch.testing.assert_close(got, alone, rtol=0, atol=1e-12)


@pytest.mark.parametrize("way", WAYS)
def test_a_row_of_padding_alone_is_finite(way):
    model = model_of()
    model.set_attn_implementation(way)
    ids = torch.randint(0, 50, (2, 5))
    mask = torch.tensor([[1, 1, 1, 0, 0], [0, 0, 0, 0, 0]])
    hidden = hidden_of(model, ids, attention_mask=mask)
    assert hidden.isfinite().all()
    hidden.sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


def test_document_numbers_may_be_any_but_stay_together(row):
    model, (ids, documents) = model_of(), row
    renamed = torch.where(documents == 1, 10**12, documents)
    same = hidden_of(model, ids, document_ids=documents)
    assert torch.equal(hidden_of(model, ids, document_ids=renamed), same)
    with pytest.raises(ShapeError, match="row 0 come back to document 1 at token 4"):
        model(ids[:1, :5], document_ids=torch.tensor([[1, 1, 2, 2, 1]]))


def test_positions_matter_and_a_common_shift_does_not():
    """bert4keras once took custom positions and ignored them; transformers 5.24 still does."""
    model, ids = model_of(), torch.randint(0, 50, (2, 7))
    plain = hidden_of(model, ids)
    shifted = hidden_of(model, ids, position_ids=torch.arange(7) + 1000)
    torch.testing.assert_close(shifted, plain, rtol=0, atol=1e-10)
    spread = hidden_of(model, ids, position_ids=torch.arange(7) * 3)
    assert (spread - plain).abs().max() > 1e-2
    own = torch.stack((torch.arange(7), torch.arange(7) * 3))
    rows = hidden_of(model, ids, position_ids=own)
    torch.testing.assert_close(rows[0], plain[0], rtol=0, atol=1e-12)
    torch.testing.assert_close(rows[1], spread[1], rtol=0, atol=1e-12)


@pytest.mark.parametrize("way", WAYS)
def test_a_long_text_equals_itself_in_pieces(way):
    """Beyond 1536 tokens: a text of pieces that do not see each other is the pieces one by one."""
    model = model_of(num_hidden_layers=1)
    model.set_attn_implementation(way)
    ids = torch.randint(0, 50, (1, 1600))
    pieces = (torch.arange(1600) // 100 + 1)[None]
    whole = hidden_of(model, ids, document_ids=pieces, position_ids=torch.arange(1600)[None])
    by_piece = hidden_of(model, ids.reshape(16, 100)).reshape(1, 1600, -1)
    torch.testing.assert_close(whole, by_piece, rtol=0, atol=1e-9)


def test_holes_in_the_mask_keep_their_positions():
    model, ids = model_of(), torch.randint(0, 50, (1, 6))
    mask = torch.tensor([[1, 1, 0, 1, 1, 1]])
    kept = mask[0].bool()
    with_hole = hidden_of(model, ids, attention_mask=mask)[:, kept]
    positions = torch.arange(6)[kept]
    without = hidden_of(model, ids[:, kept], position_ids=positions)
    torch.testing.assert_close(with_hole, without, rtol=0, atol=1e-12)


def test_embeddings_instead_of_tokens():
    model, ids = model_of(), torch.randint(0, 50, (2, 5))
    embeds = model.get_input_embeddings()(ids)
    assert torch.equal(hidden_of(model, None, inputs_embeds=embeds), hidden_of(model, ids))


def test_attentions_and_hidden_states_are_given_when_asked():
    model, ids = model_of(), torch.randint(0, 50, (2, 5))
    with pytest.raises(ConfigError, match="needs attn_implementation='eager'"):
        model(ids, output_attentions=True)
    model.set_attn_implementation("eager")
    output = model(ids, output_attentions=True, output_hidden_states=True)
    assert [a.shape for a in output.attentions] == [(2, 2, 5, 5)] * 2
    torch.testing.assert_close(
        output.attentions[0].sum(-1), torch.ones(2, 2, 5, dtype=torch.float64)
    )
    assert len(output.hidden_states) == 3
    assert torch.equal(output.hidden_states[-1], output.last_hidden_state)
    as_tuple = model(ids, return_dict=False)
    assert torch.equal(as_tuple[0], output.last_hidden_state)


@pytest.mark.parametrize(
    ("inputs", "error", "message"),
    [
        ({}, ConfigError, "either input_ids or inputs_embeds"),
        ({"input_ids": torch.tensor([1, 2])}, ShapeError, r"expected \(batch, length\)"),
        ({"input_ids": torch.tensor([[1, 50]])}, ConfigError, "hold 50, but the vocabulary has 50"),
        ({"attention_mask": torch.ones(1, 3)}, ShapeError, "attention_mask has shape"),
        ({"document_ids": torch.ones(2)}, ShapeError, "document_ids has shape"),
        ({"position_ids": torch.ones(1, 2)}, DtypeError, "position_ids are torch.float32"),
        ({"position_ids": torch.ones(3, 2).long()}, ShapeError, "position_ids has shape"),
        ({"attention_mask": torch.ones(1, 1, 2, 2)}, DtypeError, "must be boolean"),
        ({"attn_mask": torch.ones(1, 2)}, TypeError, "unexpected keyword argument 'attn_mask'"),
    ],
)
def test_bad_input_is_one_clear_error(inputs, error, message):
    ids = {} if not inputs or "input_ids" in inputs else {"input_ids": torch.tensor([[1, 2]])}
    with pytest.raises(error, match=message):
        model_of()(**ids, **inputs)


def test_sparse_logits_give_the_dense_loss_and_gradients(row):
    ids, documents = row
    labels = torch.where((torch.rand(ids.shape) < 0.4) & (documents > 0), ids, -100)
    model = model_of(RoFormerForMaskedLM)
    results = []
    for sparse in (False, True):
        output = model(ids, document_ids=documents, labels=labels, sparse_logits=sparse)
        results.append((output, torch.autograd.grad(output.loss, list(model.parameters()))))
    (dense, dense_grads), (sparse, sparse_grads) = results
    torch.testing.assert_close(sparse.loss, dense.loss, rtol=0, atol=1e-14)
    torch.testing.assert_close(sparse.logits, dense.logits[labels != -100], rtol=0, atol=1e-12)
    for a, b in zip(sparse_grads, dense_grads, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-13)
    model.config.sparse_logits = True
    assert model(ids).logits.shape == (2, 14, 50)
    assert model(ids, labels=labels).logits.shape == (2, 14, 50)  # In evaluation all.
    assert model.train()(ids, labels=labels).logits.shape == sparse.logits.shape


def test_without_labels_the_loss_is_zero_and_has_a_gradient():
    for sparse in (False, True):
        model = model_of(RoFormerForMaskedLM, sparse_logits=sparse)
        ids = torch.randint(0, 50, (1, 4))
        loss = model(ids, labels=torch.full((1, 4), -100)).loss
        loss.backward()
        assert loss.item() == 0.0


def test_accumulated_losses_divide_by_all_labels():
    model, ids = model_of(RoFormerForMaskedLM), torch.randint(0, 50, (2, 6))
    labels = ids.clone()
    labels[0, 1:] = -100
    whole = model(ids, labels=labels).loss
    parts = [model(ids[i : i + 1], labels=labels[i : i + 1], num_items_in_batch=7) for i in (0, 1)]
    torch.testing.assert_close(parts[0].loss + parts[1].loss, whole)


def set_checkpointing(model, on):
    verb = "enable" if on else "disable"
    # Transformers renamed it in 5.24 and warns about the old name.
    new = getattr(model, f"activation_checkpointing_{verb}", None)
    (new or getattr(model, f"gradient_checkpointing_{verb}"))()


@pytest.mark.parametrize("checkpointing", [False, True])
def test_training_lowers_the_loss(row, checkpointing):
    ids, documents = row
    config = RoFormerConfig(**{**TINY, "hidden_dropout_prob": 0.1})
    model = RoFormerForMaskedLM(config).train()
    set_checkpointing(model, checkpointing)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(25):
        loss = model(ids, document_ids=documents, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


def test_checkpointing_gives_the_same_gradients(row):
    ids, documents = row
    model = model_of(RoFormerForMaskedLM).train()
    grads = []
    for on in (False, True):
        set_checkpointing(model, on)
        loss = model(ids, document_ids=documents, labels=ids).loss
        grads.append(torch.autograd.grad(loss, list(model.parameters())))
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-15)


def test_saving_and_loading_keeps_every_bit(tmp_path):
    model = model_of(RoFormerForMaskedLM, dtype=torch.float32, norm_position="pre")
    model.save_pretrained(tmp_path)
    assert (tmp_path / "model.safetensors").exists()
    back = RoFormerForMaskedLM.from_pretrained(tmp_path)
    ids = torch.randint(0, 50, (2, 5))
    assert torch.equal(back(ids).logits, model(ids).logits)
    decoder = back.cls.predictions.decoder
    assert decoder.weight is back.roformer.embeddings.word_embeddings.weight
    assert decoder.bias is back.cls.predictions.bias
    base = RoFormerModel.from_pretrained(tmp_path)
    assert torch.equal(hidden_of(base, ids), hidden_of(model.roformer, ids))


def test_frequencies_survive_meta_and_casts(tmp_path):
    model = model_of(RoFormerForMaskedLM, dtype=torch.float32)
    model.save_pretrained(tmp_path)
    exact = model.roformer.positions.rope.ropes[0].frequencies
    back = RoFormerForMaskedLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert back.roformer.positions.rope.ropes[0].frequencies == exact
    assert back.bfloat16().double().roformer.positions.rope.ropes[0].frequencies == exact
    with torch.device("meta"):
        empty = RoFormerForMaskedLM(model.config)
    filled = empty.to_empty(device="cpu")
    filled.load_state_dict(model.state_dict())
    filled.tie_weights()
    ids = torch.randint(0, 50, (2, 5))
    assert torch.equal(filled.eval()(ids).logits, model(ids).logits)


def test_an_encoder_left_at_random_is_refused(tmp_path):
    """JunnYu/RoFormer_pytorch#48: V2 weights loaded in stock, and predicted noise."""
    model = model_of(RoFormerForMaskedLM, dtype=torch.float32)
    weights = {n: t for n, t in model.state_dict().items() if "bias" not in n and "Norm" not in n}
    model.save_pretrained(tmp_path, state_dict=weights)
    with pytest.raises(ConfigError, match="RoFormer-V2") as caught:
        RoFormerForMaskedLM.from_pretrained(tmp_path)
    assert "missing: roformer.embeddings.LayerNorm.bias" in str(caught.value)
    deeper = RoFormerConfig(**{**TINY, "num_hidden_layers": 1})
    model.save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"without a place here: roformer\.encoder\.layer\.1\."):
        RoFormerForMaskedLM.from_pretrained(tmp_path, config=deeper)


def test_initial_weights_are_a_normal_cut_at_two_deviations():
    model = RoFormerModel(RoFormerConfig(vocab_size=5000, num_hidden_layers=1))
    weight = model.embeddings.word_embeddings.weight
    assert weight.abs().max().item() <= 0.04
    assert weight.std().item() == pytest.approx(0.02 * 0.8796, rel=0.01)
    assert weight[0].abs().max() > 0  # The padding token is a token like others.
    assert (model.encoder.layer[0].output.LayerNorm.weight == 1).all()
    assert (model.encoder.layer[0].output.dense.bias == 0).all()


def test_angles_of_a_float64_model_are_float64_and_of_a_half_model_float32():
    ids = torch.tensor([[3, 4]])
    far = torch.tensor([[0, 1_000_003]])
    exact = model_of()
    wide = hidden_of(exact, ids, position_ids=far)
    again = hidden_of(exact, ids, position_ids=far - 500_000)
    torch.testing.assert_close(wide, again, rtol=0, atol=1e-8)
    seen = []
    half = model_of(dtype=torch.bfloat16)
    original = type(half.positions.rope).forward

    def spy(self, positions, *, lengths, dtype):
        seen.append(dtype)
        return original(self, positions, lengths=lengths, dtype=dtype)

    half.positions.rope.forward = spy.__get__(half.positions.rope)
    assert hidden_of(half, ids).dtype == torch.bfloat16
    assert seen == [torch.float32]


def test_flex_attention_is_refused():
    """Compiled for a CPU, PyTorch 2.13's kernel reads beyond a block mask of several rows."""
    with pytest.raises(ConfigError, match="flex_attention"):
        RoFormerModel(RoFormerConfig(num_hidden_layers=1, attn_implementation="flex_attention"))
    model = model_of()
    with pytest.raises(ConfigError, match="Use 'rotary_packed'"):
        model.set_attn_implementation("flex_attention")
