"""Frames between the ranks of an MPI job. The one home of mpi4py, imported only in such a job.

MPI does the work. A message is one synchronous, non-blocking send (MPI_Issend). It stays with the
sender until the receiver asks for it by rank and tag, which is how the sender knows what has been
received. Waiting is done here, by looking again and again until a deadline: MPI's own waits have no
deadline and occupy a core. Nothing is pickled."""

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from proxyfl.errors import TransportError
from proxyfl.transport import base

if TYPE_CHECKING:
    from mpi4py import MPI

CONTROL = 0
"""The tag of all messages that are not frames. Those from one rank to another arrive in order."""

_NAME_BYTES = 64
_SMALLEST_TAG_LIMIT = 32767
"""The least that the MPI standard promises."""


def rank_count() -> int:
    """The number of ranks that the launcher started, by its environment; 1 without one."""
    names = ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE"]
    # srun --mpi=pmix says the size in its own words only
    if "PMIX_RANK" in os.environ:
        names.append("SLURM_STEP_NUM_TASKS")
    for name in names:
        text = os.environ.get(name, "")
        if text.isdigit():
            return int(text)
    return 1


@dataclass(frozen=True)
class _Sent:
    """A message that its receiver may not have asked for yet. MPI reads ``content`` until then."""

    request: "MPI.Request"
    content: bytes
    to: int
    tag: int


class MpiEndpoint:
    """One rank's end of the job's messages. All ranks make theirs at the same time.

    Guarantees:
        * ``send`` returns at once; messages with the same sender, receiver and tag arrive in order;
        * ``receive`` and ``flush`` end by their timeout;
        * any thread may call; MPI is called by one at a time.

    MPI moves a large message only while both ranks are inside one of these calls.
    """

    def __init__(self) -> None:
        self._comm = _world().Dup()
        from mpi4py import MPI

        self._lock = threading.Lock()
        self._sent: list[_Sent] = []
        self._arriving: dict[tuple[int, int], tuple[MPI.Request, bytearray]] = {}
        self.rank = self._comm.Get_rank()
        self.size = self._comm.Get_size()
        self.machines = self._machines()
        self.highest_tag = int(self._comm.Get_attr(MPI.TAG_UB) or _SMALLEST_TAG_LIMIT)

    def send(self, content: bytes, *, to: int, tag: int = CONTROL) -> None:
        """Put ``content`` on its way to rank ``to``."""
        with self._calling():
            request = self._comm.Issend(content, to, tag)
            self._sent.append(_Sent(request, content, to, tag))

    def receive(self, *, source: int, tag: int = CONTROL, timeout: float) -> bytes | None:
        """The next message of rank ``source`` under ``tag``; None after ``timeout`` seconds."""
        return base.until(lambda: self.look(source, tag), timeout)

    def look(self, source: int, tag: int) -> bytes | None:
        """The same without waiting: None if the message is not here, or not all of it."""
        with self._calling():
            key = (source, tag)
            if key not in self._arriving and not self._begins_to_arrive(source, tag):
                return None
            request, buffer = self._arriving[key]
            if not request.Test():
                return None
            del self._arriving[key]
            return bytes(buffer)

    def waits_for(self, rank: int, tag: int) -> bool:
        """True if a message under ``tag`` was sent to ``rank`` and not yet received there."""
        with self._calling():
            for sent in self._sent:
                if (sent.to, sent.tag) == (rank, tag) and not sent.request.Test():
                    return True
            return False

    def flush(self, timeout: float) -> list[int]:
        """Wait until all that was sent is received; the ranks that have not done so in time."""
        base.until(lambda: None if self._late() else True, timeout)
        return self._late()

    def abort(self, code: int) -> None:
        """End every rank of the job, whatever it is doing; the launcher exits with ``code``."""
        self._comm.Abort(code)

    def _begins_to_arrive(self, source: int, tag: int) -> bool:
        from mpi4py import MPI

        status = MPI.Status()
        message = self._comm.Improbe(source, tag, status)
        if message is None:
            return False
        buffer = bytearray(status.Get_count(MPI.BYTE))
        self._arriving[source, tag] = (message.Irecv(buffer), buffer)
        return True

    def _late(self) -> list[int]:
        """The ranks that have not yet received all that was sent to them."""
        with self._calling():
            self._sent = [sent for sent in self._sent if not sent.request.Test()]
            return sorted({sent.to for sent in self._sent})

    def _machines(self) -> tuple[str, ...]:
        """The host name of every rank."""
        own = socket.gethostname().encode()[:_NAME_BYTES]
        everyone = bytearray(self.size * _NAME_BYTES)
        self._comm.Allgather(own.ljust(_NAME_BYTES, b"\0"), everyone)
        names = []
        for rank in range(self.size):
            name = everyone[rank * _NAME_BYTES : (rank + 1) * _NAME_BYTES]
            names.append(name.rstrip(b"\0").decode(errors="replace"))
        return tuple(names)

    @contextmanager
    def _calling(self) -> Iterator[None]:
        """One thread at a time, and MPI's errors as ours."""
        from mpi4py import MPI

        with self._lock:
            try:
                yield
            except MPI.Exception as error:
                raise TransportError(
                    f"MPI on rank {self.rank} failed: {error.Get_error_string()}."
                ) from error


