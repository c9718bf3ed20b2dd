"""The run config: what a run is made of, as typed values that a file or a command line fills.

The sections are plain frozen dataclasses. Their docstrings are the help of ``rotary pretrain``,
their field names its keys. :meth:`RunConfig.check` lists every problem at once.
"""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from rotary.errors import ConfigError, one_of

ObjectiveName = Literal["masked", "causal"]
Schedule = Literal["constant", "linear", "cosine"]
Precision = Literal["float32", "bfloat16"]


@dataclass(frozen=True)
class Stage:
    """One stage of training: rows of one length for a number of steps.

    Attributes:
        length: Tokens in a row.
        batch: Rows in a step, over all devices.
        steps: Steps of the optimiser.
    """

    length: int
    batch: int
    steps: int


@dataclass(frozen=True)
class ModelOptions:
    """The model: a RoFormer, with the names that its config.json has.

    Attributes:
        hidden_size: Width of the model.
        embedding_size: Width of the token embedding; the width of the model if not given.
        num_hidden_layers: Layers.
        num_attention_heads: Heads, which divide the width into even head sizes.
        intermediate_size: Width inside the feed-forward layers.
        hidden_act: Activation of the feed-forward layers.
        hidden_dropout_prob: Dropout of embeddings and layer outputs.
        attention_probs_dropout_prob: Dropout of attention; 0 keeps the fast path on CPUs.
        initializer_range: Standard deviation of the initial weights.
        type_vocab_size: Segment types (0 removes the segment embedding).
        layer_norm_eps: Epsilon of the layer norms.
        position_encoding: How positions enter: rotary, none, or another that the model has.
        attention_form: How tokens attend: softmax, or numerator, cosine, performer (linear cost).
        num_features: Random features of a head, for performer; from the head's size if not given.
        redraw_interval: Steps between two draws of these features (0: never drawn anew).
        feature_seed: Seed of the draws.
        norm_position: Norms after each sub-layer is added (post, the paper) or before it (pre).
        rotary_layout: Which channels turn together: interleaved or half.
    """

    hidden_size: int = 768
    embedding_size: int | None = None
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = "gelu"
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    initializer_range: float = 0.02
    type_vocab_size: int = 2
    layer_norm_eps: float = 1e-12
    position_encoding: str = "rotary"
    attention_form: str = "softmax"
    num_features: int | None = None
    redraw_interval: int = 1000
    feature_seed: int = 0
    norm_position: str = "post"
    rotary_layout: str = "interleaved"


@dataclass(frozen=True)
class DataOptions:
    """The data: vocabulary, split and masking.

    Attributes:
        vocab_size: Entries of the WordPiece vocabulary trained on the training documents.
        text_field: The field of a JSONL line that holds the text.
        validation_fraction: Share of the documents kept for validation.
        validation_length: Tokens in a validation row.
        mask_fraction: Share of the tokens to predict (80 % of them masked, 10 % replaced); causal
            language modelling predicts them all.
    """

    vocab_size: int = 8192
    text_field: str = "text"
    validation_fraction: float = 0.05
    validation_length: int = 512
    mask_fraction: float = 0.15


@dataclass(frozen=True)
class TrainingOptions:
    """The optimiser (AdamW), its one schedule over all stages, and the keeping of the run.

    Attributes:
        learning_rate: The highest learning rate.
        schedule: What follows the warm-up: constant, or a fall to zero, linear or as a cosine.
        warmup_steps: Steps in which the learning rate rises from zero.
        weight_decay: Decay of all weights but biases and norms.
        adam_beta1: Decay of the mean of the gradients.
        adam_beta2: Decay of the mean of their squares.
        adam_epsilon: Added to the root of that mean.
        max_grad_norm: Gradients are scaled down to this norm (0: never).
        precision: Type of the matrix products; weights and optimiser stay float32.
        passes: Forward passes that share the rows of a step on each device, to save memory.
        evaluate_every: Steps between looks at the validation rows (0: at the end of a stage only).
        checkpoint_every: Steps between checkpoints (0: at the end of a stage only).
        keep_checkpoints: How many checkpoints are kept.
        log_every: Steps averaged in a line of metrics.jsonl.
        workers: Processes that prepare batches (0: the training process itself), at most four for
            each CPU; a resumed run may have others.
        deterministic: Only algorithms that give the same bits each time; a run is then repeatable.
    """

    learning_rate: float = 1e-4
    schedule: Schedule = "linear"
    warmup_steps: int = 1000
    weight_decay: float = 0.01
    adam_beta1: float = 0.9
    adam_beta2: float = 0.999
    adam_epsilon: float = 1e-6
    max_grad_norm: float = 1.0
    precision: Precision = "float32"
    passes: int = 1
    evaluate_every: int = 0
    checkpoint_every: int = 1000
    keep_checkpoints: int = 2
    log_every: int = 10
    workers: int = 0
    deterministic: bool = True


