"""DP-SGD as a member of a masked sum: what leaves is masked, paid for, and has its noise share."""

from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from proxyfl import params
from proxyfl.data.examples import InMemory
from proxyfl.data.sources import load
from proxyfl.errors import PrivacyError, TransportError
from proxyfl.models import build
from proxyfl.privacy.coalition import Coalition
from proxyfl.privacy.dpsgd import DPSGD, Batch
from proxyfl.privacy.guarantee import Kind
from proxyfl.privacy.ledger import Ledger
from proxyfl.privacy.masks import Attempt, Keys, Words, acquaint, add_up
from proxyfl.seeds import Seeded, System
from proxyfl.settings import DP

DIGITS = load("digits")
NAMES = ("amsterdam", "bern", "cork", "dresden")
TERMS = Coalition(colluders=2, quorum=4)
SIGMA, C, BATCH = 3.0, 0.5, 10


class Member:
    """One member with 30 digits, a linear proxy and plain SGD of rate 1."""

    def __init__(self, number: int, *, real: bool = False, delta: float = 1e-5) -> None:
        self.name = NAMES[number]
        self.keys = Keys(self.name, seed=self.name.encode())
        rows = slice(30 * number, 30 * number + 30)
        model = build("linear", shape=(1, 8, 8), classes=10, seed=3)
        self.trainer = DPSGD(
            model,
            torch.optim.SGD(model.parameters(), lr=1.0),
            InMemory(DIGITS.train_x[rows], DIGITS.train_y[rows]),
            dp=DP(noise_multiplier=SIGMA, clip_norm=C),
            classes=10,
            batch_size=BATCH,
            ledger=Ledger(self.name, delta=delta, kind=Kind.END_TO_END, simulated=not real),
            batches=System() if real else Seeded(0, "batches", number),
            noise=System() if real else Seeded(0, "noise", number),
            coalition=TERMS,
        )


def federation(**options: Any) -> list[Member]:
    """Four members who know each other's keys."""
    members = [Member(number, **options) for number in range(4)]
    acquaint([member.keys for member in members])
    return members


def shorten(batch: Batch, records: int) -> None:
    """Leave only the first records in a batch, as if no others had been drawn."""
    object.__setattr__(batch, "_x", batch._x[:records])
    object.__setattr__(batch, "_y", batch._y[:records])


def attempt(number: int, roster: tuple[str, ...] = NAMES) -> Attempt:
    return Attempt("study", "digest", 0, number, roster)


def step(members: list[Member], number: int) -> dict[str, Words]:
    """One step of all; their messages."""
    about = attempt(number)
    sent = {}
    for member in members:
        batch = member.trainer.draw()
        sent[member.name], _ = member.trainer.contribute(batch, about, member.keys)
    size = params.size(members[0].trainer.model)
    limit = members[0].trainer.largest_sum(4 * BATCH, 4)
    total = add_up(sent, about, size=size, limit=limit)
    for member in members:
        member.trainer.advance(total, 4 * BATCH)
    return sent


def test_all_members_have_the_same_proxy() -> None:
    """After several steps every proxy is the same to the last bit, and has moved."""
    members = federation()
    start = params.flatten(members[0].trainer.model)
    for member in members:
        member.trainer.begin_round(0, 3)
    for number in range(3):
        step(members, number)
    proxies = [params.flatten(member.trainer.model) for member in members]
    assert all(torch.equal(proxies[0], proxy) for proxy in proxies)
    assert not torch.equal(proxies[0], start)


@pytest.mark.parametrize(("scale", "accepted"), [(1.0, True), (1.25, False), (0.8, False)])
def test_the_sum_has_the_noise_of_all_members(scale: float, accepted: bool) -> None:
    """The optimizer's step has noise of variance K (sigma C)^2 / h over the batch of all, by a KS
    test that rejects a quarter more or less."""
    members = federation()
    for member in members:
        member.trainer.begin_round(0, 4)
    # batches of nobody: what is left is noise
    seen = []
    for number in range(4):
        before = params.flatten(members[0].trainer.model)
        about = attempt(number)
        sent = {}
        for member in members:
            batch = member.trainer.draw()
            shorten(batch, 0)
            sent[member.name], _ = member.trainer.contribute(batch, about, member.keys)
        total = add_up(sent, about, size=650, limit=members[0].trainer.largest_sum(40, 4))
        for member in members:
            member.trainer.advance(total, 40)
        seen.append((before - params.flatten(members[0].trainer.model)).double() * 40)
    noise = torch.cat(seen).numpy() / (SIGMA * C * np.sqrt(4 / TERMS.honest))
    assert bool(stats.kstest(noise * scale, "norm").pvalue > 1e-3) is accepted


