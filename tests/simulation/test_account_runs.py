"""Runs and sites with an account: what real releases spent counts, simulations do not."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from proxyfl.data.examples import InMemory
from proxyfl.errors import ConfigError
from proxyfl.node import assembly
from proxyfl.node.members.identity import Identity
from proxyfl.node.members.manifest import Input, Manifest
from proxyfl.node.members.site import Learning, Privacy, Site
from proxyfl.privacy.account import Account, Kept, Populations, standings
from proxyfl.privacy.guarantee import Kind, Unit
from proxyfl.privacy.ledger import Ledger
from proxyfl.simulation.prepare import prepare
from proxyfl.simulation.run import resume, run

from .engines import StopAt
from .test_groups import arrays, config


@pytest.fixture
def account(tmp_path: Path) -> Account:
    """An account per person with a total budget of 4.5."""
    return Account.open(tmp_path / "accounts", delta=1e-4, budget=4.5, unit=Unit.GROUP)


def spend(account: Account, steps: int, populations: Populations) -> Ledger:
    """A real release about these people."""
    ledger = Ledger(
        "north",
        delta=1e-4,
        kind=Kind.END_TO_END,
        simulated=False,
        unit=Unit.GROUP,
        path=account.folder.parent / "real.jsonl",
    )
    ledger.page = account.page(populations, ledger, study="heart")
    ledger.charge(0, steps, 8 / 22, 2.0)
    return ledger


def test_a_run_is_entered_as_a_simulation_once(account: Account, tmp_path: Path) -> None:
    """A run over two processes, cut off and resumed, leaves one entry for each client and round,
    marked as a simulation, and spends nothing."""
    privacy = {"account": str(account.folder), "population": ["north", "south"]}
    settings = config(arrays(tmp_path / "data.npz"), privacy=privacy)
    with pytest.raises(KeyboardInterrupt):
        run(settings, out=tmp_path / "run", callbacks=[StopAt("proxyfl", 1)])
    resume(tmp_path / "run", workers=2)
    entries = account.entries()
    assert len(entries) == 2 * 3
    assert {entry.study for entry in entries} == {"run run, proxyfl"}
    assert {entry.client for entry in entries} == {"client-0", "client-1"}
    assert all(entry.simulated for entry in entries)
    assert {(e.client, e.populations) for e in entries} == {
        ("client-0", ("north",)),
        ("client-1", ("south",)),
    }
    assert [one.spent.pld for one in standings(account)] == [0, 0]
    assert [len(one.rehearsals()) for one in standings(account)] == [1, 1]


def test_what_was_really_spent_shortens_a_run(account: Account, tmp_path: Path) -> None:
    """The plan counts what a real release about one client's population has spent: that client
    leaves earlier, the other does not."""
    privacy = {"account": str(account.folder), "population": ["north", "south"]}
    settings = config(arrays(tmp_path / "data.npz"), privacy=privacy)
    real = spend(account, 19, ("north",))
    planned = prepare(replace(settings, rounds=12)).presences["proxyfl"]
    steps = [sum(each.steps(i, 2) for each in planned if i in each.present) for i in range(2)]
    assert 0 < steps[0] < steps[1]
    # small steps, so that no room for a larger one is left
    real.charge(1, real.affordable_steps(0.05, 2.0, 9999), 0.05, 2.0)
    with pytest.raises(ConfigError, match="proxyfl ledger list"):
        prepare(settings)


def test_pooled_data_are_of_all_populations(account: Account, tmp_path: Path) -> None:
    """`joint` has everybody's records, so it is charged to everybody's populations."""
    privacy = {"account": str(account.folder), "population": ["north", "south + east"]}
    settings = config(arrays(tmp_path / "data.npz"), privacy=privacy, methods=["joint"])
    run(settings, out=tmp_path / "run")
    assert {entry.populations for entry in account.entries()} == {("east", "north", "south")}


def test_a_population_needs_an_account() -> None:
    """A name that nothing is charged to is refused, and so is one that is no name."""
    with pytest.raises(ConfigError, match=r"privacy\.population='heart' .* Set privacy\.account"):
        Privacy(population="heart")
    for text in ("", "heart +", "every + heart", "a\nb"):
        with pytest.raises(ConfigError, match="names of populations"):
            Privacy(account="accounts", population=text)


@pytest.mark.parametrize("earlier", [("heart",), ("stroke",)])
def test_the_round_in_which_a_site_leaves_tells_nobody(
    account: Account, tmp_path: Path, earlier: Populations
) -> None:
    """An earlier study was about some people. Whether one of them is in a site's data or not, the
    site can afford the same steps: what counts are the names of populations."""
    spend(account, 10, earlier)
    afforded = []
    for persons in (range(20), range(1, 21)):
        names = ("north", "south")
        folder = tmp_path / str(persons[0])
        cards = [Identity.create(folder / name, name).card("127.0.0.1:7000") for name in names]
        manifest = Manifest("heart", input=Input((4,), ("0", "1")), members=tuple(cards))
        draw = torch.Generator().manual_seed(0)
        np.savez(
            folder / "north" / "data.npz",
            x_train=torch.rand(80, 4, generator=draw).numpy(),
            y_train=np.arange(80) % 2,
            group_train=np.repeat(list(persons), 4),
            x_test=np.zeros((2, 4), np.float32),
            y_test=np.arange(2),
            group_test=np.array([500, 501]),
        )
        privacy = Privacy(
            unit="group",
            account=str(account.folder),
            population="heart",
            delta=1e-4,
            sampling_rate=0.25,
            budget=None,
        )
        site = replace(Site("north"), learning=Learning(batch_size=5), privacy=privacy)
        own = assembly.load(manifest, site, folder / "north")
        client = assembly.client(
            manifest, site, own.train, ledger=None, seed=0, account=own.account
        )
        afforded.append(assembly.affordable_steps(client, 1000))
    assert afforded[0] == afforded[1] > 0
    assert list((account.folder).iterdir()) == [account.path]  # nothing of the data is in it


def test_a_site_enters_what_it_spends(account: Account, tmp_path: Path) -> None:
    """A site with real noise enters its rounds before their steps; a second federation over the
    same persons has less left, and its rehearsal says so."""
    names = ("north", "south")
    cards = [Identity.create(tmp_path / name, name).card("127.0.0.1:7000") for name in names]
    manifest = Manifest("heart", input=Input((4,), ("well", "sick")), members=tuple(cards))
    privacy = Privacy(unit="group", account=str(account.folder), delta=1e-3, budget=None)
    site = replace(Site("north"), learning=Learning(batch_size=10), privacy=privacy)
    examples = InMemory(torch.rand(80, 4), torch.arange(80) % 2, torch.arange(80) // 4)
    kept = Kept(account.folder, ("heart",), "federation heart")
    client = assembly.client(
        manifest, site, examples, ledger=tmp_path / "ledger.jsonl", account=kept
    )
    client.learner.train(0, client.steps)
    (entry,) = account.entries()
    assert (entry.study, entry.client, entry.simulated) == ("federation heart", "north", False)
    assert entry.charge.sampling_rate == 0.5
    rehearsal = assembly.client(manifest, site, examples, ledger=None, seed=0, account=kept)
    fresh = assembly.client(manifest, site, examples, ledger=None, seed=0)
    left = rehearsal.ledger.affordable_steps(0.5, 4.0, 1000)
    assert left < fresh.ledger.affordable_steps(0.5, 4.0, 1000)
    assert len(account.entries()) == 1
