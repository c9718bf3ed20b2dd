"""`rotary fill-mask` on a model that knows nothing yet: right form, right probabilities."""

import pytest
import torch
from training_support import write_corpus

from rotary.cli.main import main


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    from rotary.data.text import read_documents
    from rotary.data.vocabulary import train_wordpiece
    from rotary.models.roformer import RoFormerConfig, RoFormerForMaskedLM

    path = tmp_path_factory.mktemp("model")
    documents = read_documents([write_corpus(path / "corpus.jsonl")])
    tokenizer = train_wordpiece(documents, vocab_size=150)
    config = RoFormerConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        pad_token_id=tokenizer.pad_token_id,
    )
    torch.manual_seed(0)
    model = RoFormerForMaskedLM(config)
    with torch.no_grad():  # Sure of "tree" wherever it looks.
        model.cls.predictions.bias[tokenizer.convert_tokens_to_ids("tree")] = 10.0
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return str(path)


def test_the_best_guess_comes_first_in_its_sentence(folder, capsys):
    assert main(["fill-mask", folder, "The [MASK] returns the keys.", "--top", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert "tree" in lines[0]
    assert lines[0].endswith("The tree returns the keys.")
    shares = [float(line.split("%")[0]) for line in lines]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > 98


def test_every_mask_has_its_guesses(folder, capsys):
    assert main(["fill-mask", folder, "[MASK] returns [MASK]", "--top", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "[MASK] 1"
    assert lines[1].endswith("tree returns [MASK]")
    assert lines[3] == "[MASK] 2"
    assert lines[4].endswith("[MASK] returns tree")


def test_what_is_wrong_is_one_line(folder, tmp_path, capsys):
    file = tmp_path / "model"
    file.write_text("")
    for arguments, expected in [
        ((folder, "no mask here"), "there is no [MASK] in the text 'no mask here'"),
        ((tmp_path / "nowhere", "[MASK]"), "there is no such folder"),
        ((folder, "caf\udce9 [MASK]"), "the argument 'caf\\udce9 [MASK]' is not UTF-8"),
        ((file, "[MASK]"), f"{file}: this is a file; give the folder of the model."),
        ((tmp_path, "[MASK]"), "there is no model in this folder: config.json is missing."),
    ]:
        assert main(["fill-mask", *map(str, arguments)]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert len(captured.err.splitlines()) == 1
        assert expected in captured.err


def test_a_damaged_model_is_one_line(folder, tmp_path, capsys):
    import shutil

    shutil.copytree(folder, tmp_path / "model")
    weights = tmp_path / "model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    assert main(["fill-mask", str(tmp_path / "model"), "[MASK]"]) == 2
    assert "its model cannot be loaded" in capsys.readouterr().err


@pytest.mark.parametrize("top", ["0", "x", "-1"])
def test_top_is_a_whole_number(folder, capsys, top):
    with pytest.raises(SystemExit) as stopped:
        main(["fill-mask", folder, "[MASK]", "--top", top])
    assert stopped.value.code == 2
    assert f"argument --top: {top!r} is not a whole number, 1 or more" in capsys.readouterr().err


def test_special_tokens_are_no_guesses(folder, capsys):
    """However sure the model is of them, and however many guesses are wanted."""
    from rotary.training.guesses import fill_mask, load_model

    model, tokenizer = load_model(folder)
    with torch.no_grad():
        model.cls.predictions.bias[tokenizer.all_special_ids] = 20.0
    guesses = fill_mask(model, tokenizer, "The [MASK] returns", top=10_000)[0]
    assert {guess.token for guess in guesses} == (
        set(tokenizer.get_vocab()) - set(tokenizer.all_special_tokens)
    )
    assert guesses[0].token == "tree"
    assert sum(guess.probability for guess in guesses) == pytest.approx(1, abs=1e-5)
