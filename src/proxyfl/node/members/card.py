"""A site's card: what the others know of it, and what they can check and do with that.

Guarantees:
    * ``Card.verify`` accepts a signature from the card's key and no other;
    * what ``Card.seal`` made, only the holder of the card's sealing key can open, for the same
      purpose;
    * nothing on a card is secret;
    * ``check_change`` lets a site's key be changed by the site alone: the old key signs for the
      new ones.
"""

import base64
import dataclasses
import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, utils
from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from proxyfl import _settings
from proxyfl._command import command
from proxyfl.errors import ConfigError
from proxyfl.node.members.versions import ADDED, added

CURVE = ec.SECP256R1()
HASH = hashes.SHA256()
SIGNATURE_BYTES = 64
SEALING_KEY_BYTES = 32

_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\]")
_NAME_CHARACTERS = set("abcdefghijklmnopqrstuvwxyz0123456789-_")


class IdentityError(ConfigError):
    """A key, a certificate, a signature or a seal is not what it should be."""


@dataclass(frozen=True)
class Card:
    """A site's public description of itself.

    ``certificate`` (DER, base64) is what the site's TLS certificates are signed with: its own
    identity certificate, or its institution's authority. ``public_key`` is the site's own key,
    which verifies what the site signs; ``sealing_key`` is what others seal to. An empty
    ``address`` means that the site can only dial out.
    """

    name: str
    address: str
    certificate: str
    public_key: str
    sealing_key: str
    joins: int = 0
    """The first round in which the site takes part."""
    previous: str = added(2, "")
    """The site's public key before this one, if it has changed its key."""
    proof: str = added(2, "")
    """The signature of that key, which shows that the site itself made the change."""

    def __post_init__(self) -> None:
        check_name(self.name)
        check_address(self.name, self.address)
        decoded_key(self.public_key)
        if len(from_hex("sealing_key", self.sealing_key)) != SEALING_KEY_BYTES:
            raise IdentityError(
                f"The card of {self.name!r}: expected a sealing_key of {SEALING_KEY_BYTES} bytes."
            )
        if self.joins < 0:
            raise ConfigError(f"Expected joins >= 0 for {self.name!r}, got {self.joins}.")
        if self.previous or self.proof:
            decoded_key(self.previous)
            from_hex("proof", self.proof)
        fingerprint_of(self.pem)

    @property
    def pem(self) -> bytes:
        """The certificate in PEM form."""
        lines = [self.certificate[at : at + 64] for at in range(0, len(self.certificate), 64)]
        body = "\n".join(lines)
        return f"-----BEGIN CERTIFICATE-----\n{body}\n-----END CERTIFICATE-----\n".encode()

    @property
    def fingerprint(self) -> str:
        """The SHA-256 of the site's public key."""
        return fingerprint(decoded_key(self.public_key))

    def verify(self, signature: bytes, content: bytes) -> None:
        """Raise IdentityError unless this site signed ``content``."""
        if len(signature) != SIGNATURE_BYTES:
            raise IdentityError(
                f"Expected a signature of {SIGNATURE_BYTES} bytes, got {len(signature)}."
            )
        r = int.from_bytes(signature[:32], "big")
        s = int.from_bytes(signature[32:], "big")
        encoded = utils.encode_dss_signature(r, s)
        try:
            decoded_key(self.public_key).verify(encoded, content, ec.ECDSA(HASH))
        except InvalidSignature:
            raise IdentityError(f"The signature is not that of {self.name!r}.") from None

    def key_change(self, previous: str) -> bytes:
        """The bytes that the key ``previous`` signs to hand over to this card's keys."""
        parts = [self.name, previous, self.public_key, self.sealing_key, self.certificate]
        return b"proxyfl key change\0" + json.dumps(parts).encode()

    def check_change(self, old: "Card") -> None:
        """Raise IdentityError unless the key of ``old``, the same site's card, handed over to this
        card's key. A card with the same key needs no proof."""
        if self.public_key == old.public_key:
            return
        try:
            if self.previous != old.public_key:
                raise IdentityError("it names another key before it")
            old.verify(from_hex("proof", self.proof), self.key_change(old.public_key))
        except IdentityError as error:
            raise IdentityError(
                f"The card of {self.name!r} has another key than the version before, and the "
                f"site's old key did not sign the change ({error}). A site changes its key with: "
                f"{command('node', 'rotate-key', self.name)}. One that has lost its key is removed "
                "and added under another name."
            ) from error

    def seal(self, content: bytes, purpose: bytes) -> bytes:
        """``content`` so that only this site can read it; ``purpose`` must be the same to open."""
        ephemeral = X25519PrivateKey.generate()
        recipient = from_hex("sealing_key", self.sealing_key)
        shared = ephemeral.exchange(X25519PublicKey.from_public_bytes(recipient))
        public = ephemeral.public_key().public_bytes_raw()
        cipher = sealing_cipher(shared, public, recipient)
        return public + cipher.encrypt(bytes(12), content, purpose)


