"""Suite ``linear``: rotary linear attention against softmax, against itself without RoPE, and long.

12 heads of 64 channels, float32, elu+1, RoPE in the numerator with its own denominator.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from rotary.attention import walk
from rotary.attention.feature_maps import elu_plus_one
from rotary.attention.linear import linear_attention
from rotary.attention.reference import linear_attention_reference, weights_reference
from rotary.attention.state import LinearState
from rotary.bench.memory import IS_MEASURED, peak_rise
from rotary.bench.suite import Record, Suite
from rotary.bench.timing import Case, Timing, interleave
from rotary.embedding import RotaryEmbedding
from rotary.errors import MissingDependencyError, missing
from rotary.testing import assert_matches_reference

Timer = Callable[..., dict[str, Timing]]

HEADS, DIM = 12, 64
CROSSOVER_LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096)


def _gate(record: Record) -> list[str]:
    """Forward and gradients of what is timed, against the dense float64 reference."""
    rope, length = RotaryEmbedding(head_dim=DIM), 331
    q, k, v = (x.requires_grad_() for x in _inputs(length, record.device))
    positions = torch.arange(length, device=record.device)
    angles = rope.angles(positions)
    exact = [x.detach().double().requires_grad_() for x in (q, k, v)]
    wrong = []
    for causal in (True, False):
        above, below = weights_reference(
            exact[0],
            exact[1],
            form="numerator",
            on_queries=_written_out,
            on_keys=_written_out,
            query_angles=angles,
            key_angles=angles,
        )
        expected = linear_attention_reference(above, below, exact[2], causal=causal)
        out = linear_attention(q, k, v, rotation=rope(positions), causal=causal)
        cotangent = torch.randn_like(out)
        found = torch.autograd.grad(out, (q, k, v), cotangent)
        right = torch.autograd.grad(expected, exact, cotangent.double())
        for name, ours, theirs in zip("oqkv", (out, *found), (expected, *right), strict=True):
            # Hundreds of float32 terms are summed: forgive the rounding of such a sum.
            rough = theirs.float() + 2e-6 * theirs.abs().max().float()
            try:
                assert_matches_reference(ours, reference=theirs, plain=rough, what=name)
            except AssertionError as error:
                wrong.append(f"causal={causal}: {error}")
    return wrong


def _written_out(x: Tensor) -> Tensor:
    return torch.where(x >= 0, x + 1, x.exp())


def _inputs(length: int, device: str) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator(device).manual_seed(length)
    q, k, v = (
        torch.randn(1, HEADS, length, DIM, generator=generator, device=device) for _ in range(3)
    )
    return q, k, v


def _attention(length: int, device: str, *, causal: bool, trains: bool) -> dict[str, Case]:
    """Softmax, linear with RoPE and linear without, on the same inputs."""
    q, k, v = (x.requires_grad_(trains) for x in _inputs(length, device))
    rotation = RotaryEmbedding(head_dim=DIM)(torch.arange(length, device=device))
    cotangent = torch.randn_like(v)

    def timed(attend: Case) -> Case:
        def run() -> None:
            out = attend()
            if trains:
                assert isinstance(out, Tensor)
                torch.autograd.grad(out, (q, k, v), cotangent)

        return run

    return {
        "softmax (SDPA)": timed(lambda: scaled_dot_product_attention(q, k, v, is_causal=causal)),
        "linear, RoPE in the numerator": timed(
            lambda: linear_attention(q, k, v, rotation=rotation, causal=causal)
        ),
        "linear, no RoPE": timed(lambda: linear_attention(q, k, v, causal=causal)),
    }


def _measure(record: Record) -> None:
    time = functools.partial(interleave, synchronize=_waiter(record.device))
    _against_softmax(record, time)
    _long(record, time)
    _memory(record)
    _against_performer(record, time)
    _decoding(record, time)
    _crossover(record, time)


def _waiter(device: str) -> Case | None:
    return torch.cuda.synchronize if device == "cuda" else None


def _against_softmax(record: Record, time: Timer) -> None:
    for trains, floor in ((False, 14.0), (True, 8.0)):
        what = "forward + backward" if trains else "forward"
        section = f"causal {what}, 16384 tokens"
        cases = _attention(16_384, record.device, causal=True, trains=trains)
        timings = time(cases, repeats=max(3, record.repeats // 5))
        softmax, linear, _ = timings.values()
        for name, timing in timings.items():
            record.row(section, name, timing, ratio=softmax.seconds / timing.seconds)
        record.at_least(
            f"{section}, times faster than SDPA", softmax.seconds / linear.seconds, floor
        )
    _where_rope_goes(record, time)


def _where_rope_goes(record: Record, time: Timer) -> None:
    """Two parts: turning queries and keys, block by block, and a denominator of its own.

    Without RoPE numerator and denominator share their features, so the denominator is the row sum
    of scores that exist anyway; with it, the unturned features are summed separately.
    """
    section, length = "where RoPE's overhead goes, causal forward, 16384 tokens", 16_384
    rows = max(64, walk.rows_of_block(torch.device(record.device), HEADS * DIM) // 64 * 64)
    q, k, _ = _inputs(length, record.device)
    rotation = RotaryEmbedding(head_dim=DIM)(torch.arange(length, device=record.device))

    def turn() -> None:
        for start in range(0, length, rows):
            part = slice(start, min(start + rows, length))
            rotation[part](q[:, :, part], k[:, :, part])

    cases = _attention(length, record.device, causal=True, trains=False)
    del cases["softmax (SDPA)"]
    cases["turning q and k"] = turn
    timings = time(cases, repeats=max(5, record.repeats // 2))
    with_rope, without, turning = timings.values()
    for name, timing in timings.items():
        record.row(section, name, timing, ratio=timing.seconds / without.seconds)
    rest = with_rope.seconds - without.seconds - turning.seconds
    note = "by difference"
    record.row(section, "a denominator of its own (the rest)", ms=1e3 * rest, note=note)
    overhead = with_rope.seconds / without.seconds
    record.at_most(f"causal forward, {length} tokens, with RoPE against without", overhead, 1.25)


def _long(record: Record, time: Timer) -> None:
    section = "causal forward, time per token"
    cases = {
        f"{length} tokens": _attention(length, record.device, causal=True, trains=False)[
            "linear, RoPE in the numerator"
        ]
        for length in (8_192, 65_536)
    }
    short, long = time(cases, repeats=max(5, record.repeats // 2)).values()
    growth = (long.seconds / 65_536) / (short.seconds / 8_192)
    record.row(section, "8192 tokens", short, ns_per_token=1e9 * short.seconds / 8_192)
    record.row(
        section, "65536 tokens", long, ratio=growth, ns_per_token=1e9 * long.seconds / 65_536
    )
    record.at_most("time per token at 65536 against 8192", growth, 1.15)


_PEAK = """
import torch
from rotary import RotaryEmbedding
from rotary.attention import linear_attention
q, k, v = (torch.randn(1, {heads}, {length}, {dim}) for _ in range(3))
rotation = RotaryEmbedding(head_dim={dim})(torch.arange({length}))
with torch.no_grad():
    linear_attention(q[:, :, :2048], k[:, :, :2048], v[:, :, :2048], rotation=rotation[:2048],
                     causal=True)
    rise(lambda: linear_attention(q, k, v, rotation=rotation, causal=True))
