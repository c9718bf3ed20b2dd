"""The word tokenizer on a small vocabulary: tokens, files, words that are added, hostile text."""

import random
import sys
import time

import pytest
import torch
from transformers import AutoTokenizer

from rotary.errors import ConfigError, DataError, MissingDependencyError
from rotary.models import (
    RoFormerForMaskedLM,
    RoFormerModel,
    RoFormerTokenizer,
    check_fits,
    register,
    train_vocabulary,
)
from rotary.models.roformer import read_vocabulary
from rotary.models.roformer.segmentation import dictionary_cut

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = ["今天", "非常", "服装", "有限公司"]
CHARACTERS = [*"今天气非常好服装有限公司区块链的。,!", *"abcp", *(f"##{c}" for c in "abcs")]
VOCABULARY = SPECIAL + WORDS + CHARACTERS


@pytest.fixture
def tokenizer():
    return RoFormerTokenizer(VOCABULARY)


def test_a_word_is_one_token_and_any_other_falls_to_characters(tokenizer):
    assert tokenizer.tokenize("今天服装有限公司非常好") == [
        "今天",
        "服装",
        "有限公司",
        "非常",
        "好",
    ]
    # jieba cuts the first four as one word; that 今天 is known does not help.
    assert tokenizer.tokenize("今天天气非常好") == ["今", "天", "天", "气", "非常", "好"]
    assert (
        tokenizer.tokenize("CABS!龙c++")
        == ["c", "##a", "##b", "##s", "!", "[UNK]", "c"] + ["[UNK]"] * 2
    )


def test_tokens_of_one_word_have_its_number_and_spans(tokenizer):
    encoded = tokenizer(" 今天天气, 非常", return_offsets_mapping=True)
    assert encoded.word_ids() == [None, 0, 0, 0, 0, 1, 2, None]
    assert encoded["offset_mapping"][1:-1] == [(1, 2), (2, 3), (3, 4), (4, 5), (5, 6), (7, 9)]
    assert encoded.char_to_token(8) == 6
    assert encoded.word_to_chars(0) == (1, 5)


def test_words_that_the_dictionary_lacks_are_not_guessed():
    """jieba's model for unknown words (HMM) would cut 杭研 as one word; WoBERT leaves it off."""
    tokenizer = RoFormerTokenizer([*VOCABULARY, "杭研", "杭", "研", "大厦"])
    assert tokenizer.tokenize("杭研大厦") == ["杭", "研", "大厦"]


def test_an_accent_belongs_to_the_letter_before_it(tokenizer):
    text = "\u0301今e\u0301\u0323a\u0301"
    encoded = tokenizer(text, return_offsets_mapping=True, add_special_tokens=False)
    assert encoded.tokens() == ["今", "[UNK]"]
    assert [text[a:b] for a, b in encoded["offset_mapping"]] == ["今", "e\u0301\u0323a\u0301"]


def test_a_pair_has_types_and_the_longer_text_gives_way(tokenizer):
    encoded = tokenizer("今天", "非常好非常好", truncation=True, max_length=7)
    assert encoded.tokens() == ["[CLS]", "今天", "[SEP]", "非常", "好", "非常", "[SEP]"]
    assert encoded["token_type_ids"] == [0, 0, 0, 1, 1, 1, 1]
    assert encoded.sequence_ids() == [None, 0, None, 1, 1, 1, None]
    plain = RoFormerTokenizer(VOCABULARY, token_type_ids_pattern="all_zeros")  # RoFormer-V2
    assert plain("今天", "好")["token_type_ids"] == [0] * 5


def test_normalisation_is_an_option(tokenizer):
    cased = RoFormerTokenizer([*VOCABULARY, "A", "é"], do_lower_case=False)
    assert tokenizer.tokenize("Áa") == ["a", "##a"]
    assert cased.tokenize("A é á") == ["A", "é", "[UNK]"]
    assert RoFormerTokenizer(VOCABULARY, strip_accents=False).tokenize("Aá") == ["a", "[UNK]"]
    kept = RoFormerTokenizer([*VOCABULARY, "é"], strip_accents=False)
    encoded = kept("İÉ", return_offsets_mapping=True, add_special_tokens=False)
    assert encoded["offset_mapping"][-1] == (1, 2)


