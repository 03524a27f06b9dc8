"""Two epsilons from the same charges: against the agreed coalition, and against all others."""

import json
import math
from pathlib import Path

import pytest

from proxyfl.cli.main import main
from proxyfl.errors import BudgetExhausted, ConfigError, PrivacyError
from proxyfl.privacy import accounting, journal
from proxyfl.privacy import certificate as certificates
from proxyfl.privacy.account import Account, Kept
from proxyfl.privacy.accounting import Segment, pld_of, rdp_of
from proxyfl.privacy.coalition import ALL_OTHERS, RESERVE, Coalition
from proxyfl.privacy.guarantee import Kind, Unit, shown
from proxyfl.privacy.ledger import Budget, Ledger

TERMS = Coalition(colluders=4, quorum=8)


def ledger_at(path: Path | None = None, *, budget: Budget | None = None) -> Ledger:
    return Ledger(
        "north", delta=1e-5, kind=Kind.END_TO_END, simulated=False, budget=budget, path=path
    )


def test_both_epsilons_follow_from_the_ledger(tmp_path: Path) -> None:
    """A ledger that was read again states the epsilon of sigma and that of sigma / sqrt(h), each
    recomputed here from the charges alone."""
    ledger = ledger_at(tmp_path / "ledger.jsonl")
    ledger.charge(0, 10, 0.1, 6.0, TERMS)
    ledger.charge(1, 20, 0.1, 6.0, TERMS)
    stated = Ledger.read(tmp_path / "ledger.jsonl").epsilon()
    first, alone = Segment(0.1, 6.0, 30), Segment(0.1, 3.0, 30)
    assert stated.pld == pytest.approx(pld_of([first], 1e-5), rel=1e-6)
    assert stated.against_all == min(pld_of([alone], 1e-5), rdp_of([alone], 1e-5))
    assert stated.coalition == TERMS
    assert stated.best < stated.against_all


def test_the_noises_distance_from_a_gaussian_is_paid_out_of_delta() -> None:
    """The accountants get a billionth less of delta for a masked sum, and all of it otherwise."""
    masked, own = Segment(0.1, 4.0, 30, TERMS), Segment(0.1, 4.0, 30)
    assert rdp_of([masked], 1e-5) == rdp_of([own], 1e-5 * (1 - RESERVE)) > rdp_of([own], 1e-5)


def test_with_one_honest_member_both_epsilons_are_one() -> None:
    """If only one member is taken for honest, its own noise is all of the noise."""
    spent = accounting.epsilon([Segment(0.1, 4.0, 30, Coalition(7, 8))], 1e-5, Kind.END_TO_END)
    assert spent.best == pytest.approx(spent.against_all, rel=1e-6)
    assert spent.sentences[0] == ALL_OTHERS


def test_steps_with_and_without_a_coalition_add_up() -> None:
    """In the first epsilon they count alike; in the second only those of the sum weaken."""
    own, masked = Segment(0.1, 6.0, 30), Segment(0.1, 6.0, 30, TERMS)
    together = accounting.epsilon([own, masked], 1e-5, Kind.END_TO_END)
    assert together.rdp == pytest.approx(rdp_of([Segment(0.1, 6.0, 60)], 1e-5), rel=1e-6)
    alone = [own, Segment(0.1, 3.0, 30)]
    assert together.against_all == min(rdp_of(alone, 1e-5), pld_of(alone, 1e-5))


def test_the_smallest_coalition_is_the_one_that_is_stated() -> None:
    """Charges under several terms hold against the fewest colluders among them."""
    segments = [Segment(0.1, 6.0, 1, Coalition(t, 8)) for t in (5, 2, 4)]
    spent = accounting.epsilon(segments, 1e-5, Kind.END_TO_END)
    assert spent.coalition == Coalition(2, 8)


@pytest.mark.parametrize(
    ("members", "colluders", "expected"),
    [(4, 2, "1.5"), (16, 8, "3.4"), (24, 12, "4.3"), (121, 91, "7.4"), (121, 61, "11.4")],
)
def test_the_second_epsilon_for_a_first_of_one(members: int, colluders: int, expected: str) -> None:
    """A first epsilon of 1 becomes what docs/privacy/masked-sums.md prints if all others collude,
    for 30 steps of all records at delta 1e-4."""
    from proxyfl.privacy.calibration import noise_for

    terms = Coalition(colluders, members)
    noise = noise_for(1.0, sampling_rate=1.0, steps=30, delta=1e-4, coalition=terms)
    spent = accounting.epsilon([Segment(1.0, noise, 30, terms)], 1e-4, Kind.END_TO_END)
    assert spent.best <= 1
    assert shown(spent.against_all, 1) == expected


# Files: what earlier releases wrote is read and continued without a changed byte.


