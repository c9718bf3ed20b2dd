"""`rotary pretrain` as people type it: what it prints, and one line for whatever is wrong."""

import gzip
import json
from collections import namedtuple

import pytest
from safetensors import SafetensorError
from training_support import TINY, read_events, without_times, write_corpus

from rotary.cli.main import main


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("corpus") / "corpus.jsonl")


@pytest.fixture(scope="module")
def run(corpus, tmp_path_factory):
    """A finished run, and what it printed."""
    import contextlib
    import io

    folder = tmp_path_factory.mktemp("runs") / "run"
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(["pretrain", corpus, *TINY, "--output", str(folder)])
    assert code == 0, err.getvalue()
    return folder, out.getvalue(), err.getvalue()


def pretrain(*arguments):
    return main(["pretrain", *map(str, arguments)])


def error_of(capsys, *arguments):
    """The one line that a refused command leaves on standard error."""
    assert pretrain(*arguments) == 2
    captured = capsys.readouterr()
    lines = captured.err.splitlines()
    assert len(lines) == 1, captured.err
    assert lines[0].startswith("rotary pretrain: error: ")
    return lines[0].removeprefix("rotary pretrain: error: ")


# ---- A run


def test_the_folder_holds_what_the_next_step_needs(run):
    folder, _, _ = run
    names = {path.name for path in folder.iterdir()}
    assert names == {
        "model.safetensors",
        "config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "run.toml",
        "metrics.jsonl",
        "loss.png",
        "report.md",
        "checkpoints",
        ".lock",
    }
    assert (folder / "loss.png").read_bytes().startswith(b"\x89PNG")
    assert len(list((folder / "checkpoints").iterdir())) == 2
    assert json.loads((folder / "config.json").read_text())["sparse_logits"] is False


def test_it_prints_stages_table_baseline_and_sentences_and_nothing_else(run):
    _, out, err = run
    assert err == ""
    for piece in (
        " parameters (1 layers, width 16, 2 heads)",
        "stage 1/3 (16 x 4)  step 6/6  loss ",
        "validation at step 5  loss ",
        "validation at step 14  loss ",
        " tokens/s  took 0:0",
        "│     3 │     24 │     4 │     4 │",
        "validation        loss  ",
        "unigram baseline  loss  ",
        "the unigram baseline",
        "Sentences from the validation set",
        "rotary fill-mask ",
    ):
        assert piece in out
    assert "million parameters" not in out  # There are a few thousand.


def test_metrics_tell_the_whole_run(run):
    folder, _, _ = run
    events = read_events(folder)
    kinds = [event["event"] for event in events]
    assert kinds[-1] == "final"
    assert [event["step"] for event in events if event["event"] == "stage"] == [6, 10, 14]
    assert [event["step"] for event in events if event["event"] == "step"] == [
        2,
        4,
        6,
        8,
        10,
        12,
        14,
    ]
    assert [event["step"] for event in events if event["event"] == "evaluation"] == [5, 6, 10, 14]
    tokens = [event["tokens"] for event in events if event["event"] == "step"]
    assert tokens == sorted(tokens)
    assert tokens[-1] <= 6 * 64 + 4 * 64 + 4 * 96  # Padding is not counted.


def test_the_baseline_is_the_add_one_frequency_of_the_training_tokens(run, corpus):
    """Computed anew from the tokens and the validation masks."""
    import math

    from rotary.training.corpus import prepare, read_corpus
    from rotary.training.folder import RunFolder

    folder, _, _ = run
    config, _ = RunFolder(folder).read_run()
    made = prepare(read_corpus([corpus], "text"), config)
    counts = dict.fromkeys(range(len(made.tokenizer)), 1)
    held_out = {document.text for document in made.validation_documents}
    for document in read_corpus([corpus], "text"):
        if document.text not in held_out:
            for token in made.tokenizer(document.text, add_special_tokens=False)["input_ids"]:
                counts[token] += 1
    total = sum(counts.values())
    labels = [
        label
        for index in range(len(made.validation))
        for label in made.validation.batch(index)["labels"].flatten().tolist()
        if label != -100
    ]
    expected = -sum(math.log(counts[label] / total) for label in labels) / len(labels)
    assert read_events(folder)[-1]["unigram_loss"] == pytest.approx(expected, rel=1e-12)


