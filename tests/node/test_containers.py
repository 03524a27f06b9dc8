"""The examples for several containers and for a cluster are what they claim to be.

No daemon and no cluster is needed: files are read, templates rendered by the few rules that they
use, and the shell scripts run with the package's own commands or with a stand-in for them."""

import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from proxyfl.cli.main import parser
from proxyfl.cli.signals import LAST_SECONDS
from tests.waiting import PATIENCE, wait_until

DEPLOY = Path(__file__).parents[2] / "deploy"
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
CHART = DEPLOY / "helm" / "proxyfl-site"
SITES = ("north", "south", "east")


def test_three_sites_share_nothing_but_a_network() -> None:
    """Each site of the compose file has a volume of its own, waits for the set-up, starts as the
    image says and has more time to end than it takes; the set-up has all volumes and no network."""
    services = COMPOSE["services"]
    assert set(services) == {"setup", *SITES}
    for name in SITES:
        site = services[name]
        assert site["volumes"] == [f"{name}:/site"]
        assert site["depends_on"]["setup"]["condition"] == "service_completed_successfully"
        assert site["image"] == services["setup"]["image"]
        assert site["restart"] == "on-failure"
        assert int(site["stop_grace_period"].rstrip("s")) >= 1.5 * LAST_SECONDS
        assert not {"command", "entrypoint", "user", "ports"} & set(site)
        assert f"{name}:/sites/{name}" in services["setup"]["volumes"]
    assert services["setup"]["network_mode"] == "none"
    assert set(COMPOSE["volumes"]) == set(SITES)
    build = services["setup"]["build"]
    assert (DEPLOY / build["context"] / build["dockerfile"]).is_file()


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A folder with the command `proxyfl` of this checkout."""
    folder = tmp_path / "bin"
    folder.mkdir()
    command = folder / "proxyfl"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m proxyfl "$@"\n')
    command.chmod(0o755)
    return folder


def run(
    script: Path, *words: str, programs: Path, **more: str
) -> "subprocess.CompletedProcess[str]":
    """Run a shell script in which `proxyfl` is the one of ``programs``."""
    return subprocess.run(
        ["sh", str(script), *words],
        env={**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", **more},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )


@pytest.mark.slow
def test_the_setup_makes_three_sites_that_accepted_one_manifest(
    tmp_path: Path, programs: Path
) -> None:
    """Its commands run as they stand; done again, nothing changes."""
    sites = tmp_path / "sites"
    for name in SITES:
        (sites / name).mkdir(parents=True)  # a volume is an empty folder
    # an ordinary user stands for root: folders keep their owner
    whoami = programs / "id"
    whoami.write_text("#!/bin/sh\necho 1000\n")
    whoami.chmod(0o755)
    made = run(DEPLOY / "compose-setup.sh", str(sites), programs=programs)
    assert made.returncode == 0, made.stdout + made.stderr
    keys = [(sites / name / "key.pem").read_bytes() for name in SITES]
    assert len(set(keys)) == 3
    (manifest,) = {next((sites / name / "manifests").glob("*.toml")).read_text() for name in SITES}
    assert all(f"{name}:7443" in manifest for name in SITES)
    again = run(DEPLOY / "compose-setup.sh", str(sites), programs=programs)
    assert (again.returncode, again.stdout) == (0, "")
    assert [(sites / name / "key.pem").read_bytes() for name in SITES] == keys


# The chart


def values(**changes: Any) -> dict[str, Any]:
    """The chart's values with some of them changed: ``data__claim`` for ``data.claim``."""
    tree = yaml.safe_load((CHART / "values.yaml").read_text())
    for key, value in changes.items():
        *path, last = key.split("__")
        place = tree
        for name in path:
            place = place[name]
        assert last in place
        place[last] = value
    return dict(tree)


def looked_up(path: str, scope: Mapping[str, Any]) -> Any:
    """The value of ``.Values.a.b``; KeyError if there is none."""
    value: Any = scope
    for name in path.strip(".").split("."):
        value = value[name]
    return value