def test_what_leaves_is_paid_for_and_used_once() -> None:
    """Without a charge nothing is drawn; a batch serves one contribution; the charge has the
    terms."""
    first = federation()[0]
    with pytest.raises(PrivacyError, match=r"charge\("):
        first.trainer.draw()
    first.trainer.begin_round(0, 2)
    batch = first.trainer.draw()
    first.trainer.contribute(batch, attempt(0), first.keys)
    with pytest.raises(PrivacyError, match="was used already"):
        first.trainer.contribute(batch, attempt(1), first.keys)
    assert first.trainer.ledger.charges[0].coalition == TERMS


def test_a_step_of_ones_own_is_refused() -> None:
    """A share of the noise hides too little for a proxy that is sent by itself."""
    first = federation()[0]
    first.trainer.begin_round(0, 1)
    with pytest.raises(PrivacyError, match="alone hides too little"):
        first.trainer.step(first.trainer.draw())


def test_below_the_quorum_nothing_is_sent() -> None:
    """A roster with fewer members than were charged for is refused, before the batch is used."""
    first = federation()[0]
    first.trainer.begin_round(0, 1)
    batch = first.trainer.draw()
    with pytest.raises(PrivacyError, match="below the quorum of 4"):
        first.trainer.contribute(batch, attempt(0, NAMES[:3]), first.keys)
    first.trainer.contribute(batch, attempt(1), first.keys)


def test_a_trainer_without_terms_contributes_nothing() -> None:
    """All of the noise is not a share of it."""
    member = federation()[0]
    model = build("linear", shape=(1, 8, 8), classes=10, seed=3)
    own = DPSGD(
        model,
        torch.optim.SGD(model.parameters(), lr=1.0),
        InMemory(DIGITS.train_x[:30], DIGITS.train_y[:30]),
        dp=DP(noise_multiplier=SIGMA, clip_norm=C),
        classes=10,
        batch_size=BATCH,
        ledger=Ledger("own", delta=1e-5, kind=Kind.END_TO_END, simulated=True),
        batches=Seeded(0, "batches", 0),
        noise=Seeded(0, "noise", 0),
    )
    own.begin_round(0, 1)
    with pytest.raises(PrivacyError, match="no terms of a masked sum"):
        own.contribute(own.draw(), attempt(0), member.keys)
    with pytest.raises(PrivacyError, match="no coalition, so there is no masked sum"):
        own.advance(np.zeros(650, dtype=np.int64), 10)


def test_real_noise_takes_the_same_way() -> None:
    """With noise of the operating system the sum comes back within range, and no two runs are
    alike."""
    proxies = []
    for _ in range(2):
        members = federation(real=True)
        for member in members:
            member.trainer.begin_round(0, 1)
        step(members, 0)
        proxies.append(params.flatten(members[0].trainer.model))
    assert not torch.equal(*proxies)


@pytest.mark.filterwarnings("ignore::proxyfl.privacy.accounting.AccountingWarning")
def test_a_delta_without_room_for_the_noises_distance_is_refused() -> None:
    """A real ledger whose delta is too small to set anything aside stops before the first step."""
    member = Member(0, real=True, delta=1e-18)
    with pytest.raises(PrivacyError, match="further from a Gaussian"):
        member.trainer.begin_round(0, 1)


def test_one_record_moves_a_contribution_by_at_most_c() -> None:
    """Two members who differ in one record, with the same draws, differ by at most C on the grid:
    the masked messages differ by as much, because the masks are the same."""
    vectors = []
    for extra in (0, 1):
        member = Member(0)
        acquaint([member.keys, *(Member(i).keys for i in (1, 2, 3))])
        member.trainer.begin_round(0, 1)
        batch = member.trainer.draw()
        keep = len(batch._y) - extra
        shorten(batch, keep)
        message, _ = member.trainer.contribute(batch, attempt(0), member.keys)
        vectors.append(message)
    difference = (vectors[0] - vectors[1]).view(np.int64).astype(float)
    spacing = SIGMA / np.sqrt(TERMS.honest) * C * 2.0**-30
    assert 0 < np.linalg.norm(difference) * spacing <= C


def test_garbage_of_a_member_is_noticed() -> None:
    """A member that sends noise of its own liking makes a sum out of range; nobody advances."""
    members = federation()
    for member in members:
        member.trainer.begin_round(0, 1)
    about = attempt(0)
    sent = {}
    for member in members:
        sent[member.name], _ = member.trainer.contribute(member.trainer.draw(), about, member.keys)
    sent["cork"] = sent["cork"] ^ np.uint64(1 << 63)
    with pytest.raises(TransportError, match="out of range in 650 of 650"):
        add_up(sent, about, size=650, limit=members[0].trainer.largest_sum(40, 4))