def test_the_same_seed_gives_the_same_bits_and_another_seed_does_not(run, corpus, tmp_path, capsys):
    folder, _, _ = run
    assert pretrain(corpus, *TINY, "--output", tmp_path / "again") == 0
    assert pretrain(corpus, *TINY, "--output", tmp_path / "other", "--seed", 1) == 0
    same, other = read_events(tmp_path / "again"), read_events(tmp_path / "other")
    assert without_times(same) == without_times(read_events(folder))
    weights = (folder / "model.safetensors").read_bytes()
    assert (tmp_path / "again" / "model.safetensors").read_bytes() == weights
    assert other[-1]["validation_loss"] != same[-1]["validation_loss"]


def test_the_run_file_makes_the_same_run_again(run, corpus, tmp_path, capsys):
    folder, _, _ = run
    assert pretrain("--config", folder / "run.toml", "--show-config") == 0
    shown = capsys.readouterr().out
    assert shown.strip() in (folder / "run.toml").read_text()


def test_a_ready_tokenizer_is_used(run, corpus, tmp_path, capsys):
    folder, _, _ = run
    code = pretrain(
        corpus, *TINY, "--output", tmp_path / "run", "--tokenizer", folder, "--data.vocab_size", 99
    )
    assert code == 0
    before = (folder / "tokenizer.json").read_text()
    assert (tmp_path / "run" / "tokenizer.json").read_text() == before


