"""What transformers' own common tests ask of every model class, asked of ours."""

import copy
import inspect
import io

import pytest
import torch

from rotary import models
from rotary.models import RoFormerConfig

NAMES = [name for name in models.__all__ if name.startswith(("RoFormerFor", "RoFormerModel"))]
CLASSES = [getattr(models, name) for name in NAMES]
LANGUAGE = [models.RoFormerForMaskedLM, models.RoFormerForCausalLM]


@pytest.fixture(params=CLASSES, ids=NAMES)
def cls(request):
    return request.param


@pytest.fixture
def model(build, cls):
    return build(cls, dtype=torch.float32, is_decoder=cls is models.RoFormerForCausalLM)


def batch_for(cls):
    ids = torch.randint(1, 50, (2, 6))
    return ids[None] if cls is models.RoFormerForMultipleChoice else ids


def main_tensor(output):
    return next(value for value in output.to_tuple() if isinstance(value, torch.Tensor))


def test_all_nine_are_asked():
    assert len(NAMES) == 9


def test_forward_begins_with_the_tokens_and_takes_no_surplus(cls):
    parameters = inspect.signature(cls.forward).parameters
    names = list(parameters)
    assert names[1:4] == ["input_ids", "attention_mask", "token_type_ids"]
    assert {"position_ids", "inputs_embeds", "output_hidden_states", "return_dict"} <= set(names)
    kinds = {parameter.kind for parameter in parameters.values()}
    assert inspect.Parameter.VAR_KEYWORD not in kinds


def test_two_calls_and_a_copy_give_the_same(model, cls):
    ids = batch_for(cls)
    first = main_tensor(model(ids))
    assert torch.equal(main_tensor(model(ids)), first)
    assert torch.equal(main_tensor(copy.deepcopy(model)(ids)), first)
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    assert torch.equal(main_tensor(torch.load(buffer, weights_only=False)(ids)), first)


def test_a_tuple_holds_the_same(model, cls):
    ids = batch_for(cls)
    assert torch.equal(model(ids, return_dict=False)[0], main_tensor(model(ids)))


def test_embeddings_in_place_of_tokens(model, cls):
    ids = batch_for(cls)
    embeds = model.get_input_embeddings()(ids)
    torch.testing.assert_close(
        main_tensor(model(inputs_embeds=embeds)), main_tensor(model(ids)), rtol=0, atol=1e-6
    )


def test_hidden_states_and_attentions_carry_gradients(model, cls):
    model.set_attn_implementation("eager")
    output = model(batch_for(cls), output_hidden_states=True, output_attentions=True)
    hidden, attention = output.hidden_states[0], output.attentions[0]
    assert len(output.hidden_states) == 3
    assert len(output.attentions) == 2
    hidden.retain_grad()
    attention.retain_grad()
    main_tensor(output).square().sum().backward()
    assert hidden.grad.abs().max() > 0
    assert attention.grad.abs().max() > 0


def test_saving_and_loading_keeps_every_weight(model, cls, tmp_path):
    model.save_pretrained(tmp_path)
    back, info = cls.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    saved = model.state_dict()
    assert back.state_dict().keys() == saved.keys()
    assert all(torch.equal(tensor, saved[name]) for name, tensor in back.state_dict().items())
    small = cls.from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert small.dtype == torch.bfloat16
    assert main_tensor(small(batch_for(cls))).isfinite().all()


def test_nothing_is_left_uninitialised(cls):
    """Weights made on the meta device are drawn as those made at once: no mean or scale is odd."""
    config = RoFormerConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=24,
        is_decoder=cls is models.RoFormerForCausalLM,
        pooler_activation="tanh",
    )
    with torch.device("meta"):
        model = cls(config)
    model.to_empty(device="cpu")
    for parameter in model.parameters():
        torch.nn.init.constant_(parameter, torch.nan)
    for module in model.modules():
        module._is_hf_initialized = False
    model.init_weights()
    for name, parameter in model.named_parameters():
        assert parameter.isfinite().all(), name
        assert parameter.abs().max() <= (1.0 if "Norm" in name else 0.04), name


@pytest.mark.parametrize("autocast", [False, True])
def test_half_precision_runs(model, cls, autocast):
    """facebookresearch/xformers#325: float32 tables must not widen q and k."""
    ids = batch_for(cls)
    exact = main_tensor(model(ids))
    if autocast:
        with torch.autocast("cpu", torch.bfloat16):
            got = main_tensor(model(ids))
    else:
        got = main_tensor(model.bfloat16()(ids))
    assert got.isfinite().all()
    assert (got.float() - exact).abs().max() < 0.1 * exact.abs().max()


@pytest.mark.parametrize("language", LANGUAGE)
def test_the_vocabulary_can_grow_and_shrink(build, language):
    model = build(language, is_decoder=language is models.RoFormerForCausalLM)
    ids = torch.randint(0, 40, (1, 5))
    with torch.no_grad():  # A living graph would remember the old sizes.
        before = model(ids).logits
    for size in (57, 45):
        model.resize_token_embeddings(size)
        assert model.config.vocab_size == size
        predictions = model.cls.predictions
        assert predictions.decoder.weight is model.get_input_embeddings().weight
        assert predictions.decoder.bias is predictions.bias
        with torch.no_grad():
            logits = model(ids).logits
        assert logits.shape == (1, 5, size)
        torch.testing.assert_close(logits[..., :45], before[..., :45])
    loss = model(ids, labels=ids).loss
    loss.backward()
    assert predictions.bias.grad.shape == (45,)


def test_untied_weights_stay_apart(build, tmp_path):
    model = build(models.RoFormerForMaskedLM, dtype=torch.float32, tie_word_embeddings=False)
    decoder, words = model.cls.predictions.decoder, model.get_input_embeddings()
    assert decoder.weight is not words.weight
    model.save_pretrained(tmp_path)
    back = models.RoFormerForMaskedLM.from_pretrained(tmp_path)
    assert torch.equal(back.cls.predictions.decoder.weight, decoder.weight)
    assert torch.equal(back.get_input_embeddings().weight, words.weight)


@pytest.mark.parametrize("is_tied", [True, False])
def test_the_bias_of_the_output_layer_survives_a_new_size_and_the_disk(build, is_tied, tmp_path):
    """With untied weights it came back as zeros: the file held it under the other name."""
    model = build(models.RoFormerForMaskedLM, dtype=torch.float32, tie_word_embeddings=is_tied)
    ids = torch.randint(0, 40, (1, 5))
    model(ids, labels=ids).loss.backward()
    predictions = model.cls.predictions
    assert predictions.bias is predictions.decoder.bias
    assert predictions.bias.grad.abs().max() > 0
    with torch.no_grad():
        predictions.bias.normal_()
    model.resize_token_embeddings(57)
    model.save_pretrained(tmp_path)
    back = models.RoFormerForMaskedLM.from_pretrained(tmp_path)
    assert torch.equal(back.cls.predictions.decoder.bias, model.cls.predictions.decoder.bias)
    torch.testing.assert_close(back(ids).logits, model(ids).logits)
