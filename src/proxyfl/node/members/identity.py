"""A site's keys and certificates (``Identity``), and what the others know of them (``Card``).

    identity certificate   self-signed, without an end; it is on the site's card and in the manifest
    TLS certificate        shown in TLS; same key, short-lived, renewed by the site alone

Peers trust the identity certificate and compare the *key* of the TLS certificate with the manifest.
A renewed one has the same key and is signed by the same certificate, so nobody needs to hear of
it. A site whose institution insists on its own authority puts that authority's certificate on the
card and installs TLS certificates signed by it; the key is compared all the same.

A second key (X25519) opens what was sealed to the site: messages that pass through a relay or lie
in a folder.

Guarantees of a card:
    * ``Card.verify`` accepts a signature from the card's key and no other;
    * what ``Card.seal`` made, only the holder of the card's sealing key can open, for the same
      purpose;
    * nothing on a card is secret;
    * ``check_change`` lets a site's key be changed by the site alone: the old key signs for the
      new ones.

Guarantees of an identity:
    * private keys are written with mode 0600 and refused when others can read them;
    * the folder of a new identity is its owner's alone, also if it was there before;
    * a key is replaced by one that it signed for (``rotate``), and only once this site has accepted
      a manifest that lists the new one; until then the new one waits;
    * a clock that was wrong once does no lasting harm: the identity certificate's dates do not
      depend on the clock, and a TLS certificate whose dates do not fit the present is replaced;
    * ``open_sealed`` returns what was sealed to this site for this purpose, or raises
      IdentityError.
"""

import base64
import contextlib
import dataclasses
import datetime
import hashlib
import json
import os
import re
import shutil
import stat
import threading
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, utils
from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from proxyfl import _settings
from proxyfl._command import command
from proxyfl._files import sync_folder, write_bytes, write_text
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
        decode_key(self.public_key)
        if len(from_hex("sealing_key", self.sealing_key)) != SEALING_KEY_BYTES:
            raise IdentityError(
                f"The card of {self.name!r} is damaged: expected a sealing_key of "
                f"{SEALING_KEY_BYTES} bytes. Ask {self.name!r} for its card again."
            )
        if self.joins < 0:
            raise ConfigError(f"Expected joins >= 0 for {self.name!r}, got {self.joins}.")
        if self.previous or self.proof:
            decode_key(self.previous)
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
        return fingerprint(decode_key(self.public_key))

    def verify(self, signature: bytes, content: bytes) -> None:
        """Raise IdentityError unless this site signed ``content``."""
        if len(signature) != SIGNATURE_BYTES:
            raise IdentityError(
                f"Expected a signature of {SIGNATURE_BYTES} bytes, got {len(signature)}. Ask for "
                "the signed file again."
            )
        r = int.from_bytes(signature[:32], "big")
        s = int.from_bytes(signature[32:], "big")
        encoded = utils.encode_dss_signature(r, s)
        try:
            decode_key(self.public_key).verify(encoded, content, ec.ECDSA(HASH))
        except InvalidSignature:
            raise IdentityError(f"The signature does not match the key of {self.name!r}.") from None

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


def decode_key(text: str) -> ec.EllipticCurvePublicKey:
    """The P-256 key that a card spells as a compressed point."""
    try:
        return ec.EllipticCurvePublicKey.from_encoded_point(CURVE, from_hex("public_key", text))
    except ValueError as error:
        raise IdentityError(f"Expected a P-256 point for public_key: {error}.") from error


def encode_key(key: ec.EllipticCurvePublicKey) -> str:
    """A P-256 key as a card spells it."""
    point = serialization.PublicFormat.CompressedPoint
    return key.public_bytes(serialization.Encoding.X962, point).hex()


def encode_certificate(pem: bytes) -> str:
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


KEY_FILE = "key.pem"
NEXT_FOLDER = "next"
"""Where new keys wait until a manifest that lists them is accepted."""
RETIRED_FOLDER = "retired"
"""Where the cards of earlier keys lie: what those keys signed can still be checked."""
MOVING_FILE = "moving"
SEALING_FILE = "sealing-key.pem"
IDENTITY_FILE = "identity.pem"
TLS_FILE = "tls.pem"
TLS_DAYS = 90

IDENTITY_FROM = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)
IDENTITY_UNTIL = datetime.datetime(9999, 12, 31, 23, 59, 59, tzinfo=datetime.UTC)
"""How RFC 5280 (4.1.2.5) writes that a certificate has no end."""

GRACE = datetime.timedelta(hours=1)
"""A TLS certificate is valid from so long before it is made: clocks differ, and peers refuse one
from the future."""

_TAG_BYTES = 16


