"""Runs and sites with an account: what real releases spent counts, simulations do not."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from proxyfl.data.examples import InMemory
from proxyfl.errors import ConfigError
from proxyfl.node import assembly
from proxyfl.node.members.identity import Identity
from proxyfl.node.members.manifest import Input, Manifest
from proxyfl.node.members.site import Learning, Privacy, Site
from proxyfl.privacy.guarantee import Kind, Unit
from proxyfl.privacy.ledger import Ledger
from proxyfl.privacy.spending.account import Account, Ids, Kept
from proxyfl.privacy.spending.standing import standings
from proxyfl.simulation.prepare import prepare
from proxyfl.simulation.run import resume, run

from .test_engines import StopAt
from .test_groups import arrays, config


@pytest.fixture
def account(tmp_path: Path) -> Account:
    """An account per person with a total budget of 4.5."""
    return Account.open(
        tmp_path / "accounts", delta=1e-4, budget=4.5, unit=Unit.GROUP
    )


def spend(account: Account, steps: int, names: tuple[str, ...]) -> None:
    """A real release about these persons."""
    ledger = Ledger(
        "north",
        delta=1e-4,
        kind=Kind.END_TO_END,
        simulated=False,
        unit=Unit.GROUP,
        path=account.folder.parent / "real.jsonl",
    )
    ledger.page = account.page(Ids("persons", names), ledger, study="heart")
    ledger.charge(0, steps, 8 / 22, 2.0)


def test_a_run_is_entered_as_a_simulation_once(
    account: Account, tmp_path: Path
) -> None:
    """A run over two processes, cut off and resumed, leaves one entry for each client and round,
    marked as a simulation, and spends nothing."""
    settings = config(
        arrays(tmp_path / "data.npz"), privacy={"account": str(account.folder)}
    )
    with pytest.raises(KeyboardInterrupt):
        run(settings, out=tmp_path / "run", callbacks=[StopAt("proxyfl", 1)])
    resume(tmp_path / "run", workers=2)
    entries = account.entries()
    assert len(entries) == 2 * 3
    assert {entry.study for entry in entries} == {"run run, proxyfl"}
    assert {entry.client for entry in entries} == {"client-0", "client-1"}
    assert all(entry.simulated for entry in entries)
    assert {entry.ids for entry in entries} == {"persons"}
    assert [one.spent.pld for one in standings(account)] == [0, 0]
    assert [len(one.rehearsals()) for one in standings(account)] == [1, 1]


def test_what_was_really_spent_shortens_a_run(
    account: Account, tmp_path: Path
) -> None:
    """The plan counts what a real release about some of a client's persons has spent: that client
    leaves earlier, the other does not."""
    source = arrays(tmp_path / "data.npz")
    settings = config(source, privacy={"account": str(account.folder)})
    clients = prepare(settings).clients
    ids = clients[0].ids
    assert ids is not None
    spend(account, 19, ids.names[:1])
    planned = prepare(replace(settings, rounds=12)).presences["proxyfl"]
    steps = [
        sum(each.steps(i, 2) for each in planned if i in each.present)
        for i in range(2)
    ]
    assert 0 < steps[0] < steps[1]
    spend_all = Ledger.read(account.folder.parent / "real.jsonl")
    spend_all.page = account.page(
        Ids("persons", ids.names[:1]), spend_all, study="b"
    )
    spend_all.charge(1, spend_all.affordable_steps(8 / 22, 2.0, 99), 8 / 22, 2.0)
    with pytest.raises(ConfigError, match="proxyfl ledger list"):
        prepare(settings)


def test_rows_are_the_ids_where_nobody_is_named(tmp_path: Path) -> None:
    """Without persons a record is known by the file's name and its row in the file; other seeds
    hold out other rows, and the account still sees that they overlap."""
    account = Account.open(
        tmp_path / "accounts", delta=1e-4, budget=None, unit=Unit.RECORD
    )
    source = arrays(tmp_path / "data.npz", group=False)
    privacy = {
        "unit": "record",
        "max_per_group": "none",
        "account": str(account.folder),
    }
    settings = config(source, privacy=privacy)
    found = [
        client.ids
        for seed in (0, 1)
        for client in prepare(replace(settings, seed=seed)).clients
    ]
    assert all(ids is not None and ids.kind == "rows" for ids in found)
    names = {name for ids in found if ids is not None for name in ids.names}
    assert all(name.startswith("data:") for name in names)
    one, other = (account.dataset(ids) for ids in found[1:3] if ids is not None)
    assert account.sharing(one, [other]) == {one, other}


def test_a_site_enters_what_it_spends(account: Account, tmp_path: Path) -> None:
    """A site with real noise enters its rounds before their steps; a second federation over the
    same persons has less left, and its rehearsal says so."""
    names = ("north", "south")
    cards = [
        Identity.create(tmp_path / name, name).card("127.0.0.1:7000")
        for name in names
    ]
    manifest = Manifest(
        "heart", input=Input((4,), ("well", "sick")), members=tuple(cards)
    )
    privacy = Privacy(
        unit="group", account=str(account.folder), delta=1e-3, budget=None
    )
    site = replace(Site("north"), learning=Learning(batch_size=10), privacy=privacy)
    examples = InMemory(
        torch.rand(80, 4), torch.arange(80) % 2, torch.arange(80) // 4
    )
    kept = Kept(
        account.folder,
        Ids("persons", tuple(map(str, range(20)))),
        "federation heart",
    )
    client = assembly.client(
        manifest,
        site,
        examples,
        ledger=tmp_path / "ledger.jsonl",
        account=kept,
    )
    client.learner.train(0, client.steps)
    (entry,) = account.entries()
    assert (entry.study, entry.client, entry.simulated) == (
        "federation heart",
        "north",
        False,
    )
    assert entry.charge.sampling_rate == 0.5
    rehearsal = assembly.client(
        manifest, site, examples, ledger=None, seed=0, account=kept
    )
    fresh = assembly.client(manifest, site, examples, ledger=None, seed=0)
    left = rehearsal.ledger.affordable_steps(0.5, 4.0, 1000)
    assert left < fresh.ledger.affordable_steps(0.5, 4.0, 1000)
    assert len(account.entries()) == 1