"""


def _memory(record: Record) -> None:
    section, length = "peak memory beyond q, k, v and output", 65_536
    if not IS_MEASURED or record.device != "cpu":
        record.row(section, f"{length} tokens", note="measured on Linux, on the CPU")
        return
    output = HEADS * length * DIM * 4
    extra = peak_rise(_PEAK.format(heads=HEADS, dim=DIM, length=length)) - output
    record.row(section, f"{length} tokens", ratio=extra / (4 * output), MiB=extra / 2**20)
    record.at_most(f"causal forward, {length} tokens, {section}", 25 * extra / output, 50, "%")


def _against_performer(record: Record, time: Timer) -> None:
    section, length = "causal forward, 4096 tokens, against performer-pytorch", 4_096
    try:
        theirs = _performer()
    except MissingDependencyError as error:
        record.absent(section, "performer-pytorch", str(error))
        return
    q, k, v = _inputs(length, record.device)
    ours = _attention(length, record.device, causal=True, trains=False)
    cases: dict[str, Case] = {
        "performer-pytorch": lambda: theirs(elu_plus_one(q), elu_plus_one(k), v),
        "ours, RoPE in the numerator": ours["linear, RoPE in the numerator"],
    }
    with torch.no_grad():
        timings = time(cases, repeats=max(5, record.repeats // 2))
    peer, mine = timings.values()
    for name, timing in timings.items():
        record.row(section, name, timing, ratio=peer.seconds / timing.seconds)
    record.at_least(f"{section}, times faster", peer.seconds / mine.seconds, 15.0)


def _performer() -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Its causal attention in plain PyTorch, on features, as its modules call it on a CPU."""
    try:
        module = importlib.import_module("performer_pytorch.performer_pytorch")
    except ImportError as error:
        raise missing("this row", "performer-pytorch", "bench") from error
    attend: Callable[[Tensor, Tensor, Tensor], Tensor] = module.causal_linear_attention_noncuda
    return attend


def _decoding(record: Record, time: Timer) -> None:
    """One token, its table made from its position, the state handed on."""
    section = "decoding, one token"
    rope = RotaryEmbedding(head_dim=DIM)
    q, k, v = _inputs(1, record.device)

    def at(position: int) -> Case:
        past = LinearState(
            torch.randn(1, HEADS, DIM, DIM, device=record.device),
            torch.rand(1, HEADS, DIM, device=record.device) * position,
            torch.tensor([position], device=record.device),
        )

        def step() -> None:
            rotation = rope(past.position.unsqueeze(1))
            linear_attention(q, k, v, rotation=rotation, causal=True, state=past, return_state=True)

        return step

    cases = {f"at position {position}": at(position) for position in (100, 100_000)}
    with torch.no_grad():
        timings = time(cases, repeats=4 * record.repeats)
    near, far = timings.values()
    for name, timing in timings.items():
        record.row(section, name, timing, ratio=timing.seconds / near.seconds)
    record.at_most("decoding at position 100000 against 100", far.seconds / near.seconds, 1.15)


def _crossover(record: Record, time: Timer) -> None:
    """From which length linear attention is the faster one."""
    for causal in (True, False):
        for trains in (False, True):
            way = f"{'causal' if causal else 'not causal'}, {'training' if trains else 'forward'}"
            section = f"crossover with softmax, {way}"
            first = None
            for length in CROSSOVER_LENGTHS:
                cases = _attention(length, record.device, causal=causal, trains=trains)
                del cases["linear, no RoPE"]
                softmax, linear = time(cases, repeats=max(5, record.repeats // 2)).values()
                ratio = softmax.seconds / linear.seconds
                first = length if first is None and ratio >= 1 else first
                record.row(section, f"{length} tokens", linear, ratio=ratio)
            said = f"from {first} tokens on" if first else f"beyond {CROSSOVER_LENGTHS[-1]} tokens"
            record.row(section, "linear is faster", note=said)
            record.facts[section] = first


SUITE = Suite(
    name="linear",
    summary="rotary linear attention: against softmax, long, in memory, decoding",
    gate=_gate,
    measure=_measure,
)