class Identity:
    """A site's keys and certificates, as they lie in its folder."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self.home = folder
        """Where the files of the keys in use lie: the site's folder, or for a short while ``next``
        in it."""
        self.name = check_name(name)
        self._lock = threading.RLock()
        """Held while files of ``home`` are read, replaced or moved."""
        _finish_moving(folder, name)
        self._load()

    def _load(self) -> None:
        self._key = _load_signing_key(self.home / KEY_FILE)
        self._sealing = _load_sealing_key(self.home / SEALING_FILE)

    @classmethod
    def create(cls, folder: Path, name: str) -> "Identity":
        """Make new keys in ``folder``; refuse to replace keys that are there."""
        check_name(name)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)  # it may have been there, with the records in it
        if (folder / KEY_FILE).exists():
            raise IdentityError(
                f"{folder / KEY_FILE} exists already, and peers know this site by it. Choose "
                "another folder for another site. To change this site's key: "
                f"{command('node', 'rotate-key', folder)}"
            )
        write_secret(folder / SEALING_FILE, _private_pem(X25519PrivateKey.generate()))
        write_secret(folder / KEY_FILE, _private_pem(ec.generate_private_key(CURVE)))
        identity = cls(folder, name)
        identity._certify_itself()
        identity.renew()
        return identity

    @property
    def fingerprint(self) -> str:
        """The SHA-256 of the public key."""
        return fingerprint(self._key.public_key())

    def card(self, address: str) -> Card:
        """The card that the others need."""
        with self._lock:
            return Card(
                name=self.name,
                address=address,
                certificate=encode_certificate((self.home / IDENTITY_FILE).read_bytes()),
                public_key=encode_key(self._key.public_key()),
                sealing_key=self._sealing.public_key().public_bytes_raw().hex(),
            )

    def rotate(self, address: str) -> "Identity":
        """Make the keys that will replace this site's, with a card for this address; they wait in
        ``next`` until a version of the manifest that lists them is accepted."""
        waiting = self.folder / NEXT_FOLDER
        if waiting.exists():
            raise IdentityError(
                f"A new key waits in {waiting} already. Send its card to the keeper of the "
                f"manifest: {command('node', 'card', self.folder, '--next')}. To make another one "
                "instead, remove that folder first."
            )
        scratch = self.folder / f".{NEXT_FOLDER}.new"
        shutil.rmtree(scratch, ignore_errors=True)  # left by a crash
        made = Identity.create(scratch, self.name)
        write_text(scratch / card_file(self.name), card_text(self.endorse(made, address)))
        scratch.rename(waiting)
        sync_folder(self.folder)
        return Identity(waiting, self.name)

    @property
    def next(self) -> "Identity | None":
        """The identity that waits to replace this one."""
        waiting = self.folder / NEXT_FOLDER
        if self.home == waiting or not (waiting / KEY_FILE).exists():
            return None
        return Identity(waiting, self.name)

    def endorse(self, other: "Identity", address: str) -> Card:
        """The card of keys that will replace this site's, signed by the present one."""
        card = other.card(address)
        previous = encode_key(self._key.public_key())
        proof = self.sign(card.key_change(previous)).hex()
        return dataclasses.replace(card, previous=previous, proof=proof)

    def take(self, public_key: str) -> bool:
        """Use the key ``public_key``, which the newest accepted manifest lists for this site; True
        if that is another one than before. IdentityError if this site has no such key."""
        with self._lock:
            if encode_key(self._key.public_key()) == public_key:
                return False
            waiting = self.next
            if waiting is not None and encode_key(waiting._key.public_key()) == public_key:
                self.home = waiting.folder
            else:  # another program has moved the new keys to their place
                self.home = self.folder
            self._load()
            if encode_key(self._key.public_key()) == public_key:
                return True
        raise IdentityError(
            f"The manifest that this site has accepted lists another key for {self.name!r} than "
            f"{self.folder} holds. Bring back the whole of the site's folder from one backup."
        )

    def move(self) -> str | None:
        """Put the keys in use into their place, where the old ones are removed; return the old
        key's fingerprint, or None if they are in their place.

        Only for a program that has the site's folder to itself. After a crash, whoever opens the
        folder finishes it."""
        with self._lock:
            if self.home == self.folder:
                return None
            old = Identity(self.folder, self.name)
            retired = self.folder / RETIRED_FOLDER
            retired.mkdir(exist_ok=True)
            file = retired / f"{old.fingerprint[:16]}.card.toml"
            write_text(file, card_text(old.card("")))
            write_bytes(self.home / MOVING_FILE, b"")
            _finish_moving(self.folder, self.name)
            self.home = self.folder
            return old.fingerprint

    def sign(self, content: bytes) -> bytes:
        """A signature of 64 bytes by this site's key."""
        r, s = utils.decode_dss_signature(self._key.sign(content, ec.ECDSA(HASH)))
        return r.to_bytes(32, "big") + s.to_bytes(32, "big")

    def open_sealed(self, sealed: bytes, purpose: bytes) -> bytes:
        """The content that was sealed to this site for ``purpose``."""
        if len(sealed) < SEALING_KEY_BYTES + _TAG_BYTES:
            raise IdentityError(f"Expected a sealed message, got {len(sealed)} bytes.")
        public = sealed[:SEALING_KEY_BYTES]
        own = self._sealing.public_key().public_bytes_raw()
        try:
            shared = self._sealing.exchange(X25519PublicKey.from_public_bytes(public))
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
        """The TLS certificate in PEM form, renewed first if a third of its life or less is left, if
        a clock that was wrong gave it dates in the future, or if its file is damaged.

        One that an institution's own authority signed is not replaced here: renewing it is that
        authority's business."""
        with self._lock:
            if self._certifies_itself() and self._is_due():
                self.renew()
            return (self.home / TLS_FILE).read_bytes()

    def tls_files(self) -> tuple[Path, Path]:
        """The files of the TLS certificate and the private key, for libraries that read files."""
        return self.home / TLS_FILE, self.home / KEY_FILE

    def renew(self) -> None:
        """Sign a new TLS certificate with the same key.

        An identity certificate of an earlier release whose dates do not hold now is signed again,
        too; peers then need the new card."""
        if not self._certifies_itself():
            raise IdentityError(
                "This site's certificates come from its institution's authority. Have it sign this "
                f"request, then install the answer: {self._request()}"
            )
        own = self._read(IDENTITY_FILE)
        now = _now()
        if not own.not_valid_before_utc <= now < own.not_valid_after_utc:
            self._certify_itself()
        until = now + datetime.timedelta(days=TLS_DAYS)
        write_bytes(self.home / TLS_FILE, self._certificate(now - GRACE, until, ca=False))

    def _request(self) -> str:
        if self.folder.name == NEXT_FOLDER:
            return command("node", "certificate", self.folder.parent, "--next", "--request")
        return command("node", "certificate", self.folder, "--request")

    def signing_request(self) -> bytes:
        """A request, in PEM form, for the institution's own authority to certify this key."""
        builder = x509.CertificateSigningRequestBuilder()
        builder = builder.subject_name(_x509_name(f"{self.name} tls"))
        builder = builder.add_extension(self._alternative_name(), critical=False)
        return builder.sign(self._key, HASH).public_bytes(serialization.Encoding.PEM)

    def install(self, certificate: bytes, authority: bytes) -> None:
        """Use a TLS certificate that the institution's own authority signed for this key."""
        if fingerprint_of(certificate) != self.fingerprint:
            raise IdentityError(
                "The certificate is for a different key than this site's. Have the authority "
                f"sign this request: {self._request()}"
            )
        leaf = x509.load_pem_x509_certificate(certificate)
        try:
            leaf.verify_directly_issued_by(x509.load_pem_x509_certificate(authority))
        except (ValueError, TypeError, InvalidSignature) as error:
            raise IdentityError(f"That authority did not sign the certificate: {error}.") from error
        names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        if tls_name(self.fingerprint) not in names.get_values_for_type(x509.DNSName):
            raise IdentityError(
                f"The certificate lacks the name {tls_name(self.fingerprint)}, which the request "
                "asks for. Have the authority keep the request's alternative names."
            )
        write_bytes(self.home / TLS_FILE, certificate)
        write_bytes(self.home / IDENTITY_FILE, authority)

    def expires(self) -> datetime.datetime:
        """The end of the TLS certificate."""
        return self._tls().not_valid_after_utc

    def check_dates(self) -> None:
        """Raise IdentityError unless both certificates are valid now, by this machine's clock."""
        advice = f"Run: {command('node', 'certificate', self.folder)}"
        if not self._certifies_itself():
            advice = (
                "If the clock here is right, have your authority sign this request again: "
                f"{self._request()}"
            )
        own = self._read(IDENTITY_FILE)
        check_dates(own, "The identity certificate", advice)
        check_dates(self._tls(), "The TLS certificate", advice)

    def _tls(self) -> x509.Certificate:
        return self._read(TLS_FILE)

    def _read(self, name: str) -> x509.Certificate:
        path = self.home / name
        try:
            return x509.load_pem_x509_certificate(path.read_bytes())
        except (OSError, ValueError) as problem:
            advice = "Bring it back from a backup."
            if name == TLS_FILE:
                advice = f"To sign it again, run: {command('node', 'certificate', self.folder)}"
            raise IdentityError(f"{path} is not a readable certificate. {advice}") from problem

    def _is_due(self) -> bool:
        """True if the TLS certificate cannot be read, ends soon, is not valid yet, or would be
        valid for longer than one that is signed now."""
        try:
            certificate = self._tls()
        except IdentityError:
            return True
        now = _now()
        left = certificate.not_valid_after_utc - now
        too_long = left > datetime.timedelta(days=TLS_DAYS) + GRACE
        is_early = certificate.not_valid_before_utc > now
        return is_early or too_long or left < datetime.timedelta(days=TLS_DAYS / 3)

    def _certify_itself(self) -> None:
        certificate = self._certificate(IDENTITY_FROM, IDENTITY_UNTIL, ca=True)
        write_bytes(self.home / IDENTITY_FILE, certificate)

    def _certifies_itself(self) -> bool:
        own = self._read(IDENTITY_FILE).public_bytes(serialization.Encoding.PEM)
        return fingerprint_of(own) == self.fingerprint

    def _alternative_name(self) -> x509.SubjectAlternativeName:
        return x509.SubjectAlternativeName([x509.DNSName(tls_name(self.fingerprint))])

    def _certificate(self, begin: datetime.datetime, end: datetime.datetime, *, ca: bool) -> bytes:
        subject = self.name if ca else f"{self.name} tls"
        builder = x509.CertificateBuilder(
            subject_name=_x509_name(subject),
            issuer_name=_x509_name(self.name),
            public_key=self._key.public_key(),
            serial_number=x509.random_serial_number(),
            not_valid_before=begin,
            not_valid_after=end,
        )
        constraint = x509.BasicConstraints(ca=ca, path_length=0 if ca else None)
        builder = builder.add_extension(constraint, critical=True)
        if not ca:
            purposes = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
            builder = builder.add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
            builder = builder.add_extension(self._alternative_name(), critical=False)
        return builder.sign(self._key, HASH).public_bytes(serialization.Encoding.PEM)


