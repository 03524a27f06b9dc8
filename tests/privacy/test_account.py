"""An account over studies: composed, written ahead, held against every budget, by any number of
writers."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from dp_accounting.pld import privacy_loss_distribution as pld

from proxyfl.errors import BudgetExhausted, ConfigError, PrivacyError
from proxyfl.privacy import journal
from proxyfl.privacy.account import FILE, IDS, Account, Populations, standing, standings
from proxyfl.privacy.guarantee import Kind, Unit
from proxyfl.privacy.ledger import Budget, Ledger
from proxyfl.settings import EVERY

PEOPLE = ("cardiology",)
OTHERS = ("stroke",)
DELTA = 1e-5


@pytest.fixture
def account(tmp_path: Path) -> Account:
    """An account with a total budget of 4."""
    return Account.open(tmp_path / "accounts", delta=DELTA, budget=4.0, unit=Unit.GROUP)


def ledger(path: Path | None, *, simulated: bool = False, budget: float | None = None) -> Ledger:
    """A client's ledger in its own file."""
    return Ledger(
        "north",
        delta=DELTA,
        kind=Kind.END_TO_END,
        simulated=simulated,
        unit=Unit.GROUP,
        budget=None if budget is None else Budget(budget),
        path=path,
    )


def study(
    account: Account, path: Path | None, populations: Populations = PEOPLE, **options
) -> Ledger:
    """A study's ledger with its page in the account."""
    made = ledger(path, **options)
    made.page = account.page(populations, made, study=path.stem if path else "nothing")
    return made


def by_hand(*parts: tuple[float, float, int]) -> float:
    """Epsilon of (rate, noise, steps) composed by dp-accounting alone."""
    composed = None
    for rate, noise, steps in parts:
        step = pld.from_gaussian_mechanism(
            noise, sampling_prob=rate, value_discretization_interval=1e-4
        ).self_compose(steps)
        composed = step if composed is None else composed.compose(step)
    assert composed is not None
    return float(composed.get_epsilon_for_delta(DELTA))


def test_two_studies_compose_as_dp_accounting_does(account: Account, tmp_path: Path) -> None:
    """Two studies of different settings cost what dp-accounting says of all their steps: more than
    either, less than their sum."""
    study(account, tmp_path / "one.jsonl").charge(0, 40, 0.1, 3.0)
    study(account, tmp_path / "two.jsonl").charge(0, 60, 0.05, 2.0)
    (found,) = standings(account)
    expected = by_hand((0.1, 3.0, 40), (0.05, 2.0, 60))
    assert found.spent.pld == pytest.approx(expected, rel=2e-3)
    alone = [release.epsilon.pld for release in found.releases()]
    assert max(alone) < found.spent.pld < sum(alone)
    assert found.left == pytest.approx(4.0 - found.spent.pld)
    assert [release.first.study for release in found.releases()] == ["one", "two"]


def test_the_total_budget_stops_a_second_study(account: Account, tmp_path: Path) -> None:
    """What one study spent is missing to the next, step by step; beyond it nothing is written, and
    the second takes exactly the steps that dp-accounting leaves."""
    study(account, tmp_path / "one.jsonl").charge(0, 100, 0.1, 2.0)
    second = study(account, tmp_path / "two.jsonl")
    fits = second.affordable_steps(0.1, 2.0, 1000)
    assert by_hand((0.1, 2.0, 100 + fits)) <= 4.0 < by_hand((0.1, 2.0, 102 + fits))
    before = account.path.read_bytes()
    with pytest.raises(BudgetExhausted, match="all studies of this population"):
        second.charge(0, fits + 1, 0.1, 2.0)
    assert account.path.read_bytes() == before
    assert second.charges == ()
    second.charge(0, fits, 0.1, 2.0)
    assert second.affordable_steps(0.1, 2.0, 10) == 0
    assert not standing(account, "").exceeded


def test_a_clients_own_budget_counts_what_others_spent(account: Account, tmp_path: Path) -> None:
    """``privacy.budget`` of a client is held against the account, too."""
    study(account, tmp_path / "one.jsonl").charge(0, 40, 0.1, 2.0)
    second = study(account, tmp_path / "two.jsonl", budget=1.0)
    alone = ledger(tmp_path / "three.jsonl", budget=1.0)
    assert second.affordable_steps(0.1, 2.0, 500) < alone.affordable_steps(0.1, 2.0, 500)
    with pytest.raises(BudgetExhausted, match="above the budget of 1"):
        second.charge(0, alone.affordable_steps(0.1, 2.0, 500), 0.1, 2.0)


