"""The clients of a run spread over the ranks of an MPI job, as ``workers`` spreads them over
processes.

Rank 0 leads: it alone reads the command line, makes the run's folder, records and prints. The
others wait for orders. An order is a run's config and tasks; every rank keeps only its own clients'
data, hosts every N-th client, and goes through the same methods and rounds. Proxies go directly
from rank to rank, those of the hub methods through the rank of the hub client, which is 0 unless
client 0 is away. Records come to rank 0 as JSON. A client computes the same bits wherever it runs,
so the number of ranks changes nothing but the time.

Failure: a rank that raises, dies, or stalls past ``exchange.timeout`` ends the job with one message
that names it, its clients and the round (simulation/engines/ranks.py). What was recorded and
checkpointed is intact."""

import tomllib
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from proxyfl.data import Dataset
from proxyfl.errors import DataError, PeerTimeout, RunError, WorkerDied
from proxyfl.federation.membership import Presence
from proxyfl.federation.methods import METHODS, Method
from proxyfl.gossip import topology
from proxyfl.simulation import clients as build
from proxyfl.simulation.checkpoint import Checkpoint
from proxyfl.simulation.clients import Site
from proxyfl.simulation.config import Config, from_tree, to_toml
from proxyfl.simulation.engines.ranks import Crew, Follower, Places, lead
from proxyfl.simulation.engines.serial import Done, Prepared, Task, merged, rounds_of
from proxyfl.transport.base import Transport
from proxyfl.transport.mpi import Mail, MpiTransport, launched

if TYPE_CHECKING:
    from proxyfl.records.run import Run
    from proxyfl.simulation.run import Callback

_LOADING = 600.0
_LOADS = "while it loaded its data"

_crew: Crew | None = None
"""The ranks that this process leads. A process belongs to one MPI job for life, hence one
variable."""


def led(
    action: Callable[[], int],
    *,
    dataset: Dataset | None = None,
    table: Mapping[str, Method] = METHODS,
) -> int:
    """Do ``action`` on rank 0, with all other ranks at its service; return its exit code.

    Without a launcher this is ``action()``. On the other ranks it returns 0 when rank 0 dismisses
    them."""
    global _crew
    if launched() < 2:
        return action()
    mail = Mail()
    if mail.rank > 0:
        follower = Follower(mail)
        follower.serve(lambda order: _follow(follower, order, dataset, table))
        return 0
    with lead(mail) as crew:
        _crew = crew
        try:
            crew.code = action()
        finally:
            _crew = None
    return crew.code


def run(
    config: Config,
    *,
    out: Path | str | None = None,
    dataset: Dataset | None = None,
    table: Mapping[str, Method] = METHODS,
    callbacks: "Sequence[Callback]" = (),
) -> "Run | None":
    """``runner.run`` for a script that is started under mpiexec: the result on rank 0, None on the
    others."""
    from proxyfl.simulation import run as runner

    results: list[Run] = []

    def action() -> int:
        results.append(
            runner.run(config, out=out, dataset=dataset, table=table, callbacks=callbacks)
        )
        return 0

    led(action, dataset=dataset, table=table)
    return results[0] if results else None


def leading() -> bool:
    """Whether this process is rank 0 of a job whose other ranks wait for orders."""
    return _crew is not None


def rounds(prepared: Prepared, tasks: Sequence[Task], *, out: Path | None) -> Iterator[Done]:
    """Run ``tasks`` on all ranks; yield each round of each method once all ranks have done it. For
    rank 0."""
    if _crew is None:
        raise RunError(
            "This process leads no MPI job. Start with mpiexec, through `led` or `run` of this "
            "module."
        )
    crew, config = _crew, prepared.config
    places = Places(tuple(site.name for site in prepared.sites), crew.machines)
    counts = [_clients(prepared.table, places, task.method) for task in tasks]
    schedule = [
        _schedule(tasks, counts, config.rounds, places, rank) for rank in range(crew.mail.size)
    ]
    channel = crew.channels(len(tasks))
    order = _order(prepared, tasks, places, out, channel)
    crew.begin(places, order, schedule, timeout=config.exchange.timeout, out=out)
    for rank in range(1, crew.mail.size):
        crew.report(rank, max(_LOADING, config.exchange.timeout))
    for number, (task, clients) in enumerate(zip(tasks, counts, strict=True), channel):
        transport = _Blaming(_transport(crew.mail, places, number), places, task.method)
        own = rounds_of(prepared, task, places.hosted(0, clients), transport, out)
        # Where ranks wait for each other, the one who waits in vain knows better than rank 0 for
        # whom: let it speak.
        patience = config.exchange.timeout * (
            1 if prepared.table[task.method].exchange == "none" else 2
        )
        for round in range(task.first_round, config.rounds + 1):
            parts = [_own_part(own, places, _where(task.method, round, config.rounds))]
            others = range(1, min(crew.mail.size, clients))
            parts += [Done.from_dict(crew.report(rank, patience)) for rank in others]
            yield merged(parts)
            crew.go_on()
    crew.finished()


