"""Walk a sequence block by block with a carried state, and walk it back without having kept it.

``scan(step, carry, sequences, blocks)`` is a Python loop. Where gradients are needed it runs inside
an ``autograd.Function`` that keeps the sequences and the carry at each block's start, and in
backward recomputes one block at a time: exact, and the memory is that of one block.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from rotary.kernels.autograd import is_dual, is_transformed

Carry = tuple[Tensor, ...]
Step = Callable[[slice, Carry, tuple[Tensor, ...]], tuple[Tensor | None, Carry]]
"""``step(rows, carry, parts)``: the parts are those rows of the sequences; gives the rows' output
(None where there is none) and the next carry."""


def needs_plain_operations() -> bool:
    """Whether a compiler, functorch or forward-mode differentiation is looking on.

    They do not see through an ``autograd.Function`` that recomputes, nor through writes into
    buffers, so they get the plain operations.
    """
    return (
        torch.compiler.is_compiling()
        or torch.compiler.is_exporting()
        or is_transformed()
        or is_dual()
    )


def scan(
    step: Step,
    carry: Carry,
    sequences: tuple[Tensor, ...],
    blocks: Sequence[slice],
    captured: tuple[Tensor, ...] = (),
) -> tuple[Tensor | None, Carry]:
    """Run the steps in order.

    Args:
        step: Pure PyTorch.
        carry: The state before the first block.
        sequences: Tensors whose rows (axis -2) the blocks cut.
        blocks: Consecutive rows, covering all of them.
        captured: What else the step uses that may need a gradient. If it does, all operations are
            recorded: the recomputing function differentiates in carry and sequences only.

    Returns:
        The outputs joined along the rows, or None if the steps have none, and the last carry.
    """
    needs_gradient = torch.is_grad_enabled() and any(
        each.requires_grad for each in (*carry, *sequences, *captured)
    )
    if not needs_gradient:
        outputs, carry, _ = _run(step, carry, sequences, blocks, keep=False)
        return outputs, carry
    if needs_plain_operations() or len(blocks) == 1 or any(each.requires_grad for each in captured):
        # One block would be recomputed whole: the graph of plain operations costs no more memory
        # at its peak and saves that work.
        return _differentiable(step, carry, sequences, blocks)
    outputs, *carried = _Scan.apply(  # type: ignore[no-untyped-call]
        step, tuple(blocks), len(carry), *carry, *sequences
    )
    return outputs, tuple(carried)


def _differentiable(
    step: Step, carry: Carry, sequences: tuple[Tensor, ...], blocks: Sequence[slice]
) -> tuple[Tensor | None, Carry]:
    """The same in operations that autograd records one by one."""
    outputs = []
    for rows in blocks:
        output, carry = step(rows, carry, tuple(each[..., rows, :] for each in sequences))
        outputs.append(output)
    present = [each for each in outputs if each is not None]
    if not present:
        return None, carry
    return (present[0] if len(present) == 1 else torch.cat(present, dim=-2)), carry


def _run(
    step: Step,
    carry: Carry,
    sequences: tuple[Tensor, ...],
    blocks: Sequence[slice],
    *,
    keep: bool,
) -> tuple[Tensor | None, Carry, list[Carry]]:
    """The same without a graph, writing into one buffer; keeps the carries if asked."""
    if needs_plain_operations():
        output, carry = _differentiable(step, carry, sequences, blocks)
        return output, carry, []
    outputs: Tensor | None = None
    carries = []
    for rows in blocks:
        if keep:
            carries.append(carry)
        output, carry = step(rows, carry, tuple(each[..., rows, :] for each in sequences))
        if output is None:
            continue
        if len(blocks) == 1:
            return output, carry, carries
        if outputs is None:
            outputs = output.new_empty(*output.shape[:-2], blocks[-1].stop, output.shape[-1])
        outputs[..., rows, :] = output
    return outputs, carry, carries


class _Scan(torch.autograd.Function):
    """The loop with a backward of its own; double backward goes through plain operations."""

    @staticmethod
    def forward(
        ctx: Any, step: Step, blocks: tuple[slice, ...], num_carry: int, *tensors: Tensor
    ) -> Any:
        carry, sequences = tensors[:num_carry], tensors[num_carry:]
        outputs, last, carries = _run(step, carry, sequences, blocks, keep=True)
        ctx.step, ctx.blocks, ctx.num_carry = step, blocks, num_carry
        ctx.has_output = outputs is not None
        ctx.set_materialize_grads(False)
        # The carries between blocks are this function's own and are never inputs or outputs.
        between = [each for kept in carries[1:] for each in kept]
        ctx.save_for_backward(*tensors, *between)
        # A carry that a step passes through unchanged would be an input returned as it is.
        last = tuple(new.view_as(new) if any(new is old for old in carry) else new for new in last)
        return (outputs, *last)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        saved = ctx.saved_tensors
        count = len(ctx.needs_input_grad) - 3
        tensors, between = saved[:count], saved[count:]
        if torch.is_grad_enabled():
            found = _backward_with_graph(ctx, tensors, gradients)
        else:
            found = _backward_by_blocks(ctx, tensors, between, gradients)
        return (None, None, None, *found)


def _backward_with_graph(
    ctx: Any, tensors: tuple[Tensor, ...], gradients: tuple[Tensor | None, ...]
) -> list[Tensor | None]:
    """``create_graph=True``: differentiate the plain operations, so the result has a graph."""
    carry, sequences = tensors[: ctx.num_carry], tensors[ctx.num_carry :]
    output, last = _differentiable(ctx.step, carry, sequences, ctx.blocks)
    pairs = [
        (value, gradient)
        for value, gradient in zip((output, *last), gradients, strict=True)
        if value is not None and gradient is not None and value.requires_grad
    ]
    wanted = [
        each for each, is_wanted in zip(tensors, ctx.needs_input_grad[3:], strict=True) if is_wanted
    ]
    found = iter(
        torch.autograd.grad(
            [value for value, _ in pairs],
            wanted,
            [gradient for _, gradient in pairs],
            create_graph=True,
            allow_unused=True,
        )
    )
    return [next(found) if is_wanted else None for is_wanted in ctx.needs_input_grad[3:]]


def _backward_by_blocks(
    ctx: Any,
    tensors: tuple[Tensor, ...],
    between: tuple[Tensor, ...],
    gradients: tuple[Tensor | None, ...],
) -> list[Tensor | None]:
    """From the last block to the first: recompute it with a graph, and walk that graph back."""
    num_carry, needs = ctx.num_carry, ctx.needs_input_grad[3:]
    sequences, needs_sequences = tensors[num_carry:], needs[num_carry:]
    # Every block but the first must pass a gradient on to the carry before it.
    of_output, of_carry = gradients[0], list(gradients[1:])
    of_sequences = [
        torch.empty_like(each) if is_needed else None
        for each, is_needed in zip(sequences, needs_sequences, strict=True)
    ]
    for index in range(len(ctx.blocks) - 1, -1, -1):
        rows = ctx.blocks[index]
        carry = (
            between[(index - 1) * num_carry : index * num_carry] if index else tensors[:num_carry]
        )
        follows_carry = [True] * num_carry if index else list(needs[:num_carry])
        carry = tuple(
            each.detach().requires_grad_(is_needed)
            for each, is_needed in zip(carry, follows_carry, strict=True)
        )
        parts = tuple(
            each[..., rows, :].detach().requires_grad_(is_needed)
            for each, is_needed in zip(sequences, needs_sequences, strict=True)
        )
        with torch.enable_grad():
            output, following = ctx.step(rows, carry, parts)
        ends = [(output, None if of_output is None else of_output[..., rows, :])]
        ends += list(zip(following, of_carry, strict=True))
        found = _gradients([*carry, *parts], ends)
        of_carry = found[:num_carry]
        for whole, piece in zip(of_sequences, found[num_carry:], strict=True):
            if whole is not None:
                whole[..., rows, :] = 0 if piece is None else piece
    return [*of_carry, *of_sequences]


def _gradients(
    starts: list[Tensor], ends: list[tuple[Tensor | None, Tensor | None]]
) -> list[Tensor | None]:
    """Gradients of those starts that ask for one, None for the others."""
    used = [
        (value, gradient)
        for value, gradient in ends
        if value is not None and gradient is not None and value.requires_grad
    ]
    wanted = [each for each in starts if each.requires_grad]
    if not used or not wanted:
        return [None] * len(starts)
    found = iter(
        torch.autograd.grad(
            [value for value, _ in used],
            wanted,
            [gradient for _, gradient in used],
            allow_unused=True,
        )
    )
    return [next(found) if each.requires_grad else None for each in starts]