def test_studies_of_one_population_count_together(account: Account, tmp_path: Path) -> None:
    """Other people have a budget of their own; a study on both populations counts for both, and is
    held to both; one that names none counts for all, and all count for it."""
    study(account, tmp_path / "one.jsonl").charge(0, 40, 0.1, 3.0)
    study(account, tmp_path / "two.jsonl", OTHERS).charge(0, 20, 0.1, 3.0)
    first, second = standings(account)
    assert first.spent.pld == pytest.approx(by_hand((0.1, 3.0, 40)), rel=2e-3)
    assert second.spent.pld == pytest.approx(by_hand((0.1, 3.0, 20)), rel=2e-3)
    both = study(account, tmp_path / "three.jsonl", (*PEOPLE, *OTHERS))
    assert both.page is not None
    assert sum(segment.steps for segment in both.page.spent(())) == 60
    both.charge(0, 10, 0.1, 3.0)
    first, second = standings(account)
    assert first.spent.pld == pytest.approx(by_hand((0.1, 3.0, 50)), rel=2e-3)
    assert second.spent.pld == pytest.approx(by_hand((0.1, 3.0, 30)), rel=2e-3)
    nameless = study(account, tmp_path / "four.jsonl", (EVERY,))
    assert nameless.page is not None
    assert sum(segment.steps for segment in nameless.page.spent(())) == 70
    nameless.charge(0, 5, 0.1, 3.0)
    first, second, every = standings(account)
    assert first.spent.pld == pytest.approx(by_hand((0.1, 3.0, 55)), rel=2e-3)
    assert second.spent.pld == pytest.approx(by_hand((0.1, 3.0, 35)), rel=2e-3)
    assert every.spent.pld == pytest.approx(by_hand((0.1, 3.0, 75)), rel=2e-3)


def test_an_account_of_ids_counts_for_every_population(tmp_path: Path) -> None:
    """An account of an earlier release is read and continued: what it was charged for counts for
    all, whoever they were, and its hashes of ids are named as what to delete."""
    folder = tmp_path / "accounts"
    (folder / IDS).mkdir(parents=True)
    header = {"version": 1, "unit": "group", "delta": DELTA, "budget": 4.0, "salt": "00" * 16}
    journal.create(folder / FILE, header, durable=True)
    earlier = {
        "date": "2026-01-01T00:00:00+00:00",
        "dataset": "3fa1",
        "ids": "persons",
        "study": "federation old",
        "client": "north",
        "ledger": "/old/ledger.jsonl",
        "mechanism": "DP-SGD",
        "kind": "end-to-end",
        "relation": "zero-out",
        "simulated": False,
        "charge": {"round": 0, "steps": 40, "sampling_rate": 0.1, "noise_multiplier": 3.0},
    }
    journal.extend(folder / FILE, lambda *_: earlier, durable=True)
    account = Account(folder)
    assert account.keeps_ids
    for name in ("cardiology", "stroke"):
        study(account, tmp_path / f"{name}.jsonl", (name,)).charge(0, 20, 0.1, 3.0)
    every, *named = standings(Account(folder))
    assert every.population == EVERY
    for one in named:
        assert one.spent.pld == pytest.approx(by_hand((0.1, 3.0, 60)), rel=2e-3)
    assert named[0].releases()[0].first.study == "federation old"


def test_a_simulation_counts_for_nobody_and_is_held_to_what_is_left(
    account: Account, tmp_path: Path
) -> None:
    """Seeded noise is entered as a simulation, once however often it is repeated, and never
    counted; a simulation cannot spend what real releases have spent."""
    rehearsal = study(account, tmp_path / "sim.jsonl", simulated=True)
    rehearsal.charge(0, 150, 0.1, 2.0)
    (tmp_path / "sim.jsonl").unlink()
    study(account, tmp_path / "sim.jsonl", simulated=True).charge(0, 150, 0.1, 2.0)
    (found,) = standings(account)
    assert found.spent.pld == 0
    assert found.releases() == []
    assert [release.steps for release in found.rehearsals()] == [150]
    real = study(account, tmp_path / "real.jsonl")
    assert real.affordable_steps(0.1, 2.0, 200) > 150
    real.charge(0, 150, 0.1, 2.0)
    after = study(account, tmp_path / "sim2.jsonl", simulated=True)
    with pytest.raises(BudgetExhausted):
        after.charge(0, 150, 0.1, 2.0)


def test_a_ledger_in_memory_asks_and_leaves_no_trace(account: Account, tmp_path: Path) -> None:
    """A rehearsal without a file is held to the budget and writes nothing."""
    study(account, tmp_path / "one.jsonl").charge(0, 100, 0.1, 2.0)
    before = account.path.read_bytes()
    asking = study(account, None, simulated=True)
    asking.charge(0, 10, 0.1, 2.0)
    with pytest.raises(BudgetExhausted):
        asking.charge(1, 500, 0.1, 2.0)
    assert account.path.read_bytes() == before