def check_dates(certificate: x509.Certificate, what: str, advice: str) -> None:
    """Raise IdentityError unless ``certificate`` is valid now, by this machine's clock."""
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    now = _now()
    if begin > now:
        raise IdentityError(
            f"{what} is valid from {begin:%Y-%m-%d %H:%M} UTC on, and it is {now:%Y-%m-%d %H:%M} "
            f"here: a clock was wrong when it was made, or is wrong now. {advice}"
        )
    if end <= now:
        raise IdentityError(f"{what} ended on {end:%Y-%m-%d %H:%M} UTC. {advice}")


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def card_file(name: str) -> str:
    """The name of the file with a site's card."""
    return f"{name}.card.toml"


def read_retired_cards(folder: Path) -> list[Card]:
    """The cards of a site with the keys that it had before."""
    return [read_card(path)[0] for path in sorted((folder / RETIRED_FOLDER).glob("*.card.toml"))]


def _finish_moving(folder: Path, name: str) -> None:
    """Move new keys to their place, if that was begun. The order does not matter: until the last
    is moved the mark is there, and each move is whole."""
    waiting = folder / NEXT_FOLDER
    if not (waiting / MOVING_FILE).exists():
        return
    files = [SEALING_FILE, IDENTITY_FILE, TLS_FILE, card_file(name), KEY_FILE]
    for file in files:
        with contextlib.suppress(FileNotFoundError):  # it was moved
            (waiting / file).replace(folder / file)
    sync_folder(folder)
    shutil.rmtree(waiting, ignore_errors=True)


