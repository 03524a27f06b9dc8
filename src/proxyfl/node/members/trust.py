"""The code that a site runs because of a name in a file: ``package.module:factory``.

    site.toml      its own private model and data: the site's own choice
    the manifest   the proxy, which another member named: only what ``[trust] modules`` lists

Neither is looked for in the current directory. A module is installed, or lies in the folder that
``trust.path`` names.

Guarantee: a manifest that names code which this site's own ``site.toml`` does not allow runs
nothing here, whoever sent it and whatever directory a command was started in.
"""

from collections.abc import Sequence
from pathlib import Path

from proxyfl._entrypoint import Code as Code
from proxyfl._entrypoint import Imports, is_code
from proxyfl.errors import ConfigError
from proxyfl.node.members.manifest import Manifest
from proxyfl.node.members.site import FILE, Site, Trust

REMEDY = (
    f"If you have read that code and want it to run here, add to {FILE}: "
    '[trust] modules = ["{module}"]'
)


def code_of(site: Site, folder: Path | None) -> Code:
    """The code that a site may run; without its ``folder``, none that lies in ``trust.path``."""
    folders: tuple[Path, ...] = ()
    if folder is not None and site.trust.path:
        folders = ((folder / site.trust.path).resolve(),)
    return Code(Imports(folders=folders), Imports(site.trust.modules, folders, remedy=REMEDY))


def code_for_simulation(modules: Sequence[str]) -> Code:
    """The code that a simulation of others' files may run: what its user lists, of what is
    installed."""
    remedy = "If you have read that code and want it to run here, say --trust {module}."
    listed = Imports(tuple(modules), remedy=remedy)
    return Code(listed, listed)


def code_names(manifest: Manifest) -> list[str]:
    """The names of code in a manifest, each as ``package.module:factory``."""
    return [spec for spec in (manifest.proxy.architecture,) if is_code(spec)]


def describe_code(manifest: Manifest) -> str:
    """A sentence on the code that a manifest names; empty if it names none."""
    names = ", ".join(code_names(manifest))
    if not names:
        return ""
    return (
        f"This manifest names code: {names}. It runs at a site only if that site's own {FILE} "
        "allows it ([trust] modules)."
    )


def check_code(manifest: Manifest, trust: Trust) -> None:
    """Raise ConfigError if ``manifest`` names code that ``trust`` does not allow."""
    allowed = Imports(trust.modules, remedy=REMEDY)
    for spec in code_names(manifest):
        if not allowed.allows(spec):
            module = spec.partition(":")[0]
            raise ConfigError(
                f"The manifest names code that this site does not trust: {spec}. Nothing of it ran "
                f"and nothing was signed. {REMEDY.replace('{module}', module)}"
            )
