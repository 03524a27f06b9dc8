"""Masks: sums are exact, anything less than a sum is uniform, no vector leaves twice."""

import hmac
import itertools
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from proxyfl.errors import ConfigError, PrivacyError, TransportError
from proxyfl.privacy import masks
from proxyfl.privacy.masks import Attempt, Contribution, Keys, Words, acquaint, add_up

LIMIT = 2**40


def members(*names: str, seed: int = 0) -> list[Keys]:
    """Members who know each other's keys."""
    found = [Keys(name, seed=f"{seed} {name}".encode()) for name in names]
    acquaint(found)
    return found


def attempt(roster: Sequence[str], number: int = 0, round: int = 0) -> Attempt:
    """An attempt of one federation."""
    return Attempt("study", "digest", round, number, tuple(roster))


def messages(keys: Sequence[Keys], vectors: NDArray[np.int64], about: Attempt) -> dict[str, Words]:
    """Each member's message."""
    pairs = zip(keys, vectors, strict=True)
    return {each.name: Contribution(vector, about).mask(each) for each, vector in pairs}


@given(
    vectors=st.integers(1, 6).flatmap(
        lambda k: st.lists(
            st.lists(st.integers(-(2**63), 2**63 - 1), min_size=3, max_size=3),
            min_size=k,
            max_size=k,
        )
    )
)
def test_sums_are_exact_modulo_2_to_the_64(vectors: list[list[int]]) -> None:
    """Messages of a complete roster add up to the sum of the vectors, for any 64-bit numbers."""
    names = [f"site {i}" for i in range(len(vectors))]
    about = attempt(names)
    sent = messages(members(*names), np.array(vectors, dtype=np.int64), about)
    total = add_up(sent, about, size=3, limit=2**63)
    for place in range(3):
        exact = sum(vector[place] for vector in vectors)
        assert (int(total[place]) - exact) % 2**64 == 0


# What an observer of fewer than all messages has: any of them, and sums of any of them.

NAMES = ("amsterdam", "bern", "cork", "dresden")
SIZE = 4096


def uniformity(words: Words) -> float:
    """The smallest of several chi-square tests' p-values: of the words in 256 classes by their
    highest and by their lowest 8 bits, and of each bit."""
    found = []
    for shift in (0, 28, 56):
        classes = (words >> np.uint64(shift)) & np.uint64(255)
        counts = np.bincount(classes.astype(np.int64), minlength=256)
        found.append(float(stats.chisquare(counts).pvalue))
    ones = [int(((words >> np.uint64(bit)) & np.uint64(1)).sum()) for bit in range(64)]
    for count in ones:
        found.append(float(stats.chisquare([count, len(words) - count]).pvalue))
    return min(found)


Transcript = list[dict[str, Words]]


def transcript(attempts: int = 2) -> Transcript:
    """All messages of several attempts in which everybody sends small numbers."""
    keys = members(*NAMES)
    vectors = np.arange(len(NAMES) * SIZE, dtype=np.int64).reshape(len(NAMES), SIZE)
    return [messages(keys, vectors, attempt(NAMES, number)) for number in range(attempts)]


def least_uniform(sent: Transcript) -> float:
    """The smallest p-value over the sums of all proper subsets of each attempt's messages, with
    both signs, and over the differences between attempts."""
    found = []
    for each in sent:
        for count in range(1, len(NAMES)):
            for chosen in itertools.combinations(NAMES, count):
                total = np.zeros(SIZE, dtype=np.uint64)
                for name in chosen:
                    total += each[name]
                found.append(uniformity(total))
        for one, other in itertools.combinations(NAMES, 2):
            found.append(uniformity(each[one] - each[other]))
    for one_attempt, other_attempt in itertools.combinations(sent, 2):
        for name in NAMES:
            found.append(uniformity(one_attempt[name] - other_attempt[name]))
    return min(found)


THRESHOLD = 1e-7
"""Some 3,500 tests are made on one transcript: by chance the least p-value is seldom below 1e-5."""


def test_any_messages_but_all_are_uniform() -> None:
    """Words and bits of every message, of every incomplete sum and of the difference between two
    attempts are uniform by chi-square tests, although the vectors are small numbers."""
    assert least_uniform(transcript()) > THRESHOLD


