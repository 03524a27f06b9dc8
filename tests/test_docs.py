"""The documentation is true: examples run, commands parse, what is named exists, and links lead
somewhere."""

import ast
import contextlib
import doctest
import functools
import importlib
import io
import os
import re
import shlex
import shutil
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import proxyfl
from proxyfl import _settings
from proxyfl.cli.main import COMMANDS, main, parser
from proxyfl.data.tables import schema
from proxyfl.errors import ConfigError, ProxyFLError
from proxyfl.node.members.manifest import Manifest
from proxyfl.node.members.site import Site
from proxyfl.privacy import accounting
from proxyfl.privacy.guarantee import Kind, shown
from proxyfl.simulation import config as settings
from proxyfl.simulation import prepare as preparation
from proxyfl.sweeps import file as sweep
from tests.test_imports import LEVELS
from tests.test_table_pages import hospital

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
EXAMPLES = [ROOT / "README.md", DOCS / "guides" / "python.md", DOCS / "guides" / "data.md"]
PAPER = DOCS / "research" / "paper.md"
TABLES = [
    field
    for field in dir(settings.Config())
    if hasattr(getattr(settings.Config(), field), "__dataclass_fields__")
]


class Block(NamedTuple):
    """A fenced block: its language, its text, and the line it starts on."""

    language: str
    text: str
    line: int


def blocks(page: Path, *languages: str) -> list[Block]:
    """The fenced blocks of a page in these languages."""
    text = page.read_text()
    found = re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    made = [Block(m[1], m[2], text.count("\n", 0, m.start()) + 2) for m in found]
    return [block for block in made if block.language in languages]


def prose(page: Path) -> str:
    """A page without its fenced blocks."""
    return re.sub(r"^```\w*\n.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def code_spans(page: Path) -> set[str]:
    """What stands in single backticks."""
    return set(re.findall(r"`([^`\n]+)`", prose(page)))


def commands() -> Iterator[tuple[str, str]]:
    """(page, command line) of everything shown that begins with proxyfl, in blocks and in the
    text."""
    for page in PAGES:
        lines = [
            line for b in blocks(page, "sh") for line in b.text.replace("\\\n", " ").splitlines()
        ]
        for line in [*lines, *code_spans(page)]:
            found = re.match(
                r"(?:(?:mpiexec|mpirun|srun) [^|;&]*?)?(proxyfl [a-z]+(?: .*)?)$", line
            )
            if found:
                yield page.name, found[1]


def names(page: Path) -> Iterator[tuple[str, str]]:
    """(page, dotted name) of every name below proxyfl that a page mentions."""
    for span in sorted(code_spans(page)):
        if re.fullmatch(r"proxyfl(\.\w+)+(\(.*\))?", span):
            yield page.name, span.partition("(")[0]


def named_tests(page: Path) -> Iterator[tuple[str, str]]:
    """(page, test) of every test that a page names as path::test or path::Class::test."""
    for span in sorted(code_spans(page)):
        if re.fullmatch(r"tests/[\w/]+\.py(::\w+)+", span):
            yield page.name, span


@contextlib.contextmanager
def inside(folder: Path) -> Iterator[None]:
    """Work in ``folder`` as a user would in theirs; modules found there are forgotten
    afterwards."""
    before, modules, path = Path.cwd(), set(sys.modules), list(sys.path)
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
        sys.path[:] = path
        for name in set(sys.modules) - modules:
            if str(folder) in str(getattr(sys.modules[name], "__file__", "")):
                del sys.modules[name]


@pytest.mark.parametrize("page", EXAMPLES, ids=lambda page: page.name)
def test_python_examples_run(page: Path, tmp_path: Path) -> None:
    """Every Python example of a page runs, in order and in an empty folder; one that names a file
    becomes that file."""
    namespace: dict[str, object] = {"__name__": "example"}
    ran = blocks(page, "python")
    assert ran
    with inside(tmp_path):
        for block in ran:
            title = re.match(r"# (\w+\.py)\n", block.text)
            if title:
                Path(title[1]).write_text(block.text)
            # Padded, so that a traceback names the line of the page.
            exec(compile("\n" * (block.line - 1) + block.text, str(page), "exec"), namespace)


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if page not in EXAMPLES and blocks(page, "python")],
    ids=lambda page: page.name,
)
def test_what_other_examples_import_is_there(page: Path) -> None:
    """Where an example needs somebody's own runs, what it imports exists; a session prints what it
    says."""
    for block in blocks(page, "python"):
        if block.text.startswith(">>>"):
            test = doctest.DocTestParser().get_doctest(
                block.text, {}, page.name, str(page), block.line
            )
            assert doctest.DocTestRunner().run(test).failed == 0
            continue
        imports = [
            node
            for node in ast.parse(block.text).body
            if isinstance(node, ast.Import | ast.ImportFrom)
        ]
        exec(compile(ast.Module(list(imports), []), str(page), "exec"), {})