@pytest.mark.parametrize(
    ("text", "decoded"),
    [
        ("今天非常好。", "今天非常好。"),
        ("cab, a b!", "cab, a b!"),
        ("今天 ab 非常", "今天ab非常"),
        ("[CLS]今天[SEP]", "[CLS] 今天 [SEP]"),
    ],
)
def test_decoding(tokenizer, text, decoded):
    assert tokenizer.decode(tokenizer(text, add_special_tokens=False)["input_ids"]) == decoded


def test_decoding_drops_special_tokens_and_survives_spare_rows(tokenizer):
    ids = tokenizer("今天好")["input_ids"]
    assert tokenizer.decode([*ids, 4], skip_special_tokens=True) == "今天好"
    assert tokenizer.batch_decode([ids, ids], skip_special_tokens=True) == ["今天好"] * 2
    assert tokenizer.convert_ids_to_tokens(10_000) == "[UNK]"
    with pytest.raises(ConfigError, match="-100 is negative"):
        tokenizer.decode([-100])


# ---- files ---------------------------------------------------------------------------------------


def test_line_ends_other_than_newline_are_tokens(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_bytes("a\n\u2028\n\x85\n\nb".encode())
    assert read_vocabulary(path) == {"a": 0, "\u2028": 1, "\x85": 2, "": 3, "b": 4}
    path.write_bytes(b"\xef\xbb\xbfa\r\nb\r\n")
    assert read_vocabulary(path) == {"a": 0, "b": 1}


def test_what_is_not_a_vocabulary_is_refused(tmp_path):
    path = tmp_path / "vocab.txt"
    for content, message in [(b"a\nb\na\n", "names 'a' 2 times"), (b"\xff\xfe", "cannot be read")]:
        path.write_bytes(content)
        with pytest.raises(DataError, match=message):
            RoFormerTokenizer(path)
    path.write_text("a\nb\n")
    with pytest.raises(ConfigError, match=r"2 tokens does not hold unk_token='\[UNK\]'"):
        RoFormerTokenizer(path)
    with pytest.raises(DataError, match="ids of vocab are not 0 to 1"):
        RoFormerTokenizer({"a": 0, "b": 2})
    with pytest.raises(DataError, match=r"neither vocab\.txt nor tokenizer\.json"):
        RoFormerTokenizer.from_pretrained(tmp_path.parent)
    with pytest.raises(ConfigError, match="level is 'wrods'; accepted are 'word', 'character'"):
        RoFormerTokenizer(VOCABULARY, level="wrods")


def test_a_folder_of_transformers_own_tokenizer_gives_its_words(tmp_path):
    from transformers import RoFormerTokenizer as StockTokenizer

    stock = StockTokenizer({token: i for i, token in enumerate(VOCABULARY)})
    stock.save_pretrained(tmp_path)
    assert not (tmp_path / "vocab.txt").exists()
    ours = RoFormerTokenizer.from_pretrained(tmp_path)
    assert ours.vocab == {token: i for i, token in enumerate(VOCABULARY)}
    assert ours.tokenize("今天服装") == ["今天", "服装"]


def test_auto_tokenizer_reads_what_we_save(tmp_path, tokenizer):
    register()
    tokenizer.save_pretrained(tmp_path)
    assert type(AutoTokenizer.from_pretrained(tmp_path)) is RoFormerTokenizer


# ---- words and models ----------------------------------------------------------------------------


@pytest.mark.parametrize("cls", [RoFormerModel, RoFormerForMaskedLM])
def test_new_words_begin_as_the_mean_of_their_pieces(build, tokenizer, cls):
    model = build(cls, vocab_size=len(tokenizer))
    if cls is RoFormerForMaskedLM:
        torch.nn.init.normal_(model.get_output_embeddings().bias)
        before_bias = model.get_output_embeddings().bias.detach().clone()
    before = model.get_input_embeddings().weight.detach().clone()
    pieces = tokenizer("区块链", add_special_tokens=False)["input_ids"]
    assert tokenizer.convert_ids_to_tokens(pieces) == ["区", "块", "链"]
    new = tokenizer.add_words(["区块链", "今天", "气链"], model)
    assert new == [len(VOCABULARY), len(VOCABULARY) + 1]
    assert tokenizer.tokenize("今天区块链气链") == ["今天", "区块链", "气链"]
    weight = model.get_input_embeddings().weight
    assert weight.shape[0] == len(tokenizer) == len(VOCABULARY) + 2
    assert weight[:-2].equal(before)
    torch.testing.assert_close(weight[-2], before[pieces].mean(0), rtol=1e-6, atol=1e-7)
    logits = model(torch.tensor([[2, *new, 3]]))[0]
    if cls is RoFormerForMaskedLM:
        bias = model.get_output_embeddings().bias
        torch.testing.assert_close(bias[-2], before_bias[pieces].mean(), rtol=1e-6, atol=1e-7)
        assert bias[:-2].equal(before_bias)
        assert logits.shape[-1] == len(tokenizer)
    check_fits(tokenizer, model)


def test_words_are_added_all_or_none(build, tokenizer):
    ids = tokenizer("今天区块链")["input_ids"]
    with pytest.raises(ConfigError, match="white space"):
        tokenizer.add_words(["区块链", "a 龙"])
    with pytest.raises(ConfigError, match="jieba still cuts '龙=气' into"):
        tokenizer.add_words(["区块链", "龙=气"])
    with pytest.raises(ConfigError, match=r"36 tokens, but the vocabulary of the model has 7 rows"):
        tokenizer.add_words(["区块链"], build(RoFormerModel, vocab_size=7))
    assert tokenizer("今天区块链")["input_ids"] == ids
    assert len(tokenizer) == len(VOCABULARY)
    with pytest.raises(ConfigError, match="character-level"):
        RoFormerTokenizer(SPECIAL + CHARACTERS).add_words(["今天"])


def test_tokens_added_before_words_keep_their_ids(tmp_path, tokenizer):
    tokenizer.add_tokens(["<x>"])
    assert tokenizer.add_words(["区块链"]) == [len(VOCABULARY) + 1]
    tokenizer.save_pretrained(tmp_path)
    loaded = RoFormerTokenizer.from_pretrained(tmp_path)
    text = "<x>区块链[MASK]"
    assert tokenizer(text)["input_ids"] == [2, len(VOCABULARY), len(VOCABULARY) + 1, 4, 3]
    assert loaded(text)["input_ids"] == tokenizer(text)["input_ids"]
    assert len(loaded) == len(tokenizer)


CORPUS = ["今天天气非常好,今天!", "天气很好。Café cafe", "非常好,C++ 2018", "好\t好\n"]


def test_a_trained_vocabulary_spells_its_corpus_and_does_not_depend_on_order():
    tokens = train_vocabulary(CORPUS, size=60)
    shuffled = CORPUS * 1
    random.Random(1).shuffle(shuffled)
    assert train_vocabulary(iter(shuffled), size=60) == tokens
    assert tokens[:5] == SPECIAL
    assert len(tokens) == len(set(tokens)) <= 60
    tokenizer = RoFormerTokenizer(tokens)
    assert all("[UNK]" not in tokenizer.tokenize(text) for text in CORPUS)
    assert tokenizer.tokenize("非常") == ["非常"]
    assert tokenizer.tokenize("ef今") == ["e", "##f", "今"]
    # By frequency: one word fewer drops the rarest, and only that.
    assert train_vocabulary(CORPUS, size=len(tokens) - 1) == tokens[:-1]


def test_a_size_that_cannot_hold_the_characters_is_refused():
    needed = len([t for t in train_vocabulary(CORPUS, size=60) if len(t.lstrip("#")) <= 1]) + 5
    with pytest.raises(ConfigError, match=f"size is 20, but the corpus needs {needed} tokens"):
        train_vocabulary(CORPUS, size=20)
    assert len(train_vocabulary(CORPUS, size=20, coverage=0.4)) <= 20
    with pytest.raises(ConfigError, match="coverage is 0"):
        train_vocabulary(CORPUS, size=20, coverage=0)
    with pytest.raises(ConfigError, match="corpus is one string"):
        train_vocabulary("今天", size=20)


# ---- what is refused, and what must not take for ever --------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((None, None), {}, "need to specify"),
        ((7,), {}, r"the text is 7 \(int\); accepted is a string, or a pair"),
        ((["今", None],), {}, "number 1 of the batch is None"),
        (([["今", "天", "气"]],), {}, "cut already set is_split_into_words=True"),
        (("今天",), {"is_split_into_words": True}, "accepted is a list of words"),
        ((["今", "天"], ["气"]), {}, "text is a batch of 2, text_pair is 1"),
        (("今天",), {"max_length": 1, "truncation": True}, "max_length is 1, but .* take 2"),
        (("今天",), {"max_length": 2, "truncation": "only_second"}, "there is no second text"),
        (("今天好", "好"), {"max_length": 4, "truncation": "only_second"}, "would have to go"),
        (
            ("今天好好",),
            {"max_length": 4, "truncation": True, "stride": 2, "return_overflowing_tokens": True},
            "stride is 2, but a window holds only 2",
        ),
        (("今天",), {"padding": True, "padding_side": "top"}, "padding_side is 'top'"),
        (("今天",), {"return_offset_mapping": True}, "no argument return_offset_mapping"),
    ],
)
def test_bad_calls_get_one_clear_error(tokenizer, arguments, options, message):
    with pytest.raises(ValueError, match=message):
        tokenizer(*arguments, **options)