class MpiTransport:
    """A Transport over an endpoint: client k of ``clients`` lives on rank k modulo the ranks.

    The tag of a frame is its key, counted modulo MPI's highest tag: keys of two rounds in a row
    never share one.
    """

    def __init__(self, endpoint: MpiEndpoint, clients: int) -> None:
        if 2 * clients**2 > endpoint.highest_tag:
            raise TransportError(
                f"This MPI tells {endpoint.highest_tag} tags apart, too few for {clients} clients. "
                "Use fewer clients, or Open MPI."
            )
        self._endpoint = endpoint
        self._clients = clients
        self._closed = False

    def send(self, frame: bytes, *, sender: int, receiver: int, round: int) -> None:
        """Hand ``frame`` over for ``receiver``."""
        base.check_open(self._closed)
        rank = self._rank(receiver)
        tag = self._tag(sender, receiver, round)
        if self._endpoint.waits_for(rank, tag):
            raise base.duplicate_send(sender=sender, receiver=receiver, round=round)
        self._endpoint.send(frame, to=rank, tag=tag)

    def receive(self, *, sender: int, receiver: int, round: int, timeout: float) -> bytes:
        """The frame for this key; waits for it up to ``timeout`` seconds."""
        rank = self._rank(sender)
        tag = self._tag(sender, receiver, round)

        def look() -> bytes | None:
            base.check_open(self._closed)
            return self._endpoint.look(rank, tag)

        frame = base.until(look, timeout)
        if frame is None:
            machine = self._endpoint.machines[rank]
            raise base.silent(
                sender=sender,
                receiver=receiver,
                round=round,
                timeout=timeout,
                where=f" Client {sender} is on rank {rank}, machine {machine}.",
            )
        return frame

    def close(self) -> None:
        """Refuse to send and receive from now on. The endpoint stays open."""
        self._closed = True

    def _rank(self, client: int) -> int:
        return client % self._endpoint.size

    def _tag(self, sender: int, receiver: int, round: int) -> int:
        key = (round * self._clients + sender) * self._clients + receiver
        return CONTROL + 1 + key % self._endpoint.highest_tag


def _world() -> "MPI.Intracomm":
    """All ranks of the job; TransportError if mpi4py is missing, or is not the launcher's."""
    ranks = rank_count()
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise TransportError(
            f"Started with {ranks} ranks, but mpi4py does not load: {error}. Install it with "
            "`pip install 'proxyfl[mpi]'`, or against the MPI of this cluster with "
            "`pip install --no-binary mpi4py mpi4py`."
        ) from error
    size = MPI.COMM_WORLD.Get_size()
    if ranks > 1 and size != ranks:
        library = MPI.Get_library_version().split(",")[0].strip()
        raise TransportError(
            f"The launcher started {ranks} ranks, but mpi4py finds {size}: they belong to "
            f"different MPIs. Start with the mpiexec of {library}."
        )
    return MPI.COMM_WORLD
