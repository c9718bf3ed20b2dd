"""What holds of the word tokenizer for any text: spans, and equality with the plain algorithm."""

import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rotary.models import RoFormerTokenizer
from word_tokenizer_reference import encode, normalize, python_jieba

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = ["今天", "天气", "非常", "服装", "有限公司", "中国", "人民", "电脑", "2018", "gpt", "nba"]
CHARACTERS = [*"今天气非常好服装有限公司中国人民电脑的是,。!?-+.abcdeghioprt012\uff41ﬁ\u03c2"]
PIECES = [f"##{c}" for c in "abcdegiopst012"]
TOKENIZER = RoFormerTokenizer(SPECIAL + WORDS + CHARACTERS + PIECES + ["##ing", "cafe", "\u03c3"])
CUT = python_jieba()

# Accents composed and not, full-width forms, ligatures, emoji with joiners, halves of surrogate
# pairs, tabs and line ends, Hangul, a letter that becomes two in lower case, marks that NFD moves.
ODD = [
    "é",
    "e\u0301",
    "\uff21",
    "ﬁ",
    "👩\u200d💻",
    "\ud83d",
    "\udc00",
    "\t",
    "\r\n",
    "\n",
    "한국",
    "İ",
    "ΑΣ",
]
ODD += [
    "\u0301",
    "\u0323\u0301",
    "\u302e\u0323",
    "\u3000",
    "\x00",
    "\u2028",
    "\ufffd",
    "豈",
    "𠀀",
    "\U0001d16d\U0001d165",
]
ODD += [
    "C++",
    "3.14%",
    "a_b-c",
    "[MASK]",
    "今天天气",
    "今天,天气非常好",
    "iPhone",
    "ǖ",
    "\U0001d15e",
]
parts = st.one_of(st.sampled_from(WORDS + CHARACTERS + ODD), st.characters(codec=None))
texts = st.lists(parts, max_size=20).map("".join)


def details(text):
    return TOKENIZER(text, return_offsets_mapping=True, add_special_tokens=False)


def grows(text):
    """Whether a character becomes several kept ones: a Hangul syllable, a compound note."""
    return any(len(normalize(c)) > 1 for c in text) or any(unicodedata.combining(c) for c in text)


@given(texts)
@example("".join(ODD))
def test_the_span_of_a_token_normalises_to_the_token(text):
    encoded = details(text)
    at = 0, 0
    for token, (start, stop) in zip(encoded.tokens(), encoded["offset_mapping"], strict=True):
        assert at[0] <= start < stop <= len(text)
        assert at[1] <= stop, "spans go forward"
        at = start, stop
        if token in SPECIAL:
            assert token == "[UNK]" or text[start:stop] == token
            continue
        # The last sigma of a word is another letter, and a span need not end where its word does.
        spelled = normalize(text[start:stop]).replace("\u03c2", "\u03c3")
        wanted = token.removeprefix("##").replace("\u03c2", "\u03c3")
        assert wanted == spelled or (grows(text[start:stop]) and wanted in spelled)


@given(texts)
@example("".join(ODD))
def test_spans_are_worked_out_for_the_same_ids(text):
    encoded = details(text)
    assert encoded["input_ids"] == TOKENIZER(text, add_special_tokens=False)["input_ids"]
    late = TOKENIZER(text, add_special_tokens=False)
    assert late.encodings[0].offsets == encoded["offset_mapping"]
    assert late.word_ids() == encoded.word_ids()


@given(texts.filter(lambda text: "[" not in text))
@example("".join(ODD).replace("[MASK]", ""))
def test_ids_are_those_of_the_plain_algorithm(text):
    assert TOKENIZER(text, add_special_tokens=False)["input_ids"] == encode(
        text, TOKENIZER.vocab, CUT
    )


@given(texts)
def test_what_no_token_covers_was_to_be_dropped(text):
    covered = {i for start, stop in details(text)["offset_mapping"] for i in range(start, stop)}
    for i, character in enumerate(text):
        if i not in covered:
            kind = unicodedata.category(character)
            assert kind in ("Zs", "Zl", "Zp", "Cc", "Cf", "Mn") or character == "\ufffd"


@given(texts)
@example("".join(ODD))
def test_normalisation_is_that_of_the_plain_algorithm_however_it_is_reached(text):
    normalizer = TOKENIZER._text_encoder().normalizer
    normal, alignment = normalizer.align(text)
    assert normal == normalizer(text) == normalize(text)
    if alignment:
        assert len(alignment.starts) == len(alignment.ends) - 1 == len(normal)


@given(st.lists(texts, min_size=1, max_size=4), st.integers(0, 20))
def test_a_batch_is_its_texts_one_by_one(batch, max_length):
    limit = {"truncation": True, "max_length": max_length + 2}
    together = TOKENIZER(batch, return_offsets_mapping=True, **limit)
    for i, text in enumerate(batch):
        alone = TOKENIZER(text, return_offsets_mapping=True, **limit)
        assert {key: value[i] for key, value in together.items()} == dict(alone)


@pytest.mark.slow
@pytest.mark.parametrize("level", ["word", "character"])
def test_all_characters_one_by_one(level):
    """Every code point of the first three planes, in both levels, against the plain algorithm."""
    tokenizer = RoFormerTokenizer(TOKENIZER.vocab, level=level)
    cut = CUT if level == "word" else lambda text: [text]
    step = 41  # Each text takes every 41st, a few of each block of Unicode.
    for first in range(step):
        codes = [code for code in range(first, 0x30000, step) if not 0xD800 <= code < 0xE000]
        text = "a".join(map(chr, codes))
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert ids == encode(text, tokenizer.vocab, cut)