def check_secret(path: Path) -> None:
    """Raise IdentityError unless ``path`` is there and only its owner can read it."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise IdentityError(
            f"Cannot read {path}: {error.strerror}. To make a new site with its keys, run: "
            f"{command('node', 'init', path.parent)}"
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


def _x509_name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _private_pem(key: ec.EllipticCurvePrivateKey | X25519PrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _load_signing_key(path: Path) -> ec.EllipticCurvePrivateKey:
    key = _load_key(path)
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.curve.name != CURVE.name:
        raise IdentityError(
            f"{path}: expected a P-256 key. Restore the site's folder from a backup."
        )
    return key


def _load_sealing_key(path: Path) -> X25519PrivateKey:
    key = _load_key(path)
    if not isinstance(key, X25519PrivateKey):
        raise IdentityError(
            f"{path}: expected an X25519 key. Restore the site's folder from a backup."
        )
    return key


def _load_key(path: Path) -> object:
    check_secret(path)
    try:
        return serialization.load_pem_private_key(path.read_bytes(), password=None)
    except (ValueError, TypeError) as error:
        raise IdentityError(
            f"{path}: not a private key in PEM form: {error}. Restore the site's folder from a "
            "backup."
        ) from error


def write_secret(path: Path, content: bytes) -> None:
    """Write a new file that only its owner can read; FileExistsError if it is there."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
