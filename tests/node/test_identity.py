"""Keys, certificates and cards: who a site is, and what others can check."""

import datetime
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID

from proxyfl.node.members.identity import (
    IDENTITY_FILE,
    KEY_FILE,
    TLS_FILE,
    Identity,
    IdentityError,
    check_name,
    fingerprint_of,
    spoken,
    tls_name,
)


@pytest.fixture
def identity(tmp_path: Path) -> Identity:
    """A site's new identity."""
    return Identity.create(tmp_path / "site", "north")


def test_keys_are_the_owners_alone(identity: Identity) -> None:
    """Private keys have mode 0600, and a key that others can read is refused."""
    key = identity.folder / KEY_FILE
    assert key.stat().st_mode & 0o777 == 0o600
    key.chmod(0o640)
    with pytest.raises(IdentityError, match="chmod 600"):
        Identity(identity.folder, "north")


def test_a_folder_that_was_there_becomes_the_owners_alone(tmp_path: Path) -> None:
    """The operator made it to put the records in, under a careless umask."""
    folder = tmp_path / "site"
    folder.mkdir()
    folder.chmod(0o777)
    Identity.create(folder, "north")
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_key_is_never_replaced(identity: Identity) -> None:
    """A second init in the same folder is refused."""
    with pytest.raises(IdentityError, match="exists already"):
        Identity.create(identity.folder, "north")


def test_the_card_verifies_only_its_own_site(identity: Identity, tmp_path: Path) -> None:
    """A signature counts for the signer's card and the signed content alone."""
    other = Identity.create(tmp_path / "other", "south")
    signature = identity.sign(b"content")
    identity.card("").verify(signature, b"content")
    for card, content in ((other.card(""), b"content"), (identity.card(""), b"contenT")):
        with pytest.raises(IdentityError, match="does not match the key of"):
            card.verify(signature, content)
    with pytest.raises(IdentityError, match="64 bytes"):
        identity.card("").verify(b"", b"content")


def test_a_sealed_message_opens_for_its_recipient_and_purpose_alone(
    identity: Identity, tmp_path: Path
) -> None:
    """Another site, another purpose or a changed byte: refused."""
    sealed = identity.card("").seal(b"secret", b"relay")
    assert identity.open_sealed(sealed, b"relay") == b"secret"
    assert b"secret" not in sealed
    other = Identity.create(tmp_path / "other", "south")
    changed = sealed[:-1] + bytes([sealed[-1] ^ 1])
    for who, what, purpose in (
        (other, sealed, b"relay"),
        (identity, sealed, b"files"),
        (identity, changed, b"relay"),
        (identity, b"short", b"relay"),
    ):
        with pytest.raises(IdentityError, match="sealed"):
            who.open_sealed(what, purpose)


def test_renewal_keeps_the_key(identity: Identity) -> None:
    """A renewed TLS certificate is another certificate of the same key."""
    before = identity.tls_certificate()
    identity.renew()
    after = identity.tls_certificate()
    assert before != after
    assert fingerprint_of(before) == fingerprint_of(after) == identity.fingerprint


def test_a_certificate_near_its_end_is_renewed_by_itself(
    identity: Identity, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a third of its life left, reading the certificate renews it."""
    monkeypatch.setattr("proxyfl.node.members.identity.TLS_DAYS", 10)
    identity.renew()
    monkeypatch.setattr("proxyfl.node.members.identity.TLS_DAYS", 90)
    identity.tls_certificate()
    left = identity.expires() - datetime.datetime.now(datetime.UTC)
    assert left > datetime.timedelta(days=80)


def authority() -> tuple[rsa.RSAPrivateKey, x509.Certificate]:
    """An institution's own authority, with an RSA key as many have."""
    key = rsa.generate_private_key(65537, 2048)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Hospital CA")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = x509.CertificateBuilder(
        issuer_name=name,
        subject_name=name,
        public_key=key.public_key(),
        serial_number=1,
        not_valid_before=now - datetime.timedelta(days=1),
        not_valid_after=now + datetime.timedelta(days=100),
    ).add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    return key, certificate.sign(key, hashes.SHA256())


