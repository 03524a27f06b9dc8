"""What an exchange costs, measured: every client on an MPI rank of its own, nothing trained, random
parameters.

All clients wait for each other first, as the paper's measurement does; then each one's time runs
until its exchange returns. The code that encodes, moves, decodes and adds is the one of a real run.

On one machine the ranks share cores and memory instead of a network, which flatters nobody in the
same way: gossip, whose clients work at the same time, is slowed down by every core that is missing.
A ``Link`` therefore gives every rank a network card of its own that is emulated by waiting: each
carries one message at a time in each direction. Waiting needs no core, so many ranks on few cores
show what as many machines would, as long as the link is the slower part."""

import itertools
import json
import statistics
import struct
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from proxyfl import models, seeds
from proxyfl._machine import keep_freed_memory
from proxyfl._validate import choice, number, whole
from proxyfl.errors import ConfigError, TransportError
from proxyfl.federation import exchange
from proxyfl.federation.methods import METHODS
from proxyfl.gossip.pushsum import Mass
from proxyfl.gossip.topology import exponential
from proxyfl.transport.base import Transport
from proxyfl.transport.mpi import Mail, MpiTransport, launcher

SHARING = tuple(name for name, method in METHODS.items() if method.exchange != "none")
"""The methods that exchange anything."""

SHAPES = {"mlp": (1, 28, 28), "cnn1": (3, 32, 32), "resnet18": (3, 32, 32)}
"""The inputs for which the paper's proxies are sized; ResNet-18's size does not depend on them."""

_CASES, _RESULTS, _FRAMES = 0, 1, 2
_WARM_UP = 2
_END = 2**19
"""The number of a case's last barrier, beyond all rounds."""
_STAMP = struct.Struct("<d")


@dataclass(frozen=True)
class Link:
    """An emulated network card: ``latency`` in seconds, ``bandwidth`` in bytes per second and
    direction."""

    latency: float
    bandwidth: float

    def __post_init__(self) -> None:
        number("latency", self.latency, at_least=0)
        number("bandwidth", self.bandwidth, above=0)


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
        number("rounds", self.rounds, below=_END - _WARM_UP)


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


class Paced:
    """A transport with an emulated network card. Clocks must agree: for ranks of one machine."""

    def __init__(self, transport: Transport, link: Link) -> None:
        self._transport, self._link = transport, link
        self._up = self._down = 0.0
        self._turn = threading.Lock()

    def send(self, frame: bytes, *, sender: int, receiver: int, round: int) -> None:
        """Hand ``frame`` over; it leaves when the card has sent what was before it."""
        with self._turn:
            leaves = max(time.monotonic(), self._up)
            self._up = leaves + len(frame) / self._link.bandwidth
        stamped = _STAMP.pack(leaves + self._link.latency) + frame
        self._transport.send(stamped, sender=sender, receiver=receiver, round=round)

    def receive(self, *, sender: int, receiver: int, round: int, timeout: float) -> bytes:
        """The frame, once the card has received it whole and what came before it."""
        stamped = self._transport.receive(
            sender=sender, receiver=receiver, round=round, timeout=timeout
        )
        (begins,), frame = _STAMP.unpack_from(stamped), stamped[_STAMP.size :]
        with self._turn:
            self._down = max(begins, self._down) + len(frame) / self._link.bandwidth
            arrives = self._down
        time.sleep(max(0.0, arrives - time.monotonic()))
        return frame

    def close(self) -> None:
        """Close what is below."""
        self._transport.close()


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
    """Measure all cases in one MPI job that is started on this machine, however few cores it
    has."""
    if not todo:
        return []
    ranks = max(case.clients for case in todo)
    command = [*launcher(ranks), sys.executable, "-m", "benchmarks.communication.measure"]
    content = json.dumps([asdict(case) for case in todo])
    try:
        done = subprocess.run(
            [*command, content],
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


def measure_here(mail: Mail, todo: Sequence[Case] | None) -> list[Point]:
    """Measure on the ranks of this job, whichever machines they are on. Rank 0 gives the cases and
    gets the points."""
    if mail.rank == 0:
        content = json.dumps([asdict(case) for case in todo or ()]).encode()
        for rank in range(1, mail.size):
            mail.post(rank, (_CASES, 0, rank, 0), content)
    else:
        todo = [_case(about) for about in json.loads(mail.take((_CASES, 0, mail.rank, 0)) or b"[]")]
    points = []
    for index, case in enumerate(todo or ()):
        if case.clients > mail.size:
            raise ConfigError(
                f"{case.clients} clients need as many ranks; this job has {mail.size}."
            )
        if mail.rank < case.clients:
            own = json.dumps(list(_rounds(mail, case, index))).encode()
            mail.post(0, (_RESULTS, mail.rank, 0, index), own)
        if mail.rank == 0:
            answers = [mail.take((_RESULTS, rank, 0, index)) or b"" for rank in range(case.clients)]
            points.append(_point(case, [json.loads(answer) for answer in answers]))
        mail.barrier(range(mail.size), (index << 20) + _END)
    return points


def _rounds(mail: Mail, case: Case, index: int) -> Iterator[dict[str, float]]:
    """One client's rounds: seconds, and bytes each way."""
    channel = MpiTransport(mail, lambda client: client, channel=_FRAMES + index)
    transport: Transport = channel if case.link is None else Paced(channel, case.link)
    mix = exchange.make(METHODS[case.method].exchange, exponential())
    start = torch.rand(case.parameters, generator=seeds.stream(0, "measure", mail.rank))
    masses, everyone = {mail.rank: Mass(start)}, range(case.clients)
    for round in range(_WARM_UP + case.rounds):
        post = exchange.Post(transport, round, "measured", case.parameters, timeout=600.0)
        mail.barrier(everyone, (index << 20) + round)
        began = time.perf_counter()
        masses = mix(masses, everyone, frozenset(), post)
        seconds = time.perf_counter() - began
        if round >= _WARM_UP:
            traffic = post.of(mail.rank)
            yield {
                "seconds": seconds,
                "sent": traffic.bytes_sent,
                "received": traffic.bytes_received,
            }


def _point(case: Case, answers: Sequence[Sequence[Mapping[str, float]]]) -> Point:
    by_round = list(zip(*answers, strict=True))
    means = [statistics.fmean(one["seconds"] for one in clients) for clients in by_round]
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
        slowest=statistics.median(max(one["seconds"] for one in clients) for clients in by_round),
        bytes_sent=statistics.fmean(one["sent"] for clients in by_round for one in clients),
        bytes_busiest=int(
            max(max(one["sent"], one["received"]) for clients in by_round for one in clients)
        ),
    )


def _case(about: Mapping[str, Any]) -> Case:
    link = about["link"]
    return Case(**{**about, "link": None if link is None else Link(**link)})


def main(content: str) -> int:
    """One rank of ``measure``."""
    keep_freed_memory()
    torch.set_num_threads(1)
    mail = Mail()
    try:
        points = measure_here(mail, [_case(about) for about in json.loads(content)])
    except BaseException:
        traceback.print_exc()  # and not let the others wait for this rank
        mail.abort(1)
        raise
    if mail.rank == 0:
        print(json.dumps([asdict(point) for point in points]))
    mail.close()
    return 0


def read(path: Path) -> list[Point]:
    """The points in a file that ``write`` made."""
    try:
        return [Point(**point) for point in json.loads(path.read_text(encoding="utf-8"))["points"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"Cannot read measured points from {path}: {error}. `measure --out` writes them."
        ) from error


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
