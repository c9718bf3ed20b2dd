"""Names in checkpoints: what is left out, what may be missing, and what must match."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor

from rotary.errors import ConfigError

STOCK_TABLE = "encoder.embed_positions.weight"
"""The frozen sine table in transformers' state dicts; ours are made exactly, for any length."""

DRAWS = r"\.favor\.projection$"
"""The Performer's draws, as a pattern: they follow from the config where a file has none."""

BASE_PARTS = ("embeddings.", "embeddings_project.", "encoder.", "pooler.", "positions.")


def rename_for(
    own: Iterable[str], state_dict: Mapping[str, Tensor], prefix: str
) -> dict[str, Tensor]:
    """Leave the sine table out, and add or take off the prefix where that gives a name of ours."""
    names, renamed = set(own), {}
    for name, tensor in state_dict.items():
        if name.endswith(STOCK_TABLE):
            continue
        bare = name.removeprefix(prefix)
        fitting = [n for n in (name, bare, prefix + name) if n in names]
        renamed[fitting[0] if fitting else name] = tensor
    return renamed


def check_loaded(info: Mapping[str, Any], prefix: str, where: object) -> None:
    """Raise if a checkpoint has not filled the encoder exactly; a new head may start at random.

    Raises:
        ConfigError: Naming the weights that were missing or had no place.
    """
    missing, unexpected = (
        sorted(n for n in info[kind] if n.removeprefix(prefix).startswith(BASE_PARTS))
        for kind in ("missing_keys", "unexpected_keys")
    )
    if not missing and not unexpected:
        return
    lines = [f"RoFormer: the checkpoint {str(where)!r} does not fit its encoder."]
    for title, names in (("missing", missing), ("without a place here", unexpected)):
        if names:
            more = f" and {len(names) - 6} more" if len(names) > 6 else ""
            lines.append(f"  {title}: {', '.join(names[:6])}{more}")
    lines.append(_advice(missing, unexpected))
    raise ConfigError("\n".join(lines))


def _advice(missing: list[str], unexpected: list[str]) -> str:
    if any(".LayerNorm." in n or n.endswith(".bias") for n in missing) and not unexpected:
        return (
            "Weights without biases and norms are RoFormer-V2's; as a V1 model they would predict "
            "noise. The config of the checkpoint has to say so."
        )
    if any("positions." in name for name in missing + unexpected):
        return "Its position encoding is another; the config has to name it (position_encoding)."
    if any("pooler." in name for name in unexpected):
        return "The checkpoint has a pooler (RoFormer-Sim); the config has to ask for one."
    return "The sizes in the config (layers, embedding_size, type_vocab_size) have to be its own."
