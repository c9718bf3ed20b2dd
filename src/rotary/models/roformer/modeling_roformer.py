"""RoFormer (Su et al., 2021) as Hugging Face models: read top to bottom, parts in ``layers``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.activations import ACT2FN
from transformers.modeling_outputs import BaseModelOutputWithPast, MaskedLMOutput

from rotary.embedding import RotaryEmbedding
from rotary.errors import ConfigError, ShapeError
from rotary.models.roformer.configuration_roformer import RoFormerConfig
from rotary.models.roformer.layers import (
    RoFormerEmbeddings,
    RoFormerEncoder,
    register_packed_attention,
)
from rotary.models.roformer.loading import STOCK_TABLE, check_loaded, rename_for
from rotary.models.roformer.token_layout import (
    TokenLayout,
    check_batch,
    lay_end_to_end,
    lay_in_rows,
)
from rotary.rotation import Rotation


class RoFormerPreTrainedModel(PreTrainedModel):
    """What all RoFormers share: initial weights, names in checkpoints, kinds of attention."""

    config_class = RoFormerConfig
    base_model_prefix = "roformer"
    supports_gradient_checkpointing = True
    accepts_loss_kwargs = True
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_attention_backend = True
    _no_split_modules = ("RoFormerLayer",)
    _keys_to_ignore_on_load_unexpected = (STOCK_TABLE.replace(".", r"\."),)

    def __init__(self, config: RoFormerConfig) -> None:
        register_packed_attention()
        super().__init__(config)

    def get_correct_attn_implementation(
        self, requested_attention: str | None, is_init_check: bool = False
    ) -> str:
        """Take ``rotary_packed`` unless told otherwise: it computes no padding, makes no mask."""
        requested = "rotary_packed" if requested_attention is None else requested_attention
        return super().get_correct_attn_implementation(requested, is_init_check)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Weights and embeddings from a normal cut at two deviations, biases 0, norms 1 and 0."""
        std = self.config.initializer_range
        if isinstance(module, (nn.Linear, nn.Embedding)):
            init.trunc_normal_(module.weight, std=std, a=-2 * std, b=2 * std)
        if isinstance(module, nn.LayerNorm):
            init.ones_(module.weight)
        if isinstance(module, RoFormerPredictions):
            init.zeros_(module.bias)
        if isinstance(module, (nn.Linear, nn.LayerNorm)) and module.bias is not None:
            init.zeros_(module.bias)

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
        """
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


class RoFormerModel(RoFormerPreTrainedModel):
    """The encoder: tokens in, one vector for each out. No length is too long.

    Example:
        >>> config = RoFormerConfig(
        ...     vocab_size=100, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        ...     intermediate_size=32,
        ... )
        >>> RoFormerModel(config)(torch.tensor([[1, 2, 3]])).last_hidden_state.shape
        torch.Size([1, 3, 16])
    """

    def __init__(self, config: RoFormerConfig) -> None:
        super().__init__(config)
        self.embeddings = RoFormerEmbeddings(config)
        if config.embedding_size != config.hidden_size:
            assert config.embedding_size is not None
            self.embeddings_project = nn.Linear(config.embedding_size, config.hidden_size)
        self.encoder = RoFormerEncoder(config)
        if config.position_encoding == "rotary":
            self.rope = RotaryEmbedding(
                head_dim=config.head_dim, base=config.rotary_base, layout=config.rotary_layout
            )
        self.gradient_checkpointing = False
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        """The token embedding."""
        return self.embeddings.word_embeddings

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        """Replace the token embedding."""
        self.embeddings.word_embeddings = value

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        document_ids: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> Any:
        """Give every token its vector.

        Args:
            input_ids: Tokens, (batch, length).
            attention_mask: 1 or True for real tokens, (batch, length); or, ready made and boolean,
                which query sees which key, (batch, 1 or heads, length, length).
            token_type_ids: Segments, (batch, length); all 0 when None.
            position_ids: Integers of any sign, (batch, length) or (length,). Counted from the first
                real token of each document when None.
            inputs_embeds: Token embeddings (batch, length, embedding size), instead of tokens.
            document_ids: Documents of packed rows, (batch, length): 0 is padding; tokens with
                different numbers never see each other.
            output_attentions: Return the attention probabilities; needs
                ``attn_implementation="eager"``.
            output_hidden_states: Return the output of every layer.
            return_dict: Return an object with names (the default) or a tuple.

        Returns:
            ``last_hidden_state`` (batch, length, hidden size), and what was asked for. What it says
            at padding is of no meaning: zeros where padding is not computed.

        Raises:
            ShapeError: If inputs do not belong together.
            ConfigError: If a token is not in the vocabulary, or probabilities are asked of an
                attention that has none.
        """
        embeds = self._embed(input_ids, inputs_embeds)
        shape = (embeds.shape[0], embeds.shape[1])
        check_batch(attention_mask, document_ids, position_ids, token_type_ids, shape=shape)
        layout = self._layout(attention_mask, document_ids, position_ids, shape, embeds.device)
        if token_type_ids is not None:
            token_type_ids = layout.lay(token_type_ids)
        hidden = self.embeddings(layout.lay(embeds), token_type_ids)
        if hasattr(self, "embeddings_project"):
            hidden = self.embeddings_project(hidden)
        with_attentions = self._wants_attentions(output_attentions)
        with_hidden = (
            self.config.output_hidden_states
            if output_hidden_states is None
            else output_hidden_states
        )
        rotation = self._rotation(layout, hidden)
        all_hidden, attentions = [hidden], []
        for layer in self.encoder.layer:
            hidden, probabilities = layer(hidden, layout, rotation)
            all_hidden.append(hidden)
            attentions.append(probabilities)
        if self.config.norm_position == "pre":
            hidden = all_hidden[-1] = self.encoder.LayerNorm(hidden)
        output = BaseModelOutputWithPast(
            last_hidden_state=layout.unlay(hidden),
            hidden_states=tuple(layout.unlay(h) for h in all_hidden) if with_hidden else None,
            attentions=tuple(attentions) if with_attentions else None,
        )
        return output if _wants_dict(self.config, return_dict) else output.to_tuple()

    def _embed(self, input_ids: Tensor | None, inputs_embeds: Tensor | None) -> Tensor:
        if (input_ids is None) == (inputs_embeds is None):
            raise ConfigError(
                "RoFormerModel: give either input_ids or inputs_embeds, one of the two."
            )
        if inputs_embeds is not None:
            return inputs_embeds
        assert input_ids is not None
        if input_ids.ndim != 2:
            raise ShapeError(
                f"RoFormerModel: input_ids have shape {tuple(input_ids.shape)}; expected "
                "(batch, length). For one text add the batch axis: input_ids[None]."
            )
        words = self.embeddings.word_embeddings
        if (
            input_ids.device.type == "cpu"
            and input_ids.numel()
            and not torch.compiler.is_compiling()
        ):
            low, high = input_ids.aminmax()
            if low < 0 or high >= words.num_embeddings:
                raise ConfigError(
                    f"RoFormerModel: input_ids hold {int(low if low < 0 else high)}, but the "
                    f"vocabulary has {words.num_embeddings} tokens; was the text encoded with this "
                    "model's tokenizer?"
                )
        return words(input_ids)

    def _layout(
        self,
        attention_mask: Tensor | None,
        document_ids: Tensor | None,
        position_ids: Tensor | None,
        shape: tuple[int, int],
        device: torch.device,
    ) -> TokenLayout:
        kind = self.config._attn_implementation
        ready_made = attention_mask is not None and attention_mask.ndim == 4
        # Lengths would be constants of the compiled program, so a compiler gets rows and a mask.
        end_to_end = kind == "rotary_packed" or kind.startswith("flash")
        lay = (
            lay_end_to_end
            if end_to_end and not ready_made and not torch.compiler.is_compiling()
            else lay_in_rows
        )
        return lay(
            attention_mask,
            document_ids,
            position_ids,
            shape=shape,
            is_causal=self.config.is_decoder,
            device=device,
        )

    def _rotation(self, layout: TokenLayout, hidden: Tensor) -> Rotation | None:
        """The one rotation of this forward pass; as exact as the model itself."""
        if self.config.position_encoding != "rotary":
            return None
        dtype = torch.float64 if hidden.dtype == torch.float64 else torch.float32
        return self.rope(layout.positions.to(hidden.device), dtype=dtype)

    def _wants_attentions(self, asked: bool | None) -> bool:
        wanted = self.config.output_attentions if asked is None else asked
        if wanted and self.config._attn_implementation != "eager":
            raise ConfigError(
                "RoFormerModel: output_attentions needs attn_implementation='eager', which alone "
                f"forms the probabilities; this model has {self.config._attn_implementation!r}. "
                "Call model.set_attn_implementation('eager')."
            )
        return bool(wanted)


class RoFormerTransform(nn.Module):
    """Dense, activation and norm before the vocabulary."""

    def __init__(self, config: RoFormerConfig) -> None:
        super().__init__()
        assert config.embedding_size is not None
        self.dense = nn.Linear(config.hidden_size, config.embedding_size)
        self.activation = ACT2FN[config.hidden_act]
        self.LayerNorm = nn.LayerNorm(config.embedding_size, eps=config.layer_norm_eps)

    def forward(self, hidden: Tensor) -> Tensor:
        """Map to the width of the embeddings."""
        return self.LayerNorm(self.activation(self.dense(hidden)))


class RoFormerPredictions(nn.Module):
    """Logits over the vocabulary, by the token embedding and a bias."""

    def __init__(self, config: RoFormerConfig) -> None:
        super().__init__()
        assert config.embedding_size is not None
        self.transform = RoFormerTransform(config)
        self.decoder = nn.Linear(config.embedding_size, config.vocab_size)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))

    def forward(self, hidden: Tensor) -> Tensor:
        """Hidden states (..., hidden size) to logits (..., vocabulary)."""
        return self.decoder(self.transform(hidden))


class RoFormerLMHead(nn.Module):
    """The language-model head, under the name it has in checkpoints."""

    def __init__(self, config: RoFormerConfig) -> None:
        super().__init__()
        self.predictions = RoFormerPredictions(config)

    def forward(self, hidden: Tensor) -> Tensor:
        """Hidden states to logits."""
        return self.predictions(hidden)


class RoFormerForMaskedLM(RoFormerPreTrainedModel):
    """RoFormer with the masked-language-model head, its output layer tied to the embedding."""

    _tied_weights_keys = {  # noqa: RUF012 (transformers reads it from the class)
        "cls.predictions.decoder.weight": "roformer.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    }

    def __init__(self, config: RoFormerConfig) -> None:
        super().__init__(config)
        if config.is_decoder:
            raise ConfigError(
                "RoFormerForMaskedLM: config.is_decoder is True, but masked tokens are predicted "
                "from both sides; use is_decoder=False."
            )
        self.roformer = RoFormerModel(config)
        self.cls = RoFormerLMHead(config)
        self.post_init()

    def get_output_embeddings(self) -> nn.Module:
        """The layer that gives the logits."""
        return self.cls.predictions.decoder

    def set_output_embeddings(self, new_embeddings: nn.Linear) -> None:
        """Replace it, and its bias with it."""
        self.cls.predictions.decoder = new_embeddings
        self.cls.predictions.bias = new_embeddings.bias

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        document_ids: Tensor | None = None,
        labels: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> Any:
        """Predict tokens; see :meth:`RoFormerModel.forward` for the inputs.

        Args:
            input_ids: Tokens, (batch, length).
            attention_mask: 1 or True for real tokens.
            token_type_ids: Segments.
            position_ids: Integer positions.
            inputs_embeds: Embeddings instead of tokens.
            document_ids: Documents of packed rows.
            labels: The right tokens, (batch, length), -100 where none is asked for.
            num_items_in_batch: Divide the summed loss by this instead of by the number of labels;
                the Trainer gives it when it accumulates gradients.
            output_attentions: Return attention probabilities.
            output_hidden_states: Return the output of every layer.
            return_dict: Return an object with names or a tuple.

        Returns:
            ``loss`` when there are labels (0 where none is asked for) and ``logits``
            (batch, length, vocabulary). With ``config.sparse_logits`` and labels the logits are
            (labels, vocabulary), in the order of ``labels[labels != -100]``.
        """
        outputs = self.roformer(
            input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            document_ids=document_ids,
            output_attentions=output_attentions,
            output_hidden_states=output_hidden_states,
            return_dict=True,
        )
        hidden = outputs.last_hidden_state
        if labels is not None and tuple(labels.shape) != tuple(hidden.shape[:2]):
            raise ShapeError(
                f"RoFormerForMaskedLM: labels have shape {tuple(labels.shape)}; the tokens are "
                f"(batch, length) = {tuple(hidden.shape[:2])}, and they must have the same."
            )
        if labels is not None and self.config.sparse_logits:
            labelled = labels != -100
            hidden, labels = hidden[labelled], labels[labelled]
        logits = self.cls(hidden)
        loss = None
        if labels is not None:
            loss = token_loss(logits, labels, num_items_in_batch)
        output = MaskedLMOutput(
            loss=loss,
            logits=logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )
        return output if _wants_dict(self.config, return_dict) else output.to_tuple()


def token_loss(
    logits: Tensor, labels: Tensor, num_items_in_batch: Tensor | int | None = None
) -> Tensor:
    """Mean cross entropy over the labelled tokens, in float32 or wider; 0 where there are none."""
    logits = logits.flatten(0, -2)
    labels = labels.flatten().to(logits.device)
    if logits.dtype in (torch.float16, torch.bfloat16):
        logits = logits.float()
    total = cross_entropy(logits, labels, ignore_index=-100, reduction="sum")
    if num_items_in_batch is None:
        return total / (labels != -100).sum().clamp(min=1)
    if isinstance(num_items_in_batch, Tensor):
        num_items_in_batch = num_items_in_batch.to(total.device)
    return total / num_items_in_batch


def _wants_dict(config: RoFormerConfig, asked: bool | None) -> bool:
    return bool(config.return_dict if asked is None else asked)
