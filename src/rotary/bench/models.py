"""Suite ``models``: RoFormer beside transformers' RoFormer, the same random weights, float32.

Inference of long documents, batches of real lengths, masked-LM training steps, memory, generation.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import RoFormerConfig as StockConfig
from transformers import RoFormerForMaskedLM as StockForMaskedLM
from transformers import RoFormerModel as StockModel

from rotary.bench.memory import IS_MEASURED, peak_rise
from rotary.bench.suite import Record, Suite
from rotary.bench.timing import Case, Timing
from rotary.models.roformer import (
    RoFormerConfig,
    RoFormerForCausalLM,
    RoFormerForMaskedLM,
    RoFormerModel,
)

# Word tokens of the 64 first CMRC2018 passages: min(int(0.7 x characters), 1500).
CMRC_LENGTHS = (
    *(291, 347, 306, 218, 263, 263, 210, 660, 287, 315, 247, 351, 626, 519, 430, 275, 210, 273),
    *(270, 275, 290, 618, 212, 199, 234, 364, 494, 279, 429, 401, 382, 205, 338, 289, 505, 479),
    *(272, 275, 225, 353, 350, 322, 555, 315, 613, 274, 259, 248, 198, 395, 444, 468, 676, 258),
    *(686, 212, 205, 268, 258, 531, 585, 226, 383, 252),
)
DOCUMENTS = {512: 1.6, 1024: 1.65, 2048: 2.0, 4096: 2.8}
STEPS = {(4, 512): 3.0, (2, 1024): 3.0, (1, 2048): 4.0}
PRODUCTS = "matrix products and attention alone"
SMALL = {
    "vocab_size": 50_000,
    "hidden_size": 384,
    "num_hidden_layers": 6,
    "num_attention_heads": 6,
    "intermediate_size": 1536,
}


def _pair(kind: tuple[type, type], **sizes: Any) -> tuple[Any, Any]:
    """Transformers' model and ours with the same weights, in evaluation mode."""
    sizes = {"max_position_embeddings": 4096, **sizes}
    torch.manual_seed(0)
    theirs = kind[0](StockConfig(**sizes)).eval()
    ours = kind[1](RoFormerConfig(**sizes)).eval()
    weights = {k: v for k, v in theirs.state_dict().items() if "embed_positions" not in k}
    ours.load_state_dict(weights, strict=False)
    return theirs, ours


def _ids(*shape: int, vocab_size: int = 50_000) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randint(106, vocab_size, shape, generator=generator)


def _padded(lengths: list[int]) -> dict[str, Tensor]:
    """Random ids of these lengths as one padded batch."""
    longest = max(lengths)
    mask = torch.arange(longest)[None, :] < torch.tensor(lengths)[:, None]
    return {"input_ids": _ids(len(lengths), longest) * mask, "attention_mask": mask.long()}


def _in_turns(cases: Mapping[str, Case], repeats: int) -> dict[str, Timing]:
    """Medians of interleaved runs; these take seconds, so one run each is warming enough."""
    for case in cases.values():
        case()
    samples: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(repeats):
        for name, case in cases.items():
            start = time.perf_counter()
            case()
            samples[name].append(time.perf_counter() - start)
    return {
        name: Timing(
            statistics.median(taken),
            (max(taken) - min(taken)) / statistics.median(taken),
            repeats,
            1,
        )
        for name, taken in samples.items()
    }


def _gate(record: Record) -> list[str]:
    """Hidden states, losses and gradients equal transformers' on a padded batch."""
    wrong = []
    batch = _padded([33, 7, 20])
    theirs, ours = _pair((StockModel, RoFormerModel), **SMALL)
    with torch.no_grad():
        expected, found = theirs(**batch)[0], ours(**batch)[0]
    real = batch["attention_mask"].bool()
    difference = (expected - found)[real].abs().max().item()
    if not difference <= 1e-5:
        wrong.append(f"hidden states differ from transformers' by {difference:.2g}")
    theirs, ours = _pair((StockForMaskedLM, RoFormerForMaskedLM), **SMALL)
    labels = _labels(batch["input_ids"], real)
    for is_sparse in (False, True):
        losses = [
            theirs(**batch, labels=labels).loss,
            ours(**batch, labels=labels, sparse_logits=is_sparse).loss,
        ]
        if not abs(losses[0] - losses[1]) <= 1e-5:
            wrong.append(f"losses differ: {losses[0]:.7f}, {losses[1]:.7f} (sparse: {is_sparse})")
        weights = [m.roformer.encoder.layer[0].attention.self.query.weight for m in (theirs, ours)]
        first, second = (torch.autograd.grad(x, w)[0] for x, w in zip(losses, weights, strict=True))
        if not (first - second).abs().max() <= 1e-4 * first.abs().max():
            wrong.append(f"gradients differ from transformers' (sparse: {is_sparse})")
    return wrong


