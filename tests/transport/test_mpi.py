"""The MPI transport keeps the contract, between real ranks."""

import pickle
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from proxyfl.transport.mpi import MpiEndpoint, MpiTransport, rank_count

from .. import ranks
from .contract import PATIENCE, Part, TransportContract, refusal


@pytest.fixture(autouse=True)
def _mpi() -> None:
    ranks.needs_mpi()


class TestMpi(TransportContract):
    """One rank per client."""

    def group(self, parts: Sequence[Part]) -> list[Any]:
        return on_ranks(parts)


def on_ranks(parts: Sequence[Part]) -> list[Any]:
    """What part k returns on rank k. Pickles stay within this test; no transport knows them."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "parts").write_bytes(pickle.dumps(list(parts)))
        done = ranks.run(len(parts), ["-m", __name__, folder])
        assert done.returncode == 0, done.stderr
        return [
            pickle.loads((Path(folder) / f"result-{k}").read_bytes()) for k in range(len(parts))
        ]


def fill_many(transport: Any, client: int, frames: int, size: int) -> bool:
    """Client 0 sends many large frames before anybody asks; client 1 takes them last to first."""
    if client == 0:
        for round in range(frames):
            transport.send(bytes([round]) * size, sender=0, receiver=1, round=round)
        return bool(transport.receive(sender=1, receiver=0, round=0, timeout=PATIENCE) == b"all")
    backwards = reversed(range(frames))
    got = [
        transport.receive(sender=0, receiver=1, round=r, timeout=PATIENCE) == bytes([r]) * size
        for r in backwards
    ]
    transport.send(b"all", sender=1, receiver=0, round=0)
    return all(got)


def reuse_key(transport: Any, client: int) -> bool:
    """Client 0 sends under one key again once client 1 said that it has received the first."""
    if client == 0:
        for text in (b"first", b"second"):
            transport.send(text, sender=0, receiver=1, round=0)
            transport.receive(sender=1, receiver=0, round=0, timeout=PATIENCE)
        return True
    got = []
    for _ in range(2):
        got.append(transport.receive(sender=0, receiver=1, round=0, timeout=PATIENCE))
        transport.send(b"thanks", sender=1, receiver=0, round=0)
    return got == [b"first", b"second"]


def flush_before_and_after(transport: MpiTransport, client: int) -> list[list[int]]:
    """Client 0 flushes a frame before client 1 asks for it, and again once it was received."""
    if client == 1:
        transport.receive(sender=0, receiver=1, round=1, timeout=PATIENCE)
        transport.receive(sender=0, receiver=1, round=0, timeout=PATIENCE)
        return []
    transport.send(b"not asked for yet", sender=0, receiver=1, round=0)
    before = transport._endpoint.flush(0.2)
    transport.send(b"ask", sender=0, receiver=1, round=1)
    return [before, transport._endpoint.flush(PATIENCE)]


def test_flush_names_who_is_late() -> None:
    """Flushing ends by its timeout with the ranks that have not received all, and with none once
    they have."""
    assert on_ranks([_Part(flush_before_and_after, client) for client in range(2)])[0] == [[1], []]


def refuse_many(transport: MpiTransport) -> tuple[str, str]:
    """What a transport for more clients than MPI has tags says."""
    return refusal(lambda: MpiTransport(transport._endpoint, 40_000))


def test_more_clients_than_tags_are_refused() -> None:
    """Where two frames could share a tag the transport refuses to begin, and says how many tags
    there are."""
    ((_, message),) = on_ranks([_Part(refuse_many)])
    assert "too few for 40000 clients" in message


def test_what_nobody_asked_for_yet_waits() -> None:
    """Thirty megabytes that arrive before they are asked for are kept, and handed out in any
    order."""
    assert on_ranks([_Part(fill_many, client, 30, 1_000_000) for client in range(2)]) == [
        True,
        True,
    ]


def test_a_received_key_is_free_again() -> None:
    """Nothing is remembered for ever: once received, a key may be used again."""
    assert on_ranks([_Part(reuse_key, client) for client in range(2)]) == [True, True]


def test_no_launcher_means_one_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a launcher's variables there is one rank; Open MPI, MPICH and Slurm each say how many
    there are."""
    for name in (
        "OMPI_COMM_WORLD_SIZE",
        "PMI_SIZE",
        "MV2_COMM_WORLD_SIZE",
        "PMIX_RANK",
        "SLURM_STEP_NUM_TASKS",
    ):
        monkeypatch.delenv(name, raising=False)
    assert rank_count() == 1
    # srun without MPI: five programs that know nothing of each other
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "5")
    assert rank_count() == 1
    monkeypatch.setenv("PMIX_RANK", "0")
    assert rank_count() == 5
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "3")
    assert rank_count() == 3


class _Part:
    """A part with its arguments, which can be pickled."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.function = function
        self.arguments = arguments

    def __call__(self, transport: Any) -> Any:
        return self.function(transport, *self.arguments)


def main(folder: Path) -> None:
    """One rank of ``on_ranks``."""
    endpoint = MpiEndpoint()
    part = pickle.loads((folder / "parts").read_bytes())[endpoint.rank]
    result = part(MpiTransport(endpoint, endpoint.size))
    (folder / f"result-{endpoint.rank}").write_bytes(pickle.dumps(result))
    endpoint.flush(1.0)  # what a rank sent last may still be on its way


if __name__ == "__main__":
    from tests.transport import test_mpi  # under this name the parts were pickled

    test_mpi.main(Path(sys.argv[1]))
