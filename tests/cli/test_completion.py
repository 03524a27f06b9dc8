"""What the shell completes: commands, actions, options, values and files."""

import shutil
import subprocess
from pathlib import Path

import pytest

from proxyfl.cli.main import COMMANDS, main
from tests.waiting import PATIENCE

ASK = """
source {script}
COMP_WORDS=({words} "{last}")
COMP_CWORD=$(( ${{#COMP_WORDS[@]}} - 1 ))
{function}
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.fixture(scope="module")
def bash(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The script for bash, in a file."""
    path = tmp_path_factory.mktemp("completion") / "proxyfl"
    path.write_text(printed("bash"))
    return path


def printed(shell: str) -> str:
    """What the command prints for a shell."""
    with pytest.MonkeyPatch.context() as patch:
        lines: list[str] = []
        patch.setattr("builtins.print", lambda text: lines.append(text))
        with pytest.raises(SystemExit) as end:
            main(["--print-completion", shell])
    assert end.value.code in (None, 0)
    return "\n".join(lines)


def completions(script: Path, words: str, last: str, folder: Path) -> set[str]:
    """What bash offers for the last word."""
    text = script.read_text()
    complete = next(line for line in text.splitlines() if line.startswith("complete "))
    function = complete.split("-F ")[1].split()[0]
    asked = ASK.format(script=script, words=words, last=last, function=function)
    done = subprocess.run(
        ["bash", "--norc", "-c", asked],
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    return {line.strip() for line in done.stdout.splitlines() if line.strip()}


def test_bash_completes_commands_actions_options_and_values(bash: Path, tmp_path: Path) -> None:
    """A beginning is completed to all that fits it, at every level, and to nothing else."""
    assert completions(bash, "proxyfl", "", tmp_path) >= set(COMMANDS)
    assert completions(bash, "proxyfl", "le", tmp_path) == {"ledger"}
    assert completions(bash, "proxyfl node", "re", tmp_path) >= {"rejoin", "restore"}
    assert "--workers" in completions(bash, "proxyfl run", "--w", tmp_path)
    assert completions(bash, "proxyfl epsilon --unit", "", tmp_path) == {"record", "group"}


def test_bash_completes_files_where_a_file_is_meant(bash: Path, tmp_path: Path) -> None:
    """A setting's file and a run's folder are looked for in the current folder."""
    (tmp_path / "stroke.toml").touch()
    assert "stroke.toml" in completions(bash, "proxyfl run", "str", tmp_path)


@pytest.mark.parametrize("shell", ["zsh", "tcsh"])
def test_other_shells_get_a_script_with_every_command(shell: str, tmp_path: Path) -> None:
    """The scripts name every command; the shell itself reads them where it is installed."""
    text = printed(shell)
    assert all(name in text for name in COMMANDS)
    program = shutil.which(shell)
    if program is not None:
        path = tmp_path / "script"
        path.write_text(text)
        subprocess.run([program, "-n", path], check=True, timeout=PATIENCE)


def test_an_unknown_shell_is_told_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    """The message lists what can be had."""
    with pytest.raises(SystemExit) as end:
        main(["--print-completion", "fish"])
    assert end.value.code == 2
    assert "Known: bash, zsh, tcsh" in capsys.readouterr().err
