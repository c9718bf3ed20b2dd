import numpy as np
import pytest
import torch

from rotary.data.baseline import count_tokens, unigram_loss
from rotary.data.batches import TrainingBatches, ValidationBatches
from rotary.data.masking import Masking
from rotary.data.packing import PackedRows, tokenize_documents
from rotary.data.text import Document
from rotary.data.vocabulary import train_wordpiece
from rotary.errors import ConfigError, DataError

WORDS = ["turn", "plane", "angle", "rotate", "shift", "position", "query", "key", "value", "base"]
DOCUMENTS = [
    Document(str(n), " ".join(WORDS[(n + k * k) % 10] for k in range(3 + n % 23)))
    for n in range(120)
]


@pytest.fixture(scope="module")
def tokenizer():
    return train_wordpiece(DOCUMENTS, vocab_size=90)


@pytest.fixture(scope="module")
def tokens(tokenizer):
    return tokenize_documents(DOCUMENTS, tokenizer)


@pytest.fixture(scope="module")
def rows(tokens, tokenizer):
    return PackedRows(tokens, tokenizer, row_length=32)


@pytest.fixture(scope="module")
def masking(tokenizer):
    return Masking(tokenizer)


@pytest.fixture
def batches(rows, masking):
    return TrainingBatches(rows, batch_size=16, seed=0, masking=masking)


def equal(one, other):
    assert one.keys() == other.keys()
    return all(torch.equal(one[key], other[key]) for key in one)


def unmasked(batch):
    return torch.where(batch["labels"] == -100, batch["input_ids"], batch["labels"])


def test_what_a_batch_holds(batches, tokenizer):
    batch = batches.batch(0)
    assert list(batch) == ["input_ids", "labels", "document_ids", "position_ids"]
    assert {(tuple(x.shape), x.dtype) for x in batch.values()} == {((16, 32), torch.int64)}
    ids, documents, positions = unmasked(batch), batch["document_ids"], batch["position_ids"]
    assert torch.equal(ids == tokenizer.cls_token_id, (positions == 0) & (documents > 0))
    assert torch.equal(ids == tokenizer.pad_token_id, documents == 0)
    assert documents.max() > 1
    # A new document begins where the position is 0, and nowhere else.
    step = documents.diff(dim=1)
    assert torch.equal(step == 1, (positions[:, 1:] == 0) & (documents[:, 1:] > 0))
    assert ((batch["labels"] != -100).sum(1) >= 1).all()
    texts = {tuple(tokenizer(d.text)["input_ids"]) for d in DOCUMENTS}
    short = [ids[0][documents[0] == n].tolist() for n in range(2, int(documents[0].max()) + 1)]
    assert all(tuple(piece) in texts for piece in short)


def test_a_batch_is_a_pure_function_of_seed_and_step(rows, masking, batches):
    state = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    wanted = [batches.batch(step) for step in range(9)]
    fresh = TrainingBatches(rows, batch_size=16, seed=0, masking=masking)
    for step in (8, 3, 0, 7, 3):
        assert equal(fresh.batch(step), wanted[step])
        np.random.rand(3), torch.rand(3)  # noqa: NPY002
    other = TrainingBatches(rows, batch_size=16, seed=1, masking=masking)
    assert not torch.equal(unmasked(other.batch(0)), unmasked(wanted[0]))
    torch.set_rng_state(state[0])
    batches.batch(5)
    assert torch.equal(torch.get_rng_state(), state[0])


@pytest.mark.parametrize("num_parts", [1, 2, 4])
def test_the_slices_of_all_parts_are_the_batch(batches, num_parts):
    for step in (0, 2, 11):
        whole = batches.batch(step)
        slices = [batches.batch(step, part=n, num_parts=num_parts) for n in range(num_parts)]
        assert equal({key: torch.cat([x[key] for x in slices]) for key in whole}, whole)


