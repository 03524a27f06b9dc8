"""The secret by which a site holds examples out for its test part (``proxyfl.data.holdout``).

It is one line in ``holdout.key``, made by ``proxyfl node init`` or when it is first needed. Nothing
is derived from it but sides, so nobody outside the site can tell who was held out.

Guarantees:
    * the file has mode 0600 and is refused when others can read it;
    * a key that exists is replaced by ``redraw`` alone. A site that has a ledger and no key (its
      key was lost, or it began under a release that divided by place) is refused until then: no
      record changes sides in the middle of a federation unless its operator says so;
    * after ``redraw`` the site's data carry a note: models from before have learnt from some of the
      new test part.
"""

import contextlib
import datetime
import secrets
from pathlib import Path

from proxyfl.errors import ConfigError
from proxyfl.node.members.identity import check_secret, write_secret

FILE = "holdout.key"
LEDGER_FILE = "ledger.jsonl"
_BYTES = 32
_REDRAWN = "redrawn"


def create(folder: Path) -> None:
    """Make the key of a new site."""
    write_secret(folder / FILE, f"{secrets.token_hex(_BYTES)}\n".encode())


def redraw(folder: Path) -> None:
    """Make a new key, whether or not there is one. If the site has begun, the key says since when
    it draws."""
    content = f"{secrets.token_hex(_BYTES)}\n"
    if has_begun(folder):
        today = datetime.datetime.now(datetime.UTC).date().isoformat()
        content += f"{_REDRAWN} {today}\n"
    fresh = folder / f"{FILE}.new"
    fresh.unlink(missing_ok=True)
    write_secret(fresh, content.encode())
    fresh.replace(folder / FILE)


def has_begun(folder: Path) -> bool:
    """True if the site may have trained."""
    return (folder / LEDGER_FILE).exists()


def key(folder: Path) -> bytes:
    """The site's key, made now if the site has not begun; ConfigError if it has."""
    path = folder / FILE
    if not path.exists():
        if has_begun(folder):
            raise ConfigError(
                f"{path} is missing, and {folder} has a ledger. Without the key other examples "
                "would be held out than before. If the key was lost, restore it from a backup. If "
                "there never was one (a release before this one divided examples by place), or no "
                "backup has it, draw a new test part: models from before have learnt from some of "
                f"it, so scores are too good from then on. Run: proxyfl node redraw {folder}"
            )
        with contextlib.suppress(FileExistsError):  # another command of this site was faster
            create(folder)
    check_secret(path)
    text, _, _ = path.read_text(encoding="utf-8", errors="replace").partition("\n")
    try:
        secret = bytes.fromhex(text)
    except ValueError:
        secret = b""
    if len(secret) != _BYTES:
        raise ConfigError(
            f"{path}: expected {2 * _BYTES} hexadecimal digits in its first line. Restore it from "
            f"a backup, or draw a new test part: proxyfl node redraw {folder}"
        )
    return secret


def notes(folder: Path) -> tuple[str, ...]:
    """Remarks for the user on how the test part came about."""
    path = folder / FILE
    if not path.exists():
        return ()
    _, _, rest = path.read_text(encoding="utf-8", errors="replace").partition("\n")
    if not rest.startswith(_REDRAWN):
        return ()
    date = rest.removeprefix(_REDRAWN).strip()
    return (
        f"the test part was drawn again on {date}: models from before have learnt from some of it, "
        "so their scores are too good",
    )
