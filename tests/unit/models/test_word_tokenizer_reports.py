"""What users of earlier RoFormer tokenizers reported, each as a test named after the report."""

import copy
import functools
import multiprocessing
import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest
from datasets import Dataset
from datasets.fingerprint import Hasher
from transformers import (
    AutoModelForMaskedLM,
    AutoModelForTokenClassification,
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    DataCollatorForTokenClassification,
    pipeline,
)

from rotary.models import (
    RoFormerConfig,
    RoFormerForMaskedLM,
    RoFormerForTokenClassification,
    RoFormerTokenizer,
    register,
)

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = ["今天", "非常", "服装", "有限公司", "天气"]
CHARACTERS = [*"今天气非常好服装有限公司区块链的。,!", *"abcp", *(f"##{c}" for c in "abcs")]
TEXTS = ["今天天气非常好,Café!", "服装有限公司区块链 <x>cab", "é\u0301 👩\u200d💻[MASK]今天\n", ""]


@pytest.fixture
def tokenizer():
    tokenizer = RoFormerTokenizer(SPECIAL + WORDS + CHARACTERS, model_max_length=64)
    tokenizer.add_tokens(["<x>"])
    tokenizer.add_words(["区块链"])
    return tokenizer


@pytest.fixture
def model_folder(tmp_path, tokenizer):
    """A function that saves a tiny model of a class beside the tokenizer."""

    def save(cls, **config):
        sizes = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 16}
        config = RoFormerConfig(vocab_size=len(tokenizer), num_hidden_layers=1, **sizes, **config)
        cls(config).save_pretrained(tmp_path)
        tokenizer.save_pretrained(tmp_path)
        register()
        return tmp_path

    return save


def outcome(tokenizer, texts=TEXTS):
    encoded = tokenizer(texts, return_offsets_mapping=True)
    return dict(encoded), [encoded.word_ids(i) for i in range(len(texts))]


def test_transformers_28164_save_and_load_give_the_same_ids(tokenizer, tmp_path):
    expected = outcome(tokenizer)
    tokenizer.save_pretrained(tmp_path / "first")
    first = RoFormerTokenizer.from_pretrained(tmp_path / "first")
    assert outcome(first) == expected
    first.save_pretrained(tmp_path / "second")
    assert outcome(RoFormerTokenizer.from_pretrained(tmp_path / "second")) == expected
    assert outcome(tokenizer) == expected, "saving changed the tokenizer that was saved"
    one, two = ((tmp_path / name / "vocab.txt").read_bytes() for name in ("first", "second"))
    assert one == two


def test_options_are_saved(tmp_path):
    options = {"do_lower_case": False, "level": "character", "token_type_ids_pattern": "all_zeros"}
    RoFormerTokenizer(SPECIAL + WORDS, **options).save_pretrained(tmp_path)
    loaded = RoFormerTokenizer.from_pretrained(tmp_path)
    assert {name: getattr(loaded, name) for name in options} == options
    assert loaded("今", "今")["token_type_ids"] == [0] * 5


def test_tokenizers_613_pickles_and_copies(tokenizer):
    expected = outcome(tokenizer)
    for copied in (pickle.loads(pickle.dumps(tokenizer)), copy.deepcopy(tokenizer)):
        assert outcome(copied) == expected
        copied.add_words(["气链"])
        assert outcome(tokenizer) == expected, "a copy shares state with its original"
    encoded = pickle.loads(pickle.dumps(tokenizer(TEXTS[0], TEXTS[1])))
    original = tokenizer(TEXTS[0], TEXTS[1])
    for name in ("tokens", "word_ids", "offsets", "sequence_ids", "ids"):
        assert getattr(encoded.encodings[0], name) == getattr(original.encodings[0], name)


def test_use_does_not_change_the_fingerprint(tokenizer):
    before = Hasher.hash(tokenizer)
    outcome(tokenizer)
    assert Hasher.hash(tokenizer) == before
    tokenizer.add_tokens(["<y>"])
    assert Hasher.hash(tokenizer) != before


def test_jy_pickling_leaves_the_live_tokenizer_alone_in_workers(tokenizer):
    """Data-loader workers of earlier tokenizers read characters, and so did their parent."""
    expected = tokenizer(TEXTS)["input_ids"]
    texts = TEXTS * 8
    with ThreadPoolExecutor(4) as threads:
        fresh = copy.deepcopy(tokenizer)
        assert list(threads.map(lambda text: fresh(text)["input_ids"], texts)) == expected * 8
    context = multiprocessing.get_context("fork")
    with context.Pool(2) as pool:
        assert pool.map(functools.partial(_ids, tokenizer), texts) == expected * 8
    rows = Dataset.from_dict({"text": texts}).map(
        lambda rows: tokenizer(rows["text"]), batched=True, batch_size=4, num_proc=2
    )
    assert list(rows["input_ids"]) == expected * 8


