"""The folder of a real federation as a run: simulate first, then deploy.

    DIR/manifest.toml        what all members agree on
    DIR/north/site.toml ...  each member's own settings, with its data

``config_of`` makes an ordinary config of it, with one client for each member, their data read as
the sites read them, and the exchange by the sites' rules. With seeded noise it gives the proxies
that the real federation gives in test mode (`proxyfl node run --simulated-seed N`), bit for bit.

What does not belong to a simulation is left out: accounts, in which real charges are entered,
connections, and the sites' devices.

The folder of one site (DIR/north) becomes a run of that site by itself, which an audit needs.

The files may be others'. So code that they name runs only if the config's ``data.trust`` lists it,
and never from the current directory.
"""

import tomllib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from proxyfl import _settings
from proxyfl._command import command
from proxyfl.errors import ConfigError
from proxyfl.node.members import manifest as manifests
from proxyfl.node.members import site as sites
from proxyfl.node.members.manifest import Manifest
from proxyfl.node.members.site import Site
from proxyfl.node.members.study import run_settings
from proxyfl.node.members.trust import code_for_simulation
from proxyfl.privacy.sampling import cautious_delta
from proxyfl.simulation.config import Config, from_tree, to_toml


def read(folder: Path) -> tuple[Manifest, list[tuple[Site, Path]]]:
    """The manifest in ``folder``, and the site folders in it, in the manifest's order.

    A site's own folder has the manifest that it accepted, and no other site."""
    if (folder / sites.FILE).is_file():
        alone, place = sites.read(folder)
        return manifests.read_accepted(folder, alone.name), [(alone, place)]
    manifest = manifests.read(folder)
    members: dict[str, tuple[Site, Path]] = {}
    for path in sorted(folder.glob(f"*/{sites.FILE}")):
        site, place = sites.read(path)
        members[site.name] = (site, place)
    missing = [name for name in manifest.names() if name not in members]
    if missing:
        raise ConfigError(
            f"No {sites.FILE} for {', '.join(missing)} below {folder}. A simulation needs each "
            "site's settings, and data of its shape: real, public, or made up."
        )
    return manifest, [members[name] for name in manifest.names()]


def config_of(folder: Path, *, trust: Sequence[str] = (), overrides: Sequence[str] = ()) -> Config:
    """The config of a run of the federation in ``folder``, changed by ``key=value`` texts."""
    manifest, members = read(folder)
    if manifest.rounds == manifests.MOST_ROUNDS:
        raise ConfigError(
            f"The manifest ends on {manifest.ends} and states no number of rounds, as manifests of "
            "earlier releases could. A simulation "
            "needs one. Make a manifest that states both, with --rounds and --until: "
            f"{command('federation', 'new', '--help')}"
        )
    own = []
    for site, place in members:
        own.append(_with_delta(folder, manifest, site, place, trust))
    tree = run_settings(manifest, own)
    threads = {site.resources.threads for site in own}
    tree["threads"] = threads.pop() if len(threads) == 1 else 1
    tree["data"] = {"source": str(folder), "trust": list(trust)}
    tree["seed"] = 0
    # Through its file: what stands there is what runs, and what a resumed run reads.
    tree = tomllib.loads(to_toml(from_tree(tree)))
    for text in overrides:
        _settings.override(tree, text)
    return from_tree(tree)


def _with_delta(
    folder: Path, manifest: Manifest, site: Site, place: Path, trust: Sequence[str]
) -> Site:
    """The site with its delta stated. One that states none has its own default, not a run's."""
    privacy = site.privacy
    if privacy.delta is not None:
        return site
    examples = privacy.examples
    if examples is None:
        from proxyfl.node import assembly  # what trains takes seconds to load

        code = None if place == folder else code_for_simulation(trust)
        data = assembly.load(manifest, site, place, code)
        examples = assembly.count_units(site, manifest, data.train)
    return replace(site, privacy=replace(privacy, delta=cautious_delta(examples)))
