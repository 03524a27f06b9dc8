"""An audit of masked sums as a coalition of t members sees them: every message of every attempt,
with the coalition's own keys and vectors. It reaches at most the stated epsilon, and finds three
ways to break the scheme."""

import numpy as np
import pytest
from numpy.typing import NDArray

from proxyfl.audit import bounds
from proxyfl.privacy.accounting import Segment, epsilon_of
from proxyfl.privacy.coalition import Coalition
from proxyfl.privacy.gaussian import Integers
from proxyfl.privacy.masks import Attempt, Contribution, Keys, Words, acquaint
from proxyfl.privacy.shares import Share

CANARIES = 3000
HONEST = tuple(f"honest-{at}" for at in range(11))
CURIOUS = ("curious-0", "curious-1")
MEMBERS = ("target", *HONEST, *CURIOUS)
COALITION = Coalition(len(CURIOUS), len(MEMBERS))
SIGMA = 2.0
DELTA = 1e-5
CONFIDENCE = 0.95
SHARE = Share(SIGMA, 1.0, COALITION)
GENERATOR = np.random.default_rng(7)

Canaries = NDArray[np.bool_]


def bits(n: int) -> NDArray[np.uint64]:
    """Random 64-bit numbers from a fixed seed, so that the verdict does not change."""
    return GENERATOR.integers(0, 2**64, n, dtype=np.uint64, endpoint=False)


class Federation:
    """Fourteen members, whose target has one canary for each parameter, or not, by a fair coin."""

    def __init__(self) -> None:
        self.took_part: Canaries = GENERATOR.random(CANARIES) < 0.5
        self.keys = {name: Keys(name, seed=name.encode()) for name in MEMBERS}
        acquaint(list(self.keys.values()))

    def vector(self, name: str, *, noise: bool = True, canaries: bool = True) -> Integers:
        """A member's vector: the target's canaries are clipped gradients along one axis each."""
        total = np.zeros(CANARIES)
        if name == "target" and canaries:
            total = np.where(self.took_part, SHARE.clip_to(CANARIES), 0.0)
        if noise:
            return SHARE.noisy(total, CANARIES, bits)
        return np.rint(total / SHARE.spacing).astype(np.int64)

    def bound(self, scores: NDArray[np.float64]) -> float:
        """The epsilon that these scores contradict."""
        found, _ = bounds.best(scores, self.took_part, delta=DELTA, confidence=CONFIDENCE)
        return found

    def learn(self, messages: dict[str, Words], own: dict[str, Integers]) -> NDArray[np.float64]:
        """What a coalition computes of the honest members' sum: all messages added up, less the
        vectors that it knows."""
        total = np.zeros(CANARIES, dtype=np.uint64)
        for message in messages.values():
            total += message
        for vector in own.values():
            total -= vector.view(np.uint64)
        return SHARE.to_floats(total.view(np.int64))


def attempt(number: int, roster: tuple[str, ...] = MEMBERS) -> Attempt:
    """An attempt at the first step."""
    return Attempt("study", "digest", 0, number, roster)


def stated(steps: int) -> float:
    """The epsilon that is stated for so many attempts, each with every record in its batch."""
    return epsilon_of([Segment(1.0, SIGMA, steps, COALITION)], DELTA, "pld")


def test_a_coalition_reaches_at_most_the_stated_epsilon() -> None:
    """In a transcript of a failed attempt, which lacks one honest message, and of one that
    succeeded, each with fresh noise. Against all others but one the audit sees more, and no more
    than the second epsilon."""
    made = Federation()
    views = []
    for number, missing in ((0, HONEST[4]), (1, "")):
        about = attempt(number)
        vectors = {name: made.vector(name) for name in MEMBERS}
        messages = {}
        for name, vector in vectors.items():
            message = Contribution(vector, about).mask(made.keys[name])
            if name != missing:
                messages[name] = message
        views.append((messages, vectors))
    found = []
    for messages, vectors in views:
        own = {name: vectors[name] for name in CURIOUS}
        found.append(made.bound(made.learn(messages, own)))
    assert found[0] == 0.0, "a sum that lacks a message tells nothing"
    assert 0.3 * stated(1) < found[1] <= stated(1), "the audit sees something, and not too much"
    everybody = [name for name in MEMBERS if name != "target"]
    messages, vectors = views[1]
    worst = made.bound(made.learn(messages, {name: vectors[name] for name in everybody}))
    second = epsilon_of([Segment(1.0, COALITION.alone(SIGMA), 1)], DELTA, "pld")
    assert stated(1) < worst <= second


def test_the_audit_finds_noise_that_is_left_out() -> None:
    """By all honest members but the target, which is more than the coalition's t."""
    made = Federation()
    about = attempt(0)
    vectors = {name: made.vector(name, noise=name == "target") for name in MEMBERS}
    messages = {name: Contribution(v, about).mask(made.keys[name]) for name, v in vectors.items()}
    own = {name: vectors[name] for name in CURIOUS}
    assert made.bound(made.learn(messages, own)) > stated(1)


def test_the_audit_finds_a_vector_under_two_rosters() -> None:
    """The difference of two sums is the vector of the member that the second roster lacks."""
    made = Federation()
    vectors = {name: made.vector(name) for name in MEMBERS}
    sums = []
    for number, roster in ((0, MEMBERS), (1, MEMBERS[1:])):
        about = attempt(number, roster)
        messages = {
            # a new Contribution of the same vector: what the node never makes
            name: Contribution(vectors[name], about).mask(made.keys[name])
            for name in roster
        }
        sums.append(made.learn(messages, {}))
    assert made.bound(sums[0] - sums[1]) > stated(2)


def test_the_audit_finds_masks_that_are_used_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """The difference of two messages of one member has its own noise and no mask."""
    made = Federation()
    monkeypatch.setattr(Attempt, "digest", property(lambda self: b"always the same"))
    messages = []
    for number in (0, 1):
        vector = made.vector("target", canaries=number == 0)
        messages.append(Contribution(vector, attempt(number)).mask(made.keys["target"]))
    difference = SHARE.to_floats((messages[0] - messages[1]).view(np.int64))
    assert made.bound(difference) > stated(2)
