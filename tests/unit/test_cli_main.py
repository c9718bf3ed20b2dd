"""The command `rotary` itself: help, version, unknown commands, missing extras."""

import subprocess
import sys

import pytest

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
        "installed. In a checkout of rotary, install the extra that brings it: pip install "
        "--no-build-isolation -e '.[train]' -c constraints.txt\n"
    )


EXTRAS = ["transformers", "tokenizers", "matplotlib", "rich", "jsonargparse", "jaxtyping"]
HIDE = f"import sys; sys.modules.update(dict.fromkeys({EXTRAS}))"


def bare(code):
    """Run Python where no package of an extra can be imported."""
    return subprocess.run([sys.executable, "-c", f"{HIDE}; {code}"], capture_output=True, text=True)


@pytest.mark.slow
@pytest.mark.parametrize("command", [[], ["fill-mask"], ["generate"], ["run"], ["bench"]])
def test_help_works_in_a_bare_install(command):
    done = bare(f"from rotary.cli.main import main; main({[*command, '--help']})")
    assert done.returncode == 0, done.stderr
    assert f"usage: {' '.join(['rotary', *command])}" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "extra"),
    [
        (["generate", "folder", "x"], "models"),
        (["run", "script.py"], "models"),
        (["fill-mask", "folder", "x"], "train"),
        (["pretrain"], "train"),
        (["plot", "decay"], "train"),
        (["bench"], "bench"),
    ],
)
def test_a_bare_install_says_in_one_line_which_extra_a_command_needs(command, extra, tmp_path):
    (tmp_path / "script.py").write_text("")
    move = f"import os; os.chdir({str(tmp_path)!r})"
    done = bare(f"{move}; from rotary.cli.main import main; sys.exit(main({command}))")
    assert done.returncode == 2
    assert done.stderr.startswith(f"rotary {command[0]}: error: ")
    assert f"-e '.[{extra}]'" in done.stderr
    assert done.stderr.count("\n") == 1, done.stderr


def test_a_path_that_cannot_be_written_is_one_line(capsys, tmp_path):
    folder = tmp_path / "d.png"
    folder.mkdir()
    assert cli.main(["plot", "decay", "--output", str(folder)]) == 2
    assert capsys.readouterr().err == f"rotary plot: error: {folder}: is a directory.\n"


def test_an_error_of_the_system_without_a_path_is_a_defect(tmp_path, monkeypatch):
    (tmp_path / "fails.py").write_text("def main(arguments): raise OSError('out of handles')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(cli.COMMANDS, "fit", cli.Command("fails", None, "..."))
    with pytest.raises(OSError, match="out of handles"):
        cli.main(["fit"])


@pytest.mark.slow
def test_the_models_say_which_extra_they_need():
    done = bare("import rotary.models")
    assert "rotary.models needs the package 'transformers', which is not installed." in done.stderr
    assert "-e '.[models]'" in done.stderr


def test_what_a_script_of_the_user_lacks_is_its_own_affair(tmp_path, monkeypatch):
    (tmp_path / "script.py").write_text("import a_package_nobody_has")
    with pytest.raises(ModuleNotFoundError, match="a_package_nobody_has"):
        cli.main(["run", str(tmp_path / "script.py")])
