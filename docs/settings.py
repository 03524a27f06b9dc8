"""Writes reference/settings.md, from the settings' own documentation (`make settings`)."""

from pathlib import Path

from proxyfl._settings import describe, markdown, shown_default
from proxyfl.node.members.manifest import Manifest
from proxyfl.node.members.site import Site
from proxyfl.simulation.config import Config

OPENING = """\
# Settings

Every setting, made by `make settings` from the source: of a run (`proxyfl run CONFIG.toml`), of a
real site ([site.toml](#sitetoml)) and of a federation ([the manifest](#the-manifest)). A run is a
simulation and protects nobody; the
[guide](../start/three-sites.md) is about real federations. Settings of one name
have one meaning and one check in all of them; a table says
[which defaults differ](#other-defaults-at-a-real-site). Change a setting with
`--set KEY=VALUE`, or in a TOML file, where the part before the dot is a table: `privacy.budget` is
`budget` below `[privacy]`. *Per client* means one value for all, or a list with
one for each. A setting that is absent by default has no value until you give it one; `"none"`
removes the value of a setting that has a default. `proxyfl run --print-config` prints them all.

"""


SITE = """\

## site.toml

One institution's own decisions, in its folder (`init` of `proxyfl node` writes the file). Nothing
of it is shared. Paths are relative to the folder.

"""

MANIFEST = """\

## The manifest

What the members of a real federation agree on and sign (`new` of `proxyfl federation` writes it).
It also holds the members' cards, as `[[members]]`, and the schema of a table, as `[schema]`.

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


def page() -> str:
    """The page."""
    run = OPENING + markdown(Config, per_client=True)
    real = (
        SITE
        + markdown(Site)
        + MANIFEST
        + markdown(Manifest, without=("schema", "members", "later"))
    )
    return run + real + OTHER_DEFAULTS + other_defaults()


if __name__ == "__main__":
    (Path(__file__).parent / "reference" / "settings.md").write_text(page(), encoding="utf-8")
