"""What all RoFormers share: initial weights, names in checkpoints, kinds of attention."""

from __future__ import annotations

import math
import os
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers import initialization as init

from rotary.attention.encodings import NezhaEncoding, ShawEncoding
from rotary.attention.performer import FavorFeatures
from rotary.embedding import RotaryEmbedding
from rotary.errors import ConfigError, RunError
from rotary.models.roformer.configuration_checks import check_config
from rotary.models.roformer.configuration_roformer import RoFormerConfig
from rotary.models.roformer.heads import RoFormerPredictions
from rotary.models.roformer.layers import register_packed_attention
from rotary.models.roformer.loading import DRAWS, STOCK_TABLE, check_loaded, rename_for

_UNCUT = 1.13684723
"""What undoes, in RoFormer-V2's rule, the loss of deviation by cutting a normal at two of it."""


class RoFormerPreTrainedModel(PreTrainedModel):
    """Base of all RoFormers, with and without a head.

    ``attn_implementation`` is ``"rotary_packed"`` unless told otherwise: documents laid end to end,
    no padding computed, no mask made. ``"sdpa"`` and ``"eager"`` compute rows with a mask and give
    every token the same; ``"eager"`` alone can return its probabilities.
    """

    config_class = RoFormerConfig
    base_model_prefix = "roformer"
    supports_gradient_checkpointing = True
    accepts_loss_kwargs = False
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_attention_backend = True
    _no_split_modules = ("RoFormerLayer",)
    # A Performer's draws are of no use to another form, and follow from the config elsewhere.
    _keys_to_ignore_on_load_unexpected = (STOCK_TABLE.replace(".", r"\."), DRAWS)
    _keys_to_ignore_on_load_missing = (DRAWS,)

    def __init__(self, config: RoFormerConfig) -> None:
        check_config(config)  # Its values may have been set after it was made.
        register_packed_attention()
        super().__init__(config)

    def get_correct_attn_implementation(
        self, requested_attention: str | None, is_init_check: bool = False
    ) -> str:
        """Take ``rotary_packed`` where nothing else is asked for.

        Raises:
            ConfigError: For flex attention; see docs/decisions/0014-no-flex-attention.md.
        """
        if requested_attention == "flex_attention":
            raise ConfigError(
                "RoFormer: attn_implementation='flex_attention' is not built: PyTorch's kernel for "
                "a CPU gave wrong numbers with several padded rows. Use 'rotary_packed' (packing "
                "and padding cost nothing), 'sdpa', 'eager' or 'flash_attention_2'."
            )
        requested = "rotary_packed" if requested_attention is None else requested_attention
        return super().get_correct_attn_implementation(requested, is_init_check)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Weights and embeddings from a normal cut at two deviations, biases 0, norms 1 and 0."""
        if isinstance(module, (nn.Linear, nn.Embedding)):
            std = self.config.initializer_range
            if std is None:
                width = module.weight.shape[1]
                std = _UNCUT / math.sqrt(width * max(1, self.config.num_hidden_layers))
            init.trunc_normal_(module.weight, std=std, a=-2 * std, b=2 * std)
        if isinstance(module, nn.LayerNorm):
            init.ones_(module.weight)
        if isinstance(module, RoFormerPredictions) and module.bias is not None:
            init.zeros_(module.bias)
        if isinstance(module, (nn.Linear, nn.LayerNorm)) and module.bias is not None:
            init.zeros_(module.bias)
        if isinstance(module, ShawEncoding) and not isinstance(module, NezhaEncoding):
            std = self.config.initializer_range
            std = 0.02 if std is None else std
            for table in (module.key_table, module.value_table):
                init.trunc_normal_(table, std=std, a=-2 * std, b=2 * std)
        if isinstance(module, RotaryEmbedding) and module.frequency_offset is not None:
            init.zeros_(module.frequency_offset)
        if isinstance(module, FavorFeatures):
            init.copy_(module.projection, module.draws_of(0))

    def _set_gradient_checkpointing(self, *args: Any, **kwargs: Any) -> None:
        """Take the form of checkpointing that sees what all layers share.

        Raises:
            ConfigError: If the other form is asked for and a learned bias is shared by the layers.
        """
        function = kwargs.get("gradient_checkpointing_func")
        asked = getattr(function, "keywords", {}).get("use_reentrant", False)
        if asked and self.config.position_encoding == "t5":
            raise ConfigError(
                "RoFormer: with position_encoding='t5' all layers share one learned bias, which "
                "reentrant checkpointing cannot give a gradient; use "
                'gradient_checkpointing_kwargs={"use_reentrant": False}.'
            )
        super()._set_gradient_checkpointing(*args, **kwargs)

    def set_training_step(self, step: int) -> None:
        """Put the random features of a training step in place, where the model has some.

        They are a pure function of ``config.feature_seed`` and the step, new every
        ``config.redraw_interval`` steps, so a resumed run has the same. They stay as they are in
        eval mode, and are saved with the weights. Call it before a step that the interval divides,
        and before the first.

        Args:
            step: Number of optimiser steps made so far.

        Raises:
            ConfigError: If the model has such features and is in eval mode.
        """
        for module in self.modules():
            if isinstance(module, FavorFeatures):
                module.at_step(step)

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: Any,
        *args: Any,
        output_loading_info: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Load a folder or a model of the hub; see :class:`transformers.PreTrainedModel`.

        Raises:
            ConfigError: If the encoder would stay partly at random, or weights have no place in it.
            RunError: If a path that is none of the hub's leads nowhere.
        """
        path = str(pretrained_model_name_or_path)
        if path.startswith(("/", ".", "~")) and not os.path.exists(path):
            raise RunError(f"{path}: there is no such folder.")
        model, info = super().from_pretrained(
            pretrained_model_name_or_path, *args, output_loading_info=True, **kwargs
        )
        check_loaded(info, f"{cls.base_model_prefix}.", pretrained_model_name_or_path)
        return (model, info) if output_loading_info else model

    def load_state_dict(self, state_dict: Any, strict: bool = True, assign: bool = False) -> Any:
        """Load by name; transformers' frozen sine table is left out, the prefix may be missing.

        Names with and without ``roformer.`` are taken. Everything else must match, or PyTorch
        raises and lists it.
        """
        renamed = rename_for(self.state_dict(), state_dict, f"{self.base_model_prefix}.")
        return super().load_state_dict(renamed, strict=strict, assign=assign)
