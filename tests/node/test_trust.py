"""A manifest that names code: nothing of it runs unless the site's own settings allow it."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from proxyfl.cli.main import main
from proxyfl.errors import ConfigError, DataError, ModelError
from proxyfl.federation.assembly import initial_proxy
from proxyfl.node import assembly, preflight
from proxyfl.node.members import manifest as manifests
from proxyfl.node.members import roster
from proxyfl.node.members import site as sites
from proxyfl.node.members.identity import Identity, check_address
from proxyfl.node.members.manifest import Proxy
from proxyfl.node.members.site import Model, Trust
from proxyfl.node.members.trust import code_of
from proxyfl.node.supervisor import Node
from tests.node.federations import change, predicted, quick, running, trial

MODULE = """\
from pathlib import Path
from shutil import rmtree
import torch

Path({mark!r}).write_text("ran")

def proxy(shape, classes):
    inputs = torch.Size(shape).numel()
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(inputs, classes))
"""


class Lure:
    """A federation of two whose manifest names code, and a current directory that has it."""

    def __init__(self, tmp_path: Path, module: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.spec = f"{module}:proxy"
        self.module = module
        self.mark = tmp_path / "mark"
        self.here = tmp_path / "here"
        self.here.mkdir()
        self.write(self.here)
        monkeypatch.chdir(self.here)
        monkeypatch.setattr(sys, "path", ["", *sys.path])
        monkeypatch.delitem(sys.modules, module, raising=False)
        plain = trial.lay_out(tmp_path / "trial", sites=2, rounds=2, template=quick())
        self.manifest = replace(plain.manifest, proxy=Proxy(self.spec))
        self.layout = replace(plain, manifest=self.manifest)
        self.file = manifests.write(plain.folder, self.manifest)
        self.north = plain.sites[0]

    def write(self, folder: Path) -> None:
        """Put the module into ``folder``."""
        folder.mkdir(exist_ok=True)
        (folder / f"{self.module}.py").write_text(MODULE.format(mark=str(self.mark)))

    def force(self, place: Path) -> None:
        """Sign the manifest as an earlier release would have, whatever it names."""
        identity = Identity(place, place.name)
        kept = place / roster.FOLDER
        (kept / "0001.signature").write_bytes(identity.sign(self.manifest.acceptance()))
        (kept / "0001.toml").write_text(manifests.to_toml(self.manifest))

    def has_run(self) -> bool:
        return self.mark.exists()


@pytest.fixture
def lure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Lure:
    number = abs(hash(request.node.name)) % 10**9
    return Lure(tmp_path, f"lure_{number}", monkeypatch)


def test_nothing_that_a_manifest_names_is_run_unless_the_site_trusts_it(
    lure: Lure, capsys: pytest.CaptureFixture[str]
) -> None:
    """show, accept, preflight, run, export and the simulation leave code from the current
    directory alone, and say what the manifest names."""
    assert main(["federation", "show", str(lure.layout.folder)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert f"This manifest names code: {lure.spec}" in said
    assert main(["federation", "show", str(lure.layout.folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["code"] == [lure.spec]
    for path in (lure.north / roster.FOLDER).iterdir():
        path.unlink()
    assert main(["node", "accept", str(lure.north), str(lure.file)]) == 2
    written = capsys.readouterr()
    assert f"This manifest names code: {lure.spec}" in written.out
    assert "nothing was signed" in written.err
    assert f'[trust] modules = ["{lure.module}"]' in written.err
    assert not list((lure.north / roster.FOLDER).iterdir())
    lure.force(lure.north)
    assert main(["preflight", str(lure.north)]) == 1
    assert f"FAIL  code: The manifest names code that this site does not trust: {lure.spec}" in (
        capsys.readouterr().out
    )
    assert main(["node", "run", str(lure.north), "--no-status-page"]) == 2
    assert "not trusted" in capsys.readouterr().err
    assert main(["run", "--federation", str(lure.layout.folder)]) == 2
    assert f"--trust {lure.module}" in capsys.readouterr().err
    assert not lure.has_run()


def test_python_m_looks_for_nothing_in_the_current_directory(lure: Lure) -> None:
    """`python -m proxyfl` puts the current directory on the path; it is off again before anything
    is imported, also a module that shadows one of Python's."""
    for shadowed in ("torch", "signal", "pathlib", "re"):
        (lure.here / f"{shadowed}.py").write_text(MODULE.format(mark=str(lure.mark)))
    change(lure.north, lambda site: replace(site, trust=Trust((lure.module,))))
    lure.force(lure.north)
    command = [sys.executable, "-m", "proxyfl", "node", "run", str(lure.north), "--no-status-page"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert f"no module '{lure.module}'" in ended.stderr
    assert "the current directory is not searched" in ended.stderr
    assert not lure.has_run()


def test_a_trusted_module_is_not_taken_from_the_current_directory(lure: Lure) -> None:
    """Trust is in the module that was installed, not in any file of its name."""
    change(lure.north, lambda site: replace(site, trust=Trust((lure.module,))))
    settings, folder = sites.read(lure.north)
    roster.accept(folder, Identity(folder, "north"), _founded_again(lure), settings.trust)
    with pytest.raises(ModelError, match="the current directory is not searched"):
        Node(settings, folder)
    assert not lure.has_run()


def test_a_module_that_was_loaded_from_the_current_directory_is_refused(
    lure: Lure, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not help that something else imported it before."""
    __import__(lure.module)
    lure.mark.unlink()
    change(lure.north, lambda site: replace(site, trust=Trust((lure.module,))))
    settings, _ = sites.read(lure.north)
    with pytest.raises(ModelError, match="loaded from the current directory"):
        initial_proxy(lure.manifest, code_of(settings, lure.north).agreed)


def test_trust_modules_and_path_let_named_code_run(lure: Lure) -> None:
    """With both, accept signs, preflight is content, and a federation learns with that proxy."""
    for place in lure.layout.sites:
        lure.write(place / "models")
        change(place, lambda site: replace(site, trust=Trust((lure.module,), "models")))
        for path in (place / roster.FOLDER).iterdir():
            path.unlink()
        assert main(["node", "accept", str(place), str(lure.file)]) == 0
    settings, folder = sites.read(lure.north)
    lines = {line.check: line for line in preflight.preflight(settings, folder)}
    assert lines["code"].text == f"the manifest names {lure.spec}, which trust.modules allows"
    assert lines["models and one DP step"].ok
    with running(lure.layout) as sited:
        sited.join()
    assert sited.ended == {"north": "finished", "south": "finished"}
    assert lure.has_run()


@pytest.mark.parametrize(
    ("modules", "spec", "runs"),
    [
        (("{0}",), "{0}:proxy", True),
        (("{0}:proxy",), "{0}:proxy", True),
        (("{0}:other",), "{0}:proxy", False),
        (("{0}x",), "{0}:proxy", False),
        (("{0}.part",), "{0}:proxy", False),
        (("{0}",), "{0}:rmtree", False),
        (("{0}",), "{0}:torch.nn.Linear", False),
        (("{0}",), "{0}:Path.cwd", False),
        (("{0}:rmtree",), "{0}:rmtree", True),
        ((), "os:getcwd", False),
        (("{0}",), "./{0}:proxy", False),
        (("{0}",), "{0} :proxy", False),
    ],
)
def test_trust_covers_a_module_its_package_or_one_name(
    lure: Lure, modules: tuple[str, ...], spec: str, runs: bool
) -> None:
    """Not a longer name, not what the module happens to import, not another spelling."""
    lure.write(lure.north / "models")
    listed = tuple(entry.format(lure.module) for entry in modules)
    settings = replace(sites.read(lure.north)[0], trust=Trust(listed, "models"))
    imports = code_of(settings, lure.north).agreed
    name = spec.format(lure.module)
    if runs:
        imports.resolve(name, error=ModelError)
        return
    with pytest.raises(ModelError, match=r"not trusted|Expected package"):
        imports.resolve(name, error=ModelError)


def test_a_sites_own_model_does_not_come_from_the_current_directory(lure: Lure) -> None:
    """site.toml's own names need no trust.modules, and are looked for in trust.path."""
    plain = manifests.read(lure.north / roster.FOLDER / "0001.toml")
    own = replace(sites.read(lure.north)[0], model=Model(lure.spec))
    data = assembly.load(plain, own, lure.north)
    with pytest.raises(ModelError, match="the current directory is not searched"):
        assembly.client(plain, own, data.train, ledger=None, seed=0, code=code_of(own, lure.north))
    assert not lure.has_run()
    lure.write(lure.north / "models")
    own = replace(own, trust=Trust(path="models"))
    assembly.client(plain, own, data.train, ledger=None, seed=0, code=code_of(own, lure.north))
    assert lure.has_run()


def test_a_sites_own_data_do_not_come_from_the_current_directory(lure: Lure) -> None:
    """Neither a factory nor a file of the same name."""
    plain = manifests.read(lure.north / roster.FOLDER / "0001.toml")
    settings, _ = sites.read(lure.north)
    (lure.north / "data.npz").rename(lure.here / "data.npz")
    with pytest.raises(DataError, match=str(lure.north / "data.npz")):
        assembly.load(plain, settings, lure.north)
    factory = replace(settings, data=replace(settings.data, source=lure.spec))
    with pytest.raises(DataError, match="the current directory is not searched"):
        assembly.load(plain, factory, lure.north)
    assert not lure.has_run()


def test_a_simulation_of_others_files_runs_what_its_user_lists(
    lure: Lure, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trust that the files themselves state is not asked: they may be others'."""
    for place in lure.layout.sites:
        lure.write(place / "models")
        change(place, lambda site: replace(site, trust=Trust((lure.module,), "models")))
    with pytest.raises(ModelError, match="not trusted"):
        predicted(lure.layout.folder)
    with pytest.raises(ModelError, match="the current directory is not searched"):
        predicted(lure.layout.folder, trust=[lure.module])
    assert not lure.has_run()
    lure.write(lure.here.parent / "installed")
    monkeypatch.syspath_prepend(lure.here.parent / "installed")
    assert len(predicted(lure.layout.folder, trust=[lure.module])) == 2
    assert lure.has_run()


@pytest.mark.parametrize("entry", ["", "a/b", "../a", "a:", "a b", "a.", "*"])
def test_trust_names_modules(entry: str) -> None:
    """Anything else is refused when site.toml is read."""
    with pytest.raises(ConfigError, match=r"trust\.modules"):
        Trust((entry,))


def test_show_prints_no_command_to_the_terminal(
    lure: Lure, capsys: pytest.CaptureFixture[str]
) -> None:
    """A manifest may be anybody's: markup is text, and what would hide a line is spelled out."""
    named = replace(lure.manifest, name="heart [black on black]", ends="2027-03-31")
    text = manifests.to_toml(named).replace("2027-03-31", "2027-03-31 \\u001b[8m")
    (lure.layout.folder / "odd.toml").write_text(text)
    assert main(["federation", "show", str(lure.layout.folder / "odd.toml")]) == 2
    assert "\x1b" not in capsys.readouterr().err
    manifests.write(lure.layout.folder, named)
    assert main(["federation", "show", str(lure.layout.folder)]) == 0
    assert "heart [black on black], version 1" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="printable"):
        replace(lure.manifest, proxy=Proxy("hidden\x1b[8m:proxy"))


@pytest.mark.parametrize("address", ["unix:///run/x:7443", "dns://9.9.9.9/a:1", "a/b:1", " a:1"])
def test_an_address_is_a_host_and_a_port(address: str) -> None:
    """Other ways to open a connection are not for a peer's card to choose."""
    with pytest.raises(ConfigError, match="HOST:PORT"):
        check_address("north", address)
    for fine in ("localhost:7443", "north.example.org:1", "[::1]:7443", "127.0.0.1:9", ""):
        check_address("north", fine)


def _founded_again(lure: Lure) -> manifests.Manifest:
    for path in (lure.north / roster.FOLDER).iterdir():
        path.unlink()
    return lure.manifest
