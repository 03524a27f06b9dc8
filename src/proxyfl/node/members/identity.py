"""A site's identity: one key that never leaves it, and certificates that it signs for itself.

    identity certificate   self-signed, long-lived; it is on the site's card and in the manifest
    TLS certificate        shown in TLS; same key, short-lived, renewed by the site alone

Peers trust the identity certificate and compare the *key* of the TLS certificate with the manifest.
A renewed one has the same key and is signed by the same certificate, so nobody needs to hear of
it. A site whose institution insists on its own authority puts that authority's certificate on the
card and installs TLS certificates signed by it; the key is compared all the same.

A second key (X25519) opens what was sealed to the site: messages that pass through a relay or lie
in a folder.

Guarantees:
    * private keys are written with mode 0600 and refused when others can read them;
    * the folder of a new identity is its owner's alone, also if it was there before;
    * a key that exists is never replaced;
    * ``open_sealed`` returns what was sealed to this site for this purpose, or raises
      IdentityError.
"""

import datetime
import os
import stat
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, utils
from cryptography.hazmat.primitives.asymmetric.x25519 import (
    X25519PrivateKey,
    X25519PublicKey,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from proxyfl._files import write_bytes
from proxyfl.node.members.card import (
    CURVE,
    HASH,
    SEALING_KEY_BYTES,
    Card,
    IdentityError,
    check_name,
    encoded_certificate,
    encoded_key,
    fingerprint,
    fingerprint_of,
    sealing_cipher,
    tls_name,
)

KEY_FILE = "key.pem"
SEALING_FILE = "sealing-key.pem"
IDENTITY_FILE = "identity.pem"
TLS_FILE = "tls.pem"
IDENTITY_DAYS = 7300
TLS_DAYS = 90

_TAG_BYTES = 16


class Identity:
    """A site's keys and certificates, as they lie in its folder."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self.name = check_name(name)
        self._key = _load_signing_key(folder / KEY_FILE)
        self._sealing = _load_sealing_key(folder / SEALING_FILE)

    @classmethod
    def create(cls, folder: Path, name: str) -> "Identity":
        """Make new keys in ``folder``; refuse to replace keys that are there."""
        check_name(name)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)  # it may have been there, with the records in it
        if (folder / KEY_FILE).exists():
            raise IdentityError(
                f"{folder / KEY_FILE} exists already. A site keeps its key for life: peers know it "
                "by that key. Choose another folder for another site."
            )
        _write_secret(
            folder / SEALING_FILE, _private_pem(X25519PrivateKey.generate())
        )
        _write_secret(
            folder / KEY_FILE, _private_pem(ec.generate_private_key(CURVE))
        )
        identity = cls(folder, name)
        write_bytes(
            folder / IDENTITY_FILE, identity._certificate(IDENTITY_DAYS, ca=True)
        )
        identity.renew()
        return identity

    @property
    def fingerprint(self) -> str:
        """The SHA-256 of the public key."""
        return fingerprint(self._key.public_key())

    def card(self, address: str) -> Card:
        """The card that the others need."""
        return Card(
            name=self.name,
            address=address,
            certificate=encoded_certificate(
                (self.folder / IDENTITY_FILE).read_bytes()
            ),
            public_key=encoded_key(self._key.public_key()),
            sealing_key=self._sealing.public_key().public_bytes_raw().hex(),
        )

    def sign(self, content: bytes) -> bytes:
        """A signature of 64 bytes by this site's key."""
        r, s = utils.decode_dss_signature(self._key.sign(content, ec.ECDSA(HASH)))
        return r.to_bytes(32, "big") + s.to_bytes(32, "big")

    def open_sealed(self, sealed: bytes, purpose: bytes) -> bytes:
        """The content that was sealed to this site for ``purpose``."""
        if len(sealed) < SEALING_KEY_BYTES + _TAG_BYTES:
            raise IdentityError(
                f"Expected a sealed message, got {len(sealed)} bytes."
            )
        public = sealed[:SEALING_KEY_BYTES]
        own = self._sealing.public_key().public_bytes_raw()
        try:
            shared = self._sealing.exchange(
                X25519PublicKey.from_public_bytes(public)
            )
            cipher = sealing_cipher(shared, public, own)
            return cipher.decrypt(bytes(12), sealed[SEALING_KEY_BYTES:], purpose)
        except (InvalidTag, ValueError):
            raise IdentityError(
                "A sealed message could not be opened: it is damaged, or sealed to another site."
            ) from None

    def key_pem(self) -> bytes:
        """The private key, for the TLS library in this process."""
        return _private_pem(self._key)

    def tls_certificate(self) -> bytes:
        """The TLS certificate in PEM form, renewed first if a third of its life or less is left.

        One that an institution's own authority signed is not replaced here: renewing it is that
        authority's business."""
        if self._certifies_itself() and self._remaining() < datetime.timedelta(
            days=TLS_DAYS / 3
        ):
            self.renew()
        return (self.folder / TLS_FILE).read_bytes()

    def renew(self) -> None:
        """Sign a new TLS certificate with the same key."""
        if not self._certifies_itself():
            raise IdentityError(
                "This site's certificates come from its institution's authority. Have it sign the "
                "request of `proxyfl node certificate --request`, then install the answer."
            )
        write_bytes(self.folder / TLS_FILE, self._certificate(TLS_DAYS, ca=False))

    def signing_request(self) -> bytes:
        """A request, in PEM form, for the institution's own authority to certify this key."""
        builder = x509.CertificateSigningRequestBuilder()
        builder = builder.subject_name(_named(f"{self.name} tls"))
        builder = builder.add_extension(self._alternative_name(), critical=False)
        return builder.sign(self._key, HASH).public_bytes(
            serialization.Encoding.PEM
        )

    def install(self, certificate: bytes, authority: bytes) -> None:
        """Use a TLS certificate that the institution's own authority signed for this key."""
        if fingerprint_of(certificate) != self.fingerprint:
            raise IdentityError(
                "The certificate holds another key than this site's. Have the authority sign the "
                "request of `proxyfl node certificate --request`."
            )
        found = x509.load_pem_x509_certificate(certificate)
        try:
            found.verify_directly_issued_by(
                x509.load_pem_x509_certificate(authority)
            )
        except (ValueError, TypeError, InvalidSignature) as error:
            raise IdentityError(
                f"That authority did not sign the certificate: {error}."
            ) from error
        names = found.extensions.get_extension_for_class(
            x509.SubjectAlternativeName
        ).value
        if tls_name(self.fingerprint) not in names.get_values_for_type(
            x509.DNSName
        ):
            raise IdentityError(
                f"The certificate lacks the name {tls_name(self.fingerprint)}, which the request "
                "asks for. Have the authority keep the request's alternative names."
            )
        write_bytes(self.folder / TLS_FILE, certificate)
        write_bytes(self.folder / IDENTITY_FILE, authority)

    def expires(self) -> datetime.datetime:
        """The end of the TLS certificate."""
        found = x509.load_pem_x509_certificate(
            (self.folder / TLS_FILE).read_bytes()
        )
        return found.not_valid_after_utc

    def _remaining(self) -> datetime.timedelta:
        return self.expires() - datetime.datetime.now(datetime.UTC)

    def _certifies_itself(self) -> bool:
        return (
            fingerprint_of((self.folder / IDENTITY_FILE).read_bytes())
            == self.fingerprint
        )

    def _alternative_name(self) -> x509.SubjectAlternativeName:
        return x509.SubjectAlternativeName(
            [x509.DNSName(tls_name(self.fingerprint))]
        )

    def _certificate(self, days: int, *, ca: bool) -> bytes:
        now = datetime.datetime.now(datetime.UTC)
        subject = self.name if ca else f"{self.name} tls"
        # An hour of grace: clocks differ, and a certificate from the future is refused.
        builder = x509.CertificateBuilder(
            subject_name=_named(subject),
            issuer_name=_named(self.name),
            public_key=self._key.public_key(),
            serial_number=x509.random_serial_number(),
            not_valid_before=now - datetime.timedelta(hours=1),
            not_valid_after=now + datetime.timedelta(days=days),
        )
        constraint = x509.BasicConstraints(ca=ca, path_length=0 if ca else None)
        builder = builder.add_extension(constraint, critical=True)
        if not ca:
            purposes = [
                ExtendedKeyUsageOID.SERVER_AUTH,
                ExtendedKeyUsageOID.CLIENT_AUTH,
            ]
            builder = builder.add_extension(
                x509.ExtendedKeyUsage(purposes), critical=False
            )
            builder = builder.add_extension(
                self._alternative_name(), critical=False
            )
        return builder.sign(self._key, HASH).public_bytes(
            serialization.Encoding.PEM
        )


def check_secret(path: Path) -> None:
    """Raise IdentityError unless ``path`` is there and only its owner can read it."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise IdentityError(
            f"Cannot read {path}: {error.strerror}. `proxyfl node init` makes a site's keys."
        ) from error
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise IdentityError(
            f"{path} can be read by others (mode {stat.S_IMODE(mode):o}). Run: chmod 600 {path}"
        )


def check_folder(folder: Path) -> None:
    """Raise IdentityError if others can put files into ``folder``, or take some away."""
    mode = folder.stat().st_mode
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise IdentityError(
            f"Others can change {folder} (mode {stat.S_IMODE(mode):o}). Run: chmod 700 {folder}"
        )


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _private_pem(key: ec.EllipticCurvePrivateKey | X25519PrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _load_signing_key(path: Path) -> ec.EllipticCurvePrivateKey:
    key = _load_key(path)
    if (
        not isinstance(key, ec.EllipticCurvePrivateKey)
        or key.curve.name != CURVE.name
    ):
        raise IdentityError(f"{path}: expected a P-256 key.")
    return key


def _load_sealing_key(path: Path) -> X25519PrivateKey:
    key = _load_key(path)
    if not isinstance(key, X25519PrivateKey):
        raise IdentityError(f"{path}: expected an X25519 key.")
    return key


def _load_key(path: Path) -> object:
    check_secret(path)
    try:
        return serialization.load_pem_private_key(path.read_bytes(), password=None)
    except (ValueError, TypeError) as error:
        raise IdentityError(
            f"{path}: not a private key in PEM form: {error}."
        ) from error


def _write_secret(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