def test_passes_share_a_step_without_changing_it(run, corpus, tmp_path, capsys):
    """Two forward passes of half a batch give the loss of one; dropout would draw differently."""
    losses = []
    for passes in (1, 2):
        options = ["--model.hidden_dropout_prob", 0, "--training.passes", passes]
        output = tmp_path / f"passes{passes}"
        assert pretrain(corpus, *TINY, *options, "--output", output) == 0
        losses.append([e["loss"] for e in read_events(output) if e["event"] == "step"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "objective", [[], ["--objective", "causal", "--tokenizer", "bytes"]], ids=["masked", "causal"]
)
def test_learned_positions_reach_validation_and_the_texts_at_the_end(corpus, tmp_path, objective):
    """All stages are shorter; the other encodings know no end."""
    options = ["--model.position_encoding", "learned", "--data.validation_length", 600]
    assert pretrain(corpus, *TINY, *options, *objective, "--output", tmp_path / "run") == 0
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["max_position_embeddings"] == 600
    options[-1] = 16
    assert pretrain(corpus, *TINY, *options, *objective, "--output", tmp_path / "short") == 0


def test_the_length_of_a_rotary_model_is_that_of_its_longest_stage(run):
    assert json.loads((run[0] / "config.json").read_text())["max_position_embeddings"] == 32


def test_steps_without_a_token_to_predict_have_no_line_and_the_run_ends(tmp_path, capsys):
    """A vocabulary so small that nearly all words are unknown, which is said."""
    lines = [{"text": f"number {n} of many words{'' if n % 5 else ' .'}"} for n in range(60)]
    corpus = tmp_path / "rare.jsonl"
    corpus.write_text("\n".join(map(json.dumps, lines)))
    stages = '[{"length":8,"batch":1,"steps":12},{"length":8,"batch":1,"steps":1}]'
    settings = [*TINY, "--data.vocab_size", 16, "--stages", stages, "--training.log_every", 1]
    assert pretrain(corpus, *settings, "--output", tmp_path / "run") == 0
    out = capsys.readouterr().out
    assert "97% of the tokens are unknown to the vocabulary, and nothing is learnt from them" in out
    assert "│     2 │      8 │     1 │     1 │     - │        - │" in out
    text = (tmp_path / "run" / "metrics.jsonl").read_text()
    assert "NaN" not in text  # Which is not JSON.
    events = [json.loads(line) for line in text.splitlines()]
    steps = [event["step"] for event in events if event["event"] == "step"]
    assert steps == [5, 8, 11]
    assert [event["loss"] for event in events if event["event"] == "stage"][1] is None


def test_a_corpus_with_a_vocabulary_of_its_own_has_no_note(run):
    assert "unknown to the vocabulary" not in run[1]


def test_the_command_to_try_is_one_line_whatever_the_text_is(corpus, tmp_path, capsys, monkeypatch):
    from rotary.training import pretraining

    outcome = pretraining.Outcome(None, 1, example="A title\n\nand its text")
    monkeypatch.setattr(pretraining, "pretrain", lambda *_, **__: outcome)
    arguments = ["--objective", "causal", "--output", "run"]
    assert pretrain(corpus, *TINY, *arguments) == 0
    assert "  rotary generate run 'A title and its text'\n" in capsys.readouterr().out


# ---- A folder that holds something


def test_a_run_is_not_replaced_by_accident_and_foreign_files_never(run, corpus, tmp_path, capsys):
    import shutil

    folder = tmp_path / "run"
    shutil.copytree(run[0], folder)
    (folder / "notes.txt").write_text("mine")
    (folder / "checkpoints" / "mine.txt").write_text("mine")
    before = (folder / "model.safetensors").read_bytes()
    message = error_of(capsys, corpus, *TINY, "--output", folder)
    assert message.endswith(
        "this folder already holds a run. Use --resume to go on with it, --overwrite to replace "
        "it, or another folder."
    )
    assert (folder / "model.safetensors").read_bytes() == before
    assert pretrain(corpus, *TINY, "--output", folder, "--overwrite", "--seed", 3) == 0
    assert (folder / "model.safetensors").read_bytes() != before
    assert (folder / "notes.txt").read_text() == "mine"
    assert (folder / "checkpoints" / "mine.txt").read_text() == "mine"


def test_a_model_that_no_run_wrote_is_left_alone(corpus, tmp_path, capsys):
    (tmp_path / "config.json").write_text("{}")
    message = error_of(capsys, corpus, *TINY, "--output", tmp_path, "--overwrite")
    assert "config.json there was not written by a run" in message
    assert (tmp_path / "config.json").read_text() == "{}"


def test_overwrite_loses_nothing_when_the_new_run_cannot_begin(run, tmp_path, capsys):
    before = {path: path.read_bytes() for path in run[0].rglob("*") if path.is_file()}
    small = write_corpus(tmp_path / "small.jsonl", documents=2)
    message = error_of(capsys, small, *TINY, "--output", run[0], "--overwrite")
    assert "the corpus is too small for one batch" in message
    assert {path: path.read_bytes() for path in run[0].rglob("*") if path.is_file()} == before


def test_resuming_a_finished_run_says_so(run, capsys):
    assert pretrain("--output", run[0], "--resume") == 0
    assert "this run is finished; nothing is left to do." in capsys.readouterr().out


def test_resume_refuses_other_settings_and_names_them(run, capsys):
    message = error_of(
        capsys, "--output", run[0], "--resume", "--seed", 5, "--training.learning_rate", 0.02
    )
    assert "training.learning_rate was 0.01 and is 0.02 now; seed was 0 and is 5 now" in message


def test_resume_takes_another_number_of_workers(run, capsys):
    assert pretrain("--output", run[0], "--resume", "--training.workers", 1) == 0
    assert "this run is finished" in capsys.readouterr().out


def test_resume_refuses_another_text(run, tmp_path, capsys):
    import shutil

    folder = tmp_path / "run"
    shutil.copytree(run[0], folder)
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    (folder / "metrics.jsonl").write_text("\n".join(lines[:-1]))
    other = write_corpus(tmp_path / "other.jsonl", documents=61)
    message = error_of(capsys, other, "--output", folder, "--resume")
    assert "the text is not the one that the run" in message


def test_resume_without_a_run_begins_none_and_names_those_nearby(run, corpus, tmp_path, capsys):
    near = run[0].parent / "rum"
    expected = "With TEXT, --resume also begins a run, in a folder that is absent or empty."
    message = error_of(capsys, "--output", near, "--resume")
    assert message == f"--resume: {near} holds no run. There is one in: {run[0]}. {expected}"
    assert not near.exists()
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "notes.doc").write_text("mine")
    message = error_of(capsys, corpus, *TINY, "--output", mine, "--resume")
    assert message == f"--resume: {mine} holds no run. {expected}"
    assert [path.name for path in mine.iterdir()] == ["notes.doc"]


