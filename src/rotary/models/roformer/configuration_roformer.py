"""The configuration of a RoFormer: checked as a whole, all problems named at once."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedConfig

from rotary.attention.performer import default_num_features
from rotary.frequencies import Frequencies, LengthSchedule, XPos
from rotary.kernels.contract import Layout
from rotary.models.roformer.configuration_checks import check_config, misspelt
from rotary.models.roformer.position_values import (
    LEARNED_TYPE,
    frequencies_of,
    is_plain_rotary,
)

STOCK_ARCHITECTURES = (
    "RoFormerModel",
    "RoFormerForMaskedLM",
    "RoFormerForCausalLM",
    "RoFormerForSequenceClassification",
    "RoFormerForTokenClassification",
    "RoFormerForQuestionAnswering",
)
"""Heads that stock RoFormer computes equally; its multiple choice reads the last padding."""

_REFUSED_BY_STOCK = "add_cross_attention"
"""A field that is always False here and that stock insists on being a truth value. A text in its
place makes ``transformers.RoFormerModel.from_pretrained`` stop and show that text; a model type it
does not know it would only warn about, and leave the weights it does not find at random."""


_OLD_ROPE_NAMES = {"rope_theta", "rope_scaling", "partial_rotary_factor"}
"""What stood beside, or in place of, ``rope_parameters``; transformers moves it there."""


class RoFormerConfig(PreTrainedConfig):
    """Describe a RoFormer; the defaults are the released base model for Chinese.

    That is [junnyu/roformer_chinese_base](https://huggingface.co/junnyu/roformer_chinese_base).
    The file it writes names the model type ``roformer`` where transformers' own RoFormer computes
    the same, and ``rotary_roformer`` everywhere else, so that no model is loaded half at random.

    Args:
        vocab_size: Number of tokens.
        embedding_size: Width of the embeddings; ``hidden_size`` when None, and mapped to it by a
            linear layer where it differs.
        hidden_size: Width of the model.
        num_hidden_layers: Number of layers.
        num_attention_heads: Number of heads; their size is ``hidden_size / num_attention_heads``.
        intermediate_size: Width of the feed-forward layers.
        hidden_act: Activation of the feed-forward layers and the head, by transformers' name;
            ``"gelu"`` is the exact form with erf.
        hidden_dropout_prob: Dropout of embeddings and of what each sub-layer adds.
        attention_probs_dropout_prob: Dropout of attention probabilities. 0 keeps the CPU's fast
            attention kernel in training.
        max_position_embeddings: The length the model was trained for. Not a limit, except for
            ``position_encoding="learned"``, which has that many vectors.
        type_vocab_size: Number of segments; 0 leaves the segment embedding out.
        initializer_range: Standard deviation of the truncated normal (cut at two of it) that
            weights and embeddings start from; None takes ``1 / sqrt(width * layers)``
            (RoFormer-V2).
        layer_norm_eps: Added to variances; 1e-12 is what the released weights were trained with.
        pad_token_id: The token of padding; it is never attended to only by ``attention_mask``.
        rotary_value: Rotate the values too (the small ELECTRA models).
        use_cache: Return the keys and values of a decoder for the next step, or, with linear
            attention, its state.
        is_decoder: Let a token see only what came before it.
        position_encoding: How positions enter: ``"rotary"``; ``"learned"`` or ``"sinusoidal"``
            vectors added to the input; ``"shaw"``, ``"nezha"``, ``"t5"`` or ``"alibi"`` in the
            attention, where they need softmax and time and memory quadratic in the length of a
            document; or ``"none"``.
        attention_form: ``"softmax"``, or one whose cost is linear in the length:
            ``"numerator"`` (features ``elu(x) + 1``, turned in the numerator only: the first post),
            ``"cosine"`` (weights ``1 + cos``) or ``"performer"`` (FAVOR+, features turned as in the
            paper's eq. 19). All four have the same weights, so a softmax checkpoint can be loaded
            as any of them and trained on. A linear form has no probabilities, so
            ``attention_probs_dropout_prob`` plays no part in it.
        num_features: Random features of a head, for ``"performer"``; about
            ``head_dim * ln(head_dim)`` when None.
        redraw_interval: Training steps between two draws of these features; None never redraws.
            See :meth:`RoFormerPreTrainedModel.set_training_step`.
        feature_seed: Seed of the draws; every layer has its own from it.
        norm_type: ``"layer_norm"``, or ``"rms_norm"``, which has no weights (RoFormer-V2).
        norm_position: Normalise after each sub-layer is added (``"post"``, the paper) or before
            each sub-layer (``"pre"``, with one more norm at the end).
        rotary_layout: Which channels form a plane: ``"interleaved"`` or ``"half"``.
        nope_layers: Indices of layers that do not rotate.
        use_bias: Give the linear layers a bias; RoFormer-V2 has none.
        lm_head: ``"transform"`` puts a dense layer, an activation and a norm before the
            vocabulary and a bias behind it; ``"direct"`` multiplies by the embedding alone
            (RoFormer-V2). None takes the first with ``use_bias``, the second without.
        pooler_activation: Put a dense layer on the first token, with ``"tanh"`` or ``"linear"``
            (RoFormer-Sim); None has no such layer.
        pooling: What stands for a text in heads that need one vector: its ``"first"`` token or the
            ``"mean"`` of all.
        is_prefix_lm: In a decoder, let the tokens of segment 0 see each other whatever their order
            (UniLM, RoFormer-Sim); what is generated is segment 1.
        sparse_logits: In training a language model, compute logits only where there is a label;
            the loss is the same. Evaluation has all logits, unless its call asks otherwise.
        rope_parameters: Schedule of the frequencies in transformers' spelling, for instance
            ``{"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}``, with
            ``partial_rotary_factor`` where only a part of a head turns. None is RoFormer's base,
            10000. Where they depend on the length, that of a document is its last position and
            one; in generation it stays what it was when the text was first read.
        rotary_parameters: Frequencies that transformers has no words for, as the recipe that
            :func:`rotary.frequencies.from_recipe` reads. Those of type ``"mixed"`` are
            learned, for each layer and head its own, and start from its ``seed``.
        bos_token_id: Token that starts a generated text.
        eos_token_id: Token, or tokens, that end it.
        add_cross_attention: Not built; only False.
        tie_word_embeddings: Share the token embedding with the output layer.

    Raises:
        ConfigError: With every problem found, one a line.

    Example:
        >>> RoFormerConfig(hidden_size=384, num_hidden_layers=6, num_attention_heads=6).model_type
        'roformer'
    """

    model_type = "roformer"
    # transformers lets its dataclasses take any keyword; a run-time checker would forbid that.
    __no_type_check__ = True

    vocab_size: int = 50000
    embedding_size: int | None = None
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = "gelu"
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    max_position_embeddings: int = 1536
    type_vocab_size: int = 2
    initializer_range: float | None = 0.02
    layer_norm_eps: float = 1e-12
    pad_token_id: int | None = 0
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    rotary_value: bool = False
    use_cache: bool = True
    is_decoder: bool = False
    add_cross_attention: bool = False
    tie_word_embeddings: bool = True
    position_encoding: str = "rotary"
    attention_form: str = "softmax"
    num_features: int | None = None
    redraw_interval: int | None = 1000
    feature_seed: int = 0
    norm_type: str = "layer_norm"
    norm_position: str = "post"
    rotary_layout: Layout = "interleaved"
    nope_layers: list[int] | tuple[int, ...] = ()
    use_bias: bool = True
    lm_head: str | None = None
    pooler_activation: str | None = None
    pooling: str = "first"
    is_prefix_lm: bool = False
    sparse_logits: bool = False
    rope_parameters: dict[str, Any] | None = None
    rotary_parameters: dict[str, Any] | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        """Fill in what follows from other values, then check everything."""
        problems = list(misspelt(kwargs, self.default_config_fields()))
        if self.embedding_size is None:
            self.embedding_size = self.hidden_size
        if self.lm_head is None:
            self.lm_head = "transform" if self.use_bias else "direct"
        self.nope_layers = list(self.nope_layers)
        # transformers fills `rope_parameters` in; left out, it stays out, and the file is stock.
        given, legacy = self.rope_parameters, _OLD_ROPE_NAMES & kwargs.keys()
        super().__post_init__(**kwargs)
        if given is None and not legacy:
            self.rope_parameters = None
        check_config(self, problems)
        if self.attention_form == "performer" and self.num_features is None:
            self.num_features = default_num_features(self.head_dim)

    @property
    def head_dim(self) -> int:
        """Channels of one head."""
        return self.hidden_size // self.num_attention_heads

    @property
    def is_linear(self) -> bool:
        """Whether attention costs the same for every token, however long the text."""
        return self.attention_form != "softmax"

    @property
    def rotary_dim(self) -> int:
        """Channels that turn: those of a head, or the random features of one."""
        if self.attention_form == "performer":
            return self.num_features or default_num_features(self.head_dim)
        return self.head_dim

    @property
    def has_learned_frequencies(self) -> bool:
        """Whether the frequencies are learned, each layer its own."""
        return (self.rotary_parameters or {}).get("type") == LEARNED_TYPE

    def layer_frequencies(self) -> list[Frequencies | LengthSchedule | XPos | None]:
        """The frequencies of each layer; None for one that does not rotate."""
        layers = range(self.num_hidden_layers)
        if self.position_encoding != "rotary":
            return [None for _ in layers]
        if self.has_learned_frequencies:
            made = [frequencies_of(self, layer) for layer in layers]
        else:
            made = [frequencies_of(self, 0)] * len(layers)
        return [None if layer in self.nope_layers else made[layer] for layer in layers]

    def differences_from_stock(self) -> list[str]:
        """Name the values that transformers' own RoFormer would not compute equally."""
        stock = {
            "position_encoding": "rotary",
            "attention_form": "softmax",
            "norm_type": "layer_norm",
            "norm_position": "post",
            "rotary_layout": "interleaved",
            "nope_layers": [],
            "use_bias": True,
            "lm_head": "transform",
            "pooler_activation": None,
            "pooling": "first",
            "is_prefix_lm": False,
        }
        different = [name for name, value in stock.items() if getattr(self, name) != value]
        if self.position_encoding == "rotary" and not is_plain_rotary(self):
            name = "rotary_parameters" if self.rotary_parameters else "rope_parameters"
            different.append(name)
        if self.type_vocab_size == 0:
            different.append("type_vocab_size")
        if self.initializer_range is None:
            different.append("initializer_range")
        if set(self.architectures or ()) - set(STOCK_ARCHITECTURES):
            different.append("architectures")
        return different

    def to_dict(self) -> dict[str, Any]:
        """All values; the model type is the one that they need."""
        values: dict[str, Any] = super().to_dict()
        values["model_type"] = "rotary_roformer" if self.differences_from_stock() else "roformer"
        return values

    def to_diff_dict(self) -> dict[str, Any]:
        """What the file holds; one that stock would compute wrongly has a field stock refuses."""
        values: dict[str, Any] = super().to_diff_dict()
        if values["model_type"] == "rotary_roformer":
            values[_REFUSED_BY_STOCK] = (
                "This is a rotary_roformer: load it with rotary.models, stock would compute "
                f"something else ({', '.join(self.differences_from_stock())})."
            )
        return values

    @classmethod
    def get_config_dict(cls, *args: Any, **kwargs: Any) -> Any:
        """What the file holds; either model type is right here, so none is warned about."""
        values, unused = super().get_config_dict(*args, **kwargs)
        return _as_type(values, cls.model_type), unused

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """Read either model type; see :class:`transformers.PreTrainedConfig`."""
        # transformers would set what is given beside the file afterwards, unchecked.
        known = RoFormerConfig.__annotations__.keys() | _OLD_ROPE_NAMES
        own = {name: kwargs.pop(name) for name in known & kwargs.keys()}
        values = {**_as_type(config_dict, cls.model_type), **own}
        return super().from_dict(values, **kwargs)


class RotaryRoFormerConfig(RoFormerConfig):
    """A :class:`RoFormerConfig` whose file says ``rotary_roformer``: stock code cannot load it."""

    model_type = "rotary_roformer"


def _as_type(values: dict[str, Any], model_type: str) -> dict[str, Any]:
    """The values of a file of either type as those of one."""
    if values.get("model_type") not in ("roformer", "rotary_roformer"):
        return values
    values = {**values, "model_type": model_type}
    if isinstance(values.get(_REFUSED_BY_STOCK), str):
        del values[_REFUSED_BY_STOCK]
    return values