def _labels(ids: Tensor, real: Tensor) -> Tensor:
    """15 % of the real tokens, drawn once; -100 elsewhere."""
    chosen = torch.rand(ids.shape, generator=torch.Generator().manual_seed(1)) < 0.15
    chosen[:, 1] = True
    return ids.masked_fill(~(chosen & real), -100)


def _measure(record: Record) -> None:
    repeats = max(3, record.repeats // 8)
    with torch.no_grad():
        _documents(record, repeats)
        _batches(record, repeats)
    _training(record, repeats)
    _memory(record)
    _generation(record)


def _documents(record: Record, repeats: int) -> None:
    theirs, ours = _pair((StockModel, RoFormerModel))
    for length, floor in DOCUMENTS.items():
        ids = _ids(1, length)
        section = f"base, one document of {length} tokens"
        timings = _in_turns(
            {
                "transformers": partial(theirs, ids),
                "ours": partial(ours, ids),
                PRODUCTS: _products(ours, 1, length),
            },
            repeats,
        )
        _tokens_rows(record, section, timings, length)
        ratio = timings["transformers"].seconds / timings["ours"].seconds
        record.at_least(f"{section}, times transformers' tokens per second", ratio, floor)


def _products(model: Any, rows: int, length: int) -> Case:
    """The matrix products and the attention of the layers alone, on tensors that are there.

    Forward, and while gradients are on backward too. With the same matrix products no code around
    them is faster, so this says how far above transformers one can get on this machine.
    """
    config, needs = model.config, torch.is_grad_enabled()
    hidden = torch.randn(rows, length, config.hidden_size, requires_grad=needs)
    wide = torch.randn(rows, length, config.intermediate_size, requires_grad=needs)
    heads = (rows, config.num_attention_heads, length, config.head_dim)
    q, k, v = (torch.randn(heads, requires_grad=needs) for _ in range(3))

    def run() -> None:
        for layer in model.encoder.layer:
            attention = layer.attention.self
            linears = [attention.query, attention.key, attention.value]
            linears += [layer.attention.output.dense, layer.intermediate.dense, layer.output.dense]
            results = [linear(hidden) for linear in linears[:-1]]
            results += [linears[-1](wide), scaled_dot_product_attention(q, k, v)]
            if needs:
                of = [hidden, wide, q, k, v, *(linear.weight for linear in linears)]
                torch.autograd.grad(results, of, [result.detach() for result in results])

    return run


def _tokens_rows(record: Record, section: str, timings: dict[str, Timing], tokens: int) -> None:
    slow = timings["transformers"].seconds
    for name, timing in timings.items():
        rate: dict[str, Any] = {"tokens/s": round(tokens / timing.seconds)}
        record.row(section, name, timing, ratio=slow / timing.seconds, **rate)


def _batches(record: Record, repeats: int) -> None:
    """64 passages of real lengths, in the order of the file, in batches of 1, 8 and 32."""
    theirs, ours = _pair((StockModel, RoFormerModel), **SMALL)
    section = "6 layers of 384, lengths of 64 CMRC2018 passages"
    cases: dict[str, Case] = {}
    for size in (1, 8, 32):
        batches = [
            _padded(list(CMRC_LENGTHS[i : i + size])) for i in range(0, len(CMRC_LENGTHS), size)
        ]
        for name, model in (("transformers", theirs), ("ours", ours)):
            cases[f"{name}, batch {size}"] = partial(_run_all, model, batches)
    timings = _in_turns(cases, repeats)
    rates = {name: sum(CMRC_LENGTHS) / timing.seconds for name, timing in timings.items()}
    for name, timing in timings.items():
        rate: dict[str, Any] = {"real tokens/s": round(rates[name])}
        record.row(section, name, timing, **rate)
    mine = [rate for name, rate in rates.items() if name.startswith("ours")]
    best = max(rate for name, rate in rates.items() if name.startswith("transformers"))
    slow = rates["transformers, batch 32"]
    record.at_least("ours at batch 32 against transformers' batch 32", mine[2] / slow, 5.0)
    record.at_least("ours at batch 32 against transformers' best", mine[2] / best, 1.4)
    record.at_most("ours, fastest batch size against slowest", max(mine) / min(mine), 1.15)


def _training(record: Record, repeats: int) -> None:
    """A whole step: forward, backward, AdamW in the form that the Trainer takes by default."""
    sizes = {**SMALL, "attention_probs_dropout_prob": 0.0}
    theirs, ours = _pair((StockForMaskedLM, RoFormerForMaskedLM), **sizes)
    torch.set_flush_denormal(True)
    optimizers = [
        torch.optim.AdamW(m.train().parameters(), lr=1e-5, fused=True) for m in (theirs, ours)
    ]
    for (rows, length), floor in STEPS.items():
        ids = _ids(rows, length)
        batch = {"input_ids": ids, "labels": _labels(ids, torch.ones_like(ids, dtype=torch.bool))}

        section = f"masked-LM training step, {rows} x {length}"
        cases: dict[str, Case] = {
            "transformers": partial(_step, theirs, optimizers[0], batch),
            "ours, all logits": partial(_step, ours, optimizers[1], batch, is_sparse=False),
            "ours, sparse logits": partial(_step, ours, optimizers[1], batch, is_sparse=True),
            f"{PRODUCTS}, no head": _products(ours.roformer, rows, length),
        }
        timings = _in_turns(cases, repeats)
        _tokens_rows(record, section, timings, rows * length)
        ratio = timings["transformers"].seconds / timings["ours, sparse logits"].seconds
        record.at_least(f"{section}, times transformers' tokens per second", ratio, floor)
    torch.set_flush_denormal(False)


def _step(
    model: Any, optimizer: torch.optim.AdamW, batch: dict[str, Tensor], is_sparse: bool = False
) -> None:
    model.config.sparse_logits = is_sparse
    model(**batch).loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def _run_all(model: Any, batches: list[dict[str, Tensor]]) -> None:
    for batch in batches:
        model(**batch)


_PEAK = """
import torch
from rotary.models.roformer import RoFormerConfig, RoFormerModel
model = RoFormerModel(RoFormerConfig()).eval()
with torch.no_grad():
    model(torch.ones(1, 64, dtype=torch.long))
    ids = torch.randint(106, 50000, (1, {length}))
    rise(lambda: model(ids))
"""


def _memory(record: Record) -> None:
    section = "base, one document: peak memory above the weights"
    if not IS_MEASURED:
        record.row(section, "peak", note="measured on Linux")
        return
    peaks = {}
    for length in (8192, 16384):
        peaks[length] = peak_rise(_PEAK.format(length=length))
        record.row(section, f"{length} tokens", GiB=peaks[length] / 2**30)
    growth = peaks[16384] / peaks[8192]
    record.at_most("peak memory at 16384 tokens against 8192", growth, 2.2)
    record.at_most("peak memory at 16384 tokens above the weights", peaks[16384] / 2**30, 3, "GiB")


class _Clock:
    """A streamer that notes when each token comes."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, tokens: Tensor) -> None:
        self.times.append(time.perf_counter())

    def end(self) -> None:
        pass


def _generation(record: Record) -> None:
    torch.manual_seed(0)
    model = RoFormerForCausalLM(RoFormerConfig(is_decoder=True)).eval()
    section = "base, 256 tokens generated with the cache"
    clock = _Clock()
    for _ in range(2):  # The first run warms.
        clock = _Clock()
        model.generate(
            _ids(1, 8), max_new_tokens=256, min_new_tokens=256, do_sample=False, streamer=clock
        )
    taken = [b - a for a, b in zip(clock.times[1:-1], clock.times[2:], strict=True)]
    first, last = statistics.median(taken[:32]), statistics.median(taken[-32:])
    record.row(section, "tokens 1 to 32", Timing(first, 0.0, 32, 1))
    record.row(section, "tokens 225 to 256", Timing(last, 0.0, 32, 1), ratio=last / first)
    record.at_most(
        "time per generated token, the last 32 of 256 against the first", last / first, 1.5
    )


SUITE = Suite(
    name="models",
    summary="RoFormer against transformers' RoFormer: inference, batches, training, memory, text",
    gate=_gate,
    measure=_measure,
)
