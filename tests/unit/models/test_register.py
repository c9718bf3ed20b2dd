"""The Auto classes, the two model types, and scripts written for Hugging Face models."""

import subprocess
import sys

import pytest
import torch
import transformers
from tiny_tokenizer import save_tokenizer

from rotary.cli.main import main
from rotary.models import RoFormerForCausalLM, RoFormerForMaskedLM

SCRIPT = """
import sys
import torch, transformers
from transformers import AutoConfig, AutoModelForMaskedLM, AutoModelForSequenceClassification
from transformers import AutoTokenizer, Trainer, TrainingArguments, pipeline

stock, ours, output = sys.argv[1:]
for folder, kind in ((stock, "roformer"), (ours, "rotary_roformer")):
    assert AutoConfig.from_pretrained(folder).model_type == kind
    model = AutoModelForMaskedLM.from_pretrained(folder)
    assert type(model).__module__.startswith("rotary.models"), type(model)
tokenizer = AutoTokenizer.from_pretrained(ours)
fill = pipeline("fill-mask", model=model, tokenizer=tokenizer)
assert len(fill("a small [MASK] sat", top_k=3)) == 3

rows = [dict(tokenizer("a small cat"), labels=i % 2) for i in range(8)]
head = AutoModelForSequenceClassification.from_pretrained(ours)
arguments = TrainingArguments(
    output, max_steps=2, per_device_train_batch_size=4, report_to=[], use_cpu=True,
    gradient_checkpointing=True, disable_tqdm=True,
)
Trainer(head, arguments, train_dataset=rows, processing_class=tokenizer).train()
print("ran", __name__)
"""


@pytest.mark.slow
def test_a_hugging_face_script_runs_unchanged_on_both_model_types(build, tmp_path):
    config = transformers.RoFormerConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=24,
    )
    transformers.RoFormerForMaskedLM(config).save_pretrained(tmp_path / "stock")
    model = build(RoFormerForMaskedLM, dtype=torch.float32, norm_position="pre")
    model.save_pretrained(tmp_path / "ours")
    save_tokenizer(tmp_path / "ours")
    (tmp_path / "script.py").write_text(SCRIPT, "utf-8")
    arguments = [str(tmp_path / name) for name in ("script.py", "stock", "ours", "out")]
    command = [sys.executable, "-W", "ignore", "-m", "rotary", "run", *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "ran __main__"
    assert "[ERROR]" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    "config",
    [{"norm_position": "pre"}, {"norm_type": "rms_norm", "use_bias": False}, {"nope_layers": [0]}],
)
def test_stock_refuses_what_it_cannot_compute(build, config, tmp_path):
    build(RoFormerForMaskedLM, dtype=torch.float32, **config).save_pretrained(tmp_path)
    with pytest.raises(Exception, match=r"load it with rotary\.models") as caught:
        transformers.RoFormerForMaskedLM.from_pretrained(tmp_path)
    assert next(iter(config)) in str(caught.value)
    if "nope_layers" not in config:
        return  # Once is enough for what follows, in a process that does not know our models.
    code = f"import transformers; transformers.AutoModel.from_pretrained({str(tmp_path)!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode != 0
    assert "rotary_roformer" in done.stderr


@pytest.fixture
def writer(build, tmp_path):
    """A folder whose model knows one sentence by heart."""
    tokenizer = save_tokenizer(tmp_path)
    model = build(RoFormerForCausalLM, dtype=torch.float32, is_decoder=True, vocab_size=16).train()
    ids = torch.tensor([tokenizer("a small cat sat on the old mat and slept")["input_ids"]])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        model(ids, labels=ids).loss.backward()
        optimizer.step()
    model.save_pretrained(tmp_path)
    return tmp_path


def test_generate_goes_on_from_a_prompt_and_stops_at_the_end(writer, capsys):
    assert main(["generate", str(writer), "a small cat sat", "--greedy"]) == 0
    assert capsys.readouterr().out.strip() == "a small cat sat on the old mat and slept"
    arguments = ["generate", str(writer), "a small", "--max-new-tokens", "3"]
    main([*arguments, "--temperature", "5", "--top-p", "1", "--seed", "1"])
    first = capsys.readouterr().out
    main([*arguments, "--temperature", "5", "--top-p", "1", "--seed", "1"])
    assert capsys.readouterr().out == first
    main([*arguments, "--temperature", "5", "--top-p", "1", "--seed", "2"])
    assert capsys.readouterr().out != first


def test_what_cannot_generate_is_one_line(build, writer, tmp_path, capsys):
    reader = tmp_path / "reader"
    build(RoFormerForMaskedLM, dtype=torch.float32).save_pretrained(reader)
    (tmp_path / "empty").mkdir()
    for arguments, message in (
        (["generate", str(reader), "x"], "is_decoder is false) and cannot write"),
        (["generate", str(tmp_path / "nowhere"), "x"], "there is no such folder"),
        (["generate", str(tmp_path / "empty"), "x"], "config.json is missing"),
        (["generate", str(writer / "config.json"), "x"], "config.json: this is a file; give the"),
        (
            ["generate", str(writer), "a", "--top-p", "2"],
            "error: top_p is 2; it must be above 0 and at most 1.\n",
        ),
        (["run", str(tmp_path / "no.py")], "there is no script"),
        (["run", "-m"], "needs the name of a module"),
    ):
        assert main(arguments) == 2
        error = capsys.readouterr().err
        assert message in error
        assert len(error.strip().splitlines()) == 1
    assert main(["run"]) == 2
    assert "usage: rotary run SCRIPT" in capsys.readouterr().out


def test_a_script_sees_its_own_arguments_and_folder(tmp_path, capsys):
    (tmp_path / "helper.py").write_text("WORD = 'found'")
    script = tmp_path / "script.py"
    script.write_text("import sys, helper\nprint(sys.argv[1:], helper.WORD)\nsys.exit(3)")
    before = list(sys.argv), list(sys.path)
    with pytest.raises(SystemExit) as stopped:
        main(["run", str(script), "--one", "two"])
    assert stopped.value.code == 3
    assert capsys.readouterr().out.strip() == "['--one', 'two'] found"
    assert (list(sys.argv), list(sys.path)) == before
