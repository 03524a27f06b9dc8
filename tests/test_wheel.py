"""What is uploaded to a package index is complete and described, and says what it lacks."""

import os
import re
import shutil
import site
import subprocess
import sys
import tomllib
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

from tests.waiting import PATIENCE

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "proxyfl"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = ("cryptography", "grpc", "mpi4py", "openpyxl", "openslide", "pandas", "PIL", "pyarrow")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`python -m build` in a copy of the repository: the source archive, and the wheel made from
    it."""
    place = tmp_path_factory.mktemp("build")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, place)
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", place / "src", ignore=ignored)
    done = subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", place / "dist"],
        cwd=place,
        capture_output=True,
        text=True,
        timeout=10 * PATIENCE,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert len(list((place / "dist").glob("proxyfl-*.tar.gz"))) == 1
    (made,) = (place / "dist").glob("proxyfl-*.whl")
    return made


def metadata(wheel: Path) -> Message:
    """What an index shows of it."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("dist-info/METADATA"))
        return Parser().parsestr(archive.read(name).decode())


def test_the_wheel_has_every_file_of_the_package(wheel: Path) -> None:
    """Code, pages, licences, schemas and the four hospitals' data: what the repository has, and
    nothing else."""
    expected = set()
    for path in SOURCE.rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            expected.add(f"proxyfl/{path.relative_to(SOURCE).as_posix()}")
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert packed == expected


def test_the_wheel_says_what_it_is(wheel: Path) -> None:
    """Version, licence with its text, Python, page, words to find it by, extras and addresses."""
    about = metadata(wheel)
    assert about["Version"] == PROJECT["version"]
    assert about["License-Expression"] == PROJECT["license"]
    assert about["License-File"] == "LICENSE"
    assert about["Requires-Python"] == PROJECT["requires-python"]
    assert about["Description-Content-Type"] == "text/markdown"
    assert about["Keywords"]
    assert set(about.get_all("Provides-Extra", [])) == set(PROJECT["optional-dependencies"])
    named = dict(line.split(", ", 1) for line in about.get_all("Project-URL", []))
    assert named == PROJECT["urls"]


def test_the_projects_addresses_stand_in_one_place() -> None:
    """Of the project's own addresses none is outside of ``[project.urls]``."""
    assert not re.search(r"^(repo|site)_url:", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    citation = (ROOT / "CITATION.cff").read_text()
    assert not re.search(r"^(url|repository\S*):", citation, re.MULTILINE)


BLOCKED = """
import sys

class Without:
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, *more):
        blocked = name.partition(".")[0] in {blocked!r}
        return None if blocked else self.finder.find_spec(name, *more)

    def __getattr__(self, name):
        return getattr(self.finder, name)

sys.meta_path[:] = [Without(finder) for finder in sys.meta_path]
from proxyfl.cli.main import main
for line in sys.stdin.read().splitlines():
    print("#", line, file=sys.stderr)
    try:
        code = main(line.split())
    except SystemExit as end:
        code = end.code
    except BaseException as error:
        code = f"raised {{error!r}}"
    print("=", code, file=sys.stderr)
"""

NEEDY = {
    "node init south --address south.example:7443": "node",
    "node run north": "node",
    "node accept north manifest.toml": "node",
    "node card north": "node",
    "node certificate north": "node",
    "node status north": "node",
    "node backup north north.tar": "node",
    "node export north out": "node",
    "federation try --rounds 1": "node",
    "preflight north": "node",
    "run --set data.source=federation --out never": "node",
    "new mine --site": "node",
    "data table.csv --label died": "tables",
    "data table.parquet --label died": "tables",
    "run --set data.source=table.csv --set data.label=died --out never": "tables",
    "schema draft table.parquet": "tables",
    "schema draft table.xlsx": "tables",
    "data photos": "images",
    "run --set data.source=photos --out never": "images",
    "images photos --layout label --size 28 --out out": "images",
    "new pictures --images photos --yes": "images",
    "run --set rounds=1 --track tensorboard --out never": "tensorboard",
    "run --set rounds=1 --track mlflow --out never": "mlflow",
}
"""Command lines that need an extra, and which."""

WORKING = (
    "run --set rounds=1 --set methods=alone,proxyfl --workers 1 --out small",
    "resume small",
    "report small",
    "table small",
    "certificate small --client 0",
    "new hospitals --example hospitals",
    "schema draft table.csv",
    "epsilon --examples 1000 --batch 50 --steps 10 --noise 4",
    "--print-completion bash",
)
"""Command lines that need none."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Files and folders of every kind; what they hold does not matter where the extra is
    missing."""
    lines = [f"{20 + number % 60},{number % 2}" for number in range(200)]
    (tmp_path / "table.csv").write_text("\n".join(["age,died", *lines]))
    for name in ("table.parquet", "table.xlsx", "manifest.toml"):
        (tmp_path / name).write_bytes(b"PAR1" * 25)
    for label in ("well", "ill"):
        (tmp_path / "photos" / label).mkdir(parents=True)
        (tmp_path / "photos" / label / "0.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    for name in ("north/site.toml", "federation/manifest.toml"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch()
    return tmp_path


def answers(lines: list[str], folder: Path) -> dict[str, tuple[str, str]]:
    """Type the lines where none of the extras' packages can be imported: exit code and what was
    printed on standard error, by line."""
    others = ("mlflow", "onnx", "openpyxl", "sqlalchemy", "tensorboard")
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED.format(blocked={*EXTRAS, *others})],
        input="\n".join(lines),
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=10 * PATIENCE,
    )
    told = re.findall(r"^# (.*)\n([\s\S]*?)^= (.*)$", done.stderr, re.MULTILINE)
    assert [line for line, _, _ in told] == lines, done.stderr
    return {line: (code, text) for line, text, code in told}


