"""Versions that sites tell each other, and the rule by which they are compared.

    release     of the program that a site runs; people need it, programs do not
    protocol    of the messages between sites, MAJOR.MINOR
    format      of the manifest, MAJOR.MINOR (its terms ``protocol`` and ``minor``)

A minor version adds fields that a site of an older one may leave aside: it ignores them, and they
stay in what it hashes and verifies. Whatever a site must not ignore is a new major version, which
older sites refuse with the name of the release to install.
"""

from dataclasses import field
from importlib.metadata import version
from typing import Any

RELEASE = version("proxyfl")

PROTOCOL = 2
PROTOCOL_MINOR = 2
"""The protocol of messages. Protocol 1 took no field that it did not know; 2.1 added the place for
which a share is meant; 2.2 the messages of masked sums."""

SPOKEN = f"{PROTOCOL}.{PROTOCOL_MINOR}"


def install_command(release: str) -> str:
    """The command that installs ``release``, or one that is as new as the other members'."""
    wanted = f">={release}" if release else ""
    return f"pip install --upgrade 'proxyfl[node]{wanted}'"


def other_protocol(protocol: int, release: str) -> str:
    """The sentence that refuses a peer whose protocol has another major version than this site's.

    ``release`` is the peer's; empty, an older one that does not say."""
    theirs = f"release {release}" if release else "an older release"
    needs, newest = "The other site", RELEASE
    if protocol > PROTOCOL:
        needs, newest = "This site", release
    return (
        f"The other site runs {theirs} with protocol {protocol}, this site release {RELEASE} with "
        f"protocol {PROTOCOL}. {needs} needs the newer release. Run there: "
        f"{install_command(newest)}"
    )


ADDED = "minor"
"""The key of a field's metadata under which ``added`` notes the minor version."""


def added(minor: int, default: Any) -> Any:
    """A field of a dataclass that its format has since the minor version ``minor``.

    Files and messages of before lack it and mean the default, which must never change."""
    return field(default=default, metadata={ADDED: minor})