def test_an_empty_text_and_an_empty_batch(tokenizer):
    assert tokenizer("")["input_ids"] == [2, 3]
    assert tokenizer(["", "今天"], padding=True)["input_ids"] == [[2, 3, 0], [2, 5, 3]]
    assert tokenizer([])["input_ids"] == []
    assert tokenizer([], is_split_into_words=True)["input_ids"] == [2, 3]


HOSTILE = {
    "no space": "a",
    "one word": "今天",
    "unknown": "龘",
    "marks": "\u0301",
    "marks that change places": "e\u0323\u0301\u302e",
    "control characters": "\x00\x07\u200b",
    "halves of surrogate pairs": "\ud83d",
    "brackets": "([{",
    "almost special": "[MASK",
    "special": "[MASK]",
    "spaces": " ",
    "dotted capitals": "İ",
    "long unknown words": "abcsabcsabcsabcsabcsabcsabcsabcz ",
}


@pytest.mark.usefixtures("timed")
@pytest.mark.parametrize("level", ["word", "character"])
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_text_takes_linear_time(name, level):
    """Four times the text may take eight times as long at most; the square would be sixteen."""
    tokenizer = RoFormerTokenizer(VOCABULARY, level=level)
    tokenizer.add_tokens(["<x>"])
    size = 10_000

    def seconds(length):
        text = (HOSTILE[name] * length)[:length]
        best = float("inf")
        for _ in range(3):
            start = time.process_time()
            encoded = tokenizer(text, return_offsets_mapping=True)
            best = min(best, time.process_time() - start)
        assert all(0 <= a <= b <= length for a, b in encoded["offset_mapping"])
        return best

    seconds(size)
    assert seconds(4 * size) < 8 * seconds(size) + 0.01


@pytest.mark.usefixtures("timed")
def test_a_megabyte_without_a_space_is_one_unknown_word(tokenizer):
    start = time.process_time()
    encoded = tokenizer("a" * 1_000_000, return_offsets_mapping=True)
    assert encoded["input_ids"] == [2, 1, 3]
    assert encoded["offset_mapping"][1] == (0, 1_000_000)
    assert tokenizer("a" * 200)["input_ids"].count(1) == 0
    assert time.process_time() - start < 5


def test_a_vocabulary_that_is_missing_is_named_once(tmp_path):
    path = tmp_path / "vocab.txt"
    message = f"^{path} cannot be read as a vocabulary: No such file or directory$"
    with pytest.raises(DataError, match=message):
        RoFormerTokenizer(path)


def test_transformers_16981_40738_without_rjieba_the_error_says_what_to_install(monkeypatch):
    dictionary_cut.cache_clear()
    monkeypatch.setitem(sys.modules, "rjieba", None)
    with pytest.raises(MissingDependencyError, match="pip install rjieba"):
        RoFormerTokenizer(VOCABULARY)
    assert RoFormerTokenizer(SPECIAL + CHARACTERS).tokenize("今天") == ["今", "天"]
