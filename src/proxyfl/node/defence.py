"""A site's defence against a member that sends poisoned proxies.

``clip`` pulls what each sender has sent towards the site's own proxy until it is within a limit:
the larger of

    radius x the way that the site's own training goes in a round, the median of the last rounds
    PEERS  x the distance at which the *other* senders were last, the lower median of them

Sites that take more steps are farther away, and the second term leaves them as they are. No sender
can stretch the limit for itself. Senders that lie together can stretch each other's without bound,
where more than half of the others that the site has heard are with them: two where it has heard
only those two. It needs no majority: with the exponential graph a site receives
one proxy a round, so there is nobody to take a median over.

``median`` clips in the same way, and then takes the middle value of each parameter over the site's
own proxy and those received. It needs a graph in which a site hears two others or more in a round
("complete", or "random" with a degree above 1); with fewer it is ``clip``.

Guarantees, for every rule but ``none``:
    * all that one sender has waiting is one voice, however many shares it comes in (``Guard.due``
      says how many shares that may be);
    * every way by which a peer's parameters reach the proxy goes through ``Guard.mixed``, also at a
      site that has no weight of its own;
    * what is within its limit is added as it is, bit for bit as without a defence.

It bounds what one sender can do in one round; it does not detect who lies. How much weight a share
may claim is not decided here, but when it arrives (``admission``). docs/research/exchange.md has
what it buys and what it costs.
"""

import json
import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from statistics import median, median_low

import torch
from torch import Tensor

from proxyfl.gossip.pushsum import Mass, add
from proxyfl.node.exchange.books import Part
from proxyfl.node.mixing import Entry

RULES = ("none", "clip", "median")
RADIUS = 3.5
PEERS = 1.5
MEMORY = 32
"""Rounds whose ways are remembered."""


@dataclass
class Guard:
    """One site's defence; ``rule`` "none" adds up what arrives as it is."""

    rule: str = "clip"
    radius: float = RADIUS
    ways: deque[float] = field(default_factory=lambda: deque(maxlen=MEMORY))
    distances: dict[str, float] = field(default_factory=dict)
    """How far from the site's own proxy each sender was last."""
    clipped: list[str] = field(default_factory=list)
    """The senders whose voices were pulled in the last sum."""

    def moved(self, way: float) -> None:
        """Take note of how far a round of the site's own training has moved its proxy."""
        self.ways.append(way)

    def limit(self, sender: str) -> float:
        """The largest distance of a sender's voice from the site's own proxy."""
        own = self.radius * median(self.ways) if self.ways else 0.0
        others = [distance for name, distance in self.distances.items() if name != sender]
        return max(own, PEERS * median_low(others)) if others else own

    def state(self) -> str:
        """What the next round depends on, as text."""
        return json.dumps({"ways": list(self.ways), "distances": self.distances})

    def restore(self, state: str) -> None:
        """Continue from ``state``; from nothing if it is empty."""
        if state:
            content = json.loads(state)
            self.ways.extend(content["ways"])
            self.distances.update(content["distances"])

    def due(self, parts: Sequence[Part], me: str, heaviest: Fraction) -> list[Part]:
        """The parts to add in one round: of each sender the oldest, and further ones as long as all
        of them together are no heavier than one share may be. The others wait."""
        if self.rule == "none":
            return list(parts)
        chosen = []
        weights: dict[str, Fraction] = {}
        for part in sorted(parts, key=lambda part: part.round):
            if part.sender == me:
                chosen.append(part)
                continue
            before = weights.get(part.sender)
            weights[part.sender] = (before or Fraction(0)) + part.weight
            if before is None or weights[part.sender] <= heaviest:
                chosen.append(part)
        return chosen

    def mixed(self, entries: Sequence[Entry], me: str) -> Mass | None:
        """The sum of ``entries``, in their order, by the rule; None if all of it weighs nothing.

        One or more of them are the site's own."""
        if self.rule != "none":
            anchor = _own_proxy(entries, me)
            voices = _voices(entries, me)
            for sender, voice in voices.items():
                self.distances[sender] = float((voice.theta - anchor).norm())
            pulled = {sender: self._pulled(sender, voices[sender], anchor) for sender in voices}
            self.clipped = [name for name, mass in pulled.items() if mass is not voices[name]]
            if self.rule == "median" and len(voices) > 1:
                proxies = [anchor, *(mass.theta for mass in pulled.values())]
                weight = math.fsum(entry.mass.w for entry in entries)
                return Mass(torch.stack(proxies).quantile(0.5, dim=0), weight)
            entries = _replaced(entries, {sender: pulled[sender] for sender in self.clipped})
        masses = [entry.mass for entry in entries if entry.mass.w > 0]
        return add(masses) if masses else None

    def _pulled(self, sender: str, voice: Mass, anchor: Tensor) -> Mass:
        """A sender's ``voice``, pulled towards ``anchor`` as far as its limit asks."""
        distance = self.distances[sender]
        limit = self.limit(sender)
        if distance <= limit:
            return voice
        return Mass(anchor + (voice.theta - anchor) * (limit / distance), voice.w)


def _own_proxy(entries: Sequence[Entry], me: str) -> Tensor:
    own = [entry.mass for entry in entries if entry.sender == me]
    weighty = [mass for mass in own if mass.w > 0]
    return add(weighty).theta if weighty else own[0].theta


def _voices(entries: Sequence[Entry], me: str) -> dict[str, Mass]:
    """All that each sender has sent."""
    shares: dict[str, list[Mass]] = {}
    for entry in entries:
        if entry.sender != me and entry.mass.w > 0:
            shares.setdefault(entry.sender, []).append(entry.mass)
    return {sender: add(masses) for sender, masses in shares.items()}


def _replaced(entries: Sequence[Entry], changed: Mapping[str, Mass]) -> list[Entry]:
    """``entries``, with a sender's ``changed`` mass in the place of its first share."""
    waiting = dict(changed)
    result = []
    for entry in entries:
        if entry.sender not in changed:
            result.append(entry)
        elif entry.sender in waiting:
            result.append(replace(entry, mass=waiting.pop(entry.sender)))
    return result
