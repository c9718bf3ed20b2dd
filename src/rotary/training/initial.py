"""The checkpoint that a run starts from: BERT, WoBERT or RoFormer as Hugging Face saves them.

RoFormer was made so (Su et al., 2021, section 4.5): the weights of WoBERT without its absolute
positions, trained on. Weights are taken by name; all of the encoder must be there and fit.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from rotary.errors import RotaryError, RunError
from rotary.models.roformer import RoFormerConfig
from rotary.training import checkpoints
from rotary.training.run_config import ModelOptions

MODEL_TYPES = ("bert", "roformer", "rotary_roformer")
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"

# Without these the same weights would compute something else, so the config must have them.
_STRUCTURE = (
    "hidden_size",
    "embedding_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "type_vocab_size",
    "hidden_act",
    "norm_position",
)
_OF_ROFORMER = (
    "position_encoding",
    "attention_form",
    "num_features",
    "feature_seed",
    "rotary_layout",
)
_ENCODERS = ("bert.", "roformer.")
_HEAD = "cls.predictions."
_SETTINGS = (
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "initializer_range",
    "layer_norm_eps",
)
# Differences from stock that a run config can express, or that no weight of ours depends on.
_EXPRESSED = {
    *_STRUCTURE,
    *_OF_ROFORMER,
    *("architectures", "pooling", "pooler_activation", "is_prefix_lm"),
}

# The one encoding that can take a BERT's positions over.
_BERT_POSITIONS = "roformer.embeddings.position_embeddings.weight"
_LEARNED_POSITIONS = "roformer.positions.encoding.table.weight"

# What a checkpoint may hold that a RoFormer for language modelling has no place for.
_LEFT_OUT = {
    "embeddings.position_embeddings.": "absolute positions",
    "embeddings.position_ids": "",
    "positions.encoding.": "position encoding",
    "encoder.embed_positions.": "",  # Stock RoFormer's frozen sines, which ours makes anew.
    "pooler.": "pooler",
    "cls.seq_relationship.": "next-sentence head",
}


@dataclass(frozen=True)
class Initial:
    """A checkpoint to start from, its config read and its weights not yet.

    Attributes:
        path: The folder.
        model_type: What its config says it is.
        options: The model options that it needs.
        vocab_size: Rows of its token embedding.
    """

    path: Path
    model_type: str
    options: dict[str, Any]
    vocab_size: int

    def check(self, model: ModelOptions, vocabulary: int) -> None:
        """Refuse model options and a vocabulary that its weights do not fit.

        Raises:
            RunError: With every size that differs.
        """
        names = list(_STRUCTURE)
        if self.model_type != "bert" and model.position_encoding == "rotary":
            names.append("rotary_layout")
        sizes = {"embedding_size": model.embedding_size or model.hidden_size}
        problems = [
            f"model.{name} is {mine!r}, there it is {self.options[name]!r}"
            for name in names
            if (mine := sizes.get(name, getattr(model, name))) != self.options[name]
        ]
        if problems:
            raise RunError(
                f"--init {self.path}: its weights do not fit the config: {'; '.join(problems)}. "
                "Give these values in the config, or leave --config out to take them from there."
            )
        if vocabulary > self.vocab_size:
            raise RunError(
                f"--init {self.path}: it has {self.vocab_size:,} tokens and the tokenizer has "
                f"{vocabulary:,}; give the tokenizer that it was trained with."
            )

    def load_into(self, model: Any) -> str:
        """Put its weights into a model.

        Args:
            model: A ``RoFormerForMaskedLM`` or ``RoFormerForCausalLM``.

        Returns:
            What was left out or is missing, in words; empty if nothing is.

        Raises:
            RunError: Naming weights that are missing, too many or of another shape.
        """
        own = model.state_dict()
        found = _read_weights(self.path)
        heads = _heads_of_other_tasks(found)
        theirs = {_own_name(name): name for name in found if name not in heads}
        weights = {name: found[there] for name, there in theirs.items()}
        if model.config.position_encoding == "learned" and _BERT_POSITIONS in weights:
            weights[_LEARNED_POSITIONS] = weights.pop(_BERT_POSITIONS)
        _untie(weights, self.path)
        left_out = [name for name in weights if name not in own and _is_left_out(name)]
        notes = _describe({name: weights.pop(name) for name in left_out}, heads)
        tied = set(model.all_tied_weights_keys)
        missing = sorted(own.keys() - weights.keys() - tied)
        if not any(name.startswith(_HEAD) for name in weights):
            notes.append("it has no language-model head, so that starts at random")
            missing = [name for name in missing if not name.startswith(_HEAD)]
        unplaced = sorted(theirs.get(name, name) for name in weights.keys() - own.keys())
        self._refuse(missing, unplaced, _misshapen(weights, own))
        with torch.no_grad():
            for name, tensor in weights.items():
                own[name].copy_(tensor)
        return "; ".join(notes)

    def _refuse(self, missing: list[str], unplaced: list[str], misshapen: Iterable[str]) -> None:
        problems = [
            f"{title}: {', '.join(names[:4])}"
            + (f" and {len(names) - 4} more" if len(names) > 4 else "")
            for title, names in (
                ("missing", missing),
                ("without a place", unplaced),
                ("of another shape", list(misshapen)),
            )
            if names
        ]
        if problems:
            raise RunError(
                f"--init {self.path}: its weights do not fit a RoFormer; {'; '.join(problems)}."
            )

    def record(self) -> dict[str, Any]:
        """What run.toml keeps of it."""
        return {
            "path": str(self.path),
            "model_type": self.model_type,
            "vocab_size": self.vocab_size,
            "sha256": checkpoints.sha256_of(*_weight_files(self.path)),
        }


def read_initial(folder: str | Path) -> Initial:
    """Read the config of a checkpoint.

    Raises:
        RunError: If the folder holds no checkpoint of a kind that can become a RoFormer.
    """
    path = Path(folder)
    values = _read_json(path / "config.json", path)
    kind = values.get("model_type")
    if kind not in MODEL_TYPES:
        raise RunError(
            f"--init {path}: its model_type is {kind!r}; accepted are {', '.join(MODEL_TYPES)} "
            "(a WoBERT is a bert)."
        )
    _weight_files(path)
    shared = {name: values[name] for name in (*_STRUCTURE, *_SETTINGS) if name in values}
    keep = _OF_ROFORMER if kind != "bert" else ()
    try:
        config = RoFormerConfig.from_dict(values) if keep else RoFormerConfig(**shared)
    except (RotaryError, TypeError, ValueError) as error:
        raise RunError(f"--init {path}: config.json: {error}") from error
    different = [name for name in config.differences_from_stock() if name not in _EXPRESSED]
    if config.rotary_value:
        different.append("rotary_value")
    if different:
        raise RunError(
            f"--init {path}: a run cannot train a model with its {', '.join(different)}; accepted "
            "are BERT's and RoFormer's first architecture."
        )
    options = {name: getattr(config, name) for name in (*_STRUCTURE, *_SETTINGS, *keep)}
    return Initial(path, str(kind), options, int(values.get("vocab_size", config.vocab_size)))


def _read_json(file: Path, folder: Path) -> dict[str, Any]:
    if not folder.is_dir():
        raise RunError(f"--init {folder}: there is no such folder.")
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RunError(
            f"--init {folder}: there is no {file.name} in it; expected is what save_pretrained "
            "writes."
        ) from None
    except (OSError, ValueError) as error:
        raise RunError(f"--init {folder}: {file.name} cannot be read: {error}.") from None
    if not isinstance(values, dict):
        raise RunError(f"--init {folder}: {file.name} holds no table of values.")
    return values


def _weight_files(path: Path) -> list[Path]:
    if (path / WEIGHTS).is_file():
        return [path / WEIGHTS]
    if (path / INDEX).is_file():
        names = _read_json(path / INDEX, path).get("weight_map", {}).values()
        return [path / Path(name).name for name in sorted(set(names))]
    pickles = sorted(file.name for file in path.glob("*.bin"))
    advice = (
        f"{pickles[0]} there is a pickle, which is not loaded; write it anew with save_pretrained"
        if pickles
        else "expected is what save_pretrained writes"
    )
    raise RunError(f"--init {path}: there is no {WEIGHTS} in it; {advice}.")


def _read_weights(path: Path) -> dict[str, Tensor]:
    weights: dict[str, Tensor] = {}
    try:
        for file in _weight_files(path):
            weights |= load_file(file)
    except (OSError, SafetensorError) as error:
        raise RunError(f"--init {path}: its weights cannot be read: {error}") from error
    return weights


def _own_name(name: str) -> str:
    """The name that a weight of a checkpoint has in a RoFormer with a head."""
    for prefix in _ENCODERS:
        name = name.removeprefix(prefix)
    for old, new in ((".gamma", ".weight"), (".beta", ".bias")):  # The names of the first BERTs.
        if name.endswith(old):
            name = name.removesuffix(old) + new
    return name if name.startswith("cls.") else f"roformer.{name}"


def _untie(weights: dict[str, Tensor], path: Path) -> None:
    """Take out the second copies of tied weights; refuse a model in which they are not equal."""
    pairs = {
        "cls.predictions.decoder.weight": "roformer.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    }
    for copy, source in pairs.items():
        if copy not in weights:
            continue
        tensor = weights.pop(copy)
        if not torch.equal(tensor, weights.setdefault(source, tensor)):
            raise RunError(
                f"--init {path}: its {copy} is not tied to its {source}; a RoFormer's is."
            )


def _heads_of_other_tasks(names: Iterable[str]) -> list[str]:
    """What stands beside the encoder in a file that names it, and is no language-model head."""
    names = sorted(names)
    if not any(name.startswith(_ENCODERS) for name in names):
        return []
    return [name for name in names if not name.startswith((*_ENCODERS, "cls."))]


def _is_left_out(name: str) -> bool:
    return name.removeprefix("roformer.").startswith(tuple(_LEFT_OUT))


def _describe(weights: Mapping[str, Tensor], heads: Iterable[str]) -> list[str]:
    parts: dict[str, None] = {}
    for name, tensor in weights.items():
        bare = name.removeprefix("roformer.")
        part = next(word for start, word in _LEFT_OUT.items() if bare.startswith(start))
        if part == "absolute positions":
            part = f"{len(tensor)} {part}"
        if part:
            parts[part] = None
    # Positions first: they are why it is done.
    names = [*sorted(parts, key=lambda part: "positions" not in part), *heads]
    return [f"left out: its {', its '.join(names)}"] if names else []


def _misshapen(weights: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> Iterable[str]:
    for name, tensor in weights.items():
        if name in own and own[name].shape != tensor.shape:
            yield f"{name} {tuple(tensor.shape)}, here {tuple(own[name].shape)}"