@pytest.mark.parametrize(
    ("page", "text"),
    [pytest.param(p, b.text, id=f"{p.name}:{b.line}") for p in PAGES for b in blocks(p, "toml")],
)
def test_toml_examples_are_configs(page: Path, text: str, tmp_path: Path) -> None:
    """Every TOML block is a config that fits the demo's clients, a sweep whose runs can all be
    planned, or a table's schema."""
    file = tmp_path / "example.toml"
    file.write_text(text)
    if "[label]" in text:
        assert schema.read(file).features
        return
    shutil.copytree(ROOT / "experiments" / "base", tmp_path / "base")
    if re.search(r"^\[(grid|set)\]", text, re.MULTILINE):
        runs = sweep.plan(file, tmp_path / "runs")
        assert f"# {len(runs)} runs" in page.read_text()
    else:
        config = settings.load(file)
        assert config != settings.Config()
        preparation.prepare(config)


def test_every_public_name_has_an_example() -> None:
    """docs/guides/python.md uses each public name in an example that runs."""
    trees = [ast.parse(block.text) for block in blocks(DOCS / "guides" / "python.md", "python")]
    used = {node.id for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Name)}
    assert set(proxyfl.__all__) - used == set()


def test_the_readmes_commands_run_in_order(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The README's commands, typed in order, do what it says, on tables of two hospitals."""
    with inside(tmp_path):
        hospital(Path("north.csv"), 0)
        hospital(Path("south.csv"), 1000, separator=";")
        typed = [line for line in typed_in_readme() if line[0] in ("proxyfl", "cd")]
        names = [line[1] for line in typed if line[0] == "proxyfl"]
        assert names == ["--help", "federation", "worth", "new", "run", "report", "epsilon"]
        shorter = {
            "run": ["--splits", "1", "--workers", "1"],
            "federation": ["--rounds", "1", "--sites", "3"],
        }
        for program, *words in typed:
            if program == "cd":
                os.chdir(words[0])
                continue
            quick = shorter.get(words[0], [])
            fine = (0, 1) if words[0] == "worth" else (0,)  # 1: it advises against joining
            # argparse ends the program after --help
            with contextlib.suppress(SystemExit):
                assert main([*words, *quick]) in fine, capsys.readouterr().err
        assert list((tmp_path / "stroke").rglob("report.html"))
        printed = capsys.readouterr().out
        assert re.search(r"proxyfl: (Joining|Too few|Nothing can be said)", printed)
        assert "A simulation: it says what a real run would cost" in printed
        assert "noise multiplier" in printed


def typed_in_readme() -> list[list[str]]:
    """The words of every command line in README's shell blocks, in order."""
    lines = []
    for block in blocks(ROOT / "README.md", "sh"):
        lines += block.text.replace("\\\n", " ").splitlines()
    return [shlex.split(line, comments=True) for line in lines]


def test_the_readme_says_how_proxyfl_is_found() -> None:
    """After `make demo`, which installs what the commands need, the command's folder is named."""
    typed = typed_in_readme()
    activated = typed.index(["source", ".venv/bin/activate"])
    first = [line[0] for line in typed].index("proxyfl")
    assert typed.index(["make", "demo"]) < activated < first
    makefile = (ROOT / "Makefile").read_text()
    assert "-e '.[images,tables,report,node]'" in makefile
    assert "source $(BIN)/activate" in makefile


def test_commands_parse() -> None:
    """Every command shown is one that the real parser takes, and every setting in it is one that
    there is."""
    shown = sorted(set(commands()))
    assert len(shown) > 100
    wrong = []
    for page, line in shown:
        printed = io.StringIO()
        try:
            with contextlib.redirect_stderr(printed), contextlib.redirect_stdout(io.StringIO()):
                parse_shown(line)
        except (SystemExit, ProxyFLError) as error:
            if getattr(error, "code", 1) != 0:  # --help ends so as well
                wrong.append(f"{page}: {line}: {printed.getvalue() or error}")
    assert not wrong, "\n".join(wrong)


def parse_shown(line: str) -> None:
    """Parses a command line that a page shows; an argument or a setting that is wrong raises."""
    words = shlex.split(line.replace("seed=N", "seed=1"), comments=True)[1:]
    words = [
        {"COMMAND": "run", "SOURCE": "digits", "N": "2", "NAME": "mlflow"}.get(word, word)
        for word in words
    ]
    words = [word for word in words if word != "..." and not word.startswith("[")]
    if len(words) == 1:
        # A command's name alone, in the text: it must exist, whatever arguments it needs.
        if words[0] not in COMMANDS:
            raise ConfigError(f"There is no command {words[0]!r}.")
        return
    arguments = parser(only=words[0]).parse_args(words)
    settings.load(None, getattr(arguments, "overrides", []))


SIMULATES = re.compile(r"proxyfl (run|sweep)\b|^from proxyfl import .*\brun\b", re.MULTILINE)


@pytest.mark.parametrize(
    "page",
    [
        page
        for page in PAGES
        if any(SIMULATES.search(block.text) for block in blocks(page, "sh", "python"))
    ],
    ids=lambda page: page.name,
)
def test_a_page_that_simulates_says_so_first(page: Path) -> None:
    """Before its first example of a run, a page says that a run is a simulation that protects
    nobody, and leads to the page about real federations."""
    text = page.read_text()
    first = min(
        text.index(block.text)
        for block in blocks(page, "sh", "python")
        if SIMULATES.search(block.text)
    )
    said = " ".join(re.sub(r"^> ", "", text[:first], flags=re.MULTILINE).split())
    assert "simulation" in said
    assert "protects nobody" in said
    assert "three-sites.md" in said


def test_make_targets_exist() -> None:
    """Every `make` target that the pages show is one of the Makefile's."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    lines = [line for page in PAGES for b in blocks(page, "sh") for line in b.text.splitlines()]
    spans = [span for page in PAGES for span in code_spans(page)]
    shown = {m[1] for m in (re.match(r"make ([a-z-]+)", line) for line in [*lines, *spans]) if m}
    assert {"demo", "test"} <= shown <= targets


def test_settings_exist() -> None:
    """Every setting that the pages name is one of the config's or of site.toml's."""
    pattern = rf"((?:{'|'.join(TABLES)})\.[a-z_]+)(?:=.*)?"
    shown = {
        m[1]
        for page in PAGES
        for m in (re.fullmatch(pattern, span) for span in code_spans(page))
        if m and not m[1].endswith(".json")  # a file
    }
    assert "learning.beta" in shown
    assert shown <= {*settings.keys(), *_settings.keys(Site)}


def test_names_exist() -> None:
    """Every function, class or module that a page names can be imported under that name."""
    shown = sorted({name for page in PAGES for name in names(page)})
    assert shown
    assert not [f"{page}: {name}" for page, name in shown if not exists(name)]


def exists(name: str) -> bool:
    """Whether a dotted name can be imported, as a module or as something in one."""
    parts = name.split(".")
    for at in range(len(parts), 0, -1):
        with contextlib.suppress(ModuleNotFoundError):
            module = importlib.import_module(".".join(parts[:at]))
            break
    try:
        functools.reduce(getattr, parts[at:], module)
    except AttributeError:
        return False
    return True


def test_tests_exist() -> None:
    """Every test that a page cites as evidence exists under that name."""
    cited = sorted({test for page in PAGES for test in named_tests(page)})
    assert cited
    assert not [f"{page}: {test}" for page, test in cited if not is_test(test)]


def test_tests_without_a_path_exist() -> None:
    """A test that a page names without its file is in some file."""
    every = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        every |= set(re.findall(r"def (test_\w+)", path.read_text()))
    cited = [(page.name, span) for page in PAGES for span in sorted(code_spans(page))]
    named = [(page, span) for page, span in cited if re.fullmatch(r"test_\w+", span)]
    assert named
    assert [(page, span) for page, span in named if span not in every] == []


def test_each_fact_of_the_promise_has_a_test() -> None:
    """Every numbered fact on which the promise rests names its evidence."""
    text = (DOCS / "privacy" / "promise.md").read_text()
    section = text.split("The promise rests on five facts.")[1].split("They meet in one class")[0]
    facts = re.split(r"\n\d\. ", section)[1:]
    assert len(facts) == 5
    for fact in facts:
        assert re.search(r"`tests/[\w/]+\.py::\w+", fact), fact


def is_test(test: str) -> bool:
    """Whether path::test or path::Class::test is in the tests."""
    file, *path = test.split("::")
    if not (ROOT / file).exists():
        return False
    body = syntax(ROOT / file).body
    for name in path:
        definitions = [n for n in body if isinstance(n, ast.ClassDef | ast.FunctionDef)]
        inner = next((n.body for n in definitions if n.name == name), None)
        if inner is None:
            return False
        body = inner
    return True


@functools.cache
def syntax(path: Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(path.read_text())


def test_tests_named_without_their_file_exist() -> None:
    """Where a page says test_something alone, some test file has it."""
    shown = {span for page in PAGES for span in code_spans(page) if re.fullmatch(r"test_\w+", span)}
    code = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    assert "test_kill_9_at_any_instant" in shown
    assert not [name for name in shown if f"def {name}(" not in code]


def test_the_version_is_the_changelogs() -> None:
    """The code calls itself by a version that the changelog has: its newest, or, between releases,
    one that is not out yet. The citation names the same."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    version = str(project["version"])
    changes = (ROOT / "CHANGELOG.md").read_text()
    out = re.findall(r"^## (\d+\.\d+\.\d+) ", changes, re.MULTILINE)
    assert out
    if version.endswith(".dev0"):
        assert version.removesuffix(".dev0") not in out
        assert f"`proxyfl --version` says {version}." in changes.split("\n### ")[0]
    else:
        assert version == out[0]
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()


def test_every_supported_python_is_tested() -> None:
    """The workflow runs the tests from the oldest Python that is allowed on, without a gap."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    workflow = (ROOT / ".github" / "workflows" / "tests.yml").read_text()
    listed = re.search(r"python: \[(.*)\]", workflow)
    assert listed is not None
    minors = [int(version) for version in re.findall(r'"3\.(\d+)"', listed[1])]
    assert project["requires-python"] == f">=3.{minors[0]}"
    assert minors == list(range(minors[0], minors[0] + len(minors)))
    assert "run: .ci/run" in workflow


def test_files_exist() -> None:
    """Every file of this repository that a page names is there."""
    pattern = r"(?:src|tests|docs|benchmarks|experiments|reproduction)/[\w./-]+\w"
    shown = {
        (page.name, span)
        for page in PAGES
        for span in code_spans(page)
        if re.fullmatch(pattern, span)
    }
    assert shown
    assert not [(page, span) for page, span in shown if not (ROOT / span).exists()]


def design_rooms() -> dict[str, set[str]]:
    """The table of rooms in docs/about/design.md: room -> the modules named there."""
    section = (DOCS / "about" / "design.md").read_text().split("## Rooms\n")[1].split("\n## ")[0]
    found = {}
    for line in section.splitlines():
        if line.startswith("| `"):
            room, modules = line.split("|")[1:3]
            found[room.strip(" `")] = set(re.findall(r"`([^`]+)`", modules))
    return found


def test_the_design_names_every_room() -> None:
    """docs/about/design.md has a row for every package below proxyfl, and for none besides."""
    source = ROOT / "src" / "proxyfl"
    rooms = {path.parent.relative_to(source).as_posix() for path in source.rglob("__init__.py")}
    assert set(design_rooms()) == rooms - {"."} | {"proxyfl"}


def test_the_design_names_modules_that_exist() -> None:
    """Every module that docs/about/design.md names is in the room of its row."""
    source = ROOT / "src" / "proxyfl"
    for room, modules in design_rooms().items():
        if room == "cli/commands":  # the row says what a command's module has
            continue
        folder = source if room == "proxyfl" else source / room
        missing = {name for name in modules if not (folder / f"{name}.py").exists()}
        assert modules, f"{room} has no modules"
        assert not missing, f"{room} has no {sorted(missing)}"


def test_the_design_shows_the_levels() -> None:
    """The picture in docs/about/design.md has the levels of test_imports.py, highest first."""
    section = (DOCS / "about" / "design.md").read_text().split("## Levels\n")[1]
    picture = section.split("```text\n")[1].split("```")[0]
    shown = [set(line.split()) for line in picture.splitlines()]
    assert shown == [set(level) for level in reversed(LEVELS) if level != ("__main__",)]


def test_a_runs_folder_is_explained_whole(tmp_path: Path) -> None:
    """docs/reference/run-folder.md says of everything in a run's folder what it is."""
    small = settings.load(
        None, ["rounds=2", "partition.clients=2", "partition.examples=60", "methods=proxyfl"]
    )
    proxyfl.run(small, out=tmp_path / "run")
    table = (DOCS / "reference" / "run-folder.md").read_text()
    explained = {name.split("/")[0] for name in re.findall(r"`([\w./-]+)`", table)}
    assert {path.name for path in (tmp_path / "run").iterdir()} - {".lock"} <= explained


def test_the_demos_figures_are_the_defaults() -> None:
    """The pages give the demo's size, settings and price as they follow from the default config."""
    config = settings.Config()
    n, batch = (min(map(len, preparation.prepare(config).clients)), config.learning.batch_size)
    assert isinstance(batch, int)
    segment = accounting.Segment(batch / n, 4.0, config.rounds * (n // batch))
    cost = accounting.epsilon([segment], 1 / n, Kind.END_TO_END)
    readme, privacy = (
        (ROOT / "README.md").read_text(),
        (DOCS / "concepts" / "epsilon.md").read_text(),
    )
    assert f"epsilon {shown(cost.pld, 2)} per record, end-to-end" in readme
    assert f"delta {1 / n:.1e}" in readme
    assert (
        f"the demo: n = {n}, B = {batch}, {segment.steps} steps, sigma = 4, delta = 1/{n} |"
        in privacy
    )
    assert f"| {shown(cost.rdp)} | {shown(cost.pld)} |" in privacy
    column = {first: row.split("|")[-2].strip() for first, row in rows("Settings").items()}
    assert column["clients x examples"] == f"{config.partition.clients} x {n}"
    assert column["division"] == f"majority {config.partition.p_major}"
    assert column["batch, rounds"] == f"{batch}, {config.rounds}"


def rows(title: str) -> dict[str, str]:
    """The table below a heading of docs/research/paper.md: first cell -> the whole row."""
    section = PAPER.read_text().split(f"## {title}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")][1:]
    return {line.split("|")[1].strip(): line for line in lines}


@pytest.mark.parametrize(
    ("title", "wanted"),
    [("Equations", {str(n) for n in range(1, 9)}), ("Algorithm 1", {str(n) for n in range(1, 14)})],
)
def test_the_paper_is_mapped_whole(title: str, wanted: set[str]) -> None:
    """Each of the paper's eight equations, and each line of its algorithm, has a function and a
    test beside it."""
    table = rows(title)
    numbers = {n for first in table for n in re.findall(r"\d+", first)}
    assert wanted <= numbers
    for first, row in table.items():
        assert re.search(r"`proxyfl\.[\w.]+`", row), f"{title}, {first}: no function"
        assert re.search(r"`tests/[\w/]+\.py::[\w:]+`", row), f"{title}, {first}: no test"


@functools.cache
def anchors(page: Path) -> set[str]:
    """The anchors that GitHub makes of a page's headings."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_lead_somewhere() -> None:
    """Every relative link names a file of this repository, and every anchor a heading in it."""
    links = [(page, to) for page in PAGES for to in re.findall(r"\]\(([^)\s]+)\)", prose(page))]
    for page, target in links:
        if "://" in target:
            continue
        file, _, anchor = target.partition("#")
        there = (page.parent / file).resolve() if file else page
        assert there.exists(), f"{page.name} links to {target}"
        assert there.is_relative_to(ROOT), f"{page.name} links outside: {target}"
        assert not anchor or anchor in anchors(there), (
            f"{page.name} links to {target}: no such heading"
        )


def test_pages_name_no_machine() -> None:
    """No page mentions a folder of the machine that it was written on."""
    folder = re.compile(r"(?<![\w.~])/(?:work|tmp|home|root|usr|Users)\b")
    assert not [page.name for page in PAGES if folder.search(page.read_text())]


def test_the_settings_pages_are_complete() -> None:
    """The pages about settings are what the settings' own documentation gives, with a line for
    each setting of a run, of site.toml and of the manifest."""
    source = DOCS / "settings.py"
    namespace: dict[str, object] = {"__name__": "settings_page", "__file__": str(source)}
    exec(compile(source.read_text(), str(source), "exec"), namespace)
    pages: dict[str, str] = namespace["pages"]()  # type: ignore[operator]
    for name, text in pages.items():
        assert (DOCS / "reference" / name).read_text() == text, "run `make settings`"
    known = settings.keys()
    assert [key for key in known if f"| `{key}` |" not in pages["settings.md"]] == []
    site = _settings.keys(Site)
    assert [key for key in site if f"| `{key}` |" not in pages["site-toml.md"]] == []
    renamed: dict[str, str] = namespace["ELSEWHERE"]  # type: ignore[assignment]
    assert set(renamed.values()) <= set(known)
    assert set(renamed) <= {*site, *_settings.keys(Manifest)}


def test_defaults_that_differ_at_a_real_site_are_stated() -> None:
    """docs/reference/settings.md has a row for every default that is another one in site.toml."""
    text = (
        (DOCS / "reference" / "settings.md")
        .read_text()
        .split("## Other defaults at a real site")[1]
    )
    run, site = _settings.flat(settings.Config()), _settings.flat(Site("north"))
    for key in ("private_optimizer.learning_rate", "privacy.budget", "learning.batch_size"):
        shown = re.search(rf"^\| `{key}` \| (.*) \| .* \| (.*) \|$", text, re.MULTILINE)
        assert (shown is not None) == (run[key] != site[key])
        if shown is not None:
            values = [_settings.shown_default(run[key]), _settings.shown_default(site[key])]
            assert list(shown.groups()) == values
