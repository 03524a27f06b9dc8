"""The ways to per-record gradients, by name: what a ledger and a certificate say of them."""

from dataclasses import dataclass
from enum import StrEnum


class Computation(StrEnum):
    """The ways in which each record's gradient can be computed (``privacy.perexample.ways``)."""

    PROVEN = "proven"
    """One pass of a recorded graph that is proven to keep records apart."""

    VMAPPED = "vmapped"
    """A graph that was recorded from one record, run for each record by itself."""

    ONE_BY_ONE = "one by one"
    """The proxy's own Python, run on one record after the other. Memory that its code keeps where
    nobody looks would carry one record into the gradients of others."""

    @property
    def sentence(self) -> str:
        """The word explained."""
        return _SENTENCES[self]


@dataclass(frozen=True)
class Gradients:
    """The way in which a proxy's per-record gradients are computed, and why not in one pass.

    ``reason`` names what stood in the way of the proof; it is empty for a proven proxy. ``trusted``
    says that the institution vouches for a proxy whose own Python runs on its records."""

    way: Computation
    reason: str = ""
    trusted: bool = False

    @property
    def needs_trust(self) -> bool:
        """True if the bound rests on what the proxy's Python does not do."""
        return self.way is Computation.ONE_BY_ONE

    def __str__(self) -> str:
        trusted = ", trusted unproven" if self.trusted else ""
        reason = f" ({self.reason})" if self.reason else ""
        return f"{self.way}{trusted}{reason}"


_SENTENCES = {
    Computation.PROVEN: "proven: the proxy's recorded graph is proven to keep records apart.",
    Computation.VMAPPED: "vmapped: the proxy's graph of one record is run for each record by "
    "itself, so none reaches the gradient of another.",
    Computation.ONE_BY_ONE: "one by one: the proxy's own Python runs on one record after the "
    "other; the guarantee holds if that code remembers none of them.",
}
