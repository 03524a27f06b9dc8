"""Bad command lines: each is answered with a sentence that names the remedy.

The lines of ``bad_inputs.txt`` are typed one after the other in a folder that ``bad_inputs.py``
lays out. None may end in a traceback, and none may be taken in silence."""

import re
import shlex
from pathlib import Path

import pytest

from proxyfl.cli.main import main
from tests.cli.bad_inputs import lay_out

LINES = (Path(__file__).parent / "bad_inputs.txt").read_text().splitlines()

REMEDY = re.compile(
    r"run: |expected|did you mean|known: |give |name |set |leave |rename|remove|restore|correct|"
    r"complete|choose|raise|make |mend|save |unpack|draft|needs |take |say |put |such as|see |"
    r"usual are|open one|check |lower |bring |add |is missing|write ",
    re.IGNORECASE,
)
"""What tells a reader what to do."""

SAID = {
    "rnu": "Did you mean run?",
    "Run": "Did you mean run?",
    "--verison": "Did you mean --version?",
    "run --rounds 5": "--set rounds=5",
    "run --ronds 5": "--set rounds=5",
    "run --budget=1": "--set privacy.budget=1",
    "run --out ''": "new folder after --out",
    "run ok.csv": "holds data",
    "run --set privacy.delta=0.9": "1/(10 N)",
    "run --set device=gpu": "a GPU is called cuda",
    "run --set models.proxy=logistic": '"linear"',
    "run --set models.private=mpl": "Did you mean 'mlp'?",
    "run --set privacy.unit=patients": "person",
    "run --set partition.clients=1": "2 or more",
    "run --set private_optimizer.learning_rate=1e30": "learning_rate <=",
    "run --set data.source=": "Expected a dataset",
    "run --set data.source=.": "Expected a dataset",
    "run --set data.source=/etc/passwd": "not read",
    "run --set data.source=digitz": "Did you mean 'digits'?",
    "run --set data.source=text.npz": "not a .npz archive",
    "run --set data.source=zipped.zip": "Unpack",
    "run --set data.source=word.csv": "'old' in row 3",
    "run --set data.source=inf.csv": "row 3",
    "run --set data.source=huge.csv": "row 3",
    "run --set data.source=one_class.csv": "one value only",
    "run --set data.source=many.csv": "60 different values",
    "run --set data.source=wide.csv": "row 3: expected 3 fields",
    "run --set data.source=narrow.csv": "row 3: expected 3 fields",
    "run --set data.source=twice.csv": "'age' appears twice",
    "run --set data.source=two_labels.csv": "'label' appears twice",
    "run --set data.source=upper.csv": "Did you mean 'Label'?",
    "run --set data.source=images": "2 of 2 files",
    "epsilon --examples 100 --batch 10 --steps 0 --noise 1": "steps >= 1",
    "plan --examples 100 --budget-epsilon 1 --delta 0.9": "1/(10 N)",
    "node card site": "node init",
    "topology exponental": "Did you mean 'exponential'?",
    "certificate broken": "metrics.jsonl, line 1",
    "certificate fresh": "proxyfl run fresh/config.toml",
    "resume fresh": "proxyfl run fresh/config.toml",
    "worth": "Expected --clients, --examples, --parameters, --epsilon.",
    "worth value.toml counts.csv --epsilon 1": "--rehearsal",
    "new study --tables ok.csv ok.csv --yes": "named twice",
    "audit nowhere": "nowhere",
    "schema check north.csv --schema flip.toml": "yes",
}
"""The words that some of the answers must have, of those that were once missing."""


@pytest.fixture(scope="module", name="folder")
def make_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that the lines name."""
    folder = tmp_path_factory.mktemp("bad")
    lay_out(folder)
    return folder


def answer(line: str, capsys: pytest.CaptureFixture[str]) -> tuple[object, str]:
    """The exit code of a command line, and all that it printed."""
    try:
        code: object = main(shlex.split(line))
    except SystemExit as ended:
        code = ended.code
    printed = capsys.readouterr()
    return code, printed.err + printed.out


@pytest.mark.parametrize("line", LINES)
def test_a_bad_command_line_is_answered(
    line: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 1 or 2, no traceback, and a sentence that says what to do."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "200")
    code, text = answer(line, capsys)
    assert code in (1, 2), f"exit code {code}: {text[-300:]}"
    assert "Traceback" not in text
    told = " ".join(text.split())
    assert REMEDY.search(told), told[-400:]
    assert SAID.get(line, "") in told, told[-400:]


def test_a_setting_that_is_given_twice_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    """The last value counts, as for a shell's variables, and not in silence."""
    line = ["run", "--set", "rounds=1", "--set", "rounds=2", "--print-config"]
    assert main(line) == 0
    printed = capsys.readouterr()
    assert "rounds is set more than once; the last counts: rounds=2" in printed.err
    assert "rounds = 2" in printed.out
    assert main([*line[:3], "--print-config"]) == 0
    assert "more than once" not in capsys.readouterr().err


def test_there_are_three_hundred() -> None:
    """The list has at least 300 different lines, and every answer that is looked at is one of
    them."""
    assert len(set(LINES)) >= 300
    assert set(SAID) <= set(LINES)