def test_every_row_once_in_every_epoch_masked_anew(rows, masking):
    batches = TrainingBatches(rows, batch_size=7, seed=0, masking=masking)
    assert len(rows) % 7, "the epochs should not end with a batch"
    steps = [batches.batch(step) for step in range(-(-3 * len(rows) // 7))]
    seen = torch.cat([unmasked(batch) for batch in steps])
    labels = torch.cat([batch["labels"] for batch in steps])
    complete = sorted(rows.assemble(np.arange(len(rows)))[0].tolist())
    epochs = [slice(n * len(rows), (n + 1) * len(rows)) for n in range(3)]
    for epoch in epochs:
        assert sorted(seen[epoch].tolist()) == complete
    assert seen[epochs[0]].tolist() != seen[epochs[1]].tolist() != complete
    pairs = [list(zip(seen[e].tolist(), labels[e].tolist(), strict=True)) for e in epochs]
    by_row = [{tuple(ids): label for ids, label in epoch} for epoch in pairs]
    again = [by_row[0][row] == by_row[1][row] for row in by_row[0]]
    assert sum(again) < 0.1 * len(again)


def test_bad_batches(rows, masking, batches):
    size = len(rows)
    message = (
        rf"^the corpus is too small for one batch: it fills {size} rows of length 32, and a batch "
        rf"takes {size + 1}\. Give more text, a smaller batch or a smaller length\.$"
    )
    with pytest.raises(DataError, match=message):
        TrainingBatches(rows, batch_size=size + 1, seed=0, masking=masking)
    assert TrainingBatches(rows, batch_size=size, seed=0, masking=masking).batch(3)
    for kind in (TrainingBatches, ValidationBatches):
        with pytest.raises(ConfigError, match="batch_size is 0; at least 1 row is needed"):
            kind(rows, batch_size=0, seed=0, masking=masking)
    with pytest.raises(ConfigError, match="step is -1"):
        batches.batch(-1)
    for part, num_parts in ((0, 3), (2, 2), (-1, 2), (0, 0)):
        with pytest.raises(ConfigError, match=f"part {part} of {num_parts}; .* batch size 16"):
            batches.batch(0, part=part, num_parts=num_parts)


def test_validation_is_every_row_once_in_order_and_never_changes(rows, masking):
    batches = ValidationBatches(rows, batch_size=9, seed=5, masking=masking)
    everything = list(batches)
    assert len(everything) == len(batches) == -(-len(rows) // 9)
    assert len(everything[-1]["labels"]) == len(rows) % 9 > 0
    together = torch.cat([unmasked(batch) for batch in everything])
    assert together.tolist() == rows.assemble(np.arange(len(rows)))[0].tolist()
    assert all(equal(*pair) for pair in zip(batches, everything, strict=True))
    # The masks do not depend on how the rows are cut into batches.
    other = ValidationBatches(rows, batch_size=4, seed=5, masking=masking)
    labels = [torch.cat([batch["labels"] for batch in kind]) for kind in (batches, other)]
    assert torch.equal(*labels)
    with pytest.raises(IndexError, match="there is no batch"):
        batches[len(batches)]


def test_nothing_to_validate_on(tokenizer, masking):
    empty = PackedRows(tokenize_documents([], tokenizer), tokenizer, row_length=32)
    assert len(empty) == 0
    with pytest.raises(DataError, match="there is nothing to validate on"):
        ValidationBatches(empty, batch_size=4, seed=0, masking=masking)


def test_unigram_loss_is_add_one_counts_on_the_masked_positions(tokens, tokenizer, rows, masking):
    counts = count_tokens(tokens, vocab_size=len(tokenizer))
    flat = [token for ids in tokens["input_ids"] for token in ids]
    assert counts.tolist() == [flat.count(token) for token in range(len(tokenizer))]
    batches = ValidationBatches(rows, batch_size=9, seed=5, masking=masking)
    labels = torch.cat([batch["labels"] for batch in batches])
    chosen = labels[labels != -100].tolist()
    expected = [np.log((len(flat) + len(tokenizer)) / (flat.count(token) + 1)) for token in chosen]
    assert unigram_loss(counts, batches) == pytest.approx(np.mean(expected), rel=1e-12)
    with pytest.raises(DataError, match="no token of these batches is predicted"):
        unigram_loss(counts, [{"labels": torch.full((1, 3), -100)}])
