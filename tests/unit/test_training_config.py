"""Run configs: checked as a whole, read from TOML and written back, shipped with the package."""

import os
import re

import pytest

from rotary.errors import ConfigError
from rotary.training import run_file
from rotary.training.run_config import DataOptions, ModelOptions, RunConfig, Stage, TrainingOptions
from rotary.training.stages import StageTable


def shipped(name):
    config = run_file.build(run_file.parse_toml(*run_file.read_config_text(name)))
    config.check()
    return config


def test_the_paper_config_is_table_4():
    stages = [(stage.length, stage.batch, stage.steps) for stage in shipped("paper").stages]
    assert stages == [
        (512, 256, 200_000),
        (1536, 256, 12_500),
        (256, 256, 120_000),
        (128, 512, 80_000),
        (1536, 256, 10_000),
        (512, 512, 30_000),
    ]


def test_the_demo_has_stages_of_three_lengths_and_the_fast_attention():
    demo = shipped("demo")
    assert len({stage.length for stage in demo.stages}) >= 3
    assert demo.model.attention_probs_dropout_prob == 0


def test_the_performer_config_is_the_papers_and_its_pair_changes_position_alone():
    """Section 4.4: 12 layers, width 768, 12 heads, length 1024, batch 128, learning rate 1e-4."""
    performer, without = shipped("performer"), shipped("performer-none")
    model = performer.model
    sizes = (model.num_hidden_layers, model.hidden_size, model.num_attention_heads)
    assert sizes == (12, 768, 12)
    assert model.attention_form == "performer"
    assert (performer.objective, performer.tokenizer) == ("causal", "bytes")
    assert [(stage.length, stage.batch) for stage in performer.stages] == [(1024, 128)]
    assert performer.training.learning_rate == 1e-4
    one, two = run_file.flatten(performer), run_file.flatten(without)
    assert {key: (one[key], two[key]) for key in one if one[key] != two[key]} == {
        "model.position_encoding": ("rotary", "none")
    }


@pytest.mark.parametrize("name", run_file.shipped_configs())
def test_shipped_configs_say_command_cost_and_expected_number(name):
    text, _ = run_file.read_config_text(name)
    header = text.split("\n\nseed")[0]
    for word in ("Command:", "Cost:", "Expected:"):
        assert word in header


def test_a_config_survives_toml():
    config = RunConfig(
        training=TrainingOptions(learning_rate=1e-05, schedule="cosine", deterministic=False),
        data=DataOptions(text_field='a "quoted" \\ f\u00efeld \x7f'),
        stages=(Stage(64, 8, 10), Stage(128, 4, 5)),
        tokenizer="C:\\tokens",
        objective="causal",
        init="C:\\bert",
        seed=3,
    )
    record = {"command": "x", "versions": {"torch": "2"}}
    text = run_file.to_toml(config, record, header="Two\nlines")
    assert run_file.build(run_file.parse_toml(text, "run.toml")) == config


@pytest.mark.usefixtures("wrong_types")
def test_every_problem_is_named_at_once():
    config = RunConfig(
        seed=-1,
        objective="casual",
        training=TrainingOptions(learning_rate=0.0, warmup_steps=0),
        data=DataOptions(mask_fraction=1.0),
        stages=(Stage(64, 0, 10),),
    )
    with pytest.raises(ConfigError) as caught:
        config.check()
    assert str(caught.value) == (
        "data.mask_fraction is 1.0; it must be above 0 and below 1. "
        "training.learning_rate is 0.0; it must be above 0. "
        "seed is -1; it must be from 0 to 4294967295. "
        "stages[0].batch is 0; it must be at least 1. "
        "objective is 'casual'; accepted are 'masked', 'causal'. Did you mean 'causal'?"
    )


def test_seeds_and_workers_have_an_upper_end():
    """Nothing is started with them: NumPy takes no larger seed, and no machine more workers."""
    stages, most = (Stage(64, 8, 10),), 4 * os.cpu_count()
    training = TrainingOptions(workers=most, warmup_steps=0)
    RunConfig(stages=stages, seed=2**32 - 1, training=training).check()
    more = RunConfig(
        stages=stages, seed=2**32, training=TrainingOptions(workers=most + 1, warmup_steps=0)
    )
    with pytest.raises(ConfigError) as caught:
        more.check()
    assert str(caught.value) == (
        "seed is 4294967296; it must be from 0 to 4294967295. "
        f"training.workers is {most + 1}; it must be from 0 to {most} here."
    )


def test_wrong_stages_are_not_blamed_on_the_warm_up():
    stages = (Stage(64, 0, 10),)
    with pytest.raises(ConfigError, match=r"^stages\[0\].batch is 0; it must be at least 1\.$"):
        RunConfig(stages=stages, training=TrainingOptions(warmup_steps=1000)).check()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"model": ModelOptions(num_hidden_layers=0)}, "num_hidden_layers is 0; it must be at lea"),
        ({"data": DataOptions(validation_fraction=0.51)}, "0.51; it must be above 0 and at most 0"),
    ],
)
def test_a_run_that_could_hardly_learn_is_refused(changed, message):
    right = {"stages": (Stage(64, 1, 10),), "training": TrainingOptions(warmup_steps=0)}
    RunConfig(**right, data=DataOptions(validation_fraction=0.5)).check()
    with pytest.raises(ConfigError, match=re.escape(message)):
        RunConfig(**right, **changed).check()


def test_every_setting_has_a_help_text():
    import dataclasses

    from docstring_parser import parse

    for cls in (RunConfig, Stage, *run_file.SECTIONS.values()):
        described = {parameter.arg_name for parameter in parse(cls.__doc__).params}
        assert described == {field.name for field in dataclasses.fields(cls)}


def test_a_step_belongs_to_one_stage():
    table = StageTable([Stage(8, 1, 2), Stage(16, 1, 1), Stage(8, 1, 3)])
    assert [table.stage_of(step).number for step in range(6)] == [1, 1, 2, 3, 3, 3]
