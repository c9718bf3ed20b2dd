"""`rotary generate`: what is wrong is one line, and no model is loaded for it."""

import pytest

from rotary.cli.main import main


@pytest.mark.parametrize(
    ("option", "value", "accepted"),
    [
        ("--temperature", "inf", "is not a number from 1e-06 to 1e+06"),
        ("--temperature", "nan", "is not a number from 1e-06 to 1e+06"),
        ("--temperature", "1e-320", "is not a number from 1e-06 to 1e+06"),
        ("--temperature", "warm", "is not a number from 1e-06 to 1e+06"),
        ("--seed", "99999999999999999999999", "from 0 to 18446744073709551615"),
        ("--seed", "-1", "from 0 to 18446744073709551615"),
        ("--max-new-tokens", "0", "is not a whole number, 1 or more"),
        ("--max-new-tokens", "1.5", "is not a whole number, 1 or more"),
    ],
)
def test_numbers_out_of_range_are_named_with_what_is_accepted(capsys, option, value, accepted):
    with pytest.raises(SystemExit) as stopped:
        main(["generate", "nowhere", "text", f"{option}={value}"])
    assert stopped.value.code == 2
    message = capsys.readouterr().err.splitlines()[-1]
    assert message.startswith(f"rotary generate: error: argument {option}: {value!r}")
    assert message.endswith(accepted)


def test_a_text_that_is_not_utf8_is_one_line(capsys):
    assert main(["generate", "nowhere", "caf\udce9"]) == 2
    assert capsys.readouterr().err == (
        "rotary generate: error: the argument 'caf\\udce9' is not UTF-8.\n"
    )
