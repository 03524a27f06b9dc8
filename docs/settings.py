"""Writes settings.md beside this file, from the settings' own documentation (`make settings`)."""

from pathlib import Path

from proxyfl._settings import markdown
from proxyfl.simulation.config import Config

OPENING = """\
# Settings

Every setting of a run (`proxyfl run CONFIG.toml`), made by `make settings` from the source. Change
one with `--set KEY=VALUE`, or in a TOML file, where the part before the dot is a table:
`privacy.budget` is `budget` below `[privacy]`. *Per client* means one value for all, or a list with
one for each. A setting that is absent by default has no value until you give it one; `"none"`
removes the value of a setting that has a default. `proxyfl run --print-config` prints them all.

"""


def page() -> str:
    """The page."""
    return OPENING + markdown(Config)


if __name__ == "__main__":
    (Path(__file__).parent / "settings.md").write_text(page(), encoding="utf-8")
