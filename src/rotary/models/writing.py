"""Let a causal RoFormer go on writing where a text stops."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from transformers.utils import logging

from rotary.errors import ConfigError, DataError, RunError


def load_writer(folder: str | Path) -> tuple[Any, Any]:
    """The causal model and the tokenizer of a folder.

    Raises:
        RunError: If there is no such folder, no model or tokenizer in it, or no causal one.
    """
    from transformers import AutoTokenizer

    from rotary.models.register import register
    from rotary.models.roformer import RoFormerConfig, RoFormerForCausalLM, check_fits

    path = Path(folder)
    if not path.is_dir():
        is_file = "this is a file; give the folder of the model"
        raise RunError(f"{folder}: {is_file if path.exists() else 'there is no such folder'}.")
    for name in ("config.json", "model.safetensors"):
        if not (path / name).is_file():
            raise RunError(f"{folder}: there is no model in this folder: {name} is missing.")
    logging.disable_progress_bar()
    register()
    try:
        config = RoFormerConfig.from_pretrained(path)
        if not config.is_decoder:
            raise RunError(
                f"{folder}: its model reads in both directions (is_decoder is false) and cannot "
                "write; `rotary fill-mask` asks it for masked words."
            )
        model = RoFormerForCausalLM.from_pretrained(path, use_safetensors=True)
        tokenizer = AutoTokenizer.from_pretrained(path)
        check_fits(tokenizer, model)
    except RunError:
        raise
    except Exception as error:  # Whatever transformers and safetensors raise on damaged files.
        raise RunError(f"{folder}: it cannot be loaded: {' '.join(str(error).split())}") from error
    return model.eval(), tokenizer


@torch.no_grad()
def continue_text(
    model: Any,
    tokenizer: Any,
    prompt: str,
    *,
    max_new_tokens: int = 128,
    is_greedy: bool = False,
    top_p: float = 0.95,
    temperature: float = 1.0,
    seed: int = 0,
) -> str:
    """Write on from a prompt until the text ends or is long enough.

    The prompt is encoded with its first special token and without its last, as the official
    RoFormer-GPT script does; the text ends at ``eos_token_id``, or else at the separator.

    Args:
        model: A ``RoFormerForCausalLM``.
        tokenizer: Its tokenizer.
        prompt: The text to go on from; may be empty where the tokenizer has a first token.
        max_new_tokens: How many tokens at most.
        is_greedy: Take the most probable token each time, instead of drawing.
        top_p: Draw among the most probable tokens that together have this probability.
        temperature: Divides the logits; less than 1 draws more cautiously.
        seed: Of the draws; PyTorch's global generators are left as they were.

    Returns:
        The prompt and what was written.

    Raises:
        ConfigError: If a number is out of range.
        DataError: If the prompt has no token.
    """
    greedy = "; to take the most probable token each time, use --greedy (is_greedy=True)"
    problems = [
        f"{name} is {value:g}; it must be {accepted}."
        for name, value, is_right, accepted in (
            ("max_new_tokens", max_new_tokens, max_new_tokens >= 1, "at least 1"),
            ("top_p", top_p, 0 < top_p <= 1, "above 0 and at most 1"),
            ("temperature", temperature, temperature > 0, f"above 0{greedy}"),
        )
        if not is_right
    ]
    if problems:
        raise ConfigError(" ".join(problems))
    ids = tokenizer(prompt)["input_ids"]
    end = tokenizer.sep_token_id if tokenizer.sep_token_id is not None else tokenizer.eos_token_id
    if ids and ids[-1] == end:
        ids = ids[:-1]
    if not ids:
        raise DataError("the prompt is empty; write the text to go on from.")
    prompt_ids = torch.tensor([ids], device=model.device)
    stop = model.config.eos_token_id if model.config.eos_token_id is not None else end
    stops = {*stop} if isinstance(stop, (list, tuple)) else {stop}
    how: dict[str, Any] = (
        {} if is_greedy else {"top_p": top_p, "temperature": temperature, "top_k": 0}
    )
    if model.config.is_prefix_lm:
        how["token_type_ids"] = torch.zeros_like(prompt_ids)
    devices = [model.device] if model.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), _without_reminders():
        torch.manual_seed(seed)
        written = model.generate(
            prompt_ids,
            attention_mask=torch.ones_like(prompt_ids),
            max_new_tokens=max_new_tokens,
            do_sample=not is_greedy,
            eos_token_id=stop,
            pad_token_id=model.config.pad_token_id,
            # Padding, masks and beginnings are no text; a young model may draw them.
            suppress_tokens=sorted({*tokenizer.all_special_ids} - stops) or None,
            **how,
        )
    # Tokenizers that normalise do not give the prompt back as it was; only what follows is theirs.
    start, whole = (
        tokenizer.decode(x, skip_special_tokens=True) for x in (prompt_ids[0], written[0])
    )
    if not whole.startswith(start):
        return whole
    # A token may be a part of a character, whose rest was not written any more.
    return prompt + whole[len(start) :].rstrip("\ufffd")


@contextlib.contextmanager
def _without_reminders() -> Iterator[None]:
    """Silence the reminder that a text is longer than those trained on: rotary has no limit."""
    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)
