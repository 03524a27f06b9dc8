"""A site's card: what the others know of it, and what they can check and do with that.

Guarantees:
    * ``Card.verify`` accepts a signature from the card's key and no other;
    * what ``Card.seal`` made, only the holder of the card's sealing key can open, for the same
      purpose;
    * nothing on a card is secret.
"""

import base64
import hashlib
from dataclasses import dataclass

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, utils
from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes
from cryptography.hazmat.primitives.asymmetric.x25519 import (
    X25519PrivateKey,
    X25519PublicKey,
)
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from proxyfl.errors import ConfigError

CURVE = ec.SECP256R1()
HASH = hashes.SHA256()
SIGNATURE_BYTES = 64
SEALING_KEY_BYTES = 32

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

    def __post_init__(self) -> None:
        check_name(self.name)
        check_address(self.name, self.address)
        decoded_key(self.public_key)
        if len(from_hex("sealing_key", self.sealing_key)) != SEALING_KEY_BYTES:
            raise IdentityError(
                f"The card of {self.name!r}: expected a sealing_key of {SEALING_KEY_BYTES} bytes."
            )
        if self.joins < 0:
            raise ConfigError(
                f"Expected joins >= 0 for {self.name!r}, got {self.joins}."
            )
        fingerprint_of(self.pem)

    @property
    def pem(self) -> bytes:
        """The certificate in PEM form."""
        lines = [
            self.certificate[at : at + 64]
            for at in range(0, len(self.certificate), 64)
        ]
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
            raise IdentityError(
                f"The signature is not that of {self.name!r}."
            ) from None

    def seal(self, content: bytes, purpose: bytes) -> bytes:
        """``content`` so that only this site can read it; ``purpose`` must be the same to open."""
        ephemeral = X25519PrivateKey.generate()
        recipient = from_hex("sealing_key", self.sealing_key)
        shared = ephemeral.exchange(X25519PublicKey.from_public_bytes(recipient))
        public = ephemeral.public_key().public_bytes_raw()
        cipher = sealing_cipher(shared, public, recipient)
        return public + cipher.encrypt(bytes(12), content, purpose)


def check_name(name: str) -> str:
    """Return ``name`` if it can name a site: it is part of files, addresses and log lines."""
    if (
        not 1 <= len(name) <= 40
        or not set(name) <= _NAME_CHARACTERS
        or not name[0].isalnum()
    ):
        raise ConfigError(
            f"Expected a site name of 1 to 40 small letters, digits, - and _, got {name!r}. "
            "Begin with a letter or a digit."
        )
    return name


def check_address(name: str, address: str) -> None:
    """Raise ConfigError unless ``address`` is HOST:PORT or empty."""
    host, colon, port = address.rpartition(":")
    if address and not (
        colon and host and port.isdecimal() and 0 < int(port) < 65536
    ):
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
        return ec.EllipticCurvePublicKey.from_encoded_point(
            CURVE, from_hex("public_key", text)
        )
    except ValueError as error:
        raise IdentityError(
            f"Expected a P-256 point for public_key: {error}."
        ) from error


def encoded_key(key: ec.EllipticCurvePublicKey) -> str:
    """A P-256 key as a card spells it."""
    point = serialization.PublicFormat.CompressedPoint
    return key.public_bytes(serialization.Encoding.X962, point).hex()


def encoded_certificate(pem: bytes) -> str:
    """A certificate as a card spells it: DER in base64, on one line."""
    certificate = x509.load_pem_x509_certificate(pem)
    der = certificate.public_bytes(serialization.Encoding.DER)
    return base64.b64encode(der).decode()


def sealing_cipher(
    shared: bytes, ephemeral: bytes, recipient: bytes
) -> ChaCha20Poly1305:
    """The cipher of one sealed message. Its key serves once, so the nonce may be fixed."""
    about = b"proxyfl seal 1" + ephemeral + recipient
    derivation = HKDF(HASH, length=32, salt=None, info=about)
    return ChaCha20Poly1305(derivation.derive(shared))


def from_hex(name: str, text: str) -> bytes:
    """The bytes that ``text`` spells."""
    try:
        return bytes.fromhex(text)
    except ValueError as error:
        raise IdentityError(
            f"Expected hexadecimal digits for {name}, got {text!r:.80}."
        ) from error
