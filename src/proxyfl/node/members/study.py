"""The terms of a manifest and the settings of its sites, by the keys of a run's config.

A real site writes its own into its folder (``node.recording``), and a simulation of the whole
federation takes those of all sites. So both state the same study in the same words.
"""

from collections.abc import Sequence
from dataclasses import replace

from proxyfl import _settings
from proxyfl._settings import Tree
from proxyfl.errors import ConfigError
from proxyfl.node.members.manifest import Manifest, Masked
from proxyfl.node.members.site import Site
from proxyfl.settings import AUTO

METHOD = "proxyfl"
"""The method of a federation whose sites gossip."""
METHODS = (METHOD, "proxysum")
"""The methods of real federations (``Manifest.method``)."""

_TABLES = ("learning", "private_optimizer", "proxy_optimizer", "privacy", "defence")
_NOT_IN_A_RUN = ("privacy.account", "privacy.population")
"""Settings that say where real charges are entered."""


def run_settings(manifest: Manifest, sites: Sequence[Site]) -> Tree:
    """The settings of a run of ``sites``, which are members of the federation.

    Where sites differ, a setting has a list with one value for each of them."""
    masked = manifest.masked
    sites = [with_unit(site, manifest) for site in sites]
    if masked is not None:
        sites = [site_in_step(site, masked) for site in sites]
    tree: Tree = {
        "seed": manifest.proxy.seed,
        "methods": ["alone", manifest.method],
        "rounds": manifest.rounds,
        "measure": manifest.measure,
        "partition": {"kind": "site", "clients": len(sites)},
        "models": {"proxy": manifest.proxy.architecture, "proxy_seed": manifest.proxy.seed},
        "learning": {
            "prevalence": list(manifest.prevalence),
            "proxy_balance": manifest.proxy.balance,
        },
        "exchange": {
            "topology": manifest.graph.topology,
            "self_weight": manifest.graph.self_weight,
            "degree": manifest.graph.degree,
            "settle": manifest.settle,
            "average": manifest.average,
            "kinds": list(manifest.graph.kinds),
            "rules": "sites",
        },
    }
    if masked is not None:
        _settings.put(tree, "exchange.colluders", masked.colluders)
        _settings.put(tree, "exchange.quorum", masked.quorum)
    joining = []
    for position, site in enumerate(sites):
        joins = manifest.member(site.name).joins
        if joins:
            joining.append({"client": position, "joins": joins})
    if len(sites) > 1 and joining:
        tree["membership"] = {"schedule": joining}
    for key, values in _of_each(sites).items():
        is_same = all(value == values[0] for value in values)
        _settings.put(tree, key, values[0] if is_same else values)
    return tree


def _of_each(sites: Sequence[Site]) -> dict[str, list[object]]:
    """Key of a run -> the value of each site."""
    columns: dict[str, list[object]] = {
        "models.private": [site.model.architecture for site in sites],
        "models.residual": [site.model.residual for site in sites],
        "precision": [site.resources.precision for site in sites],
    }
    for site in sites:
        for key, value in _settings.flat(site).items():
            if key.split(".")[0] in _TABLES and key not in _NOT_IN_A_RUN:
                columns.setdefault(key, []).append(value)
    return columns


def with_unit(site: Site, manifest: Manifest, begun: str | None = None) -> Site:
    """The site with the unit that ``auto`` stands for: that of the ledger that has ``begun``, else
    a person, if the manifest's schema names one, else a record."""
    if site.privacy.unit != AUTO:
        return site
    is_person = manifest.schema is not None and manifest.schema.person is not None
    unit = begun or ("group" if is_person else "record")
    return replace(site, privacy=replace(site.privacy, unit=unit))


def site_in_step(site: Site, masked: Masked) -> Site:
    """The site with the terms that all members of a masked sum share in the place of its own.

    ConfigError if its own do not go with them."""
    if site.learning.beta:
        raise ConfigError(
            f"learning.beta={site.learning.beta:g} in site.toml: in a federation of masked sums "
            "the proxy learns from no private model. Set it to 0."
        )
    if site.learning.weight != 1:
        raise ConfigError(
            f"learning.weight={site.learning.weight:g} in site.toml is for gossip: in a federation "
            "of masked sums the noise is everybody's together. Leave it out."
        )
    return replace(
        site,
        learning=replace(site.learning, steps_per_round=masked.steps),
        proxy_optimizer=masked.proxy_optimizer,
        privacy=replace(
            site.privacy, noise_multiplier=masked.noise_multiplier, clip_norm=masked.clip_norm
        ),
    )