def _ids(tokenizer, text):
    return tokenizer(text)["input_ids"]


def test_paddlenlp_2717_an_answer_is_found_in_the_text(tokenizer):
    """Lower-cased, accents dropped, and still the words of the original."""
    question, text = "今天?", "ＡÁ今天 的 Café,天气非常好"
    encoded = tokenizer(question, text, return_offsets_mapping=True)
    begin = text.index("天气")
    first, last = (encoded.char_to_token(i, sequence_index=1) for i in (begin, begin + 3))
    offsets = encoded["offset_mapping"]
    assert text[offsets[first][0] : offsets[last][1]] == "天气非常"
    assert encoded.tokens()[first : last + 1] == ["天气", "非常"]


def test_transformers_14_a_folder_with_only_vocab_txt_keeps_its_words(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(SPECIAL + WORDS + CHARACTERS), "utf-8")
    RoFormerConfig(vocab_size=50).save_pretrained(tmp_path)
    register()
    for cls in (RoFormerTokenizer, AutoTokenizer):
        assert cls.from_pretrained(tmp_path).tokenize("今天非常好") == ["今天", "非常", "好"]


def test_jy_28_the_vocabulary_says_which_tokenizer_it_is_for():
    assert RoFormerTokenizer(SPECIAL + WORDS).level == "word"
    assert RoFormerTokenizer(SPECIAL + CHARACTERS + ["##今天"]).level == "character"


def test_wobert_1_unused_slots_are_not_words(tokenizer):
    vocabulary = ["[PAD]", "[unused1]", *SPECIAL[1:], *WORDS]
    assert RoFormerTokenizer(vocabulary).tokenize("[unused1]今天") == ["[UNK]"] * 3 + ["今天"]


def test_the_whole_word_collator_takes_our_spans(tokenizer):
    """It tells words by the space between them, so that Chinese text is one word to it."""
    collator = DataCollatorForLanguageModeling(
        tokenizer,
        whole_word_mask=True,
        mlm_probability=0.5,
        mask_replace_prob=1,
        random_replace_prob=0,
        seed=1,
    )
    encoded = tokenizer("今天 cab 天气", return_offsets_mapping=True)
    masked = collator([dict(encoded)] * 16)["labels"].ne(-100)
    assert masked.any()
    assert masked[:, 2].equal(masked[:, 3])
    assert masked[:, 2].equal(masked[:, 4])
    assert not masked[:, 1].equal(masked[:, 2])


def test_labels_of_words_that_were_cut_before(tokenizer):
    words, tags = ["今天", "cab", "天气"], [1, 2, 3]
    encoded = tokenizer(words, is_split_into_words=True)
    labels = [-100 if word is None else tags[word] for word in encoded.word_ids()]
    assert labels == [-100, 1, 2, 2, 2, 3, -100]
    rows = [{**encoded, "labels": labels}, {"input_ids": [2, 3], "labels": [-100, -100]}]
    batch = DataCollatorForTokenClassification(tokenizer)([rows[0], rows[0]])
    assert batch["labels"].tolist() == [labels, labels]


def test_pipelines(model_folder):
    folder = model_folder(RoFormerForMaskedLM)
    model = AutoModelForMaskedLM.from_pretrained(folder)
    fill = pipeline("fill-mask", model=model, tokenizer=AutoTokenizer.from_pretrained(folder))
    guesses = fill("今天[MASK]非常好")
    assert len(guesses) == 5
    assert all("非常好" in guess["sequence"] for guess in guesses)


def test_token_classification_finds_places_in_a_long_text(model_folder):
    folder = model_folder(RoFormerForTokenClassification, num_labels=2)
    tag = pipeline(
        "token-classification",
        model=AutoModelForTokenClassification.from_pretrained(folder),
        tokenizer=AutoTokenizer.from_pretrained(folder),
        aggregation_strategy="first",
        stride=8,
        ignore_labels=[],
    )
    text = "今天Ａ天气 非常好," * 20
    found = tag(text)
    assert found[0]["start"] == 0
    assert found[-1]["end"] == len(text)
    assert all(entity["start"] < entity["end"] for entity in found)
    one = tag("今天cab")  # A piece goes with the word before it; the next word does not.
    assert "".join(entity["word"] for entity in one).replace(" ", "") == "今天cab"
