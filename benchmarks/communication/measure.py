"""What an exchange costs, measured: one client per MPI rank, random parameters, nothing trained.

All clients wait for each other first, as the paper's measurement does; then each one's time runs
until its exchange returns. The code that encodes, moves, decodes and adds is the one of a real run.

Ranks that share a machine share its cores, so gossip, whose clients work at the same time, is
slowed down by every core that is missing. ``link`` emulates a network card for each."""

import itertools
import json
import shutil
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.checks import choice, whole
from benchmarks.communication.link import Link, Paced
from proxyfl import Mass, models, seeds
from proxyfl.errors import ConfigError, TransportError
from proxyfl.federation import exchange
from proxyfl.federation.methods import METHODS
from proxyfl.machine import keep_freed_memory
from proxyfl.parts import exponential
from proxyfl.transport.base import Transport
from proxyfl.transport.mpi import MpiEndpoint, MpiTransport

SHARING = tuple(name for name, method in METHODS.items() if method.exchange != "none")
"""The methods that exchange anything."""

SHAPES = {"mlp": (1, 28, 28), "cnn1": (3, 32, 32), "resnet18": (3, 32, 32)}
"""The inputs for which the paper's proxies are sized; ResNet-18's size does not depend on them."""

_WARM_UP = 2
_PATIENCE = 3600.0

Round = Mapping[str, float]
"""One client's round: seconds, and bytes sent and received."""


@dataclass(frozen=True)
class Case:
    """One point of a figure: ``rounds`` exchanges of ``method`` between ``clients`` clients."""

    method: str
    model: str
    parameters: int
    clients: int
    rounds: int
    link: Link | None = None

    def __post_init__(self) -> None:
        choice("method", self.method, SHARING)
        whole("clients", self.clients, at_least=2)
        whole("rounds", self.rounds)


@dataclass(frozen=True)
class Point:
    """What was measured. Seconds are per client and round: the median over rounds of the mean over
    clients.

    ``low`` and ``high`` are the quartiles over rounds, ``slowest`` the median of the slowest
    client. Bytes are per round: the mean over clients, and the ``busiest`` client's in its busier
    direction, which its link must carry."""

    method: str
    model: str
    parameters: int
    clients: int
    rounds: int
    latency: float | None
    bandwidth: float | None
    seconds: float
    low: float
    high: float
    slowest: float
    bytes_sent: float
    bytes_busiest: int


def cases(
    methods: Sequence[str],
    sizes: Sequence[str],
    clients: Sequence[int],
    rounds: int,
    link: Link | None = None,
) -> list[Case]:
    """All combinations, with the parameters of each model counted."""
    counted = {name: parameters(name) for name in sizes}
    return [
        Case(method, model, counted[model], n, rounds, link)
        for model, n, method in itertools.product(sizes, clients, methods)
    ]


def parameters(model: str) -> int:
    """How many parameters the proxy ``model`` has, at the input that the paper gives it."""
    choice("model", model, SHAPES)
    return models.parameter_count(models.build(model, shape=SHAPES[model], classes=10, seed=0))


def measure(todo: Sequence[Case], *, timeout: float = 3600.0) -> list[Point]:
    """Measure all cases in one MPI job that is started here, however few cores there are."""
    if not todo:
        return []
    ranks = max(case.clients for case in todo)
    content = json.dumps([asdict(case) for case in todo])
    command = [*_launcher(ranks), sys.executable, "-m", "benchmarks.communication.measure", content]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=timeout,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise TransportError(
            f"The measurement on {ranks} ranks took longer than {timeout:g} s."
        ) from error
    if done.returncode:
        raise TransportError(f"The measurement on {ranks} ranks failed:\n{done.stderr.strip()}")
    return [Point(**point) for point in json.loads(done.stdout)]


def measure_here(endpoint: MpiEndpoint, todo: Sequence[Case]) -> list[Point]:
    """Measure on the ranks of this job, which all call this with the same cases; the points on
    rank 0."""
    most = max((case.clients for case in todo), default=0)
    if most > endpoint.size:
        if endpoint.rank > 0:
            return []  # rank 0 says it
        raise ConfigError(f"{most} clients need as many ranks; this job has {endpoint.size}.")
    points = []
    for case in todo:
        own: list[Round] = []
        if endpoint.rank < case.clients:
            own = _rounds(endpoint, case)
        if endpoint.rank == 0:
            others = [json.loads(_from(endpoint, rank)) for rank in range(1, case.clients)]
            points.append(_point(case, [own, *others]))
        elif own:
            endpoint.send(json.dumps(own).encode(), to=0)
        _barrier(endpoint, endpoint.size)
    return points


