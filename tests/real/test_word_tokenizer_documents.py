"""The word tokenizer on the real vocabularies and texts."""

import gzip
import json

import pytest

from rotary.errors import ConfigError
from rotary.models import RoFormerConfig, RoFormerTokenizer, check_fits, register
from word_tokenizer_reference import encode, python_jieba

VOCABULARIES = {
    "roformer_chinese_base": ("word", 50_000),
    "roformer_v2_char": ("character", 12_000),
    "bert_base_chinese": ("character", 21_128),
}


@pytest.fixture(scope="module")
def folder(shared_data, tmp_path_factory):
    """A function that unpacks a vocabulary into a folder with nothing but vocab.txt."""

    def folder(name):
        path = tmp_path_factory.mktemp(name)
        with gzip.open(shared_data(f"{name}_vocab.txt.gz")) as file:
            (path / "vocab.txt").write_bytes(file.read())
        return path

    return folder


@pytest.fixture(scope="module")
def tokenizers(folder):
    return {name: RoFormerTokenizer.from_pretrained(folder(name)) for name in VOCABULARIES}


@pytest.fixture(scope="module")
def documents(shared_data):
    def lines(name):
        with gzip.open(shared_data(name), "rt", encoding="utf-8") as file:
            return [json.loads(line) for line in file]

    cases = [row[key] for row in lines("cail2019_scm_500.jsonl.gz") for key in "ABC"]
    passages = [row["text"] for row in lines("cmrc2018_contexts.jsonl.gz")]
    return list(dict.fromkeys(cases)), passages


def test_a_folder_with_only_vocab_txt_gives_the_golden_words(tokenizers):
    tokenizer = tokenizers["roformer_chinese_base"]
    text = "永和服装饰品有限公司,今天天气非常好"
    words = ["永和", "服装", "饰品", "有限公司", ",", "今", "天", "天", "气", "非常", "好"]
    ids = [22943, 21332, 34431, 45904, 117, 306, 1231, 1231, 2653, 33994, 1266]
    assert tokenizer.tokenize(text) == words
    assert tokenizer(text, add_special_tokens=False)["input_ids"] == ids
    assert tokenizer.convert_tokens_to_ids([*words, "[UNK]"]) == [*ids, 100]
    assert tokenizer(text)["input_ids"] == [101, *ids, 102]


def test_character_vocabularies_are_read_as_characters(tokenizers):
    golden = [3333, 994, 2881, 5974, 7284, 1028, 2878, 7057, 585, 904, 117, 317, 1466, 1466]
    golden += [3310, 7160, 1960, 1506]
    tokenizer = tokenizers["roformer_v2_char"]
    text = "永和服装饰品有限公司,今天天气非常好"
    assert tokenizer(text, add_special_tokens=False)["input_ids"] == golden
    for name, (level, size) in VOCABULARIES.items():
        assert (tokenizers[name].level, len(tokenizers[name])) == (level, size)


@pytest.mark.slow
def test_every_document_is_encoded_as_by_an_independent_tokenizer(tokenizers, documents):
    """Every CAIL document and every CMRC passage: words, English, accents, digits, line ends."""
    cut = python_jieba()
    cases, passages = documents
    assert (len(cases), len(passages)) == (227, 1104)
    segmented = {}

    def cut_once(text):  # Python's jieba takes most of the time, and cuts the same for all.
        if text not in segmented:
            segmented[text] = cut(text)
        return segmented[text]

    for name, (level, _) in VOCABULARIES.items():
        tokenizer = tokenizers[name]
        ours = tokenizer(cases + passages, add_special_tokens=False)["input_ids"]
        how = cut_once if level == "word" else lambda text: [text]
        for text, ids in zip(cases + passages, ours, strict=True):
            assert ids == encode(text, tokenizer.vocab, how), text[:40]


def test_spans_of_every_document_spell_its_tokens(tokenizers, documents):
    tokenizer = tokenizers["roformer_chinese_base"]
    texts = documents[0] + documents[1]
    encoded = tokenizer(texts, add_special_tokens=False, return_offsets_mapping=True)
    assert encoded["input_ids"] == tokenizer(texts, add_special_tokens=False)["input_ids"]
    normalize = tokenizer._text_encoder().normalizer
    for text, ids, spans in zip(
        texts, encoded["input_ids"], encoded["offset_mapping"], strict=True
    ):
        for token, (start, stop) in zip(tokenizer.convert_ids_to_tokens(ids), spans, strict=True):
            if token != "[UNK]":
                assert normalize(text[start:stop]) == token.removeprefix("##")


def test_a_tokenizer_of_another_size_is_refused(tokenizers):
    """JunnYu/RoFormer_pytorch#28: which tokenizer for which model?"""
    words, characters = RoFormerConfig(vocab_size=50_000), RoFormerConfig(vocab_size=12_000)
    check_fits(tokenizers["roformer_chinese_base"], words)
    check_fits(tokenizers["roformer_v2_char"], characters)
    with pytest.raises(
        ConfigError, match=r"this word-level tokenizer has 50,000 tokens, but .* 12,"
    ):
        check_fits(tokenizers["roformer_chinese_base"], characters)
    with pytest.raises(ConfigError, match="this character-level tokenizer has 12,000 tokens"):
        check_fits(tokenizers["roformer_v2_char"], words)


def test_auto_tokenizer_finds_ours_beside_a_config(folder):
    from transformers import AutoTokenizer

    register()
    path = folder("roformer_chinese_base")
    RoFormerConfig(vocab_size=50_000).save_pretrained(path)
    tokenizer = AutoTokenizer.from_pretrained(path)
    assert type(tokenizer) is RoFormerTokenizer
    assert tokenizer.tokenize("今天天气非常好") == ["今", "天", "天", "气", "非常", "好"]
