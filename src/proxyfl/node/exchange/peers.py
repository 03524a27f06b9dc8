"""What a site's store knows of its peers: how far each was seen, and what it has announced."""

from dataclasses import dataclass

from proxyfl.node.exchange.messages import Share, Stamp, State
from proxyfl.node.exchange.store import Store


@dataclass(frozen=True)
class Peer:
    """A peer as this site knows it: ``round`` is the first that it has not been seen to release,
    ``before`` the same for its earlier epochs."""

    name: str
    stamp: Stamp
    round: int
    state: State
    accepted: str
    version: int
    before: int = 0


class Peers:
    """A site's peers, over its store."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def known(self, name: str) -> Peer:
        """The peer ``name``, as this site knows it."""
        with self.store.reading() as run:
            row = run.execute(
                "select epoch, boot, tag, clock, round, state, accepted, version, before"
                " from peers where name = ?",
                (name,),
            ).fetchone()
        if row is None:
            return Peer(name, Stamp(0, 0, "", 0), 0, "active", "", 0)
        return Peer(name, Stamp(*row[:4]), *row[4:])

    def remember(self, peer: Peer) -> None:
        """Write down what is known of a peer."""
        with self.store.transaction() as run:
            run.execute(
                "insert or replace into peers values (?,?,?,?,?,?,?,?,?,?)",
                (
                    peer.name,
                    *peer.stamp.numbers,
                    peer.round,
                    peer.state,
                    peer.accepted,
                    peer.version,
                    peer.before,
                ),
            )

    def released_all(self, rounds: int) -> set[str]:
        """The peers that were seen to release the last of ``rounds``."""
        with self.store.reading() as run:
            rows = run.execute("select name from peers where round >= ?", (rounds,))
            return {name for (name,) in rows}

    def gone(self) -> set[str]:
        """The peers that have announced that they leave."""
        with self.store.reading() as run:
            rows = run.execute("select name from peers where state != 'active'")
            return {name for (name,) in rows}

    def saw_release(self, share: Share, rounds: int) -> None:
        """Remember that the sender has released the share's round, whatever becomes of it."""
        with self.store.transaction() as run:
            known = self.known(share.sender).stamp
            seen = min(share.round + 1, rounds)
            if share.epoch == known.epoch:
                # A start that has not said hello yet shows its clock when it does.
                clock = share.clock if share.boot == known.boot else 0
                run.execute(
                    "update peers set round = max(round, ?), clock = max(clock, ?)"
                    " where name = ?",
                    (seen, clock, share.sender),
                )
            elif share.epoch < known.epoch:
                run.execute(
                    "update peers set before = max(before, ?) where name = ?",
                    (seen, share.sender),
                )