def _schedule(
    tasks: Sequence[Task], counts: Sequence[int], rounds: int, places: Places, rank: int
) -> list[str]:
    """Where each report of ``rank`` will come from: loading its data, then every round of every
    method it hosts."""
    return [_LOADS] + [
        _where(task.method, round, rounds)
        for task, clients in zip(tasks, counts, strict=True)
        if places.hosted(rank, clients)
        for round in range(task.first_round, rounds + 1)
    ]


def _own_part(own: Iterator[Done], places: Places, where: str) -> Done:
    try:
        return next(own)
    except WorkerDied:
        raise
    except Exception as error:
        raise WorkerDied(places.failed(0, where, error)) from error


def _order(
    prepared: Prepared, tasks: Sequence[Task], places: Places, out: Path | None, channel: int
) -> dict[str, Any]:
    """All that another rank needs to know, as JSON."""
    return {
        "config": to_toml(prepared.config),
        "channel": channel,
        "out": None if out is None else str(out.absolute()),
        "names": places.names,
        "machines": places.machines,
        "checksums": [_checksum(site) for site in prepared.sites],
        "tasks": [
            {
                "method": t.method,
                "path": str(t.checkpoint.path.absolute()),
                "round": t.checkpoint.round,
            }
            if t.checkpoint is not None
            else {"method": t.method}
            for t in tasks
        ],
        "presences": {
            task.method: _runs_of_equals(prepared.presences[task.method]) for task in tasks
        },
    }


def _follow(
    follower: Follower, order: Any, dataset: Dataset | None, table: Mapping[str, Method]
) -> None:
    """Carry out one order: what ``rounds`` does, on another rank."""
    config = from_tree(tomllib.loads(order["config"]))
    out = None if order["out"] is None else Path(order["out"])
    places, rank = Places(tuple(order["names"]), tuple(order["machines"])), follower.mail.rank
    follower.begin(places, timeout=config.exchange.timeout, out=out)
    follower.where = _LOADS
    if out is not None and not (out / "config.toml").is_file():
        raise RunError(
            f"It does not see the run's folder {out}. Give one that all machines share with --out."
        )
    prepared = _prepared(config, order, dataset, table, places, rank)
    follower.report({})
    for number, about in enumerate(order["tasks"], order["channel"]):
        task = _task(about)
        transport = _Blaming(_transport(follower.mail, places, number), places, task.method)
        hosted = places.hosted(rank, _clients(table, places, task.method))
        follower.where = _where(task.method, task.first_round, config.rounds)
        behind = config.rounds + 1 - task.first_round
        for done in rounds_of(prepared, task, hosted, transport, out) if hosted else ():
            follower.report(done.as_dict())
            follower.where = _where(task.method, done.round + 1, config.rounds)
            if table[task.method].exchange == "none":
                # No exchange holds ranks together here, and one that runs far ahead would later
                # wait in vain.
                behind -= follower.await_go(config.exchange.timeout)
        for _ in range(behind):
            follower.await_go(config.exchange.timeout)