def evaluate(pipeline: str, scope: Mapping[str, Any]) -> str:
    """The text of a value that passes through some of Helm's functions."""
    first, *functions = [part.strip() for part in pipeline.split("|")]
    if first.startswith(".Files.Get "):
        value: Any = (CHART / first.split('"')[1]).read_text()
    else:
        value = looked_up(first, scope)
    for function in functions:
        name, *arguments = function.split()
        if name == "quote":
            value = '"' + str(value).replace("\\", "\\\\").replace('"', '\\"') + '"'
        elif name == "toYaml":
            value = yaml.safe_dump(value).rstrip("\n")
        elif name == "nindent":
            pad = " " * int(arguments[0])
            value = "\n" + "\n".join(pad + line for line in str(value).splitlines())
        else:
            raise AssertionError(f"the tests know no function {name}")
    return str(value)


def render(template: Path, tree: Mapping[str, Any]) -> str:
    """A template as Helm renders it: values, pipelines, and conditions on lines of their own."""
    scope = {"Values": tree, "Release": {"Name": "north"}}
    kept = []
    open_conditions: list[bool] = []
    for line in template.read_text().splitlines():
        condition = re.fullmatch(r"\{\{- if (\S+) \}\}", line)
        if condition:
            open_conditions.append(bool(looked_up(condition[1], scope)))
        elif line == "{{- end }}":
            open_conditions.pop()
        elif all(open_conditions):
            kept.append(line)
    assert not open_conditions
    text = re.sub(r"\s*\{\{-", "{{", "\n".join(kept))
    return re.sub(r"\{\{ ?(.*?) ?\}\}", lambda found: evaluate(found[1], scope), text)


def documents(**changes: Any) -> dict[str, Any]:
    """Kind -> what the chart makes with these values."""
    made = {}
    for template in sorted((CHART / "templates").glob("*.yaml")):
        document = yaml.safe_load(render(template, values(**changes)))
        made[document["kind"]] = document
    return made


FULL = {
    "data__claim": "patients",
    "siteToml": 'name = "north"\n\n[data]\nsource = "/data/patients.csv"\n',
    "storage__className": "fast",
    "site__address": "north.example.org:7443",
    "service__type": "NodePort",
}


@pytest.mark.parametrize("changes", [{}, FULL], ids=["defaults", "everything"])
def test_the_chart_is_one_site_and_never_two(changes: dict[str, Any]) -> None:
    """One StatefulSet with one pod that keeps its volume, does not run as root, has no access to
    the cluster, and gets the time that a site needs to end; every mounted volume is there."""
    made = documents(**changes)
    assert set(made) == {"StatefulSet", "Service", "ConfigMap"}
    site = made["StatefulSet"]["spec"]
    assert site["replicas"] == 1
    pod = site["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["terminationGracePeriodSeconds"] >= 1.5 * LAST_SECONDS
    (container,) = pod["containers"]
    (prepare,) = pod["initContainers"]
    there = {volume["name"] for volume in pod["volumes"]}
    there |= {claim["metadata"]["name"] for claim in site["volumeClaimTemplates"]}
    for one in (container, prepare):
        assert {mount["name"] for mount in one["volumeMounts"]} == there
        assert one["securityContext"]["allowPrivilegeEscalation"] is False
    assert "livenessProbe" not in container
    words = container["readinessProbe"]["exec"]["command"]
    assert words[0] == "proxyfl"
    parser(only="node").parse_args(words[1:])
    assert [port["containerPort"] for port in container["ports"]] == [7443]
    service = made["Service"]["spec"]
    assert service["publishNotReadyAddresses"] is True
    assert service["selector"] == site["selector"]["matchLabels"]
    assert service["selector"] == site["template"]["metadata"]["labels"]
    scripts = made["ConfigMap"]["data"]
    for name in ("prepare.sh", "run.sh"):
        assert scripts[name].strip() == (CHART / name).read_text().strip()
    assert scripts.get("site.toml", "").strip() == changes.get("siteToml", "").strip()


def test_every_value_is_used_and_explained() -> None:
    """Templates use what values.yaml has, all of it, and each value stands below a comment."""
    text = "".join(path.read_text() for path in (CHART / "templates").iterdir())
    used = set(re.findall(r"\.Values\.([\w.]+)", text))

    def leaves(tree: Mapping[str, Any], before: str = "") -> Iterator[str]:
        for name, value in tree.items():
            if isinstance(value, dict) and f"{before}{name}" not in used:
                yield from leaves(value, f"{before}{name}.")
            else:
                yield f"{before}{name}"

    assert set(leaves(values())) == used
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    project = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text())["project"]
    assert chart["appVersion"] == project["version"]


