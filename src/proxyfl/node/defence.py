"""A site's defence against a member that sends poisoned proxies.

``clip`` pulls each received proxy towards the site's own until it is no farther than ``radius``
times the way that the site's own proxy goes in a round (the median of the last rounds), and counts
no share for more than ``most_weight`` times the weight that the site kept. The yardstick is the
site's own: no peer can stretch it. It needs no majority: with the exponential graph a site receives
one proxy a round, so there is nobody to take a median over.

``median`` clips in the same way, and then takes the middle value of each parameter over the site's
own proxy and those received. It needs a graph in which a site hears two others or more in a round
("complete", or "random" with a degree above 1); with fewer it is ``clip``.

It bounds what one share can do in one round; it does not detect who lies. Mass that is counted
for less than it claims is not conserved: with a liar among the members there is nothing to
conserve. docs/node.md has what it buys and what it costs.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

import torch

from proxyfl.gossip.pushsum import Mass, add
from proxyfl.node.exchange.books import Part
from proxyfl.node.mixing import Mixer

MEMORY = 32


@dataclass
class Guard:
    """One site's defence; ``rule`` "none" adds up what arrives as it is."""

    rule: str = "none"
    radius: float = 3.5
    most_weight: float = 4.0
    ways: deque[float] = field(default_factory=lambda: deque(maxlen=MEMORY))
    clipped: int = 0

    def added(self, mixer: Mixer, kept: Mass, parts: Sequence[Part]) -> Mass | None:
        """The sum, by the rule, of the mass that was kept and the parts that have arrived."""
        if self.rule == "none" or not kept.w > 0:
            return mixer.added(kept, parts)
        own = [kept]
        received = []
        for part in parts:
            mass = mixer.mass(part)
            if part.sender == mixer.me:
                own.append(mass)
            else:
                received.append(mass)
        return self.mixed(add(own), received)

    def mixed(self, own: Mass, received: Sequence[Mass]) -> Mass:
        """The site's own mass and what it received, by the rule."""
        if self.rule == "none":
            return add([own, *received])
        masses = [own]
        for mass in received:
            masses.append(self.guarded(own, mass))
        if self.rule == "clip" or len(masses) < 3:
            return add(masses)
        proxies = torch.stack([mass.theta for mass in masses])
        weight = sum(mass.w for mass in masses)
        return Mass(proxies.quantile(0.5, dim=0), weight)

    def moved(self, way: float) -> None:
        """Take note of how far the site's own training has just moved its proxy."""
        self.ways.append(way)

    def guarded(self, kept: Mass, received: Mass) -> Mass:
        """``received``, pulled towards ``kept`` as far as the rule asks."""
        way = received.theta - kept.theta
        distance = float(way.norm())
        weight = min(received.w, self.most_weight * kept.w)
        limit = 0.0
        if self.ways:
            limit = self.radius * median(self.ways)
        if distance <= limit:
            return Mass(received.theta, weight)
        self.clipped += 1
        pulled = kept.theta + way * (limit / distance)
        return Mass(pulled, weight)