def _prepared(
    config: Config,
    order: Any,
    dataset: Dataset | None,
    table: Mapping[str, Method],
    places: Places,
    rank: int,
) -> Prepared:
    """The run as this rank sees it: rank 0 has checked it; of the data only what is hosted here is
    kept."""
    torch.set_num_threads(config.threads)
    dataset = dataset if dataset is not None else build.load_data(config)
    hosted = places.hosted(rank, len(places.names))
    sites = _own_sites(config, dataset, hosted)
    for client in hosted:
        if _checksum(sites[client]) != order["checksums"][client]:
            raise DataError(
                f"The data of {sites[client].name} is not what rank 0 has for it. Give all "
                f"machines the same files."
            )
    settings = config.exchange
    mixing = topology.make(
        settings.topology,
        self_weight=settings.self_weight,
        degree=settings.degree,
        seed=config.seed,
    )
    presences = {name: _unrolled(runs) for name, runs in order["presences"].items()}
    one = replace(
        dataset,
        train_x=dataset.train_x[:1].clone(),
        train_y=dataset.train_y[:1],
        site=None,
        site_names=(),
    )
    return Prepared(config, one, sites, table, mixing, presences)


def _own_sites(config: Config, dataset: Dataset, hosted: Iterable[int]) -> list[Site]:
    """All clients by name, with the data of those in ``hosted``. Nobody else's examples are
    copied."""
    rows_only = replace(
        dataset,
        train_x=torch.zeros(len(dataset.train_y), 1),
        test_x=torch.zeros(len(dataset.test_y), 1),
    )
    sites = [replace(site, x=site.x[:0], y=site.y[:0]) for site in build.deal(config, rows_only)]
    for client in hosted:
        rows = sites[client].rows
        sites[client] = replace(sites[client], x=dataset.train_x[rows], y=dataset.train_y[rows])
    return sites


@dataclass(frozen=True)
class _Blaming:
    """A transport whose timeouts name the rank that stayed silent, and its clients."""

    transport: Transport
    places: Places
    method: str

    def send(self, frame: bytes, *, sender: int, receiver: int, round: int) -> None:
        self.transport.send(frame, sender=sender, receiver=receiver, round=round)

    def receive(self, *, sender: int, receiver: int, round: int, timeout: float) -> bytes:
        try:
            return self.transport.receive(
                sender=sender, receiver=receiver, round=round, timeout=timeout
            )
        except PeerTimeout as error:
            who = self.places.describe(self.places.home(sender))
            raise WorkerDied(
                f"{who} stalled in {self.method}, round {round}: client {sender} sent nothing to "
                f"client {receiver} "
                f"within {timeout:g} s. If that is how far ranks are apart, raise exchange.timeout."
            ) from error

    def close(self) -> None:
        self.transport.close()


def _transport(mail: Mail, places: Places, channel: int) -> MpiTransport:
    # A channel for each method: the fastest rank may begin the next before the slowest has ended
    # the last.
    return MpiTransport(mail, places.home, channel=channel)


def _clients(table: Mapping[str, Method], places: Places, method: str) -> int:
    return 1 if table[method].pooled else len(places.names)


def _where(method: str, round: int, rounds: int) -> str:
    return f"in {method}, round {round}" if round < rounds else f"in {method}, after the last round"


def _task(about: Mapping[str, Any]) -> Task:
    if "path" not in about:
        return Task(about["method"])
    return Task(about["method"], Checkpoint(Path(about["path"]), about["round"], 0, {}))


def _checksum(site: Site) -> int:
    checksum = zlib.crc32(site.x.contiguous().numpy().data)
    return zlib.crc32(site.y.contiguous().numpy().data, checksum)


def _runs_of_equals(presences: Sequence[Presence]) -> list[list[Any]]:
    """Presences as JSON. They seldom change: [how often in a row, what] for each change."""
    runs: list[list[Any]] = []
    for presence in presences:
        plain = [
            list(presence.present),
            presence.expected,
            list(presence.leaving.items()),
            list(presence.fewer_steps.items()),
        ]
        if runs and runs[-1][1] == plain:
            runs[-1][0] += 1
        else:
            runs.append([1, plain])
    return runs


def _unrolled(runs: Sequence[Any]) -> list[Presence]:
    presences: list[Presence] = []
    for times, (present, expected, leaving, fewer) in runs:
        one = Presence(tuple(present), expected, dict(leaving), dict(fewer))
        presences.extend([one] * times)
    return presences
