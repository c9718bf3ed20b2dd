"""On a character vocabulary our tokenizer is BERT's: every option against transformers' own."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from transformers import AddedToken, BertTokenizerFast

from rotary.models import RoFormerTokenizer

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
TOKENS = [*"今天气好,。!-abcdefx1", *(f"##{c}" for c in "abcdef1"), "ab", "abc", "##ef", "cafe"]


def tokenizers():
    vocabulary = {token: i for i, token in enumerate(SPECIAL + TOKENS)}
    return RoFormerTokenizer(vocabulary), BertTokenizerFast(vocab=dict(vocabulary))


OURS, BERT = tokenizers()
# What makes a difference to BERT, and pieces of special tokens; Chinese that is not in the
# vocabulary, accents, control characters, spaces of all kinds, an emoji. No bare combining mark: we
# count it to the letter before it, so that a span holds all that was written.
PARTS = [*"今天气好雨,。!-abCDefxÀ1é", "cafe", "abc", " ", "\t", "\n", "\u3000", "\u200b"]
PARTS += ["\x00", "\u2028", "😀", "[MASK]", "[SEP]", "[MA", "]", "ﬁ", "\uff21", "한", "abcabcabc"]
texts = st.lists(st.sampled_from(PARTS), max_size=14).map("".join)
word_lists = st.lists(texts, min_size=1, max_size=6)


def same(ours, bert):
    assert dict(ours) == dict(bert)
    assert len(ours.encodings) == len(bert.encodings)
    for a, b in zip(ours.encodings, bert.encodings, strict=True):
        for name in ("ids", "type_ids", "attention_mask", "special_tokens_mask"):
            assert getattr(a, name) == getattr(b, name), name
        # There a token that takes the space beside it is named with the space.
        assert a.tokens == [token.strip() for token in b.tokens]
        for name in ("offsets", "word_ids", "sequence_ids", "n_sequences"):
            assert getattr(a, name) == getattr(b, name), name
        for i in range(len(a)):
            for name in ("token_to_sequence", "token_to_word"):
                assert getattr(a, name)(i) == getattr(b, name)(i), (name, i)
            if a.sequence_ids[i] is not None:
                assert a.token_to_chars(i) == b.token_to_chars(i)
        for sequence in range(a.n_sequences):
            for i in range(8):
                for name in ("char_to_token", "char_to_word", "word_to_tokens", "word_to_chars"):
                    assert getattr(a, name)(i, sequence) == getattr(b, name)(i, sequence), (name, i)


RETURNS = {
    "return_offsets_mapping": True,
    "return_special_tokens_mask": True,
    "return_length": True,
}


@given(
    st.lists(texts, min_size=1, max_size=3),
    st.booleans(),
    st.sampled_from([None, "left", "right"]),
    st.sampled_from([None, 4]),
    st.sampled_from([False, True, "max_length"]),
)
def test_batches_and_padding(batch, add_special_tokens, side, multiple, padding):
    options = {
        "add_special_tokens": add_special_tokens,
        "padding": padding,
        "max_length": 24 if padding == "max_length" else None,
        "pad_to_multiple_of": multiple,
        "padding_side": side,
        **RETURNS,
    }
    same(OURS(batch, **options), BERT(batch, **options))
    same(OURS(batch[0], **options), BERT(batch[0], **options))


@example("今今今今", "今今今", 8, 0, "longest_first", "left", True)
@given(
    texts,
    texts.filter(bool),
    st.integers(8, 14),
    st.integers(0, 2),
    st.sampled_from(["longest_first", "only_first", "only_second"]),
    st.sampled_from(["left", "right"]),
    st.booleans(),
)
def test_pairs_truncation_and_windows(a, b, max_length, stride, truncation, side, overflow):
    options = {
        "truncation": truncation,
        "max_length": max_length,
        "stride": stride if overflow else 0,  # There an unused one may panic as well.
        "return_overflowing_tokens": overflow,
        "padding": True,
        **RETURNS,
    }
    OURS.truncation_side = BERT.truncation_side = side
    try:
        expected, message = BERT([a], [b], **options), None
    except BaseException as error:  # The Rust part raises, or panics where nothing is left.
        expected, message = None, str(error)
    if expected is None:
        with pytest.raises(ValueError, match=r"truncation is|stride is"):
            OURS([a], [b], **options)
        assert message
        return
    same(OURS([a], [b], **options), expected)
    single = {**options, "truncation": "only_first"}
    same(OURS(a, **single), BERT(a, **single))


@given(st.lists(word_lists, min_size=1, max_size=2), st.integers(5, 12))
def test_words_that_were_cut_before(batch, max_length):
    options = {"is_split_into_words": True, "truncation": True, "max_length": max_length, **RETURNS}
    same(OURS(batch, **options), BERT(batch, **options))
    same(OURS(batch[0], **options), BERT(batch[0], **options))


@given(texts, st.booleans())
def test_special_tokens_in_the_text(text, split):
    options = {"split_special_tokens": split, **RETURNS}
    same(OURS(text, **options), BERT(text, **options))


@pytest.mark.parametrize("flag", [None, "lstrip", "rstrip", "single_word", "special"])
def test_added_tokens(flag):
    ours, bert = tokenizers()
    token = AddedToken("Xab", **({flag: True} if flag else {}))
    for tokenizer in (ours, bert):
        assert tokenizer.add_tokens([token]) == 1
        assert tokenizer.add_special_tokens({"extra_special_tokens": ["<e>", "<e>2"]}) == 2
        assert len(tokenizer) == len(SPECIAL) + len(TOKENS) + 3
    for text in [
        "a Xab  b",
        "aXab b",
        "xab  -Xab",
        "ab<e>2<e>天",
        "  Xab",
        "XabXab ",
        "[MASK]Xab",
    ]:
        same(ours(text, **RETURNS), bert(text, **RETURNS))


def test_tensors_and_decoded_ids():
    batch = ["今天好", "abcdef"]
    ours, bert = (t(batch, padding=True, return_tensors="pt", **RETURNS) for t in (OURS, BERT))
    for key in bert:
        assert ours[key].equal(bert[key]), key
    assert OURS.convert_ids_to_tokens(ours["input_ids"][0]) == BERT.convert_ids_to_tokens(
        ours["input_ids"][0]
    )
    assert OURS.decode(ours["input_ids"][1], skip_special_tokens=True) == "abcdef"
    assert OURS.all_special_ids == BERT.all_special_ids
    assert OURS.num_special_tokens_to_add(pair=True) == BERT.num_special_tokens_to_add(pair=True)
    assert OURS.build_inputs_with_special_tokens([7], [8]) == [2, 7, 3, 8, 3]
