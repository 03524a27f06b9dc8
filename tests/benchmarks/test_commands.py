"""The command lines of the communication study that the pages and ``--help`` show are real."""

import shlex

import pytest

from benchmarks.communication import command
from benchmarks.communication.commands import measure, mix, model

from ..test_docs import PAGES, blocks, code_spans

START = "python -m benchmarks.communication "


def shown() -> list[str]:
    """Every command line of the study that a page of the documentation or ``--help`` shows."""
    lines: list[str] = []
    for page in PAGES:
        lines += code_spans(page)
        for block in blocks(page, "sh"):
            lines += block.text.splitlines()
    for module in (command, measure, mix, model):
        lines += module._EPILOG.splitlines()
    found = [line[line.index(START) :] for line in lines if START in line]
    return sorted({line.removeprefix(START).partition("   ")[0] for line in found})


def test_the_study_is_shown() -> None:
    """The pages and ``--help`` show each of the three commands."""
    assert {line.split()[0] for line in shown()} >= {"measure", "model", "mix"}


@pytest.mark.parametrize("line", shown())
def test_commands_shown_parse(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Every command line that is shown is one that the real parser takes."""
    words = shlex.split(line)
    if "--help" in words:
        with pytest.raises(SystemExit, match="0"):
            command.parser().parse_args(words)
        assert "examples:" in capsys.readouterr().out
    else:
        assert callable(command.parser().parse_args(words).execute)


def test_what_cannot_be_used_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong number ends with exit code 2 and one line that says what was expected."""
    assert command.main(["mix", "--clients", "many"]) == 2
    assert "Expected whole numbers such as 2,4,8 for --clients" in capsys.readouterr().err