def _leave_out_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masks, "_stream", lambda _key, size: np.zeros(size, np.uint64))


def _forget_the_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Attempt, "digest", b"always the same")


def _mask_half_of_the_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    full = masks._stream
    monkeypatch.setattr(masks, "_stream", lambda key, size: full(key, size) & np.uint64(0xFFFFFFFF))


def _one_key_for_all_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        Keys, "_key", lambda _self, about, _peer: hmac.digest(b"", about.digest, "sha256")
    )


def _only_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Keys._key
    full = masks._stream

    def key(self: Keys, about: Attempt, peer: str) -> bytes:
        apart = about.roster.index(peer) - about.roster.index(self.name)
        return whole(self, about, peer) if abs(apart) == 1 else b""

    def stream(key: bytes, size: int) -> Words:
        return full(key, size) if key else np.zeros(size, np.uint64)

    monkeypatch.setattr(Keys, "_key", key)
    monkeypatch.setattr(masks, "_stream", stream)


@pytest.mark.parametrize(
    "sabotage",
    [_leave_out_masks, _forget_the_attempt, _mask_half_of_the_bits, _one_key_for_all_pairs],
)
def test_the_uniformity_test_catches_sabotage(
    sabotage: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Masks that are left out, used again in another attempt, too short, or the same for all pairs
    fail the test above."""
    sabotage(monkeypatch)
    assert least_uniform(transcript()) < THRESHOLD


def test_a_ring_of_masks_would_show_the_member_between_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """With masks between neighbours only, two colluders read what is between them; with masks
    between all pairs they do not."""

    def seen_by(colluders: tuple[str, str], target: str) -> float:
        keys = {each.name: each for each in members(*NAMES)}
        about = attempt(NAMES)
        message = Contribution(np.arange(SIZE), about).mask(keys[target])
        for name in colluders:
            peers = [other for other in NAMES if other != name]
            for peer in peers:
                if peer == target:
                    stream = masks._stream(keys[name]._key(about, peer), SIZE)
                    message = message - stream if target < name else message + stream
        return uniformity(message)

    assert seen_by(("amsterdam", "cork"), "bern") > THRESHOLD
    _only_neighbours(monkeypatch)
    assert seen_by(("amsterdam", "cork"), "bern") < THRESHOLD


def test_a_coalition_learns_the_sum_of_the_others_and_no_more() -> None:
    """Two colluders subtract their own masks and vectors: what is left of each honest message is
    uniform, and all honest ones together are the honest sum."""
    keys = {each.name: each for each in members(*NAMES)}
    about = attempt(NAMES)
    vectors = {name: np.arange(SIZE) + 100 * i for i, name in enumerate(NAMES)}
    sent = {name: Contribution(vectors[name], about).mask(keys[name]) for name in NAMES}
    honest = ("bern", "dresden")
    left = {}
    for target in honest:
        message = sent[target]
        for colluder in ("amsterdam", "cork"):
            stream = masks._stream(keys[colluder]._key(about, target), SIZE)
            message = message - stream if target < colluder else message + stream
        assert uniformity(message) > THRESHOLD
        left[target] = message
    total = (left["bern"] + left["dresden"]).view(np.int64)
    assert np.array_equal(total, vectors["bern"] + vectors["dresden"])


# Binding: the same pair has other masks in anything that differs.


@pytest.mark.parametrize(
    "other",
    [
        Attempt("other", "digest", 0, 0, ("a", "b")),
        Attempt("study", "other", 0, 0, ("a", "b")),
        Attempt("study", "digest", 1, 0, ("a", "b")),
        Attempt("study", "digest", 0, 1, ("a", "b")),
        Attempt("study", "digest", 0, 0, ("a", "b", "c")),
        Attempt("studyd", "igest", 0, 0, ("a", "b")),
    ],
)
def test_masks_are_bound_to_everything_in_an_attempt(other: Attempt) -> None:
    """Another federation, manifest, round, attempt or roster gives other keys."""
    one, _, _ = members("a", "b", "c")
    assert one._key(attempt("ab"), "b") != one._key(other, "b")


def test_two_sides_of_a_pair_have_the_same_key() -> None:
    """Both ends derive one key, which no third member has."""
    a, b, c = members("a", "b", "c")
    about = attempt("abc")
    assert a._key(about, "b") == b._key(about, "a")
    assert len({a._key(about, "b"), a._key(about, "c"), b._key(about, "c")}) == 3
    assert c._key(about, "a") == a._key(about, "c")


def test_keys_follow_rfc_5869() -> None:
    """The key of a pair is HKDF-SHA256 as the package cryptography computes it."""
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    a, b = members("a", "b")
    about = attempt("ab")
    shared = a._private.exchange(X25519PublicKey.from_public_bytes(b.public))
    info = about.digest
    info += f'[["a", "{a.public.hex()}"], ["b", "{b.public.hex()}"]]'.encode()
    expected = HKDF(hashes.SHA256(), 32, masks._PURPOSE, info).derive(shared)
    assert a._key(about, "b") == expected


def test_real_keys_are_never_the_same() -> None:
    """A member that restarts has another key pair; only a simulation's can be made again."""
    assert Keys("a").public != Keys("a").public
    assert Keys("a", seed=b"1").public == Keys("a", seed=b"1").public


def test_a_point_that_gives_away_the_secret_is_refused() -> None:
    """A public key of small order, with which the secret would be known to all, is refused and its
    sender named."""
    with pytest.raises(PrivacyError, match="public key of bern"):
        Keys("amsterdam").meet("bern", bytes(32))
    with pytest.raises(PrivacyError, match="public key of bern"):
        Keys("amsterdam").meet("bern", b"short")


def test_a_borrowed_public_key_gives_no_mask_of_its_owner() -> None:
    """Who claims another's public key gets masks that are not the owner's."""
    a, b = members("a", "b")
    a.meet("c", b.public)
    about = attempt("abc")
    assert a._key(about, "c") != a._key(about, "b")


# One use.


def test_a_vector_leaves_once() -> None:
    """A second masking is refused, and so is reading."""
    keys = members("a", "b")
    mine = Contribution(np.arange(3), attempt("ab"))
    mine.mask(keys[0])
    with pytest.raises(PrivacyError, match="has left already"):
        mine.mask(keys[0])
    with pytest.raises(AttributeError):
        mine.attempt = attempt("ab", 1)


@pytest.mark.parametrize("again", [(0, 5), (0, 4), (0, 0)])
def test_masks_of_an_attempt_are_made_once(again: tuple[int, int]) -> None:
    """Another vector under masks that were used, or for an attempt that is over, is refused."""
    keys = members("a", "b")[0]
    keys.masks(attempt("ab", 5), 3)
    round, number = again
    with pytest.raises(PrivacyError, match="a second time"):
        keys.masks(attempt("ab", number, round), 3)
    keys.masks(attempt("ab", 0, 1), 3)


def test_a_roster_with_strangers_is_refused() -> None:
    """Without a key for everybody on the roster, or without being on it, nothing is masked; the
    vector is used up all the same."""
    keys = members("a", "b")[0]
    mine = Contribution(np.arange(3), attempt("abz"))
    with pytest.raises(PrivacyError, match="no key of z"):
        mine.mask(keys)
    with pytest.raises(PrivacyError, match="has left already"):
        mine.mask(keys)
    with pytest.raises(PrivacyError, match="not on the roster"):
        keys.masks(attempt("bz", 1), 3)


class Site:
    """A member in a schedule of faults, as a careful site behaves: a new vector for each attempt,
    new keys after a restart."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.starts = 0
        self.drawn = 0
        self.restart()

    def restart(self) -> None:
        """Lose everything that is in memory."""
        self.keys = Keys(self.name, seed=f"{self.name} {self.starts}".encode())
        self.starts += 1

    def contribute(self, about: Attempt) -> tuple[tuple[str, int], Words]:
        """A new vector's number, and its message."""
        self.drawn += 1
        vector = np.full(4, 1000 * self.drawn + ord(self.name))
        return (self.name, self.drawn), Contribution(vector, about).mask(self.keys)


EVENTS = st.sampled_from(["send", "drop", "restart", "repeat", "late"])


@settings(max_examples=60, deadline=None)
@given(schedule=st.lists(st.lists(EVENTS, min_size=5, max_size=5), min_size=1, max_size=8))
def test_no_vector_is_seen_under_two_rosters(schedule: list[list[str]]) -> None:
    """Over schedules of drop-outs, restarts and repeats: each vector is under one attempt, each
    attempt has at most one vector of a member, an incomplete attempt gives no sum, and a complete
    one gives the sum of what was drawn for it."""
    sites = {name: Site(name) for name in "abcde"}
    seen: dict[tuple[str, int], set[bytes]] = {}
    absent: set[str] = set()
    for number, events in enumerate(schedule):
        for name, event in zip(sites, events, strict=True):
            if event == "restart":
                sites[name].restart()
        roster = tuple(name for name in sites if name not in absent)
        if len(roster) < 2:
            absent = set()
            continue
        acquaint([sites[name].keys for name in roster])
        about = attempt(roster, number)
        arrived: dict[str, Words] = {}
        drawn = {}
        absent = set()
        for name, event in zip(sites, events, strict=True):
            if name not in roster:
                continue
            if event == "drop":
                absent.add(name)
                continue
            vector, message = sites[name].contribute(about)
            seen.setdefault(vector, set()).add(about.digest)
            drawn[name] = 1000 * vector[1] + ord(name)
            if event == "repeat":
                with pytest.raises(PrivacyError, match="a second time"):
                    sites[name].contribute(about)
            if event == "late":  # it was sent and did not arrive in time
                absent.add(name)
                continue
            arrived[name] = message
        if absent:
            with pytest.raises(TransportError, match="is not complete"):
                add_up(arrived, about, size=4, limit=LIMIT)
            if arrived:
                left_over = np.sum(list(arrived.values()), axis=0, dtype=np.uint64).view(np.int64)
                assert (np.abs(left_over) > LIMIT).any()
            continue
        total = add_up(arrived, about, size=4, limit=LIMIT)
        assert set(total.tolist()) == {sum(drawn.values())}
    assert all(len(attempts) == 1 for attempts in seen.values())


# Bad input is named.


def _sent() -> tuple[dict[str, Words], Attempt]:
    about = attempt("abc")
    return messages(members("a", "b", "c"), np.ones((3, 5), dtype=np.int64), about), about


def test_missing_and_uninvited_members_are_named() -> None:
    """An incomplete sum and one with a stranger say who."""
    sent, about = _sent()
    stranger = sent.pop("b")
    with pytest.raises(TransportError, match="missing b; not on its roster nobody"):
        add_up(sent, about, size=5, limit=LIMIT)
    with pytest.raises(TransportError, match="missing nobody; not on its roster z"):
        add_up(sent | {"b": stranger, "z": stranger}, about, size=5, limit=LIMIT)


@pytest.mark.parametrize(
    "wrong", [np.zeros(4, np.uint64), np.zeros((5, 1), np.uint64), np.zeros(5, np.int64)]
)
def test_a_vector_of_another_shape_is_named(wrong: Words) -> None:
    """Its sender is, too."""
    sent, about = _sent()
    with pytest.raises(TransportError, match="b sent"):
        add_up(sent | {"b": wrong}, about, size=5, limit=LIMIT)


def test_garbage_is_out_of_range() -> None:
    """A random vector, and one masked for another attempt or roster, makes a sum out of range."""
    sent, about = _sent()
    random = np.random.default_rng(3).integers(0, 2**64, 5, dtype=np.uint64)
    others = [random]
    for wrong in (attempt("abc", 7), attempt("ab", 7), attempt("abc", 0, 7)):
        keys = members("a", "b", "c")[1]
        others.append(Contribution(np.ones(5, dtype=np.int64), wrong).mask(keys))
    for message in others:
        with pytest.raises(TransportError, match="out of range"):
            add_up(sent | {"b": message}, about, size=5, limit=LIMIT)
    assert add_up(sent, about, size=5, limit=LIMIT).tolist() == [3] * 5


@pytest.mark.parametrize("roster", [(), ("a", "a")])
def test_a_roster_has_distinct_members(roster: tuple[str, ...]) -> None:
    """An empty roster and one with a member twice are refused."""
    with pytest.raises(ConfigError, match="distinct members"):
        attempt(roster)


def test_without_the_extra_a_masked_sum_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A missing package is named, with the command that installs it."""
    import sys

    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.asymmetric.x25519", None)
    with pytest.raises(ConfigError, match=r"pip install 'proxyfl\[node\]'"):
        Keys("a")