def test_a_charge_of_ones_own_noise_is_written_as_before(tmp_path: Path) -> None:
    """Neither the line nor the receipt of a charge without a coalition knows of coalitions."""
    ledger = ledger_at(tmp_path / "ledger.jsonl")
    ledger.charge(3, 10, 0.05, 2.0)
    line = json.loads((tmp_path / "ledger.jsonl").read_text().splitlines()[1])
    assert set(line) - {"check"} == {"round", "steps", "sampling_rate", "noise_multiplier"}
    assert json.loads(ledger.receipt()) == {"charges": 1, "seal": SEAL}
    assert ledger.epsilon().sentences == (ALL_OTHERS,)
    assert ledger.epsilon().all_others is None


SEAL = "59b284c4825baa93"
"""The seal of that charge in releases without coalitions."""


@pytest.mark.parametrize(
    "coalition",
    [
        None,
        3,
        {},
        {"colluders": 4},
        {"colluders": 8, "quorum": 8},
        {"colluders": -1, "quorum": 8},
        {"colluders": 4.5, "quorum": 8},
        {"colluders": 4, "quorum": 8, "other": 1},
    ],
)
def test_a_coalition_that_is_none_is_refused(tmp_path: Path, coalition: object) -> None:
    """A ledger whose charge has damaged terms is not read: what was spent is not known."""
    path = tmp_path / "ledger.jsonl"
    ledger_at(path)
    _, _, end = journal.read(path)
    entry = {"round": 0, "steps": 1, "sampling_rate": 0.1, "noise_multiplier": 4.0}
    journal.append(path, {**entry, "coalition": coalition}, end, durable=False)
    with pytest.raises(PrivacyError, match="a line that this release cannot use"):
        Ledger.read(path)


def test_a_step_under_other_terms_than_charged_is_refused() -> None:
    """A charge for a masked sum authorises no step with less noise of one's own, nor the other way
    round."""
    ledger = ledger_at()
    ledger.charge(0, 2, 0.1, 4.0, TERMS)
    with pytest.raises(PrivacyError, match="a masked sum with 4 colluders and a quorum of 8"):
        ledger.take(0.1, 4.0)
    with pytest.raises(PrivacyError, match="with 5 colluders"):
        ledger.take(0.1, 4.0, Coalition(5, 8))
    ledger.take(0.1, 4.0, TERMS)
    ledger.charge(1, 1, 0.1, 4.0)
    with pytest.raises(PrivacyError, match="noise of the client's own"):
        ledger.take(0.1, 4.0, TERMS)


# Budgets.


def test_a_budget_applies_to_the_first_epsilon() -> None:
    """Steps that cost 1 against the coalition fit a budget of 1, whatever they cost if all others
    collude."""
    ledger = ledger_at(budget=Budget(1.0))
    fitting = ledger.affordable_steps(0.1, 6.0, 10_000, TERMS)
    assert fitting == ledger_at(budget=Budget(1.0)).affordable_steps(0.1, 6.0, 10_000)
    ledger.charge(0, fitting, 0.1, 6.0, TERMS)
    assert ledger.epsilon().pld <= 1 < ledger.epsilon().against_all
    with pytest.raises(BudgetExhausted, match="above the budget of 1"):
        ledger.charge(1, 10, 0.1, 6.0, TERMS)


def test_a_budget_may_be_set_for_the_second_epsilon() -> None:
    """It stops earlier, names itself, and writes nothing."""
    budget = Budget(1.0, all_others=1.5)
    ledger = ledger_at(budget=budget)
    fitting = ledger.affordable_steps(0.1, 6.0, 10_000, TERMS)
    assert 0 < fitting < ledger_at(budget=Budget(1.0)).affordable_steps(0.1, 6.0, 10_000, TERMS)
    with pytest.raises(BudgetExhausted, match=r"if all others collude, above the budget of 1\.5"):
        ledger.charge(0, fitting + 1, 0.1, 6.0, TERMS)
    assert ledger.charges == ()
    ledger.charge(0, fitting, 0.1, 6.0, TERMS)
    assert ledger.epsilon().against_all <= 1.5
    with pytest.raises(ConfigError, match="if all others collude"):
        Budget(1.0, all_others=0.0)


def test_an_account_keeps_both(tmp_path: Path) -> None:
    """An account's entry of a masked step has its terms, one of another step has none, and the
    standing states both epsilons."""
    from proxyfl.privacy.account import standings

    account = Account.open(tmp_path / "account", delta=1e-5, budget=None, unit=Unit.RECORD)
    ledger = ledger_at(tmp_path / "ledger.jsonl")
    Kept(account.folder, ("cardiology",), "study").keep(ledger)
    ledger.charge(0, 10, 0.1, 4.0)
    ledger.charge(1, 10, 0.1, 4.0, TERMS)
    lines = [json.loads(line) for line in account.path.read_text().splitlines()[1:]]
    assert "coalition" not in lines[0]["charge"]
    assert lines[1]["charge"]["coalition"] == {"colluders": 4, "quorum": 8}
    spent = standings(account)[0].spent
    assert spent.against_all == ledger.epsilon().against_all
    assert "if all others collude" in str(spent)


# What people read.