def certified(identity: Identity, *, names: bool = True) -> tuple[bytes, bytes]:
    """A TLS certificate for the identity's request, and the authority's own."""
    key, ca = authority()
    request = x509.load_pem_x509_csr(identity.signing_request())
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder(
        issuer_name=ca.subject,
        subject_name=request.subject,
        public_key=request.public_key(),
        serial_number=2,
        not_valid_before=now - datetime.timedelta(days=1),
        not_valid_after=now + datetime.timedelta(days=30),
    )
    wanted = request.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    other = x509.SubjectAlternativeName([x509.DNSName("other.example")])
    builder = builder.add_extension(wanted if names else other, critical=False)
    pem = serialization.Encoding.PEM
    return builder.sign(key, hashes.SHA256()).public_bytes(pem), ca.public_bytes(pem)


@pytest.mark.parametrize(
    "content",
    [None, b"", b"-----BEGIN CERTIFICATE-----\n", b"\xff" * 99],
    ids=["gone", "empty", "cut", "noise"],
)
def test_a_damaged_certificate_is_signed_again(identity: Identity, content: bytes | None) -> None:
    """A site signs its TLS certificate itself, so a damaged one stops nothing. The identity
    certificate is on the card that others have: its loss is told."""
    path = identity.folder / TLS_FILE
    for name, remedy in ((TLS_FILE, "node certificate"), (IDENTITY_FILE, "from a backup")):
        intact = (identity.folder / name).read_bytes()
        if content is None:
            (identity.folder / name).unlink()
        else:
            (identity.folder / name).write_bytes(content)
        with pytest.raises(IdentityError, match=remedy):
            identity.check_dates()
        if name == TLS_FILE:
            renewed = x509.load_pem_x509_certificate(identity.tls_certificate())
            assert renewed == x509.load_pem_x509_certificate(path.read_bytes())
            identity.check_dates()
        else:
            (identity.folder / name).write_bytes(intact)


def test_an_institutions_own_authority_works(identity: Identity) -> None:
    """Its certificate for the site's request is installed, and is what the card then carries."""
    leaf, ca = certified(identity)
    identity.install(leaf, ca)
    assert (identity.folder / TLS_FILE).read_bytes() == leaf
    assert fingerprint_of(identity.card("").pem) == fingerprint_of(ca)
    assert identity.card("").fingerprint == identity.fingerprint
    with pytest.raises(IdentityError, match="authority"):
        identity.renew()


def test_a_certificate_of_another_key_or_authority_is_not_installed(
    identity: Identity, tmp_path: Path
) -> None:
    """Another key, another signer, or a missing name: refused, with what to do."""
    other = Identity.create(tmp_path / "other", "south")
    leaf, ca = certified(identity)
    with pytest.raises(IdentityError, match="a different key"):
        other.install(leaf, ca)
    with pytest.raises(IdentityError, match="did not sign"):
        identity.install(leaf, certified(identity)[1])
    nameless, its_ca = certified(identity, names=False)
    with pytest.raises(IdentityError, match="lacks the name"):
        identity.install(nameless, its_ca)


@pytest.mark.parametrize("name", ["", "A", "a b", "-a", "a/b", "x" * 41, "é"])
def test_odd_names_are_refused(name: str) -> None:
    """A site's name is safe in files, addresses and logs."""
    with pytest.raises(ValueError, match="Expected a site name"):
        check_name(name)


def test_a_name_may_have_an_underscore() -> None:
    """hospital_a is a good name."""
    assert check_name("hospital_a") == "hospital_a"


def test_a_fingerprint_can_be_read_out(identity: Identity) -> None:
    """Sixteen groups of four digits, and the TLS name follows from it."""
    assert len(spoken(identity.fingerprint).split()) == 16
    assert tls_name(identity.fingerprint).startswith(identity.fingerprint[:32])
