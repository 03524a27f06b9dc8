"""Writes reference/settings.md, site-toml.md and manifest.md, from the settings' own documentation
(`make settings`)."""

from pathlib import Path

from proxyfl._settings import describe, markdown, shown_default
from proxyfl.node.members.manifest import Manifest
from proxyfl.node.members.site import Site
from proxyfl.simulation.config import Config

OPENING = """\
# Settings

For everybody who runs something: every setting of `proxyfl run CONFIG.toml`, made by `make
settings` from the source. A run is a simulation and protects nobody; a real site has
[site.toml](site-toml.md) and [the manifest](manifest.md). Settings of one name have one meaning and
one check in all of them, and a table says [which defaults differ](#other-defaults-at-a-real-site).

Change a setting with `--set KEY=VALUE`, or in a TOML file, where the part before the dot is a
table: `privacy.budget` is `budget` below `[privacy]`. *Per client* means one value for
all, or a list with one for each. A setting that is absent by default has no value until you give it
one; `"none"` removes the value of a setting that has a default. `proxyfl run --print-config` prints
them all.

"""


SITE = """\
# site.toml

For the person who runs a site: one institution's own decisions, in its folder. `init` of `proxyfl
node` writes the file with an explanation of each setting. Nothing of it is shared. Paths are
relative to the folder. This page is made by `make settings`.

"""

MANIFEST = """\
# The manifest

For the keeper of a federation: what its members agree on and sign. `new` of `proxyfl federation`
writes it. It also holds the members' cards, as `[[members]]`, and the schema of a table, as
`[schema]`. This page is made by `make settings`.

"""


OTHER_DEFAULTS = """\

## Other defaults at a real site

A real federation has two files: the manifest, on which all members agree, and each site's own
`site.toml` ([start here](../start/three-sites.md)). A setting that is missing in this table has the
same default there, or does not exist there.

| in a run | its default | at a real site | its default |
|---|---|---|---|
"""

ELSEWHERE = {
    "model.architecture": "models.private",
    "model.residual": "models.residual",
    "proxy.architecture": "models.proxy",
    "graph.topology": "exchange.topology",
    "graph.self_weight": "exchange.self_weight",
    "graph.degree": "exchange.degree",
    "settle": "exchange.settle",
    "average": "exchange.average",
    "proxy.balance": "learning.balance",
    "proxy.prevalence": "learning.prevalence",
    "resources.threads": "threads",
    "resources.device": "device",
}
"""Setting of a real site -> the setting of a run that has another name and the same meaning."""


def other_defaults() -> str:
    """A row for each setting whose default at a real site is not that of a run. An empty text and
    an empty list mean the same: nothing."""
    simulated = {setting.key: shown_default(setting.default) for setting in describe(Config)}
    rows = ""
    for file, kind in (("the manifest", Manifest), ("`site.toml`", Site)):
        for setting in describe(kind):
            key = ELSEWHERE.get(setting.key, setting.key)
            real = shown_default(setting.default if setting.default != "" else ())
            if key in simulated and simulated[key] != real:
                rows += f"| `{key}` | {simulated[key]} | `{setting.key}` in {file} | {real} |\n"
    return rows


def pages() -> dict[str, str]:
    """The pages: name -> text."""
    known = ("schema", "members", "later")
    run = OPENING + markdown(Config, per_client=True)
    return {
        "settings.md": run + OTHER_DEFAULTS + other_defaults(),
        "site-toml.md": SITE + markdown(Site),
        "manifest.md": MANIFEST + markdown(Manifest, without=known),
    }


if __name__ == "__main__":
    for name, text in pages().items():
        (Path(__file__).parent / "reference" / name).write_text(text, encoding="utf-8")
