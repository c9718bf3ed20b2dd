"""The command `rotary` itself: help, version, unknown commands, missing extras."""

import subprocess
import sys

from rotary import __version__
from rotary.cli import main as cli


def test_help_lists_every_command(capsys):
    assert cli.main(["--help"]) == 0
    shown = capsys.readouterr().out
    for name, command in cli.COMMANDS.items():
        assert name in shown
        assert command.summary in shown


def test_without_arguments_it_shows_the_help_and_fails(capsys):
    assert cli.main([]) == 2
    assert "usage: rotary" in capsys.readouterr().out


def test_version(capsys):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"rotary {__version__}\n"


def test_an_unknown_command_names_the_nearest(capsys, monkeypatch):
    monkeypatch.setitem(cli.COMMANDS, "pretrain", cli.Command("nowhere", None, "..."))
    assert cli.main(["pretrian"]) == 2
    assert capsys.readouterr().err == (
        "rotary: error: there is no command 'pretrian'. Did you mean 'pretrain'? "
        "`rotary --help` lists them.\n"
    )


def test_a_missing_package_names_its_extra(capsys, monkeypatch, tmp_path):
    (tmp_path / "needs_it.py").write_text("import a_package_nobody_has")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(cli.COMMANDS, "fit", cli.Command("needs_it", "train", "..."))
    assert cli.main(["fit"]) == 2
    assert capsys.readouterr().err == (
        "rotary fit: error: this command needs the package 'a_package_nobody_has', which is not "
        "installed. Install it with: pip install 'rotary[train]'\n"
    )


def test_help_works_in_a_bare_install():
    absent = ["transformers", "tokenizers", "matplotlib", "rich", "jsonargparse", "jaxtyping"]
    hide = f"import sys; sys.modules.update(dict.fromkeys({absent}))"
    code = f"{hide}; from rotary.cli.main import main; main(['--help'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "usage: rotary" in done.stdout
