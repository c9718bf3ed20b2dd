"""Real corpora through the whole of ``rotary.data``."""

from rotary.data.packing import PackedRows, tokenize_documents
from rotary.data.split import split_documents
from rotary.data.text import read_documents
from rotary.data.vocabulary import train_wordpiece


def test_a_book_in_one_file(shared_data):
    documents = read_documents(shared_data("tinyshakespeare.txt.gz"))
    assert [len(document.text) for document in documents] == [1_115_394]
    train, validation = split_documents(documents, validation_fraction=0.05, seed=0)
    assert train[0].text + validation[0].text == documents[0].text
    assert 0.045 < len(validation[0].text) / 1_115_394 < 0.055


def test_chinese_passages(shared_data):
    documents = read_documents(shared_data("cmrc2018_contexts.jsonl.gz"))
    assert len(documents) == 1104
    assert sum(len(document.text) for document in documents) == 565_955
    train, validation = split_documents(documents, validation_fraction=0.1, seed=0)
    tokenizer = train_wordpiece(train, vocab_size=8000)
    held_out = tokenize_documents(validation, tokenizer)
    ids = [token for text in held_out["input_ids"] for token in text]
    assert ids.count(tokenizer.unk_token_id) / len(ids) < 0.01
    assert PackedRows(tokenize_documents(train, tokenizer), tokenizer, 512).placement.fill > 0.85
