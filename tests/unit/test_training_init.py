"""`rotary pretrain --init`: from a BERT made here to a RoFormer with its weights."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from training_support import TINY, run_in_child, write_corpus
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForPreTraining,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertModel,
)

from rotary.cli.main import main
from rotary.data.vocabulary import train_wordpiece
from rotary.errors import RunError
from rotary.models.roformer import RoFormerConfig, RoFormerForCausalLM, RoFormerForMaskedLM
from rotary.training.corpus import read_corpus
from rotary.training.initial import read_initial
from rotary.training.run_config import ModelOptions

SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
}
SETTINGS = [
    part
    for key, value in zip(TINY[::2], TINY[1::2], strict=True)
    if not key.startswith("--model.")
    for part in (key, value)
]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("corpus") / "corpus.jsonl")


@pytest.fixture(scope="module")
def tokenizer(corpus):
    return train_wordpiece(read_corpus([corpus], "text"), vocab_size=120)


@pytest.fixture(scope="module")
def bert(tmp_path_factory, tokenizer):
    """A folder with a BERT, weights drawn wide so that each of them matters."""
    return make(BertForMaskedLM, tmp_path_factory.mktemp("bert"), tokenizer)


def make(cls, folder, tokenizer, **values):
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(tokenizer) + 3, max_position_embeddings=64, **{**SIZES, **values}
    )
    model = cls(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def own(cls=RoFormerForMaskedLM, **values):
    config = {"vocab_size": 123, "position_encoding": "none", **SIZES, **values}
    return cls(RoFormerConfig(**config)).eval()


def rewrite(folder, target, change):
    """A copy of a folder with other weights."""
    shutil.copytree(folder, target)
    weights = load_file(target / "model.safetensors")
    change(weights)
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    return target


def test_without_positions_it_computes_what_bert_computes(bert):
    """Logits of BERT with its position table at zero, from every other weight."""
    model = own()
    notes = read_initial(bert).load_into(model)
    assert notes == "left out: its 64 absolute positions"
    reference = BertForMaskedLM.from_pretrained(bert).eval()
    with torch.no_grad():
        reference.bert.embeddings.position_embeddings.weight.zero_()
        ids = torch.randint(0, 123, (2, 9))
        expected = reference(ids).logits
        torch.testing.assert_close(model(ids).logits, expected, rtol=1e-4, atol=1e-4)
    assert expected.std() > 0.5


def test_learned_positions_are_taken_over_and_it_computes_what_bert_computes(bert, tmp_path):
    model = own(position_encoding="learned", max_position_embeddings=64)
    assert read_initial(bert).load_into(model) == ""
    ids = torch.randint(0, 123, (2, 9))
    mask = torch.ones_like(ids)
    mask[1, 6:] = 0
    with torch.no_grad():
        expected = BertForMaskedLM.from_pretrained(bert).eval()(ids, attention_mask=mask).logits
        got = model(ids, attention_mask=mask).logits
    torch.testing.assert_close(got[mask == 1], expected[mask == 1], rtol=1e-4, atol=1e-4)
    model.save_pretrained(tmp_path / "learned")
    without = own()
    notes = read_initial(tmp_path / "learned").load_into(without)
    assert notes == "left out: its position encoding"
    short = own(position_encoding="learned", max_position_embeddings=32)
    with pytest.raises(RunError, match=r"of another shape: roformer\.positions\.encoding\.table"):
        read_initial(bert).load_into(short)


def test_old_names_bare_encoders_and_other_heads(bert, tokenizer, tmp_path):
    model = own()
    read_initial(bert).load_into(model)
    ids = torch.tensor([[1, 2, 3]])

    def old(weights):
        for name in list(weights):
            renamed = name.replace("LayerNorm.weight", "LayerNorm.gamma")
            weights[renamed.replace("LayerNorm.bias", "LayerNorm.beta")] = weights.pop(name)

    first = own()
    read_initial(rewrite(bert, tmp_path / "old", old)).load_into(first)
    assert torch.equal(first(ids).logits, model(ids).logits)

    full = read_initial(make(BertForPreTraining, tmp_path / "full", tokenizer))
    assert full.load_into(own()) == (
        "left out: its 64 absolute positions, its pooler, its next-sentence head"
    )
    bare = read_initial(make(BertModel, tmp_path / "bare", tokenizer))
    assert bare.load_into(own()).endswith("it has no language-model head, so that starts at random")
    assert full.load_into(own(RoFormerForCausalLM, is_decoder=True))


@pytest.mark.parametrize(
    ("cls", "names"),
    [
        (BertForSequenceClassification, "its pooler, its classifier.bias, its classifier.weight"),
        (BertForQuestionAnswering, "its qa_outputs.bias, its qa_outputs.weight"),
    ],
)
def test_heads_of_other_tasks_are_left_out_by_the_names_in_the_file(
    tokenizer, tmp_path, cls, names
):
    folder = make(cls, tmp_path / "bert", tokenizer)
    model = own()
    assert read_initial(folder).load_into(model) == (
        f"left out: its 64 absolute positions, {names}; "
        "it has no language-model head, so that starts at random"
    )
    encoder = cls.from_pretrained(folder).bert.encoder.layer[1].output.dense.weight
    assert torch.equal(model.roformer.encoder.layer[1].output.dense.weight, encoder)


def test_a_roformer_of_ours_is_taken_whole(tmp_path):
    saved = own(norm_position="pre", position_encoding="rotary", rotary_layout="half")
    saved.save_pretrained(tmp_path)
    initial = read_initial(tmp_path)
    assert initial.model_type == "rotary_roformer"
    assert initial.options["norm_position"] == "pre"
    assert initial.options["rotary_layout"] == "half"
    torch.manual_seed(1)
    model = own(norm_position="pre", position_encoding="rotary", rotary_layout="half")
    assert initial.load_into(model) == ""
    ids = torch.tensor([[1, 2, 3]])
    assert torch.equal(model(ids).logits, saved(ids).logits)
    with pytest.raises(
        RunError, match=r"model\.rotary_layout is 'interleaved', there it is 'half'"
    ):
        initial.check(ModelOptions(**SIZES, norm_position="pre"), 120)


# ---- What does not fit


def test_every_size_that_differs_is_named(bert):
    with pytest.raises(RunError) as caught:
        read_initial(bert).check(ModelOptions(**{**SIZES, "num_attention_heads": 4}), 120)
    assert str(caught.value) == (
        f"--init {bert}: its weights do not fit the config: model.num_attention_heads is 4, there "
        "it is 2. Give these values in the config, or leave --config out to take them from there."
    )
    with pytest.raises(RunError) as caught:
        read_initial(bert).check(ModelOptions(), 120)
    for name in SIZES:
        assert f"model.{name} is " in str(caught.value)
    with pytest.raises(RunError, match="it has 123 tokens and the tokenizer has 124"):
        read_initial(bert).check(ModelOptions(**SIZES), 124)


def drop(name):
    return lambda weights: weights.pop(name)


WEIGHTS = {
    "missing: roformer.encoder.layer.1.attention.self.query.bias": drop(
        "bert.encoder.layer.1.attention.self.query.bias"
    ),
    "missing: cls.predictions.transform.dense.bias": drop("cls.predictions.transform.dense.bias"),
    "without a place: bert.encoder.layer.0.extra": lambda weights: weights.update(
        {"bert.encoder.layer.0.extra": torch.zeros(2)}
    ),
    "roformer.embeddings.word_embeddings.weight (9, 16), here (123, 16)": lambda weights: (
        weights.update({"bert.embeddings.word_embeddings.weight": torch.zeros(9, 16)})
    ),
    "its cls.predictions.decoder.weight is not tied": lambda weights: weights.update(
        {"cls.predictions.decoder.weight": torch.zeros(123, 16)}
    ),
}


@pytest.mark.parametrize("message", WEIGHTS)
def test_weights_that_do_not_fit_are_named(bert, tmp_path, message):
    folder = rewrite(bert, tmp_path / "folder", WEIGHTS[message])
    with pytest.raises(RunError) as caught:
        read_initial(folder).load_into(own())
    assert message in str(caught.value)


CONFIGS = {
    "its model_type is 'gpt2'; accepted are bert, roformer": {"model_type": "gpt2"},
    "cannot train a model with its use_bias": {"model_type": "rotary_roformer", "use_bias": False},
    "cannot train a model with its rotary_value": {"model_type": "roformer", "rotary_value": True},
    "cannot train a model with its rope_parameters": {
        "model_type": "roformer",
        "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0},
    },
    "hidden_size 16 does not split": {"num_attention_heads": 3},
}


@pytest.mark.parametrize("message", CONFIGS)
def test_kinds_that_a_run_cannot_train_are_refused(bert, tmp_path, message):
    folder = tmp_path / "folder"
    shutil.copytree(bert, folder)
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**values, **CONFIGS[message]}))
    with pytest.raises(RunError) as caught:
        read_initial(folder)
    assert message in str(caught.value)


def test_folders_without_a_checkpoint_are_one_line(bert, tmp_path):
    with pytest.raises(RunError, match="there is no such folder"):
        read_initial(tmp_path / "nothing")
    with pytest.raises(RunError, match=r"there is no config.json in it"):
        read_initial(tmp_path)
    shutil.copy(bert / "config.json", tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(RunError, match=r"pytorch_model.bin there is a pickle, which is not loaded"):
        read_initial(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(RunError, match="its weights cannot be read"):
        read_initial(tmp_path).load_into(own())


# ---- The job


@pytest.mark.slow
def test_a_run_from_a_bert_takes_its_sizes_and_tokenizer_and_resumes_without_it(
    bert, corpus, tmp_path
):
    source = tmp_path / "bert"
    shutil.copytree(bert, source)
    arguments = [corpus, *SETTINGS, "--init", str(source)]
    code, said = run_in_child([*arguments, "--output", str(tmp_path / "whole")])
    assert code == 0, said
    assert f"init    weights of {source} (bert); left out: its 64 absolute positions\n" in said, (
        said
    )
    run = (tmp_path / "whole" / "run.toml").read_text()
    for line in (
        f'init = "{source}"',
        "hidden_size = 16",
        'position_encoding = "rotary"',
        f'[record.init]\npath = "{source}"\nmodel_type = "bert"\nvocab_size = 123\nsha256 = "',
    ):
        assert line in run
    config = json.loads((tmp_path / "whole" / "config.json").read_text())
    assert config["vocab_size"] == 123
    assert config["model_type"] == "roformer"
    tokenizers = [(tmp_path / "whole" / "tokenizer.json"), source / "tokenizer.json"]
    assert tokenizers[0].read_text() == tokenizers[1].read_text()

    output = ["--output", str(tmp_path / "stopped")]
    code, said = run_in_child([*arguments, *output], "SIGTERM")
    assert code == 143, said
    shutil.rmtree(source)
    code, said = run_in_child([*output, "--resume"])
    assert code == 0, said
    weights = (tmp_path / "stopped" / "model.safetensors").read_bytes()
    assert weights == (tmp_path / "whole" / "model.safetensors").read_bytes()


def test_a_config_that_does_not_fit_is_refused_before_anything_is_written(
    bert, corpus, tmp_path, capsys
):
    output = tmp_path / "run"
    arguments = [corpus, "--config", "demo", "--init", str(bert), "--output", str(output)]
    assert main(["pretrain", *arguments]) == 2
    captured = capsys.readouterr()
    assert "model.hidden_size is 192, there it is 16" in captured.err
    assert len(captured.err.splitlines()) == 1
    assert not output.exists()


def test_show_config_shows_what_is_taken(bert, capsys):
    assert main(["pretrain", "--init", str(bert), "--show-config"]) == 0
    out = capsys.readouterr().out
    assert "hidden_size = 16\n" in out
    assert f'init = "{bert}"' in out


def test_other_tokenizers_may_be_given(bert, corpus, tmp_path, capsys):
    arguments = [corpus, *SETTINGS, "--init", str(bert), "--tokenizer", "bytes"]
    assert main(["pretrain", *arguments, "--output", str(tmp_path / "run")]) == 2
    assert "it has 123 tokens and the tokenizer has 260" in capsys.readouterr().err