def test_a_certificate_states_both(tmp_path: Path) -> None:
    """Page and JSON have both epsilons, the terms, and a sentence for each; what is written can be
    read back, and an entry that is left out is found."""
    ledger = ledger_at(tmp_path / "ledger.jsonl")
    ledger.charge(0, 10, 0.1, 4.0, TERMS)
    document = certificates.certificate(ledger, certificates.NODE)
    page = certificates.markdown(document)
    spent = ledger.epsilon()
    assert document["epsilon_all_others"] >= spent.against_all
    assert (document["colluders"], document["quorum"]) == (4, 8)
    assert "up to 4 members" in document["against"]
    for sentence in spent.sentences:
        assert sentence in document["sentence"]
        assert sentence in page
    assert "masked sum with 4 colluders, quorum 8" in page
    assert "| epsilon if all other members collude |" in page
    text = certificates.to_json([document])
    assert certificates.parse_json(text, "file") == json.loads(text)["certificates"]
    del document["quorum"]
    with pytest.raises(certificates.RunError, match="missing: quorum"):
        certificates.parse_json(certificates.to_json([document]), "file")


def test_a_certificate_of_ones_own_noise_is_as_before(tmp_path: Path) -> None:
    """It says that it holds against all others together, and has no second number."""
    ledger = ledger_at(tmp_path / "ledger.jsonl")
    ledger.charge(0, 10, 0.1, 4.0)
    document = certificates.certificate(ledger, certificates.NODE)
    assert document["against"] == certificates.AGAINST
    assert not {"colluders", "quorum", "epsilon_all_others"} & set(document)
    assert document["settings"] == [{"sampling_rate": 0.1, "noise_multiplier": 4.0, "steps": 10}]


def test_rows_keep_both() -> None:
    """A row of a masked round gives back the epsilon with its coalition; one of another round has
    no keys for it."""
    from proxyfl.records import row

    spent = accounting.epsilon([Segment(0.1, 4.0, 10, TERMS)], 1e-5, Kind.END_TO_END)
    flat = {
        "epsilon_rdp": spent.rdp,
        "epsilon_pld": spent.pld,
        "delta": spent.delta,
        "epsilon_kind": "end-to-end",
        "epsilon_all_others": spent.against_all,
        "colluders": 4,
        "quorum": 8,
    }
    assert row.epsilon(flat) == spent
    for key in ("epsilon_all_others", "colluders", "quorum"):
        del flat[key]
    assert row.epsilon(flat).coalition is None


STEPS = ("--examples", "1000", "--batch", "50", "--steps", "200", "--noise", "8")


def test_the_command_epsilon_states_both(capsys: pytest.CaptureFixture[str]) -> None:
    """With --colluders and --quorum it prints two numbers and two sentences."""
    assert main(["epsilon", *STEPS, "--colluders", "4", "--quorum", "8", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    alone = pld_of([Segment(0.05, 4.0, 200)], found["delta"])
    assert found["all_others"] == pytest.approx(alone)
    assert (found["colluders"], found["quorum"]) == (4, 8)
    assert main(["epsilon", *STEPS, "--colluders", "4", "--quorum", "8"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "against up to 4 members that pool what they know" in text
    assert f"If all other members collude against this one, epsilon is {shown(alone)}." in text


def test_the_command_epsilon_states_the_coalition_of_ones_own_noise(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Without the terms of a masked sum the one epsilon holds against all others, and says so."""
    assert main(["epsilon", *STEPS, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["colluders"] == "all others"
    assert found["all_others"] == min(found["pld"], found["rdp"])
    assert main(["epsilon", *STEPS]) == 0
    assert ALL_OTHERS in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("terms", [("--colluders", "4"), ("--quorum", "8")])
def test_half_of_the_terms_is_refused(
    terms: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """One of the two terms alone is an error that names the other."""
    assert main(["epsilon", *STEPS, *terms]) == 2
    assert "together, missing --" in capsys.readouterr().err


def test_a_plan_for_a_masked_sum(capsys: pytest.CaptureFixture[str]) -> None:
    """The same budget allows h times the parameters, and each option says what it costs if all
    others collude."""
    words = ["plan", "--examples", "1000", "--budget-epsilon", "1", "--delta", "1e-4"]
    words += ["--rounds", "10", "--clients", "8", "--json"]
    assert main(words) == 0
    own = json.loads(capsys.readouterr().out)
    assert main([*words, "--colluders", "4", "--quorum", "8"]) == 0
    masked = json.loads(capsys.readouterr().out)
    assert masked["largest_proxy"] == pytest.approx(4 * own["largest_proxy"], rel=0.01)
    for option in masked["options"]:
        assert 1 < option["epsilon_all_others"] < math.inf
    assert own["colluders"] == "all others"
    assert ALL_OTHERS in own["notes"]
    assert main([*words, "--colluders", "4", "--quorum", "9"]) == 2
    assert "quorum of at most the 8 clients" in capsys.readouterr().err
