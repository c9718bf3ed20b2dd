"""What is known about a run besides its settings: kept in run.toml, and said when it begins."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from typing import Any

import torch

from rotary import __version__
from rotary.training.run_config import RunConfig

Line = tuple[str, str]
MANY_UNKNOWN = 0.1  # Share of the tokens; a vocabulary made for its text has next to none.
PACKAGES = ("torch", "transformers", "tokenizers", "accelerate", "datasets")


def surroundings(arguments: Any) -> dict[str, Any]:
    """What a run runs on."""
    return {
        "processes": arguments.world_size,
        "threads": torch.get_num_threads(),
        "device": device_name(arguments.device),
    }


def versions() -> dict[str, str]:
    """What it runs with."""
    return {
        "rotary": __version__,
        "python": platform.python_version(),
        **{name: version(name) for name in PACKAGES},
    }


def device_name(device: torch.device) -> str:
    """A device by the name its maker gave it."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def parameters_in_words(number: int) -> str:
    """A number of parameters as it is said: in millions, or all its digits below one.

    Example:
        >>> parameters_in_words(12_345_678), parameters_in_words(4_321)
        ('12.3 million parameters', '4,321 parameters')
    """
    return f"{number / 1e6:.1f} million parameters" if number >= 1e6 else f"{number:,} parameters"


def change_lines(record: Mapping[str, Any], arguments: Any) -> Iterator[Line]:
    """What is another than when the run began."""
    before = {**record, **record["versions"]}
    for name, value in {**surroundings(arguments), **versions()}.items():
        if before.get(name) != value:
            yield (
                "note",
                f"{name} was {before.get(name)} and is {value} now: the data stay the same, "
                "the last bits of the weights may not",
            )


def corpus_lines(numbers: Mapping[str, Any], *, is_embedded: bool) -> Iterator[Line]:
    """The size of a corpus."""
    source = ", Python's own help and docstrings" if is_embedded else ""
    yield (
        "corpus",
        f"{numbers['train_documents'] + numbers['validation_documents']:,} documents, "
        f"{numbers['characters'] / 1e6:.2f} million characters{source}; "
        f"{numbers['validation_documents']:,} are kept for validation",
    )
    yield (
        "tokens",
        f"{numbers['train_tokens']:,} to train on, {numbers['validation_tokens']:,} to "
        f"validate on, vocabulary {numbers['vocabulary']:,}",
    )
    share = numbers["unknown_tokens"] / max(1, numbers["train_tokens"])
    if share > MANY_UNKNOWN:
        yield (
            "note",
            f"{share:.0%} of the tokens are unknown to the vocabulary, and nothing is learnt from "
            "them; a larger data.vocab_size or another --tokenizer has words for them",
        )


def model_lines(
    config: RunConfig, record: Mapping[str, Any], arguments: Any, folder: object
) -> Iterator[Line]:
    """The size of a model, and what it is trained on."""
    options = config.model
    yield (
        "model",
        f"RoFormer, {parameters_in_words(record['parameters'])} "
        f"({options.num_hidden_layers} layers, width {options.hidden_size}, "
        f"{options.num_attention_heads} heads)",
    )
    processes = arguments.world_size
    share = f"{processes} processes, each {torch.get_num_threads()} threads"
    where = share if processes > 1 else f"{torch.get_num_threads()} threads"
    yield (
        "run",
        f"{config.total_steps:,} steps in {len(config.stages)} stages on "
        f"{device_name(arguments.device)} ({where}), written to {folder}",
    )
    if torch.cuda.is_available() and torch.cuda.device_count() > processes:
        yield (
            "note",
            f"{torch.cuda.device_count()} GPUs are here, {processes} in use; to use all: "
            f"torchrun --nproc-per-node {torch.cuda.device_count()} -m rotary pretrain ...",
        )
