"""A corpus and settings so small that the whole job takes a second."""

import json
import multiprocessing
import os
import signal
import sys

NAMES = ["queue", "stack", "tree", "heap", "graph", "table", "string", "number", "list", "tuple"]
VERBS = ["returns", "holds", "copies", "sorts", "merges", "reverses", "reads", "writes"]
THINGS = ["items", "keys", "values", "nodes", "edges", "pairs", "lines", "words"]

STAGES = (
    '[{"length":16,"batch":4,"steps":6},{"length":32,"batch":2,"steps":4},'
    '{"length":24,"batch":4,"steps":4}]'
)
TOTAL_STEPS = 14
TINY = [
    *("--model.hidden_size", "16", "--model.num_hidden_layers", "1"),
    *("--model.num_attention_heads", "2", "--model.intermediate_size", "32"),
    *("--model.hidden_dropout_prob", "0.1", "--data.vocab_size", "120"),
    *("--data.validation_fraction", "0.2", "--data.validation_length", "32"),
    *("--training.warmup_steps", "2", "--training.log_every", "2"),
    *("--training.checkpoint_every", "3", "--training.evaluate_every", "5"),
    *("--training.learning_rate", "0.01", "--stages", STAGES),
]


def write_corpus(path, documents=60):
    lines = []
    for number in range(documents):
        sentences = [
            f"The {NAMES[(number + k) % 10]} {VERBS[(3 * number + k) % 8]} the "
            f"{THINGS[(number * k + 5) % 8]} of a {NAMES[(number * 7 + k) % 10]}."
            for k in range(1 + number % 4)
        ]
        lines.append(json.dumps({"text": " ".join(sentences)}))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


def read_events(folder):
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def without_times(events):
    """What has to be equal in two runs: all but what a clock said."""
    return [{key: value for key, value in event.items() if "second" not in key} for event in events]


# ---- Runs that are killed, each in a process of its own that has the imports already.

_FORKSERVER = multiprocessing.get_context("forkserver")
_FORKSERVER.set_forkserver_preload(["rotary.training.pretraining", "rotary.cli.pretrain"])


def run_in_child(arguments, moment=None):
    """Run `rotary pretrain` in another process; return its exit code and its output."""
    return end_of_child(*start_child(arguments, moment))


def start_child(arguments, moment=None):
    """Begin `rotary pretrain` in another process; :func:`end_of_child` waits for it."""
    receive, send = _FORKSERVER.Pipe(duplex=False)
    child = _FORKSERVER.Process(target=_child, args=(arguments, moment, send))
    child.start()
    send.close()
    return child, receive


def end_of_child(child, receive):
    try:
        output = receive.recv()
    except EOFError:  # Killed before it could say anything.
        output = ""
    child.join()
    return child.exitcode, output


def _child(arguments, moment, send):
    import contextlib
    import io

    import torch

    from rotary.cli.main import main

    torch.set_num_threads(1)
    if moment is not None:
        MOMENTS[moment]()
    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
        code = main(["pretrain", *arguments])
    send.send(text.getvalue())
    sys.exit(code)


def _signal(number):
    os.kill(os.getpid(), number)


def _at_step(step, number):
    def arrange():
        from rotary.training.trainer import StageCallback

        original = StageCallback.on_step_end

        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == step:
                _signal(number)
            return original(self, args, state, control, **kwargs)

        StageCallback.on_step_end = on_step_end

    return arrange


def _before(module_name, name, calls):
    """Kill at the given call of a function."""

    def arrange():
        import importlib

        owner = importlib.import_module(module_name)
        *path, last = name.split(".")
        for part in path:
            owner = getattr(owner, part)
        original, count = getattr(owner, last), 0

        def killing(*args, **kwargs):
            nonlocal count
            count += 1
            if count == calls:
                _signal(signal.SIGKILL)
            return original(*args, **kwargs)

        setattr(owner, last, killing)

    return arrange


def _in_a_line():
    """Kill when half a line of metrics.jsonl is on the disk."""
    from rotary.training.metrics import MetricsLog

    original = MetricsLog.append

    def append(self, event):
        if event["event"] == "step" and event["step"] == 10:
            with self.path.open("a") as file:
                file.write('{"event": "step", "st')
            _signal(signal.SIGKILL)
        original(self, event)

    MetricsLog.append = append


MOMENTS = {
    "before the run file": _before("rotary.training.folder", "RunFolder.begin", 1),
    "before the tokenizer": _before("rotary.training.pretraining", "_Run._save_tokenizer", 1),
    "before the first checkpoint": _at_step(2, signal.SIGKILL),
    "inside a stage": _at_step(8, signal.SIGKILL),
    "weights of a checkpoint not written": _before(
        "rotary.training.trainer", "StagedTrainer._save", 3
    ),
    "optimiser of a checkpoint not written": _before(
        "rotary.training.trainer", "StagedTrainer._save_optimizer_and_scheduler", 3
    ),
    "checkpoint not published": _before("rotary.training.checkpoints", "publish", 3),
    "checkpoint hashed, not renamed": _before("pathlib", "Path.rename", 3),
    "old checkpoint half deleted": _before("shutil", "rmtree", 4),
    "in a line of metrics": _in_a_line,
    "before the final weights": _before("rotary.training.folder", "RunFolder.adopt", 2),
    "before the report": _before("rotary.training.report", "markdown", 1),
    "paused": _at_step(8, signal.SIGSTOP),
    "Ctrl-C": _at_step(8, signal.SIGINT),
    "SIGTERM": _at_step(8, signal.SIGTERM),
}