@dataclass(frozen=True)
class RunConfig:
    """All that a run is made of besides its text.

    Attributes:
        model: The model.
        data: Vocabulary, split and masking.
        training: The optimiser and the keeping of the run.
        stages: The stages, in order.
        seed: Everything that is drawn is drawn from this number.
        objective: What is predicted: masked tokens, or each next one (causal).
        tokenizer: Folder of a ready tokenizer, or bytes; one is trained if not given.
        init: Folder of a BERT, WoBERT or RoFormer to start from; its absolute positions are left
            out, its tokenizer and (without a config) its sizes are taken.
    """

    model: ModelOptions = field(default_factory=ModelOptions)
    data: DataOptions = field(default_factory=DataOptions)
    training: TrainingOptions = field(default_factory=TrainingOptions)
    stages: tuple[Stage, ...] = ()
    seed: int = 0
    objective: ObjectiveName = "masked"
    tokenizer: str | None = None
    init: str | None = None

    @property
    def total_steps(self) -> int:
        """Steps of all stages together."""
        return sum(stage.steps for stage in self.stages)

    def check(self) -> None:
        """Refuse values that cannot be right; the model's own config checks those of ``model``.

        Raises:
            ConfigError: Once, with every problem.

        Example:
            >>> RunConfig(stages=(Stage(length=64, batch=0, steps=2000),)).check()
            Traceback (most recent call last):
            ...
            rotary.errors.ConfigError: stages[0].batch is 0; it must be at least 1.
        """
        problems = [*_range_problems(self), *_stage_problems(self)]
        if self.objective not in get_args(ObjectiveName):
            problems.append(one_of("objective", self.objective, get_args(ObjectiveName)))
        if problems:
            raise ConfigError(" ".join(problems))

    def as_dict(self) -> dict[str, Any]:
        """The config as plain values, in the order of the fields."""
        values = dataclasses.asdict(self)
        values["stages"] = [dict(stage) for stage in values["stages"]]
        return values


SECTIONS: dict[str, type[Any]] = {
    "model": ModelOptions,
    "data": DataOptions,
    "training": TrainingOptions,
}

# The least and the greatest value that a key may have, and whether the ends belong to it.
_AT_LEAST_ONE = (
    "model.num_hidden_layers",
    "data.validation_length",
    "training.passes",
    "training.keep_checkpoints",
    "training.log_every",
)
_AT_LEAST_ZERO = (
    "training.warmup_steps",
    "training.weight_decay",
    "training.max_grad_norm",
    "training.evaluate_every",
    "training.checkpoint_every",
)
_FRACTIONS = (
    "training.adam_beta1",
    "training.adam_beta2",
)
_POSITIVE = ("training.learning_rate", "training.adam_epsilon")


def _value(config: RunConfig, key: str) -> Any:
    value: Any = config
    for name in key.split("."):
        value = getattr(value, name)
    return value


def _range_problems(config: RunConfig) -> list[str]:
    most = 4 * (os.cpu_count() or 1)  # More would only take memory from each other.
    rules: list[tuple[tuple[str, ...], Any, str]] = [
        (_AT_LEAST_ONE, lambda value: value >= 1, "at least 1"),
        (_AT_LEAST_ZERO, lambda value: value >= 0, "0 or more"),
        (_FRACTIONS, lambda value: 0 <= value < 1, "at least 0 and below 1"),
        (("data.validation_fraction",), lambda x: 0 < x <= 0.5, "above 0 and at most 0.5"),
        (("data.mask_fraction",), lambda value: 0 < value < 1, "above 0 and below 1"),
        (_POSITIVE, lambda value: value > 0, "above 0"),
        (("data.vocab_size",), lambda value: value >= 16, "at least 16"),
        # NumPy's generator, which the Trainer seeds too, takes no more.
        (("seed",), lambda value: 0 <= value < 2**32, "from 0 to 4294967295"),
        (("training.workers",), lambda value: 0 <= value <= most, f"from 0 to {most} here"),
    ]
    return [
        f"{key} is {_value(config, key)!r}; it must be {accepted}."
        for keys, holds, accepted in rules
        for key in keys
        if not holds(_value(config, key))
    ]


def _stage_problems(config: RunConfig) -> list[str]:
    if not config.stages:
        return ["stages is empty; give at least one {length, batch, steps}."]
    problems = [
        f"stages[{index}].{name} is {value}; it must be at least {least}."
        for index, stage in enumerate(config.stages)
        for name, value, least in (
            ("length", stage.length, 8),
            ("batch", stage.batch, 1),
            ("steps", stage.steps, 1),
        )
        if value < least
    ]
    if problems:  # The sum of wrong steps says nothing.
        return problems
    if config.training.warmup_steps > config.total_steps > 0:
        problems.append(
            f"training.warmup_steps is {config.training.warmup_steps}, but all stages together "
            f"have {config.total_steps} steps."
        )
    return problems
