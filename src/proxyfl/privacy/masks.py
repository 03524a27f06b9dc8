r"""Masks that cancel in a sum over a roster, and hide every vector in any other.

    message_i = X_i + sum_{j > i} M_ij - sum_{j < i} M_ij      modulo 2^64
    M_ij      = ChaCha20 stream of the key HKDF(X25519(i, j); attempt, names, public keys)

i < j by the order of names in the roster. The masks of a complete roster cancel, so the messages
add up to the sum of X, to the last bit.

An *attempt* is one step: federation, manifest, round, number and roster. All of it is bound into
each key, so masks of two attempts have nothing in common.

Guarantees, if X25519, HKDF-SHA256 and ChaCha20 are what they are taken for:
    * to all who lack the keys of two or more members of a roster, their messages are uniform, and
      all that can be learnt of their vectors is the sum over those members, once each of them has
      sent under this very attempt;
    * a vector leaves at most once, masked, under the one attempt that it was made for
      (``Contribution``). Under two rosters the difference of two sums would be an absentee's
      vector;
    * the masks of an attempt are used once, and attempts go forward (``Keys``). Two vectors under
      the same masks would show their difference;
    * private keys are drawn from the operating system and are never stored: after a restart a
      member has other keys, and what it sent before cannot be combined with what it sends now;
    * a sum that is not complete, has a member too many or a value out of range raises, and names
      what is wrong (``add_up``).
"""

import hashlib
import hmac
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from proxyfl import _validate
from proxyfl._setonce import SetOnce
from proxyfl.errors import ConfigError, PrivacyError, TransportError
from proxyfl.privacy.gaussian import Integers
from proxyfl.privacy.shares import MOST_MEMBERS

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

Words = NDArray[np.uint64]

MOST_ATTEMPTS = 12
"""Attempts at one step that a member takes part in. More would spend its budget on nothing."""

_WORD = np.dtype("<u8")
_PURPOSE = b"proxyfl masked sum 1"


@dataclass(frozen=True)
class Attempt:
    """One try at one step: who adds up what with whom. ``roster`` is sorted when it is made."""

    federation: str
    manifest: str
    round: int
    number: int
    roster: tuple[str, ...]

    def __post_init__(self) -> None:
        _validate.whole("round", self.round, at_least=0)
        _validate.whole("attempt", self.number, at_least=0)
        if not self.roster or len(set(self.roster)) != len(self.roster):
            raise ConfigError(
                f"Expected a roster of distinct members, got {', '.join(self.roster) or 'none'}."
            )
        if len(self.roster) > MOST_MEMBERS:
            raise ConfigError(
                f"Expected a roster of at most {MOST_MEMBERS} members, got {len(self.roster)}."
            )
        object.__setattr__(self, "roster", tuple(sorted(self.roster)))

    @cached_property
    def digest(self) -> bytes:
        """A hash of all that masks are bound to. Two attempts that differ have different ones."""
        parts = [self.federation, self.manifest, self.round, self.number, list(self.roster)]
        return hashlib.sha256(json.dumps(parts).encode()).digest()

    def __str__(self) -> str:
        return f"round {self.round}, attempt {self.number}"


class _Secret(NamedTuple):
    """What a member shares with a peer: the peer's public key, the secret of both, and the names
    and public keys of the pair, which each mask is bound to."""

    public: bytes
    secret: bytes
    pair: bytes


