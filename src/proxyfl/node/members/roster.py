"""The manifests that a site's operator has accepted, and the members of the one in force.

They lie in the site's folder: ``manifests/0001.toml`` with ``0001.signature``, the operator's
acceptance. The newest is in force. A running site takes it in before each round, so accepting a
new version needs no restart. Guarantee: a key that the newest version lacks is refused from the
moment of its acceptance, also in the middle of a round.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from proxyfl._files import write_bytes, write_text
from proxyfl.errors import ConfigError
from proxyfl.node.members import manifest as manifests
from proxyfl.node.members.card import Card
from proxyfl.node.members.identity import Identity
from proxyfl.node.members.manifest import Manifest

if TYPE_CHECKING:  # grpc is imported when a connection is made
    from proxyfl.transport.grpc import Credentials

FOLDER = "manifests"


class Roster:
    """Accepted versions of one federation's manifest."""

    def __init__(self, folder: Path, identity: Identity) -> None:
        self.folder = folder / FOLDER
        self.identity = identity
        self.versions: dict[int, Manifest] = {}
        self._waiting: Manifest | None = None
        self.reload()
        if not self.versions:
            raise ConfigError(
                f"No manifest is accepted in {folder}. Run `proxyfl node accept MANIFEST` first."
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
        for path in sorted(self.folder.glob("*.toml")):
            version = int(path.stem)
            if version not in self.versions:
                self.versions[version] = self._accepted(path)
        return set(self.versions) != before

    def named(self, fingerprint: str) -> str | None:
        """The member with this key, if there is one."""
        for card in self.current.members:
            if card.fingerprint == fingerprint:
                return None if self._is_revoked(card) else card.name
        return None

    def _is_revoked(self, card: Card) -> bool:
        """Whether a version that waits for the next round no longer lists the card's key."""
        newest = max(self.folder.glob("*.toml"))
        version = int(newest.stem)
        if version in self.versions:
            return False
        if self._waiting is None or self._waiting.version != version:
            self._waiting = self._accepted(newest)
        keys = {member.public_key for member in self._waiting.members}
        return card.public_key not in keys

    def others(self) -> list[Card]:
        """All members but this site."""
        return [
            card for card in self.current.members if card.name != self.identity.name
        ]

    def credentials(self) -> "Credentials":
        """What this site's server shows, and whom it trusts: all other members."""
        from proxyfl.transport.grpc import Credentials

        trusted = b"".join(card.pem for card in self.others())
        own = self.identity
        return Credentials(own.key_pem(), own.tls_certificate(), trusted)

    def _accepted(self, path: Path) -> Manifest:
        found = manifests.read(path)
        signature = path.with_suffix(".signature").read_bytes()
        self.identity.card("").verify(signature, found.acceptance())
        return found


def accept(folder: Path, identity: Identity, manifest: Manifest) -> None:
    """Sign ``manifest`` for this site and put it in force, at once or in a later round."""
    own = identity.card("")
    listed = manifest.member(identity.name)
    if listed.public_key != own.public_key:
        raise ConfigError(
            f"The manifest lists another key for {identity.name!r} than this site has. Send the "
            "card that `proxyfl node card` prints to whoever keeps the manifest."
        )
    kept = folder / FOLDER
    earlier = sorted(kept.glob("*.toml"))
    if earlier:
        last = manifests.read(earlier[-1])
        if last.digest == manifest.digest:
            return
        manifests.check_successor(last, manifest)
    stem = f"{manifest.version:04d}"
    write_bytes(kept / f"{stem}.signature", identity.sign(manifest.acceptance()))
    write_text(kept / f"{stem}.toml", manifests.to_toml(manifest))
