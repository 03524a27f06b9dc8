"""Certificates: what they say, and that a changed one is found."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from proxyfl.cli.main import main
from proxyfl.privacy.guarantee import Kind, Relation
from proxyfl.privacy.ledger import Ledger
from proxyfl.records import reading
from proxyfl.simulation.config import from_tree
from proxyfl.simulation.run import run


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small run of three methods and two clients."""
    out = tmp_path_factory.mktemp("certificates") / "run"
    config = from_tree(
        {
            "methods": ["alone", "regular", "proxyfl"],
            "rounds": 2,
            "partition": {"clients": 2, "examples": 60},
            "learning": {"batch_size": 20},
        }
    )
    run(config, out=out)
    return out


def documents(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert main(["certificate", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)["certificates"]


def test_what_a_certificate_says(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It has the ledger's numbers, their kind and relation, and says that this is a simulation."""
    first, second = documents(capsys, str(made))
    ledger = Ledger.read(made / "ledger" / "proxyfl" / "000.jsonl")
    spent = ledger.epsilon()
    assert (first["client"], second["client"]) == ("client-0", "client-1")
    assert first["epsilon_pld"] == pytest.approx(spent.pld, rel=1e-5)
    assert first["epsilon_rdp"] == pytest.approx(spent.rdp, rel=1e-5)
    assert first["epsilon_pld"] >= spent.pld
    assert (first["kind"], first["relation"]) == ("end-to-end", "zero-out")
    assert (first["steps"], first["rounds"]) == (6, 2)
    assert first["settings"] == [{"sampling_rate": 1 / 3, "noise_multiplier": 4.0, "steps": 6}]
    assert first["simulation"] is True
    assert "SIMULATION, protects nobody" in first["sentence"]
    assert first["version"]


def test_every_entry_is_on_the_page(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The Markdown page of a client has every number of its JSON."""
    (document,) = documents(capsys, str(made), "--client", "1")
    assert main(["certificate", str(made), "--client", "client-1"]) == 0
    page = capsys.readouterr().out
    assert page.count("# Privacy certificate: client-1, proxyfl") == 1
    for key in (
        "sentence",
        "epsilon_pld",
        "epsilon_rdp",
        "delta",
        "relation",
        "kind",
        "randomness",
    ):
        assert str(document[key]) in page


@pytest.mark.parametrize("form", ["json", "md"])
def test_a_changed_digit_is_found(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    """An unchanged file holds; whichever digit is changed, it does not, with exit code 1."""
    main(["certificate", str(made), *(["--json"] if form == "json" else [])])
    text = capsys.readouterr().out
    file = tmp_path / f"certificates.{form}"
    file.write_text(text)
    assert main(["certificate", str(made), "--check", str(file)]) == 0
    assert "All 2 certificates hold" in capsys.readouterr().out
    digits = [match.start() for match in re.finditer(r"\d", text)]
    for at in digits[:: max(1, len(digits) // 40)]:
        changed = str((int(text[at]) + 1) % 10)
        file.write_text(text[:at] + changed + text[at + 1 :])
        code = main(["certificate", str(made), "--check", str(file)])
        assert code in (1, 2), text[at - 30 : at + 10]
        capsys.readouterr()
    last = text.rindex("epsilon_pld" if form == "json" else "epsilon, PLD")
    digit = re.compile(r"\d").search(text, last)
    assert digit is not None
    at = digit.start()
    file.write_text(text[:at] + str((int(text[at]) + 1) % 10) + text[at + 1 :])
    assert main(["certificate", str(made), "--check", str(file)]) == 1
    out = capsys.readouterr().out
    assert "Does not hold" in out
    assert "client-1, proxyfl" in out


@pytest.mark.parametrize(
    ("form", "change", "said"),
    [
        ("md", lambda text: "Epsilon is 0.001.\n\n" + text, "Text before a certificate"),
        ("md", lambda text: text + "\nEpsilon is 0.001.\n", "line"),
        ("md", lambda text: text.replace("\n\n# Priv", "\n\nAll safe.\n\n# Priv"), "All safe."),
        ("md", lambda text: text + "\n" + text, "two certificates"),
        ("json", lambda text: text.replace("client-1", "client-0"), "two certificates"),
        ("json", lambda text: text.replace("client-1", "client-7"), "no ledger of this client"),
        ("json", lambda text: text.replace('"delta"', '"delta": 1e-9,\n"delta"', 1), "twice"),
        ("json", lambda text: text.replace('"delta"', '"note": "",\n"delta"', 1), "unknown: note"),
    ],
)
def test_the_whole_file_is_compared(
    made: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    form: str,
    change: Callable[[str], str],
    said: str,
) -> None:
    """What stands before, between, after or twice in a file does not hold; line endings may
    differ."""
    main(["certificate", str(made), *(["--json"] if form == "json" else [])])
    text = capsys.readouterr().out
    file = tmp_path / f"certificates.{form}"
    file.write_bytes(text.replace("\n", "\r\n").encode())
    assert main(["certificate", str(made), "--check", str(file)]) == 0
    capsys.readouterr()
    file.write_text(change(text))
    assert file.read_text() != text
    assert main(["certificate", str(made), "--check", str(file)]) == 1
    assert said in capsys.readouterr().out


def test_a_changed_ledger_is_found(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A certificate does not hold for a ledger that has been charged since."""
    main(["certificate", str(made), "--method", "regular"])
    file = tmp_path / "certificates.md"
    file.write_text(capsys.readouterr().out)
    path = made / "ledger" / "regular" / "000.jsonl"
    before = path.read_bytes()
    Ledger.read(path).charge(7, 1, 1 / 3, 4.0)
    try:
        assert main(["certificate", str(made), "--check", str(file), "--json"]) == 1
    finally:
        path.write_bytes(before)
    found = json.loads(capsys.readouterr().out)
    assert found["holds"] is False
    assert any("7 steps" in each for each in found["differences"])


def test_a_method_that_releases_nothing_says_so(
    made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """``regular`` trains with DP and sends nothing; ``alone`` has nothing to certify."""
    regular = documents(capsys, str(made), "--method", "regular")[0]
    assert regular["released"] is False
    assert "which this method does not release" in regular["sentence"]
    assert main(["certificate", str(made), "--method", "alone"]) == 2
    assert "nothing to certify: it trained without DP" in capsys.readouterr().err


@pytest.mark.parametrize("kind", [Kind.END_TO_END, Kind.CONDITIONAL])
def test_a_sites_certificate(
    kind: Kind, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A site's folder has one certificate, with real noise; a conditional guarantee says so in the
    sentence that is copied."""
    ledger = Ledger(
        "north",
        delta=1e-5,
        kind=kind,
        simulated=False,
        relation=Relation.ADD_OR_REMOVE,
        path=tmp_path / "ledger.jsonl",
    )
    ledger.charge(0, 10, 0.05, 2.0)
    (document,) = documents(capsys, str(tmp_path))
    assert document["simulation"] is False
    assert "SIMULATION" not in document["sentence"]
    assert "added or from which it is removed" in document["sentence"]
    assert ("conditional" in document["sentence"]) is (kind is Kind.CONDITIONAL)


def test_an_audit_and_the_report(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A certificate has what the audit in the run's folder found; --save puts it where the report
    looks, and what was saved holds."""
    audit = {"epsilon": 0.5, "lower_bound": 0.4, "confidence": 0.95, "verdict": "holds", "more": 1}
    (made / "audit.json").write_text(json.dumps(audit))
    try:
        assert main(["certificate", str(made), "--save"]) == 0
        assert "lower_bound 0.4; confidence 0.95; verdict holds" in capsys.readouterr().out
        saved = made / "privacy_certificate.json"
        assert main(["certificate", str(made), "--check", str(saved)]) == 0
        assert len(reading.read(made).additions["certificate"]["certificates"]) == 2
    finally:
        (made / "audit.json").unlink()
        (made / "privacy_certificate.json").unlink(missing_ok=True)


def test_a_ledger_without_a_guarantee(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A ledger of kind none gives no number, and says that no guarantee holds."""
    path = tmp_path / "ledger.jsonl"
    Ledger("north", delta=1e-5, kind=Kind.NONE, simulated=False, path=path)
    (document,) = documents(capsys, str(tmp_path))
    assert (document["epsilon"], document["kind"], document["mechanism"]) == (None, "none", "none")
    assert "no guarantee holds" in document["sentence"]
    assert main(["certificate", str(tmp_path)]) == 0
    assert "| epsilon, PLD accountant | infinite |" in capsys.readouterr().out


def test_what_cannot_be_used(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An unknown client or method and a file that is no certificate are refused by name."""
    assert main(["certificate", str(made), "--client", "9"]) == 2
    assert "got '9'" in capsys.readouterr().err
    assert main(["certificate", str(made), "--method", "fml"]) == 2
    assert "no ledger of 'fml'" in capsys.readouterr().err
    file = tmp_path / "other.json"
    file.write_text("[1, 2]")
    assert main(["certificate", str(made), "--check", str(file)]) == 1
    assert "holds no certificates" in capsys.readouterr().out
    assert main(["certificate", str(made), "--check", str(tmp_path / "none.md")]) == 2
    assert "Cannot read the certificate" in capsys.readouterr().err
    assert main(["certificate", "--check", str(file)]) == 2
    assert "Name what to check against" in capsys.readouterr().err
    assert main(["certificate"]) == 2
    assert "Name a run's or a site's folder" in capsys.readouterr().err