class Keys(SetOnce, changing=("_last",)):
    """One member's ephemeral key pair, and the secrets that it shares with others.

    ``seed`` makes the key pair of a simulation, whose masks protect nobody."""

    def __init__(self, name: str, *, seed: bytes | None = None) -> None:
        self.name = name
        self._private = _private_key(seed)
        self.public = self._private.public_key().public_bytes_raw()
        self._secrets: dict[str, _Secret] = {}
        self._last: tuple[int, int] | None = None

    def meet(self, peer: str, public: bytes) -> None:
        """Agree on a secret with ``peer``, whose public key must have come in a message that it
        signed. A peer that has restarted has a new one, for attempts from now on."""
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

        known = self._secrets.get(peer)
        if known is not None and known.public == public:
            return
        if peer == self.name:
            raise ConfigError(f"Expected the key of another member, got {peer}'s own.")
        try:
            shared = self._private.exchange(X25519PublicKey.from_public_bytes(public))
        except ValueError as problem:
            raise PrivacyError(
                f"The public key of {peer} for masks is not a valid X25519 key ({problem}). "
                f"Nothing was sent; ask {peer} to restart."
            ) from problem
        # HKDF-Extract (RFC 5869)
        secret = hmac.digest(_PURPOSE, shared, "sha256")
        pair = sorted([(self.name, self.public.hex()), (peer, public.hex())])
        self._secrets[peer] = _Secret(public, secret, json.dumps(pair).encode())

    def masks(self, attempt: Attempt, size: int) -> Words:
        """The sum of this member's masks, ``size`` words: once for each attempt, and only for a
        later one than before."""
        if self.name not in attempt.roster:
            raise PrivacyError(f"{self.name} is not on the roster of {attempt}.")
        unknown = [each for each in attempt.roster if each not in self._secrets]
        unknown = [each for each in unknown if each != self.name]
        if unknown:
            raise PrivacyError(
                f"{self.name} has no key of {', '.join(unknown)} for {attempt}. Exchange keys with "
                "every member of a roster first."
            )
        now = (attempt.round, attempt.number)
        if self._last is not None and now <= self._last:
            raise PrivacyError(
                f"{self.name} has made masks for round {self._last[0]}, attempt {self._last[1]}; "
                f"those of {attempt} could be used a second time. Begin a new attempt."
            )
        self._last = now
        total = np.zeros(size, dtype=_WORD)
        for peer in attempt.roster:
            if peer == self.name:
                continue
            stream = _stream(self._key(attempt, peer), size)
            if self.name < peer:
                total += stream
            else:
                total -= stream
        return total

    def _key(self, attempt: Attempt, peer: str) -> bytes:
        """The key of the mask that is shared with ``peer``, the same on both sides."""
        known = self._secrets[peer]
        # HKDF-Expand to one block
        return hmac.digest(known.secret, attempt.digest + known.pair + b"\x01", "sha256")


class Contribution(SetOnce, changing=("_vector",)):
    """A member's noisy vector, made for one attempt. It can be masked once, and read never."""

    def __init__(self, vector: Integers, attempt: Attempt) -> None:
        self.attempt = attempt
        self._vector: Integers | None = vector.astype(np.int64).reshape(-1)

    def mask(self, keys: Keys) -> Words:
        """The message for all members: the vector with this member's masks."""
        vector = self._vector
        if vector is None:
            raise PrivacyError(
                f"The vector of {self.attempt} has left already. A vector is sent under one "
                "roster, once: draw a new batch and new noise for a new attempt."
            )
        self._vector = None
        return vector.view(np.uint64) + keys.masks(self.attempt, len(vector))


def add_up(messages: Mapping[str, Words], attempt: Attempt, *, size: int, limit: int) -> Integers:
    """The sum of the members' vectors, which their ``messages`` hide.

    ``limit`` is the largest value that a sum of honest vectors can have."""
    missing = [name for name in attempt.roster if name not in messages]
    extra = sorted(set(messages) - set(attempt.roster))
    if missing or extra:
        raise TransportError(
            f"{attempt} is not complete: missing {', '.join(missing) or 'nobody'}; not on its "
            f"roster {', '.join(extra) or 'nobody'}. Begin a new attempt with those who are there."
        )
    total = np.zeros(size, dtype=np.uint64)
    for name in attempt.roster:
        message = messages[name]
        if message.shape != (size,) or message.dtype != np.uint64:
            raise TransportError(
                f"{name} sent {message.size} values of type {message.dtype} for {attempt}; "
                f"expected {size} of 64 bits. Compare its manifest and its release with yours."
            )
        total += message
    values = total.view(np.int64)
    beyond = int(np.count_nonzero((values > limit) | (values < -limit)))
    if beyond:
        raise TransportError(
            f"The sum of {attempt} is out of range in {beyond} of {size} values: a member sent "
            "garbage, or masked for another roster, attempt or key. The sum does not tell who. "
            "Nothing was learnt from it; begin a new attempt."
        )
    return values


def acquaint(members: Sequence[Keys]) -> None:
    """Give all of ``members`` each other's public keys: those of one process, or of a test."""
    for one in members:
        for other in members:
            if one is not other:
                one.meet(other.name, other.public)


def _private_key(seed: bytes | None) -> "X25519PrivateKey":
    try:
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
    except ModuleNotFoundError as problem:
        raise ConfigError(
            "A masked sum needs the package cryptography: pip install 'proxyfl[node]'."
        ) from problem
    if seed is None:
        return X25519PrivateKey.generate()
    return X25519PrivateKey.from_private_bytes(hashlib.sha256(_PURPOSE + seed).digest())


def _stream(key: bytes, size: int) -> Words:
    """``size`` words of the ChaCha20 stream of ``key``, which is used for nothing else."""
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

    encryptor = Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor()
    return np.frombuffer(encryptor.update(bytes(8 * size)), dtype=_WORD)
