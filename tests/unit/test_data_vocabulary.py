import json
import os
import subprocess
import sys

import pytest

from rotary.data.text import Document
from rotary.data.vocabulary import SPECIAL_TOKENS, load_tokenizer, train_wordpiece
from rotary.errors import ConfigError, DataError

WORDS = ["rotate", "rotates", "rotated", "rotation", "plane", "planes", "planar", "angle"]
WORDS += ["angles", "angular", "naïve"]
# Many merges tie here, so an order that is left to chance shows up in the ids.
DOCUMENTS = [
    Document(str(n), " ".join(WORDS[(n * k) % len(WORDS)] for k in range(30)) + " [MASK] 北京!")
    for n in range(40)
]
IDS = "from test_data_vocabulary import ids; print(ids())"


@pytest.fixture(scope="module")
def tokenizer():
    return train_wordpiece(DOCUMENTS, vocab_size=110)


def ids():
    vocabulary = train_wordpiece(DOCUMENTS, vocab_size=110).get_vocab()
    return sorted(vocabulary, key=vocabulary.get)


def test_special_tokens_come_first_then_characters_then_merges(tokenizer):
    order = ids()
    assert tuple(order[:5]) == SPECIAL_TOKENS
    assert tokenizer.all_special_ids == [1, 3, 0, 2, 4]
    assert (tokenizer.pad_token_id, tokenizer.mask_token_id) == (0, 4)
    singles = [token for token in order[5:] if len(token.removeprefix("##")) == 1]
    assert order[5 : 5 + len(singles)] == singles
    assert {"r", "##r", "!", "[", "北"} <= set(singles)
    assert not {"##!", "##[", "##北", "##京"} & set(order)  # These always stand alone.
    assert "rotation" in order
    assert len(order) == len(tokenizer) <= 110


def test_text_is_treated_as_by_bert(tokenizer):
    text = tokenizer("Rotation, NAIVE 北京 [MASK]")
    assert tokenizer.convert_ids_to_tokens(text["input_ids"]) == [
        *("[CLS]", "rotation", "[UNK]", "naive", "北", "京", "[MASK]", "[SEP]")
    ]
    assert tokenizer.decode(text["input_ids"], skip_special_tokens=True).startswith("rotation")
    assert tokenizer.model_max_length > 10**9


@pytest.mark.slow
def test_ids_do_not_depend_on_threads_or_the_process(monkeypatch):
    here = ids()
    assert ids() == here
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    assert ids() == here
    environment = {
        **os.environ,
        "RAYON_NUM_THREADS": "3",
        "PYTHONHASHSEED": "7",
        "TOKENIZERS_PARALLELISM": "true",
        "PYTHONPATH": os.pathsep.join([os.path.dirname(__file__), *sys.path]),
    }
    done = subprocess.run(
        [sys.executable, "-c", IDS], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == str(here)


def test_a_small_size_keeps_the_frequent_characters():
    documents = [Document("a", "e" * 50 + " ab" * 20 + " xyz")]
    tokenizer = train_wordpiece(documents, vocab_size=17)
    assert len(tokenizer) <= 17
    assert set("abe") <= set(tokenizer.get_vocab())
    assert not {"x", "xy", "xyz"} & set(tokenizer.get_vocab())
    assert tokenizer.tokenize("abe xyz") == [*tokenizer.tokenize("abe"), "[UNK]"]


def test_bad_sizes_and_no_text():
    for size in (0, 9):
        with pytest.raises(ConfigError, match=f"vocab_size is {size}; at least 10 are needed"):
            train_wordpiece(DOCUMENTS, vocab_size=size)
    for documents in ([], [Document("a", "\x00\u200b")]):
        with pytest.raises(DataError, match="the corpus is empty: there is no text to train"):
            train_wordpiece(documents, vocab_size=100)


def test_saved_and_loaded_it_is_the_same(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    loaded = load_tokenizer(tmp_path)
    assert loaded.get_vocab() == tokenizer.get_vocab()
    text = "Rotated planes, [MASK] angles"
    assert loaded(text) == tokenizer(text)
    assert loaded.model_max_length > 10**9
    assert loaded.mask_token == "[MASK]"


def test_a_tokenizer_that_lacks_special_tokens(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    del config["mask_token"], config["pad_token"]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(DataError, match="this tokenizer has no mask_token, pad_token; masked-lang"):
        load_tokenizer(tmp_path)


def test_folders_without_a_tokenizer(tmp_path):
    with pytest.raises(DataError, match=r"nowhere: no such folder; a tokenizer is a folder that"):
        load_tokenizer(tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"there is no tokenizer in it; expected is one of token"):
        load_tokenizer(tmp_path)
    file = tmp_path / "tokenizer.json"
    file.write_text("{broken")
    with pytest.raises(DataError, match=r"its tokenizer cannot be loaded \(") as caught:
        load_tokenizer(tmp_path)
    assert "\n" not in str(caught.value)
    with pytest.raises(DataError, match=r"is a file, not a folder"):
        load_tokenizer(file)


def test_code_in_the_folder_is_not_run(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    config |= {"tokenizer_class": "Evil", "auto_map": {"AutoTokenizer": ["evil.Evil", None]}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Evil: pass\n")
    with pytest.raises(DataError, match=r"cannot be loaded .*custom code"):
        load_tokenizer(tmp_path)
    assert not (tmp_path / "ran").exists()