def card_text(card: Card) -> str:
    """The card as a file that ``read_card`` reads, and releases that know less can."""
    lines = []
    for item in dataclasses.fields(card):
        value = getattr(card, item.name)
        if ADDED not in item.metadata or value != item.default:
            lines.append(f"{item.name} = {_settings.toml_value(value)}\n")
    return "".join(lines)


def read_card(path: Path) -> tuple[Card, list[str]]:
    """The card in a file, and the names of what a newer release says on it beyond ours."""
    tree = _settings.read_toml(path, "card")
    names = {field.name for field in dataclasses.fields(Card)}
    later = [name for name in tree if name not in names]
    known = {name: value for name, value in tree.items() if name in names}
    return _settings.build(Card, known, source=path), later


def check_name(name: str) -> str:
    """Return ``name`` if it can name a site: it is part of files, addresses and log lines."""
    if not 1 <= len(name) <= 40 or not set(name) <= _NAME_CHARACTERS or not name[0].isalnum():
        raise ConfigError(
            f"Expected a site name of 1 to 40 small letters, digits, - and _, got {name!r}. "
            "Begin with a letter or a digit."
        )
    return name


def check_address(name: str, address: str) -> None:
    """Raise ConfigError unless ``address`` is HOST:PORT or empty."""
    host, _, port = address.rpartition(":")
    # Hosts only: a card must not choose another way to open a connection (unix:, dns://).
    if address and not (_HOST.fullmatch(host) and port.isdecimal() and 0 < int(port) < 65536):
        raise ConfigError(
            f"Expected the address of {name!r} as HOST:PORT, or empty for a site that can only "
            f"dial out, got {address!r:.80}."
        )


def fingerprint_of(certificate: bytes) -> str:
    """The SHA-256 of the public key in a PEM certificate, as 64 hexadecimal digits."""
    try:
        key = x509.load_pem_x509_certificate(certificate).public_key()
    except ValueError as error:
        raise IdentityError(f"Expected a certificate: {error}.") from error
    return fingerprint(key)


def fingerprint(key: PublicKeyTypes) -> str:
    """The SHA-256 of a public key, as 64 hexadecimal digits."""
    encoded = key.public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return hashlib.sha256(encoded).hexdigest()


def spoken(fingerprint: str) -> str:
    """A fingerprint in groups of four, to be read out over the telephone."""
    groups = [fingerprint[at : at + 4] for at in range(0, len(fingerprint), 4)]
    return " ".join(groups)


def tls_name(fingerprint: str) -> str:
    """The name that a TLS certificate carries: it follows from the site's key alone."""
    return f"{fingerprint[:32]}.site.proxyfl"


def decoded_key(text: str) -> ec.EllipticCurvePublicKey:
    """The P-256 key that a card spells as a compressed point."""
    try:
        return ec.EllipticCurvePublicKey.from_encoded_point(CURVE, from_hex("public_key", text))
    except ValueError as error:
        raise IdentityError(f"Expected a P-256 point for public_key: {error}.") from error


def encoded_key(key: ec.EllipticCurvePublicKey) -> str:
    """A P-256 key as a card spells it."""
    point = serialization.PublicFormat.CompressedPoint
    return key.public_bytes(serialization.Encoding.X962, point).hex()


def encoded_certificate(pem: bytes) -> str:
    """A certificate as a card spells it: DER in base64, on one line."""
    certificate = x509.load_pem_x509_certificate(pem)
    der = certificate.public_bytes(serialization.Encoding.DER)
    return base64.b64encode(der).decode()


def sealing_cipher(shared: bytes, ephemeral: bytes, recipient: bytes) -> ChaCha20Poly1305:
    """The cipher of one sealed message. Its key serves once, so the nonce may be fixed."""
    about = b"proxyfl seal 1" + ephemeral + recipient
    derivation = HKDF(HASH, length=32, salt=None, info=about)
    return ChaCha20Poly1305(derivation.derive(shared))


def from_hex(name: str, text: str) -> bytes:
    """The bytes that ``text`` spells."""
    try:
        return bytes.fromhex(text)
    except ValueError as error:
        raise IdentityError(f"Expected hexadecimal digits for {name}, got {text!r:.80}.") from error