@pytest.mark.parametrize("left", [None, ".writing-run.toml"])
def test_a_command_with_text_and_resume_can_be_repeated(run, corpus, tmp_path, capsys, left):
    """As a scheduler does, also after a kill while the run file was being written."""
    folder = tmp_path / "run"
    if left is not None:
        folder.mkdir()
        (folder / left).write_text("seed")
    for said in ("holds no run yet: starting from the beginning", "this run is finished"):
        assert pretrain(corpus, *TINY, "--output", folder, "--resume") == 0
        assert said in " ".join(capsys.readouterr().out.split())
    weights = (run[0] / "model.safetensors").read_bytes()
    assert (folder / "model.safetensors").read_bytes() == weights


# ---- What is wrong with the input


def test_the_output_is_a_file(corpus, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    message = error_of(capsys, corpus, *TINY, "--output", tmp_path / "file")
    assert message == f"--output {tmp_path / 'file'}: this is a file; give a folder."
    message = error_of(capsys, corpus, *TINY, "--output", tmp_path / "file" / "run")
    assert f"{tmp_path / 'file'} is a file; give a folder." in message


def test_a_folder_that_takes_no_files_is_named_with_the_reason(
    corpus, tmp_path, capsys, monkeypatch
):
    """As /proc does, which says of every new file that there is no such file."""

    def refuse(dir):
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    message = error_of(capsys, corpus, *TINY, "--output", tmp_path / "run")
    assert message == (
        f"--output {tmp_path / 'run'}: cannot write to {tmp_path}: it takes no new files."
    )


@pytest.mark.parametrize("output", [".", "fiction"])
def test_a_run_does_not_begin_among_its_text(tmp_path, capsys, monkeypatch, output):
    """What lies beside the run would not be read again when it is resumed."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fiction").mkdir()
    write_corpus(tmp_path / "fiction" / "corpus.jsonl")
    message = error_of(capsys, ".", *TINY, "--output", output)
    assert message.startswith(f"--output {output}: this folder holds text that is to be trained on")
    assert not list(tmp_path.rglob("run.toml"))


TEXTS = {
    "missing": (None, "no such file or folder"),
    "empty": (("a.txt", b" \n"), "the corpus is empty"),
    "latin-1": (("a.txt", b"caf\xe9 and more"), "not UTF-8 at byte 3"),
    "broken line": (("a.jsonl", b'{"text": "a"}\n{"text": \n'), "a.jsonl:2: broken JSON"),
    "no field": (("a.jsonl", b'{"txt": "a"}\n'), "there is no field 'text'"),
    "small": (("a.txt", b"One line here.\nAnother line there.\n"), "too small for one batch"),
    "gzip": (("a.txt.gz", gzip.compress(b"x" * 99)[:-9]), "truncated or damaged"),
}


@pytest.mark.parametrize("case", TEXTS)
def test_bad_text_is_one_line_and_writes_nothing(case, tmp_path, capsys):
    file, expected = TEXTS[case]
    path = tmp_path / (file[0] if file else "nothing.txt")
    if file:
        path.write_bytes(file[1])
    output = tmp_path / "run"
    message = error_of(capsys, path, *TINY, "--output", output)
    assert expected in message
    assert path.name in message or case == "small"
    assert not output.exists()


SETTINGS = {
    "--modle.hidden_size 3": "there is no option --modle.hidden_size. Did you mean "
    "'--model.hidden_size'?",
    "--sead 3": "there is no option --sead. Did you mean '--seed'?",
    "--model.hidden_size abc": "model.hidden_size is 'abc'; it must be a whole number.",
    "--training.schedule linaer": "training.schedule is 'linaer'; accepted are 'constant', "
    "'linear', 'cosine'. Did you mean 'linear'?",
    "--objective casual": "objective is 'casual'; accepted are 'masked', 'causal'. Did you mean "
    "'causal'?",
    "--seed -1": "seed is -1; it must be from 0 to 4294967295.",
    "--seed 4294967296": "seed is 4294967296; it must be from 0 to 4294967295.",
    "caf\udce9": "the argument 'caf\\udce9' is not UTF-8.",
    "--stages []": "stages is empty; give at least one {length, batch, steps}.",
    "--stages [{length:3}]": "stages: expected a list of stages with three whole numbers each, "
    'such as [{"length":64,"batch":64,"steps":100}].',
    "--training.warmup_steps 99999": "training.warmup_steps is 99999, but all stages together",
    "--model.num_attention_heads 5": "hidden_size",
    "--config nowhere.toml": "--config: there is no file 'nowhere.toml'. Shipped configs, taken "
    "by name, are: demo, paper, performer, performer-none.",
    "--config papr": "Did you mean 'paper'?",
    "--resume --overwrite": "--resume and --overwrite exclude each other",
    "--training.passes 3": "it must share out evenly over 1 processes x 3 passes, for instance",
    "--tokenizer nowhere": "nowhere: no such folder",
    "--output": "argument --output: expected one argument.",
}


@pytest.mark.parametrize("arguments", SETTINGS)
def test_wrong_settings_are_one_line(arguments, tmp_path, capsys):
    output = [] if arguments == "--output" else ["--output", tmp_path / "run"]
    assert SETTINGS[arguments] in error_of(capsys, *output, *arguments.split())
    assert not (tmp_path / "run").exists()


FILES = {
    "[model]\nhiden_size = 3\n": "unknown key 'model.hiden_size'. "
    "Did you mean 'model.hidden_size'?",
    "[modle]\nhidden_size = 3\n": "unknown key 'modle'. Did you mean 'model'?",
    "[model]\nhidden_size = 'big'\n": "model.hidden_size is 'big'; it must be a whole number.",
    "[model\n": "not valid TOML: ",
    "model = 3\n": "model is a section; write [model] and its keys below it.",
    "[[stages]]\nlenght = 3\n": "stages[0]: unknown key 'lenght'. Did you mean 'length'?",
    "seed = 0\n": "stages is empty",
}


@pytest.mark.parametrize("text", FILES)
def test_wrong_config_files_are_one_line(text, tmp_path, capsys):
    path = tmp_path / "run.toml"
    path.write_text(text)
    message = error_of(capsys, "--config", path, "--output", tmp_path / "run")
    assert FILES[text] in message
    if "valid" in message:
        assert "line 1" in message


def test_a_loss_that_is_not_a_number_is_said_with_the_step(corpus, tmp_path, capsys):
    settings = [*TINY, "--training.learning_rate", "1e30", "--training.max_grad_norm", "0"]
    message = error_of(capsys, corpus, *settings, "--output", tmp_path / "run")
    assert message.startswith("the loss is nan at step ")
    assert "Try a lower training.learning_rate" in message


def test_a_validation_loss_that_is_not_a_number_is_said_too(corpus, tmp_path, capsys, monkeypatch):
    """The weights may be spoiled by the very step that is validated."""
    import dataclasses

    from rotary.training.task import LanguageModeling

    whole = LanguageModeling.measure

    def spoiled(self, model, batch):
        measured = whole(self, model, batch)
        factor = 1.0 if model.training else float("nan")
        return dataclasses.replace(measured, loss=measured.loss * factor)

    monkeypatch.setattr(LanguageModeling, "measure", spoiled)
    message = error_of(capsys, corpus, *TINY, "--output", tmp_path / "run")
    assert message.startswith("the loss is nan at step 5. Try a lower training.learning_rate")


def test_help_lists_every_setting(capsys):
    from rotary.training.run_file import config_keys

    with pytest.raises(SystemExit) as stopped:
        pretrain("--help")
    assert stopped.value.code == 0
    out = capsys.readouterr().out
    for key in config_keys():
        assert f"--{key} " in out


def test_stages_are_given_on_the_command_line(capsys):
    assert pretrain(*TINY, "--show-config") == 0
    assert capsys.readouterr().out.count("[[stages]]") == 3


def test_a_full_disk_says_where_to_go_on(corpus, tmp_path, capsys, monkeypatch):
    import errno

    from rotary.training import checkpoints

    def full(staging, target):
        raise OSError(errno.ENOSPC, "No space left on device", str(target))

    monkeypatch.setattr(checkpoints, "publish", full)
    message = error_of(capsys, corpus, *TINY, "--output", tmp_path / "run")
    assert "step-000000003: no space left on device. Make room, then go on" in message


FULL = {
    "safetensors": (
        "transformers.modeling_utils.safe_save_file",
        SafetensorError("Error while serializing: No space left on device (os error 28)"),
    ),
    "torch": (
        "torch.save",
        RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 64 vs 0"),
    ),
    "tokenizers": (
        "transformers.PreTrainedTokenizerFast.save_pretrained",
        Exception("No space left on device (os error 28)"),
    ),
}


@pytest.mark.parametrize("library", FULL)
def test_a_full_disk_is_one_whichever_library_finds_it(
    library, corpus, tmp_path, capsys, monkeypatch
):
    place, error = FULL[library]

    def full(*args, **kwargs):
        raise error

    monkeypatch.setattr(place, full)
    if library == "torch":  # It does not say so; then the disk is asked.
        with pytest.raises(RuntimeError, match="unexpected pos"):
            pretrain(corpus, *TINY, "--output", tmp_path / "roomy")
        capsys.readouterr()
        monkeypatch.setattr("shutil.disk_usage", lambda path: namedtuple("Usage", "free")(0))
    output = tmp_path / "run"
    message = error_of(capsys, corpus, *TINY, "--output", output)
    assert message == (
        f"{output}: no space left on device. Make room, then go on from the last whole checkpoint "
        f"with: rotary pretrain --output {output} --resume"
    )


def test_a_full_disk_at_the_final_weights_is_said_too(corpus, tmp_path, capsys, monkeypatch):
    from transformers import modeling_utils

    whole = modeling_utils.safe_save_file

    def full(tensors, path, **kwargs):
        if "writing-model" in str(path):
            raise FULL["safetensors"][1]
        whole(tensors, path, **kwargs)

    monkeypatch.setattr(modeling_utils, "safe_save_file", full)
    message = error_of(capsys, corpus, *TINY, "--output", tmp_path / "run")
    assert message.startswith(f"{tmp_path / 'run'}: no space left on device.")


@pytest.mark.usefixtures("wrong_types")
def test_a_run_file_that_was_edited_wrongly_is_named(run, tmp_path, capsys):
    folder = tmp_path / "run"
    folder.mkdir()
    text = (run[0] / "run.toml").read_text()
    (folder / "run.toml").write_text(text.replace("hidden_size = 16", 'hidden_size = "wide"'))
    message = error_of(capsys, "--output", folder, "--resume")
    assert message.startswith(str(folder / "run.toml"))
    assert message.endswith("model.hidden_size is 'wide'; it must be a whole number.")


def test_a_run_file_without_its_record_is_named(run, tmp_path, capsys):
    text = (run[0] / "run.toml").read_text().split("[record]")[0]
    (tmp_path / "run.toml").write_text(text)
    message = error_of(capsys, "--output", tmp_path, "--resume")
    assert message == f"{tmp_path / 'run.toml'}: this is no run's file: it has no table [record]."
