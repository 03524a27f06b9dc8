"""The manifests that a site's operator has accepted, and the members of the one in force.

They lie in the site's folder: ``manifests/0001.toml`` with ``0001.signature``, the operator's
acceptance. The newest is in force. A running site takes it in before each round, so accepting a
new version needs no restart. Guarantees:
    * a key that the newest version lacks is refused from the moment of its acceptance, also in the
      middle of a round, whichever way a message comes;
    * from that moment a key that the newest version lists in place of another is the member's. That
      holds for this site's own key as well: it signs and is reached with the one that is listed.
"""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from proxyfl._command import command
from proxyfl._files import write_bytes, write_text
from proxyfl.errors import ConfigError
from proxyfl.node.members import manifest as manifests
from proxyfl.node.members.identity import Card, Identity
from proxyfl.node.members.manifest import Manifest
from proxyfl.node.members.site import Trust
from proxyfl.node.members.trust import check_code

if TYPE_CHECKING:  # grpc is imported when a connection is made
    from proxyfl.transport.grpc import Credentials

FOLDER = "manifests"
NO_TRUST = Trust()


class Roster:
    """Accepted versions of one federation's manifest."""

    def __init__(self, folder: Path, identity: Identity) -> None:
        self.folder = folder / FOLDER
        self.identity = identity
        self.versions: dict[int, Manifest] = {}
        self._waiting: Manifest | None = None
        self._lock = threading.RLock()
        self.reload()
        if not self.versions:
            raise ConfigError(
                f"{identity.name} has not accepted a manifest yet. Run: "
                f"{command('node', 'accept', folder, 'MANIFEST')}"
            )

    @property
    def current(self) -> Manifest:
        """The newest accepted version."""
        return self.versions[max(self.versions)]

    @property
    def acceptance(self) -> str:
        """The operator's signature over the version in force, in hexadecimal digits."""
        path = self.folder / f"{self.current.version:04d}.signature"
        return path.read_bytes().hex()

    def reload(self) -> bool:
        """Take in versions that were accepted since; return whether there were any."""
        before = set(self.versions)
        with self._lock:
            for path in sorted(self.folder.glob("*.toml")):
                version = int(path.stem)
                if version not in self.versions:
                    self.versions[version] = self._read_accepted(path)
            if set(self.versions) != before:
                self._take_key(self.current)
        return set(self.versions) != before

    @property
    def newest(self) -> Manifest:
        """The version that was accepted last, also if it waits for the next round. Its keys are in
        force already, this site's own among them."""
        with self._lock:
            path = max(self.folder.glob("*.toml"))
            version = int(path.stem)
            if version in self.versions:
                return self.versions[version]
            if self._waiting is None or self._waiting.version != version:
                waiting = self._read_accepted(path)
                self._take_key(waiting)
                self._waiting = waiting
            return self._waiting

    def name_of(self, fingerprint: str) -> str | None:
        """The member with this key, if there is one."""
        newest = self.newest
        names = self.current.names()
        for card in newest.members:
            if card.fingerprint == fingerprint:
                return card.name if card.name in names else None
        return None

    def formerly(self, fingerprint: str) -> str | None:
        """The member that had this key before it changed it, if there is one."""
        present = set(self.newest.names())
        for manifest in list(self.versions.values()):
            for card in manifest.members:
                if card.fingerprint == fingerprint and card.name in present:
                    return card.name
        return None

    def former_cards(self, name: str) -> list[Card]:
        """The cards of a member with keys that it has replaced, as far as this site knows them."""
        key = self.card(name).public_key
        cards = []
        for manifest in list(self.versions.values()):
            for card in manifest.members:
                if card.name == name and card.public_key != key:
                    cards.append(card)
        return cards

    def card(self, name: str) -> Card:
        """The card by which a member is heard and reached: its key is the one accepted last."""
        for card in self.newest.members:
            if card.name == name:
                return card
        raise ConfigError(
            f"{name!r} is not a member in the newest version that this site has accepted."
        )

    def others(self) -> list[Card]:
        """All members but this site."""
        newest = {card.name: card for card in self.newest.members}
        cards = []
        for card in self.current.members:
            if card.name != self.identity.name:
                cards.append(newest.get(card.name, card))
        return cards

    def credentials(self) -> "Credentials":
        """The credentials that this site's server shows, and who gets as far as being told why: all
        other members, also those that show a key that was theirs."""
        from proxyfl.transport.grpc import Credentials

        others = {card.name: [card.pem] for card in self.others()}
        for _, manifest in sorted(self.versions.items()):
            for card in manifest.members:
                pems = others.get(card.name, [card.pem])
                if card.pem not in pems:
                    pems.append(card.pem)
        trusted = b"".join(pem for pems in others.values() for pem in pems)
        own = self.identity
        return Credentials(own.key_pem(), own.tls_certificate(), trusted)

    def _read_accepted(self, path: Path) -> Manifest:
        """The version in a file, if this site signed it with the key that the version lists."""
        manifest = manifests.read(path)
        signature = path.with_suffix(".signature").read_bytes()
        manifest.member(self.identity.name).verify(signature, manifest.acceptance())
        return manifest.for_member(self.identity.name)

    def _take_key(self, manifest: Manifest) -> None:
        own = manifest.member(self.identity.name)
        self.identity.take(own.public_key)


def accept(folder: Path, identity: Identity, manifest: Manifest, trust: Trust = NO_TRUST) -> None:
    """Sign ``manifest`` for this site and put it in force, at once or in a later round.

    One that names code which ``trust`` does not allow is refused."""
    check_code(manifest, trust)
    signer = _holder(folder, identity, manifest)
    kept = folder / FOLDER
    earlier = sorted(kept.glob("*.toml"))
    if earlier:
        last = manifests.read(earlier[-1])
        if last.digest == manifest.digest:
            return
        manifests.check_successor(last, manifest)
        _check_returning(earlier, manifest)
    stem = f"{manifest.version:04d}"
    write_bytes(kept / f"{stem}.signature", signer.sign(manifest.acceptance()))
    write_text(kept / f"{stem}.toml", manifests.to_toml(manifest))


def find_changed_keys(folder: Path, manifest: Manifest) -> list[str]:
    """The members that have another key in ``manifest`` than in the version accepted last."""
    earlier = sorted((folder / FOLDER).glob("*.toml"))
    known = manifests.read(earlier[-1]).members if earlier else ()
    keys = {card.name: card.public_key for card in known}
    changed = []
    for card in manifest.members:
        if keys.get(card.name, card.public_key) != card.public_key:
            changed.append(card.name)
    return changed


def _check_returning(earlier: Sequence[Path], manifest: Manifest) -> None:
    """Raise IdentityError if a member returns with another key than it had when it was removed:
    its name would be taken by another site."""
    known: dict[str, Card] = {}
    for path in earlier:
        known |= {card.name: card for card in manifests.read(path).members}
    for card in manifest.members:
        if card.name in known:
            card.check_change(known[card.name])


def _holder(folder: Path, identity: Identity, manifest: Manifest) -> Identity:
    """The identity whose key the manifest lists for this site: the one in use, or the next."""
    listed = manifest.member(identity.name)
    for holder in (identity, identity.next):
        if holder is not None and holder.card("").public_key == listed.public_key:
            return holder
    raise ConfigError(
        f"The manifest lists another key for {identity.name!r} than this site has. Send this "
        f"site's card to the keeper of the manifest: {command('node', 'card', folder)}"
    )