def test_commands_that_need_an_extra_say_which(folder: Path) -> None:
    """Without extras each of them ends with one sentence that names the one to install."""
    wrong = {}
    for line, (code, text) in answers(list(NEEDY), folder).items():
        if code != "2" or f"pip install 'proxyfl[{NEEDY[line]}]'" not in text:
            wrong[line] = (code, text)
    assert not wrong
    assert not (folder / "never").exists()


def test_commands_that_need_no_extra_work_without(folder: Path) -> None:
    """Runs, reports, certificates, tables with a schema and the planner need the base alone."""
    failed = {
        line: told
        for line, told in answers(list(WORKING), folder).items()
        if told[0] != "0" and told[0] != "None"
    }
    assert not failed


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of a new environment with the wheel in it. Other packages are those of this
    environment, whose own ProxyFL is out of sight: an index need not be reached."""
    place = tmp_path_factory.mktemp("environment") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place], check=True)
    programs = place / "bin"
    install = [sys.executable, "-m", "pip", "--python", programs / "python", "install"]
    done = subprocess.run(
        [*install, "--quiet", "--no-deps", "--no-index", wheel], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    (packages,) = place.glob("lib/python*/site-packages")
    (packages / "others.pth").write_text("\n".join(site.getsitepackages()))
    return programs


def typed(programs: Path, folder: Path, *words: str) -> str:
    """What a command prints in an environment; it must end with 0."""
    done = subprocess.run(
        [programs / words[0], *words[1:]],
        cwd=folder,
        capture_output=True,
        text=True,
        env={"PATH": f"{programs}:/usr/bin:/bin", "HOME": str(folder), "OMP_NUM_THREADS": "1"},
        timeout=10 * PATIENCE,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


@pytest.mark.slow
def test_the_wheel_alone_runs_what_newcomers_type(installed: Path, tmp_path: Path) -> None:
    """In a new environment and an empty folder: a run and its report, the four hospitals, and a
    real federation on this machine."""
    where = typed(installed, tmp_path, "python", "-c", "import proxyfl; print(proxyfl.__file__)")
    assert where.startswith(str(installed.parent))
    short = ("--set", "rounds=5", "--workers", "1", "--out", "first")
    assert "points" in typed(installed, tmp_path, "proxyfl", "run", *short)
    typed(installed, tmp_path, "proxyfl", "report", "first")
    assert (tmp_path / "first" / "report.html").stat().st_size > 10_000
    typed(installed, tmp_path, "proxyfl", "new", "hospitals", "--example", "hospitals")
    project = tmp_path / "hospitals"
    told = typed(installed, project, "proxyfl", "run", "--splits", "1", "--workers", "1")
    assert "AUROC" in told
    typed(installed, project, "proxyfl", "report")
    trial = ("proxyfl", "federation", "try", "--rounds", "2", "--no-page")
    assert "epsilon" in typed(installed, tmp_path, *trial)