def test_a_ledger_from_before_is_caught_up(account: Account, tmp_path: Path) -> None:
    """A ledger that was charged before the account was kept enters its charges once."""
    earlier = ledger(tmp_path / "one.jsonl")
    earlier.charge(0, 30, 0.1, 3.0)
    earlier.charge(1, 30, 0.1, 3.0)
    for _ in range(2):
        found = Ledger.read(tmp_path / "one.jsonl")
        found.page = account.page(PEOPLE, found, study="one")
    found.charge(2, 30, 0.1, 3.0)
    assert [entry.charge.round for entry in account.entries()] == [0, 1, 2]
    assert account.enter_all(found, study="again") == 0
    other = ledger(tmp_path / "two.jsonl")
    other.charge(0, 10, 0.1, 3.0)
    assert account.enter_all(other, study="two") == 1
    (first, every) = standings(account)
    assert first.spent.pld == pytest.approx(by_hand((0.1, 3.0, 100)), rel=2e-3)
    assert every.population == EVERY
    simulated = ledger(tmp_path / "three.jsonl", simulated=True)
    with pytest.raises(PrivacyError, match="simulation"):
        account.enter_all(simulated, study="three")


def test_another_ledger_at_the_same_path_is_caught_up(account: Account, tmp_path: Path) -> None:
    """A study that is run again in its place, without the account, is a second release."""
    path = tmp_path / "one.jsonl"
    study(account, path).charge(1, 10, 0.1, 2.0)
    path.unlink()
    again = ledger(path)
    again.charge(1, 10, 0.1, 2.0)
    assert account.enter_all(Ledger.read(path), study="one") == 1
    assert account.enter_all(Ledger.read(path), study="one") == 0


def test_damage_is_refused(account: Account, tmp_path: Path) -> None:
    """An edited number, another unit and a missing account are refused; an account is not opened
    twice."""
    study(account, tmp_path / "one.jsonl").charge(0, 40, 0.1, 3.0)
    content = account.path.read_text()
    account.path.write_text(content.replace('"steps": 40', '"steps": 4'))
    with pytest.raises(PrivacyError, match="damaged"):
        account.entries()
    account.path.write_text(content)
    per_record = Ledger("a", delta=DELTA, kind=Kind.END_TO_END, simulated=False)
    with pytest.raises(PrivacyError, match="per group, the ledger of a per record"):
        account.page(PEOPLE, per_record, study="x")
    with pytest.raises(ConfigError, match="proxyfl ledger open"):
        Account(tmp_path / "nowhere")
    with pytest.raises(PrivacyError, match="exists already"):
        Account.open(account.folder, delta=DELTA, budget=9.0, unit=Unit.GROUP)


def test_an_unfinished_line_counts_for_nothing(account: Account, tmp_path: Path) -> None:
    """A program that died while it wrote a charge leaves a rest, which goes with the next."""
    one = study(account, tmp_path / "one.jsonl")
    one.charge(0, 40, 0.1, 3.0)
    with account.path.open("ab") as file:
        file.write(b'{"date": "20')
    assert len(account.entries()) == 1
    one.charge(1, 40, 0.1, 3.0)
    assert len(account.entries()) == 2
    json.loads(account.path.read_text().splitlines()[-1])


def _spend(folder: Path, name: str, start) -> None:
    """One of several writers: charge ten steps at a time until the budget is spent."""
    account = Account(folder)
    own = study(account, folder.parent / f"{name}.jsonl")
    start.wait()
    for round in range(100):
        try:
            own.charge(round, 10, 0.1, 2.0)
        except BudgetExhausted:
            return


def test_two_processes_share_one_budget(account: Account, tmp_path: Path) -> None:
    """Two programs that charge at once never exceed the total together, leave no room for another
    charge, and every charge of both is on record."""
    context = multiprocessing.get_context("spawn")
    start = context.Barrier(2)
    writers = [
        context.Process(target=_spend, args=(account.folder, name, start))
        for name in ("one", "two")
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(120)
        assert writer.exitcode == 0
    (found,) = standings(account)
    charged = [len(Ledger.read(tmp_path / f"{name}.jsonl").charges) for name in ("one", "two")]
    assert min(charged) > 0
    steps = sum(entry.charge.steps for entry in account.entries())
    assert steps == 10 * sum(charged)
    assert by_hand((0.1, 2.0, steps)) <= 4.0 < by_hand((0.1, 2.0, steps + 11))
    assert not found.exceeded


def test_a_killed_run_has_charged_at_least_what_it_released(
    account: Account, tmp_path: Path
) -> None:
    """A process that is killed between its charge and its steps has the charge in the account, also
    where its own ledger lacks it."""
    program = textwrap.dedent(f"""
        import os, signal
        from pathlib import Path
        from proxyfl.privacy import journal
        from proxyfl.privacy.account import Account
        from tests.privacy.test_account import study
        own = study(Account(Path({str(account.folder)!r})), Path({str(tmp_path / "one.jsonl")!r}))
        own.charge(0, 10, 0.1, 2.0)
        journal.append = lambda *a, **k: os.kill(os.getpid(), signal.SIGKILL)
        own.charge(1, 10, 0.1, 2.0)
    """)
    done = subprocess.run([sys.executable, "-c", program], env={**os.environ}, check=False)
    assert done.returncode == -signal.SIGKILL
    assert len(Ledger.read(tmp_path / "one.jsonl").charges) == 1
    assert [entry.charge.round for entry in account.entries()] == [0, 1]
    assert (account.folder / FILE).read_bytes().endswith(b"\n")
