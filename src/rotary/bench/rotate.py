"""The suite ``rotate``: what the rotation costs beside moving the bytes, and beside the peers."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from rotary.bench.peers import PEERS, Peer, Turn
from rotary.bench.suite import Record, Suite
from rotary.bench.timing import Timing, interleave, interleave_with_floor
from rotary.embedding import RotaryEmbedding
from rotary.frequencies import Frequencies, inverse_power
from rotary.kernels import Backend, Layout, explain
from rotary.kernels.reference import rotate_reference
from rotary.rotation import Rotation
from rotary.testing import assert_matches_reference

LAYOUTS: tuple[Layout, ...] = ("interleaved", "half")
SHAPE = (4, 12, 1024, 64)
GPU_SHAPE = (8, 32, 8192, 128)


def gate(record: Record) -> list[str]:
    """Compare everything that will be timed, on small tensors, with float64 matrices or ours."""
    wrong: list[str] = []

    def check(what: str, got: Tensor, right: Tensor) -> None:
        try:
            assert_matches_reference(got, reference=right, what=what)
        except AssertionError as error:
            wrong.append(str(error))

    device = record.device
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 3, 16, 64, dtype=torch.float64, generator=generator).bfloat16().double()
    dtypes = (torch.float32, torch.bfloat16, torch.float16)
    kinds = [(layout, *kind) for layout in LAYOUTS for kind in _ropes(layout, x.shape)]
    for layout, name, rope, positions in kinds:
        angles = rope.angles(positions)
        angles = angles.unsqueeze(1) if angles.ndim == 3 else angles
        right = rotate_reference(x, angles, layout=layout)
        opposite = rotate_reference(x, -angles, layout=layout)
        rotation = rope(positions.to(device))
        for dtype in dtypes:
            given = x.to(device, dtype)
            what = f"{layout}, {dtype}, {name}"
            check(what, rotation(given).cpu(), right)
            check(f"{what}, strided", rotation(_strided(given)).cpu(), right)
            check(f"{what}, in place", rotation(given.clone(), inplace=True).cpu(), right)
            leaf = given.clone().requires_grad_()
            (back,) = torch.autograd.grad(rotation(leaf), leaf, given)
            check(f"{what}, backward", back.cpu(), opposite)
    q = x.float().to(device)
    for peer in PEERS:
        if (peer.on_gpu_only and device == "cpu") or "compiled" in peer.name:
            continue
        try:
            theirs = peer.build(q, q)(q.clone(), q.clone())[0]
        except ImportError:
            continue
        ours = _rope(peer.layout)(torch.arange(16, device=device))(q)
        if not torch.allclose(theirs, ours, rtol=0, atol=1e-3):
            wrong.append(f"{peer.name} computes something else than our {peer.layout} layout")
    return wrong


def measure(record: Record) -> None:
    """Run all sections for the device."""
    if record.device == "cuda":
        _gpu(record)
        return
    q = torch.randn(SHAPE)
    record.facts["backend"] = explain(q).splitlines()
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        _forward(record, dtype)
    _tables_and_strides(record)
    _backward(record)
    _compiled(record)
    _peers(record)
    _one_token(record)
    _making_tables(record)
    record.absent("GPU", "Triton kernel", "not timed: run with --device cuda where there is a GPU")


def _rope(layout: Layout, dim: int = 64) -> RotaryEmbedding:
    return RotaryEmbedding(head_dim=dim, layout=layout)


def _ropes(layout: Layout, shape: tuple[int, ...]) -> list[tuple[str, RotaryEmbedding, Tensor]]:
    """The kinds of tables with the positions they are made from."""
    batch, _, length, dim = shape
    theta = inverse_power(dim).matrix[0]
    side = int(length**0.5)
    grid = torch.stack((torch.arange(length) // side, torch.arange(length) % side), dim=-1)
    zero = [0.0] * (dim // 4)
    axial = Frequencies([[*theta[::2], *zero], [*zero, *theta[::2]]])
    every = torch.arange(length)
    own = every + 10 * torch.arange(batch)[:, None]
    return [
        ("tables (L, P)", _rope(layout, dim), every),
        ("tables (B, L, P)", _rope(layout, dim), own),
        ("2-D axial", RotaryEmbedding(axial, layout=layout), grid),
        ("partial (half the channels)", _rope(layout, dim // 2), every),
    ]


def _strided(x: Tensor) -> Tensor:
    """The same values as a slice of a fused projection of queries, keys and values."""
    qkv = torch.empty(x.shape[0], x.shape[2], 3, x.shape[1], x.shape[3], dtype=x.dtype).to(x.device)
    qkv[:, :, 0] = x.transpose(1, 2)
    return qkv[:, :, 0].transpose(1, 2)


def _floors(q: Tensor, k: Tensor) -> dict[str, Callable[[], object]]:
    ready = torch.empty_like(q), torch.empty_like(k)
    return {
        "clone": lambda: (q.clone(), k.clone()),
        "copy_": lambda: (ready[0].copy_(q), ready[1].copy_(k)),
    }


def _write(record: Record, section: str, timings: dict[str, Timing], unit: str = "clone") -> None:
    for name, timing in timings.items():
        record.row(section, name, timing, ratio=timing.seconds / timings[unit].seconds)


def _of(timings: dict[str, Timing], name: str, unit: str) -> float:
    return timings[name].seconds / timings[unit].seconds


def _forward(record: Record, dtype: torch.dtype) -> None:
    q, k = torch.randn(SHAPE).to(dtype), torch.randn(SHAPE).to(dtype)
    cases = _floors(q, k)
    for layout in LAYOUTS:
        cases[layout] = _call(_rope(layout)(torch.arange(SHAPE[2])), q, k)
        plain = _rope(layout)(torch.arange(SHAPE[2]))
        cases[f"{layout}, plain PyTorch"] = _call(plain, q, k, backend="plain")
    timings = interleave_with_floor(cases, repeats=record.repeats)
    name = str(dtype).removeprefix("torch.")
    _write(record, f"forward, {name}, q and k {SHAPE}, in units of clone", timings)
    for layout in LAYOUTS:
        limit = 1.15 if dtype == torch.float32 else 1.25
        record.at_most(
            f"forward, {name}, {layout}", _of(timings, layout, "clone"), limit, "x clone"
        )


def _call(rotation: Rotation, q: Tensor, k: Tensor, **options: Any) -> Callable[[], object]:
    return lambda: rotation(q, k, **options)


def _tables_and_strides(record: Record) -> None:
    q, k = torch.randn(SHAPE), torch.randn(SHAPE)
    views = _strided(q), _strided(k)
    cases = _floors(q, k)
    strided_floors = _floors(*views)
    cases["clone of the qkv views"] = strided_floors["clone"]
    limits: dict[str, tuple[float, str]] = {}
    for layout in LAYOUTS:
        for name, rope, positions in _ropes(layout, SHAPE)[1:]:
            cases[f"{name}, {layout}"] = _call(rope(positions), q, k)
            limits[f"{name}, {layout}"] = (1.3, "clone")
        rotation = _rope(layout)(torch.arange(SHAPE[2]))
        cases[f"qkv views, {layout}"] = _call(rotation, *views)
        limits[f"qkv views, {layout}"] = (1.3, "clone of the qkv views")
        cases[f"in place, {layout}"] = _call(rotation, q.clone(), k.clone(), inplace=True)
        limits[f"in place, {layout}"] = (1.0, "clone")
    timings = interleave_with_floor(cases, repeats=record.repeats)
    _write(record, "other tables and strides, float32, in units of clone", timings)
    for name, (limit, unit) in limits.items():
        record.at_most(name, _of(timings, name, unit), limit, f"x {unit}")


def _backward(record: Record) -> None:
    q, k, dq, dk = (torch.randn(SHAPE) for _ in range(4))
    q, k = q.requires_grad_(), k.requires_grad_()
    inner = q.detach(), k.detach()
    ready = [torch.empty_like(dq) for _ in range(4)]
    cases: dict[str, Callable[[], object]] = {
        "clone": lambda: [t.clone() for t in (*inner, dq, dk)],
        "copy_": lambda: [r.copy_(t) for r, t in zip(ready, (*inner, dq, dk), strict=True)],
    }

    def both_ways(rotation: Rotation) -> Callable[[], object]:
        def run() -> object:
            turned = rotation(q, k)
            return turned, torch.autograd.grad(turned, (q, k), (dq, dk))

        return run

    for layout in LAYOUTS:
        cases[layout] = both_ways(_rope(layout)(torch.arange(SHAPE[2])))
    timings = interleave_with_floor(cases, repeats=record.repeats)
    _write(record, "forward and backward, float32, in units of cloning q, k, dq, dk", timings)
    for layout in LAYOUTS:
        record.at_most(
            f"forward and backward, {layout}", _of(timings, layout, "clone"), 1.2, "x four clones"
        )


def _compiled(record: Record) -> None:
    """Which formulation ``auto`` takes while compiling rests on these rows."""
    backends: tuple[Backend, ...] = ("auto", "cpu", "plain")
    for dtype in (torch.float32, torch.bfloat16):
        torch.compiler.reset()  # It counts what it compiled, and stops at a limit.
        q, k = torch.randn(SHAPE).to(dtype), torch.randn(SHAPE).to(dtype)
        cases = _floors(q, k)
        for layout, backend in itertools.product(LAYOUTS, backends):
            rotation = _rope(layout)(torch.arange(SHAPE[2]))

            cases[f"{layout}, {backend}"] = _run(_compile(rotation, backend), q, k)
        timings = interleave_with_floor(cases, repeats=record.repeats)
        name = str(dtype).removeprefix("torch.")
        _write(record, f"under torch.compile, {name}, forward, in units of clone", timings)


def _compile(rotation: Rotation, backend: Backend) -> Turn:
    def turn(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        q, k = rotation(q, k, backend=backend)
        return q, k

    compiled: Turn = torch.compile(turn, fullgraph=True)
    return compiled


def _build(record: Record, section: str, peer: Peer, q: Tensor, k: Tensor) -> Turn | None:
    try:
        return peer.build(q, k)
    except ImportError as error:
        record.absent(section, peer.name, f"not installed: {error}")
        return None


def _run(turn: Turn, q: Tensor, k: Tensor) -> Callable[[], object]:
    return lambda: turn(q, k)


def _peers(record: Record) -> None:
    section = "peers, float32, forward, in units of ours in their layout"
    q, k = torch.randn(SHAPE), torch.randn(SHAPE)
    cases = _floors(q, k)
    for layout in LAYOUTS:
        cases[f"ours, {layout}"] = _call(_rope(layout)(torch.arange(SHAPE[2])), q, k)
    there = []
    for peer in PEERS:
        turn = None if peer.on_gpu_only else _build(record, section, peer, q, k)
        if turn is not None:
            cases[peer.name] = _run(turn, q, k)
            there.append(peer)
    # A peer's temporaries fill the caches with what has yet to be written to memory. A sample of
    # several calls does not charge that to whoever comes next.
    timings = interleave_with_floor(cases, repeats=record.repeats, sample_seconds=10e-3)
    for name in ("clone", "copy_", *(f"ours, {layout}" for layout in LAYOUTS)):
        record.row(section, name, timings[name])
    faster = {}
    for peer in there:
        ratio = faster[peer.name] = _of(timings, peer.name, f"ours, {peer.layout}")
        record.row(section, peer.name, timings[peer.name], ratio=ratio)
    for name, limit in (
        ("transformers Llama, eager", 6),
        ("transformers Llama, compiled", 3),
        ("rotary-embedding-torch", 10),
        ("transformers RoFormer, eager", 8),
    ):
        record.at_least(f"faster than {name}", faster.get(name), limit, "x")


def _one_token(record: Record) -> None:
    section = "one token, float32, q and k (1, 12, 1, 64), in units of transformers Llama, eager"
    q, k = torch.randn(1, 12, 1, 64), torch.randn(1, 12, 1, 64)
    needy = q.clone().requires_grad_(), k.clone().requires_grad_()
    theirs = _build(record, section, PEERS[0], q, k)
    if theirs is None:
        return
    ones = torch.ones_like(q), torch.ones_like(k)

    def both_ways(turn: Turn) -> Callable[[], object]:
        return lambda: torch.autograd.grad(turn(*needy), needy, ones)

    for layout in LAYOUTS:
        rotation = _rope(layout)(torch.arange(1))
        rivals: dict[str, dict[str, Callable[[], object]]] = {
            "": {
                "theirs": _run(theirs, q, k),
                "ours": _call(rotation, q, k),
                "ours, plain PyTorch": _call(rotation, q, k, backend="plain"),
            },
            " with grad": {"theirs": _run(theirs, *needy), "ours": _call(rotation, *needy)},
            " and back": {"theirs": both_ways(theirs), "ours": both_ways(rotation)},
        }
        for end, cases in rivals.items():
            timings = interleave(cases, repeats=record.repeats)
            for name, timing in timings.items():
                ratio = _of(timings, name, "theirs")
                record.row(section, f"{name}{end}, {layout}", timing, ratio=ratio)
            measured = _of(timings, "ours", "theirs")
            record.at_most(f"one token{end}, {layout}", measured, 1.0, "x theirs")


def _making_tables(record: Record) -> None:
    section = "making a rotation, in units of transformers' LlamaRotaryEmbedding"
    try:
        from transformers import LlamaConfig
        from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
    except ImportError as error:
        record.absent(section, "transformers", f"not installed: {error}")
        return
    config = LlamaConfig(hidden_size=768, num_attention_heads=12, max_position_embeddings=131072)
    theirs, ours, x = LlamaRotaryEmbedding(config), _rope("half"), torch.randn(1, 1)
    for length, limit in ((1024, 1.0), (131072, 0.5)):
        positions = torch.arange(length)
        timings = interleave(
            {
                f"theirs, {length} positions": _two(theirs, x, positions[None]),
                f"ours, {length} positions": _one(ours, positions),
            },
            repeats=record.repeats,
        )
        _write(record, section, timings, f"theirs, {length} positions")
        measured = _of(timings, f"ours, {length} positions", f"theirs, {length} positions")
        record.at_most(f"making a Rotation for {length} positions", measured, limit, "x theirs")


def _one(make: Callable[[Tensor], object], positions: Tensor) -> Callable[[], object]:
    return lambda: make(positions)


def _two(
    make: Callable[[Tensor, Tensor], object], x: Tensor, positions: Tensor
) -> Callable[[], object]:
    def run() -> object:
        with torch.no_grad():
            return make(x, positions)

    return run


def _gpu(record: Record) -> None:
    """At least 90 % of the measured copy bandwidth, and not slower than the kernels of others."""
    section = f"GPU, bfloat16, q and k {GPU_SHAPE}, in units of copy_"
    q, k = (torch.randn(GPU_SHAPE, device="cuda").bfloat16() for _ in range(2))
    record.facts["backend"] = explain(q).splitlines()
    cases = _floors(q, k)
    for layout in LAYOUTS:
        rotation = _rope(layout, GPU_SHAPE[3])(torch.arange(GPU_SHAPE[2], device="cuda"))
        cases[f"ours, {layout}"] = _call(rotation, q, k)
        cases[f"compiled plain, {layout}"] = _run(_compile(rotation, "plain"), q, k)
    there = []
    for peer in PEERS:
        turn = _build(record, section, peer, q, k)
        if turn is not None:
            cases[peer.name] = _run(turn, q, k)
            there.append(peer)
    timings = interleave(cases, repeats=record.repeats, synchronize=torch.cuda.synchronize)
    _write(record, section, timings, "copy_")
    for layout in LAYOUTS:
        bandwidth = _of(timings, "copy_", f"ours, {layout}")
        record.at_least(f"share of the copy bandwidth, {layout}", bandwidth, 0.9, "x")
        rival = _of(timings, f"ours, {layout}", f"compiled plain, {layout}")
        record.at_most(f"against compiled plain, {layout}", rival, 1.0, "x")
    for peer in there:
        if peer.on_gpu_only:
            measured = _of(timings, f"ours, {peer.layout}", peer.name)
            record.at_most(f"against {peer.name}", measured, 1.0, "x")


SUITE = Suite(
    "rotate",
    "the rotation of queries and keys beside copying them, and beside peers",
    gate,
    measure,
)