def read(path: Path) -> list[Point]:
    """The points in a file that ``measure --out`` wrote."""
    try:
        return [Point(**point) for point in json.loads(path.read_text(encoding="utf-8"))["points"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"Cannot read measured points from {path}: {error}. `measure --out` writes them."
        ) from error


def _rounds(endpoint: MpiEndpoint, case: Case) -> list[Round]:
    """What one client measures of a case."""
    client = endpoint.rank
    everyone = range(case.clients)
    transport: Transport = MpiTransport(endpoint, case.clients)
    if case.link is not None:
        transport = Paced(transport, case.link)
    mix = exchange.mixing(METHODS[case.method].exchange, exponential())
    start = torch.rand(case.parameters, generator=seeds.stream(0, "measure", client))
    masses = {client: Mass(start)}
    measured: list[Round] = []
    for round in range(_WARM_UP + case.rounds):
        channel = exchange.MassChannel(
            transport, round, "measured", case.parameters, timeout=_PATIENCE
        )
        _barrier(endpoint, case.clients)
        began = time.perf_counter()
        masses = mix(masses, everyone, frozenset(), channel)
        seconds = time.perf_counter() - began
        # MPI moves what is left only while this rank calls it
        endpoint.flush(_PATIENCE)
        traffic = channel.of(client)
        if round >= _WARM_UP:
            measured.append(
                {"seconds": seconds, "sent": traffic.bytes_sent, "received": traffic.bytes_received}
            )
    return measured


def _barrier(endpoint: MpiEndpoint, ranks: int) -> None:
    """Wait until the first ``ranks`` ranks, this one among them, wait here.

    Messages go 1, 2, 4 ... places ahead: after the last of them everyone has heard of everyone. The
    core is free meanwhile, which MPI's own barrier does not promise."""
    for step in range((ranks - 1).bit_length()):
        endpoint.send(b"", to=(endpoint.rank + 2**step) % ranks)
        _from(endpoint, (endpoint.rank - 2**step) % ranks)


def _from(endpoint: MpiEndpoint, rank: int) -> bytes:
    content = endpoint.receive(source=rank, timeout=_PATIENCE)
    if content is None:
        raise TransportError(f"Rank {rank} has sent nothing for {_PATIENCE:g} s.")
    return content


def _point(case: Case, clients: Sequence[Sequence[Round]]) -> Point:
    by_round = list(zip(*clients, strict=True))
    means = []
    slowest = []
    sent: list[float] = []
    busiest = 0.0
    for together in by_round:
        seconds = [one["seconds"] for one in together]
        means.append(statistics.fmean(seconds))
        slowest.append(max(seconds))
        for one in together:
            sent.append(one["sent"])
            busiest = max(busiest, one["sent"], one["received"])
    low, middle, high = statistics.quantiles(means, n=4) if len(means) > 1 else means * 3
    return Point(
        case.method,
        case.model,
        case.parameters,
        case.clients,
        case.rounds,
        None if case.link is None else case.link.latency,
        None if case.link is None else case.link.bandwidth,
        seconds=middle,
        low=low,
        high=high,
        slowest=statistics.median(slowest),
        bytes_sent=statistics.fmean(sent),
        bytes_busiest=int(busiest),
    )


def _launcher(ranks: int) -> list[str]:
    """The start of a command line that runs ``ranks`` processes on this machine."""
    beside = Path(sys.executable).with_name("mpiexec")
    found = str(beside) if beside.exists() else shutil.which("mpiexec")
    if found is None:
        raise TransportError("There is no mpiexec. Install one with `pip install 'proxyfl[mpi]'`.")
    said = subprocess.run(
        [found, "--version"], capture_output=True, text=True, check=False, timeout=30
    )
    command = [found]
    if "open mpi" in said.stdout.lower() or "open-mpi" in said.stdout.lower():
        command += ["--oversubscribe", "--bind-to", "none"]
    return [*command, "-n", str(ranks)]


def _case(about: Mapping[str, Any]) -> Case:
    link = about["link"]
    return Case(**{**about, "link": None if link is None else Link(**link)})


def main(content: str) -> int:
    """One rank of ``measure``."""
    keep_freed_memory()
    torch.set_num_threads(1)
    endpoint = MpiEndpoint()
    try:
        points = measure_here(endpoint, [_case(about) for about in json.loads(content)])
    except BaseException:
        traceback.print_exc()  # and not let the others wait for this rank
        endpoint.abort(1)
        raise
    if endpoint.rank == 0:
        print(json.dumps([asdict(point) for point in points]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
