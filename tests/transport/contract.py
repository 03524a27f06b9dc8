"""The transport contract as tests. docs/about/transports.md says the same in prose.

A subclass provides ``group`` and adds nothing. A part is what one client does, given the transport
of the process that hosts it; ``group`` runs all parts at once, part k for client k, and returns
what each returned, in order. It may run them in threads, in processes or one per MPI rank, so parts
are module-level functions, or partials of them, that can be pickled and share nothing but frames.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest

from proxyfl.errors import PeerTimeout, TransportError
from proxyfl.transport.base import Transport
from tests.waiting import PATIENCE

Part = Callable[[Transport], Any]


def send_all(transport: Transport, client: int, frames: dict[tuple[int, int], bytes]) -> None:
    """Send each frame under its (receiver, round), in the order of the dict."""
    for (receiver, round), frame in frames.items():
        transport.send(frame, sender=client, receiver=receiver, round=round)


def receive_all(transport: Transport, client: int, keys: list[tuple[int, int]]) -> list[bytes]:
    """Receive the frames under (sender, round), in the order asked for."""
    return [
        transport.receive(sender=s, receiver=client, round=r, timeout=PATIENCE) for s, r in keys
    ]


def swap(transport: Transport, client: int, clients: int, rounds: int) -> bool:
    """Send to everyone, then receive from everyone, round after round; whether all was as sent."""
    others = [other for other in range(clients) if other != client]
    for round in range(rounds):
        send_all(
            transport,
            client,
            {(other, round): f"{client}>{other}@{round}".encode() for other in others},
        )
        got = receive_all(transport, client, [(other, round) for other in others])
        if got != [f"{other}>{client}@{round}".encode() for other in others]:
            return False
    return True


def exchange_large(transport: Transport, client: int, frame: bytes) -> bool:
    """Send ``frame`` to the other and compare what comes back."""
    transport.send(frame, sender=client, receiver=1 - client, round=0)
    return transport.receive(sender=1 - client, receiver=client, round=0, timeout=PATIENCE) == frame


def refusal(action: Callable[[], object]) -> tuple[str, str]:
    """The kind and message of the TransportError that ``action`` must raise."""
    with pytest.raises(TransportError) as caught:
        action()
    return type(caught.value).__name__, str(caught.value)


def wait_in_vain(
    transport: Transport, sender: int, receiver: int, round: int, timeout: float
) -> tuple[str, str, float]:
    """The kind and message of the error that waiting must end in, and the seconds it took."""
    began = time.monotonic()
    kind, message = refusal(
        lambda: transport.receive(sender=sender, receiver=receiver, round=round, timeout=timeout)
    )
    return kind, message, time.monotonic() - began


def time_out_then_receive(transport: Transport) -> bytes:
    """Client 1: give up on round 0 once, then ask client 0 for it and receive it."""
    wait_in_vain(transport, 0, 1, 0, 0.05)
    transport.send(b"go on", sender=1, receiver=0, round=0)
    return transport.receive(sender=0, receiver=1, round=0, timeout=PATIENCE)


def send_when_asked(transport: Transport) -> None:
    """Client 0: send only after client 1 asked."""
    transport.receive(sender=1, receiver=0, round=0, timeout=PATIENCE)
    transport.send(b"late", sender=0, receiver=1, round=0)


def send_twice(transport: Transport) -> tuple[str, str]:
    """Client 0: send round 0 twice, then round 1, which tells the receiver to look."""
    transport.send(b"first", sender=0, receiver=1, round=0)
    refused = refusal(lambda: transport.send(b"second", sender=0, receiver=1, round=0))
    transport.send(b"look", sender=0, receiver=1, round=1)
    return refused


def look_once_and_again(transport: Transport) -> tuple[list[bytes], str]:
    """Client 1: wait for round 1, then take round 0, and see that there is no second one."""
    frames = receive_all(transport, 1, [(0, 1), (0, 0)])
    return frames, wait_in_vain(transport, 0, 1, 0, 0.05)[0]


def use_after_close(transport: Transport) -> list[tuple[str, str]]:
    """Close twice, then try everything."""
    transport.close()
    transport.close()
    return [
        refusal(lambda: transport.send(b"x", sender=0, receiver=1, round=0)),
        refusal(lambda: transport.receive(sender=1, receiver=0, round=0, timeout=PATIENCE)),
    ]


def idle(transport: Transport) -> None:
    """Do nothing."""


class TransportContract:
    """What docs/about/transports.md promises. Subclass, provide ``group``, add nothing."""

    def group(self, parts: Sequence[Part]) -> list[Any]:
        """Run part k for client k, all at once, on open transports that reach each other; return
        their results."""
        raise NotImplementedError

    def test_a_frame_arrives_whole(self) -> None:
        """All 256 byte values arrive as they were sent."""
        frame = bytes(range(256)) * 3
        sent = partial(send_all, client=0, frames={(1, 0): frame})
        assert self.group([sent, partial(receive_all, client=1, keys=[(0, 0)])])[1] == [frame]

    def test_an_empty_frame_is_a_frame(self) -> None:
        """A frame of no bytes arrives as a frame of no bytes."""
        sent = partial(send_all, client=0, frames={(1, 0): b""})
        assert self.group([sent, partial(receive_all, client=1, keys=[(0, 0)])])[1] == [b""]

    def test_a_large_frame_arrives_whole(self) -> None:
        """Five megabytes arrive as they were sent, both ways at the same time."""
        frame = bytes(i * i % 251 for i in range(5000)) * 1000
        both = [partial(exchange_large, client=k, frame=frame) for k in range(2)]
        assert self.group(both) == [True, True]

    def test_order_of_arrival_does_not_matter(self) -> None:
        """Frames are matched by sender, receiver and round, in whatever order they are sent and
        asked for."""
        rounds = [3, 0, 2, 1]
        parts = [
            partial(send_all, client=k, frames={(2, r): f"{k}@{r}".encode() for r in rounds})
            for k in range(2)
        ]
        keys = [(1, 1), (0, 3), (0, 0), (1, 0), (1, 3), (0, 2), (1, 2), (0, 1)]
        got = self.group([*parts, partial(receive_all, client=2, keys=keys)])[2]
        assert got == [f"{k}@{r}".encode() for k, r in keys]

    def test_everyone_may_send_first(self) -> None:
        """Sending does not wait for the receiver, so many rounds of all-to-all swaps end, each with
        its own frames."""
        assert (
            self.group([partial(swap, client=k, clients=4, rounds=50) for k in range(4)])
            == [True] * 4
        )

    def test_silent_peer_is_named(self) -> None:
        """A peer that never sends raises PeerTimeout naming it, the receiver and the round; nothing
        hangs."""
        vain = partial(wait_in_vain, sender=0, receiver=1, round=7, timeout=0.2)
        kind, message, seconds = self.group([idle, vain])[1]
        assert kind == PeerTimeout.__name__
        for part in ("Client 0 ", "client 1 ", "round 7 "):
            assert part in message
        assert 0.15 < seconds < PATIENCE

    def test_a_frame_for_another_key_is_no_answer(self) -> None:
        """A frame of another round, or another receiver, is not handed out in place of the one
        asked for."""
        sent = partial(
            send_all, client=0, frames={(1, 1): b"other round", (2, 0): b"other receiver"}
        )
        vain = partial(wait_in_vain, sender=0, receiver=1, round=0, timeout=0.2)
        assert self.group([sent, vain, idle])[1][0] == PeerTimeout.__name__

    def test_a_timeout_loses_nothing(self) -> None:
        """A frame that comes after the receiver gave up can still be received."""
        assert self.group([send_when_asked, time_out_then_receive])[1] == b"late"

    def test_duplicates_are_refused(self) -> None:
        """A second frame under a key not yet received is refused at its sender, and the first one
        is received, once."""
        (kind, message), (frames, again) = self.group([send_twice, look_once_and_again])
        assert kind == TransportError.__name__
        for part in ("Client 0 ", "client 1 ", "round 0 "):
            assert part in message
        assert frames == [b"look", b"first"]
        assert again == PeerTimeout.__name__

    def test_closed_is_closed(self) -> None:
        """After close, sending and receiving raise TransportError at once, and closing again does
        nothing."""
        refused = self.group([use_after_close])[0]
        assert [kind for kind, _ in refused] == [TransportError.__name__] * 2
        assert all("closed" in message for _, message in refused)
