"""The epsilon command, called as the program calls it."""

import json
from typing import Any

import pytest

from proxyfl.cli.main import parser
from proxyfl.errors import ConfigError

HISTOPATHOLOGY = [
    (2338, 2.377, 2.174),
    (2726, 2.175, 1.989),
    (2937, 2.078, 1.899),
    (2841, 2.117, 1.935),
    (10842, 1.001, 0.912),
]


def call(line: str) -> int:
    arguments = parser("epsilon").parse_args(["epsilon", *line.split()])
    code: int = arguments.run(arguments)
    return code


@pytest.fixture
def document(capsys: pytest.CaptureFixture[str]) -> Any:
    def parsed(line: str) -> Any:
        assert call(f"{line} --json") == 0
        return json.loads(capsys.readouterr().out)

    return parsed


@pytest.mark.parametrize(("examples", "rdp", "pld"), HISTOPATHOLOGY)
def test_the_papers_privacy_table(document: Any, examples: int, rdp: float, pld: float) -> None:
    """The ten numbers of the paper's table come out of ``--json`` to three decimals."""
    found = document(f"--examples {examples} --batch 32 --epochs 30 --noise 1.4 --delta 1e-5")
    assert (round(found["rdp"], 3), round(found["pld"], 3)) == (rdp, pld)


def test_json_repeats_the_inputs(document: Any) -> None:
    """The object says what was computed: an epoch is floor(N/B) steps, delta is 1/N unless
    given."""
    found = document("--examples 1050 --batch 100 --epochs 3 --noise 2")
    assert found["steps"] == 30
    assert found["sampling_rate"] == pytest.approx(100 / 1050)
    assert found["delta"] == pytest.approx(1 / 1050)
    assert (found["noise"], found["kind"], found["notes"]) == (2.0, "end-to-end", [])
    assert found == document("--examples 1050 --batch 100 --steps 30 --noise 2")