STAND_IN = """\
#!/bin/sh
echo "$@" >> "{log}"
case "$2" in
init) touch "{site}/key.pem" "{site}/site.toml" ;;
run)
  trap 'exit 10' TERM
  touch "{site}/running"
  while [ -e "{site}/hold" ]; do sleep 0.05; done
  exit {code} ;;
esac
"""


@pytest.fixture
def pod(tmp_path: Path) -> Path:
    """A folder for a pod whose site ends at once with code 1, and which has a manifest."""
    for name in ("bin", "site/manifests", "config"):
        (tmp_path / name).mkdir(parents=True)
    return stand_in(tmp_path, 1)


def stand_in(folder: Path, code: int) -> Path:
    """Let the site of a pod end with ``code``."""
    command = folder / "bin" / "proxyfl"
    text = STAND_IN.format(log=folder / "log", site=folder / "site", code=code)
    command.write_text(text)
    command.chmod(0o755)
    return folder


def start(pod: Path) -> "subprocess.Popen[str]":
    """The pod's program, in a process group of its own, as `tini -g` has it."""
    return subprocess.Popen(
        ["sh", str(CHART / "run.sh")],
        env={**os.environ, "PATH": f"{pod / 'bin'}:{os.environ['PATH']}", "SITE": f"{pod}/site"},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def test_a_failure_ends_the_pod_with_its_code(pod: Path) -> None:
    """Kubernetes then starts it again."""
    with start(pod) as process:
        assert process.wait(PATIENCE) == 1


@pytest.mark.parametrize("code", sorted({0, 10, 11, 12, 13}))
def test_a_site_that_has_ended_is_not_started_again(pod: Path, code: int) -> None:
    """After its end the pod waits until it is asked to go, and then ends with 0."""
    stand_in(pod, code)
    with start(pod) as process:
        assert process.stdout is not None
        assert f"ended with {code}" in process.stdout.readline()
        assert process.poll() is None
        os.killpg(process.pid, signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
    assert (pod / "log").read_text().count("node run") == 1


def test_a_pod_that_is_stopped_lets_its_site_end(pod: Path) -> None:
    """The signal reaches the site, and the pod ends when the site has, with 0."""
    (pod / "site" / "hold").touch()
    with start(pod) as process:
        wait_until((pod / "site" / "running").exists)
        os.killpg(process.pid, signal.SIGTERM)
        assert process.wait(PATIENCE) == 0


def test_a_pod_waits_for_its_manifest(pod: Path) -> None:
    """Before one is accepted nothing runs; afterwards the site does, without a restart."""
    (pod / "site" / "manifests").rmdir()
    with start(pod) as process:
        assert process.stdout is not None
        assert "proxyfl node accept" in process.stdout.readline()
        assert not (pod / "log").exists()
        (pod / "site" / "manifests").mkdir()
        assert process.wait(PATIENCE) == 1
    assert "node run" in (pod / "log").read_text()


def test_a_pod_makes_its_keys_once(pod: Path) -> None:
    """The set-up of a pod makes the site as the values say, and a second start keeps the keys and
    takes the settings of the chart."""
    told = {"SITE": f"{pod}/site", "CONFIG": f"{pod}/config", "NAME": "north"}
    told |= {"ADDRESS": "n.org:7443", "DATA": "/data/p.csv", "EXAMPLES": "240"}
    script = CHART / "prepare.sh"
    assert run(script, programs=pod / "bin", **told).returncode == 0
    line = (pod / "log").read_text().split()
    assert line[2:] == [
        f"{pod}/site",
        *("--name", "north", "--data", "/data/p.csv", "--address", "n.org:7443"),
        *("--examples", "240"),
    ]
    parser(only="node").parse_args(line)
    (pod / "config" / "site.toml").write_text('name = "north"\n')
    assert run(script, programs=pod / "bin", **told).returncode == 0
    assert (pod / "log").read_text().count("init") == 1
    assert (pod / "site" / "site.toml").read_text() == 'name = "north"\n'


@pytest.mark.parametrize("script", [*CHART.glob("*.sh"), DEPLOY / "compose-setup.sh"], ids=str)
def test_the_scripts_are_plain_shell(script: Path) -> None:
    """They parse in the shell of the image, which is not bash."""
    shell = shutil.which("dash") or "sh"
    assert subprocess.run([shell, "-n", str(script)], timeout=PATIENCE).returncode == 0