def test_beta_sets_the_kind(document: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """With beta above 0 the same numbers are conditional, and the text says what that means."""
    line = "--examples 1000 --batch 50 --steps 20 --noise 2"
    free, bound = document(line), document(f"{line} --beta 0.5")
    assert (free["kind"], bound["kind"]) == ("end-to-end", "conditional")
    assert free["pld"] == bound["pld"]
    call(f"{line} --beta 0.5")
    assert "conditional: holds only" in capsys.readouterr().out


def test_a_given_rate_is_add_or_remove(document: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """With --sampling-rate the number is the same as at B/N = Q and the relation add-or-remove; an
    epoch is floor(1/Q) steps. With --examples it is zero-out."""
    by_number = document("--examples 1000 --batch 50 --epochs 3 --noise 2 --delta 1e-4")
    by_rate = document("--sampling-rate 0.05 --epochs 3 --noise 2 --delta 1e-4")
    assert (by_number["relation"], by_rate["relation"]) == ("zero-out", "add-or-remove")
    same = ("rdp", "pld", "steps", "sampling_rate", "delta", "epochs")
    assert [by_number[key] for key in same] == [by_rate[key] for key in same]
    assert (by_rate["examples"], by_rate["batch"]) == (None, None)
    call("--sampling-rate 0.05 --epochs 3 --noise 2 --delta 1e-4")
    assert "add-or-remove: compares datasets" in capsys.readouterr().out


def test_several_records_of_a_person(document: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """--records-per-person adds what a person with so many records is promised, in JSON and in
    words."""
    line = "--examples 200 --batch 20 --steps 5 --noise 4 --delta 1e-3 --records-per-person"
    one, two = document(f"{line} 1"), document(f"{line} 2")
    assert one["person"] == {"records": 1, "pld": one["pld"]}
    assert two["person"]["pld"] > 2 * one["pld"] == 2 * two["pld"]
    call(f"{line} 2")
    assert "a person with 2 records" in " ".join(capsys.readouterr().out.split())


def test_solving_for_noise(document: Any) -> None:
    """Without --noise, both accountants say how much is needed, and PLD's keeps within the
    target."""
    found = document("--examples 1000 --batch 50 --steps 100 --target-epsilon 1")
    solved = found["solved"]
    assert solved["for"] == "noise"
    assert found["noise"] == solved["pld"] < solved["rdp"]
    assert 0.98 < found["pld"] <= 1
    by_rdp = document(f"--examples 1000 --batch 50 --steps 100 --noise {solved['rdp']}")
    assert 0.98 < by_rdp["rdp"] <= 1


def test_a_target_of_almost_nothing(document: Any) -> None:
    """A tiny target is met with much noise; nothing overflows on the way."""
    found = document("--examples 1000 --batch 100 --steps 10 --target-epsilon 1e-12")
    assert 100 < found["noise"] < 1000
    assert 0 <= found["pld"] <= 1e-12


def test_solving_for_steps(document: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Without --epochs and --steps, both accountants say how many fit; the text has epochs too."""
    line = "--examples 1000 --batch 50 --noise 2 --target-epsilon 3"
    found = document(line)
    assert found["steps"] == found["solved"]["pld"] > found["solved"]["rdp"] > 0
    assert found["epochs"] == pytest.approx(found["steps"] / 20)
    assert found["pld"] <= 3
    call(line)
    assert f"{found['steps']} ({found['epochs']:.4g} epochs)" in capsys.readouterr().out


def test_not_one_step_fits(document: Any) -> None:
    """A target below the cost of one step gives 0 steps and says what to change."""
    found = document("--examples 10 --batch 10 --noise 1 --target-epsilon 0.1 --delta 1e-5")
    assert found["steps"] == 0
    assert "Not even one step fits" in found["notes"][0]


def test_text_says_what_it_means(capsys: pytest.CaptureFixture[str]) -> None:
    """The text has both numbers, the kind, and a sentence in plain words."""
    assert call("--examples 2338 --batch 32 --epochs 30 --noise 1.4 --delta 1e-5") == 0
    out = " ".join(capsys.readouterr().out.split())
    for part in (
        "2.378",
        "2.174",
        "end-to-end",
        "2190 steps (30 epochs)",
        "a factor of 8.8",
        "covers everything that was released",
        "zero-out",
        "per record",
        "the unit is one record",
    ):
        assert part in out


def test_weak_guarantees_are_called_weak(document: Any) -> None:
    """An epsilon above 10 is called weak; one below is not."""
    assert (
        "weak guarantee"
        in document("--examples 1000 --batch 250 --steps 1200 --noise 1")["notes"][0]
    )
    assert document("--examples 1000 --batch 250 --steps 10 --noise 2")["notes"] == []


def test_large_delta_is_warned_about(document: Any) -> None:
    """A delta above 1/N gives a warning, and an answer."""
    found = document("--examples 1000 --batch 50 --steps 10 --noise 2 --delta 0.01")
    assert "above 1/N" in found["notes"][0]
    assert found["pld"] > 0


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--examples 10 --batch 11 --steps 1 --noise 1", "batch=11 and examples=10"),
        ("--examples 0 --batch 1 --steps 1 --noise 1", "examples=0"),
        ("--examples 10 --batch 0 --epochs 1 --noise 1", "batch=0"),
        (
            "--examples 10 --batch 5 --steps 1 --noise 1 --delta 3",
            "Expected 0 < delta < 1, got delta=3",
        ),
        ("--examples 10 --batch 5 --steps 1 --noise 0", "noise_multiplier=0"),
        (
            "--examples 10 --batch 5 --steps 1 --noise 1e300",
            "noise_multiplier <= 1e+100, got noise_multiplier=1e+300",
        ),
        ("--examples 10 --batch 5 --steps -1 --noise 1", "steps=-1"),
        ("--examples 10 --batch 5 --epochs -1 --noise 1", "epochs=-1"),
        ("--examples 10 --batch 5 --steps 1 --noise 1 --beta 2", "beta=2"),
        ("--examples 10 --batch 5 --steps 1", "missing noise, epsilon"),
        ("--examples 10 --batch 5 --steps 1 --noise 1 --target-epsilon 1", "Got 3."),
        ("--examples 10 --batch 5 --steps 1 --target-epsilon -2", "epsilon=-2"),
        ("--examples 10 --steps 1 --noise 1", "Expected --batch with --examples"),
        ("--sampling-rate 0.1 --steps 1 --noise 1", "--delta must be given"),
        ("--sampling-rate 1.1 --steps 1 --noise 1 --delta 0.1", "sampling_rate=1.1"),
        ("--sampling-rate 0.1 --batch 5 --steps 1 --noise 1 --delta 0.1", "got --batch 5"),
        (
            "--examples 10 --batch 5 --steps 1 --noise 1 --records-per-person 0",
            "records-per-person=0",
        ),
        (
            "--examples 10 --batch 5 --steps 1 --noise 1 --records-per-person 65",
            "at most 64, got 65",
        ),
    ],
)
def test_bad_input_is_named(line: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What cannot be used is refused with its value, and nothing is printed."""
    with pytest.raises(ConfigError) as caught:
        call(line)
    assert message in str(caught.value)
    assert capsys.readouterr().out == ""


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    """The help has examples of all three questions."""
    with pytest.raises(SystemExit):
        call("--help")
    out = capsys.readouterr().out
    assert "how much noise?" in out
    assert "how many steps?" in out


def test_the_person_as_the_unit(document: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """With --unit group the numbers are the same for as many persons, and the promise is theirs;
    records per person are then no question."""
    asked = "--examples 1000 --batch 50 --epochs 3 --noise 2 --delta 1e-4"
    by_record, by_person = document(asked), document(f"{asked} --unit group")
    assert by_person["pld"] == by_record["pld"]
    assert (by_record["unit"], by_person["unit"]) == ("record", "group")
    call(f"{asked} --unit group")
    out = " ".join(capsys.readouterr().out.split())
    assert "epsilon per group" in out
    assert "Whether or not any one group had an effect" in out
    with pytest.raises(ConfigError, match="leave --records-per-person out"):
        call(f"{asked} --unit group --records-per-person 2")
