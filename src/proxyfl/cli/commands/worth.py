"""``proxyfl worth``: whether joining can be expected to pay, and with which settings."""

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

from rich.console import Console

from proxyfl import _settings
from proxyfl._command import command
from proxyfl._files import write_text
from proxyfl._terminal.spinner import spinner
from proxyfl.cli import planning
from proxyfl.cli.options import JSON, Document, flag, option, print_json
from proxyfl.data.tables import schema as schemas
from proxyfl.data.tables.schema import Schema
from proxyfl.errors import ConfigError, InputError
from proxyfl.privacy.accounting import Segment, epsilon_of
from proxyfl.privacy.worth import (
    CANNOT,
    USUAL,
    WORTH,
    Facts,
    Needed,
    Settings,
    Worth,
    advise_columns,
    gaussian_dp,
    least_size,
    needed,
    settings_for,
    site_weight,
    worth,
)
from proxyfl.tasks import CLASSIFICATION, KINDS

if TYPE_CHECKING:
    from proxyfl.records.run import Run
    from proxyfl.simulation.config import Config

DESCRIPTION = """\
Say whether to join, how much joining can be expected to gain, and what it costs, in three lines.
It knows public facts alone and reads no record: the schema, and a file with a line for each site
(columns site and patients). In a terminal it asks for what is missing. --out writes the settings
to a study that runs. --explain prints them, and the reasons.

The answer is a rule of thumb that was fitted to generated federations and checked on federations
that it was not fitted to (docs/research/joining.md). It judges classes: of a value, of several
findings or of a time to an event only a rehearsal can say more. --rehearsal draws records from the
schema (or takes a public dataset), divides them among the sites and measures the gain with these
settings. --alone is your own model's AUROC; it is used here and goes nowhere. With --colluders the
exchange is a masked sum (method proxysum), else gossip. Exit code 1 if joining is not expected to
pay: less than a point of AUROC, or less than half a point in more than one run of six.
"""

EPILOG = """\
examples:
  proxyfl worth schema.toml counts.csv --epsilon 1
  proxyfl worth schema.toml counts.csv --epsilon 1 --rehearsal --out study.toml
  proxyfl worth --clients 4 --examples 184 --parameters 50 --epsilon 1 --prevalence 0.55
  proxyfl worth --clients 29 --examples 300 --parameters 26 --epsilon 1 --prevalence 0.05 \\
                --score 0.75 --alone 0.66 --smallest 120 --largest 900 --colluders 14
  proxyfl worth --clients 8 --examples 1000 --parameters 650 --classes 10 --seen 2 \\
                --score 0.98 --epsilon 1 --json
  proxyfl worth --clients 8 --examples 150 --parameters 650 --classes 10 --epsilon 3 \\
                --rehearsal digits
"""

DRAWN = "schema"
"""The rehearsal on records that are drawn from the schema."""

DRAWS = 3
"""Federations that such a rehearsal draws: one draw of the noise is not the mean."""

TESTS = 400
"""Test patients of each drawn site: enough that the gain is not their luck."""

OPTIONS = (
    option("schema SCHEMA", "the schema.toml of the study", Path, nargs="?"),
    option("counts COUNTS", "a table with a line per site: site, patients", Path, nargs="?"),
    option("--clients K", "sites that join", int),
    option("--examples N", "training examples of a site, on average", int),
    option("--parameters P", "the proxy's parameters (proxyfl models)", int),
    option("--epsilon E", "what may be spent", float),
    option("--delta D", "the guarantee's delta (default: 1/(10 N) of the largest site)", float),
    option("--prevalence P", "the share of cases (default: the schema's, or 1/C)", float),
    option("--score A", f"AUROC of a good model, from the literature (default: {USUAL})", float),
    option("--alone A", "AUROC of your own model, which stays here", float),
    option("--smallest N", "training examples of the smallest site", int),
    option("--largest N", "training examples of the largest site", int),
    option("--colluders T", "masked sum: members that may collude, 1 or more", int),
    option("--classes C", "the classes (default: the schema's, or 2)", int),
    option("--seen C", "classes of which a site has examples (default: all)", int),
    option(
        "--rehearsal SOURCE",
        "measure on a public dataset (proxyfl data), or on records drawn from the schema",
        nargs="?",
        const=DRAWN,
    ),
    option("--out FILE", "write the settings to a new file, for proxyfl run", Path),
    flag("--explain", "print the settings and the reasons, too"),
    JSON,
)


@dataclass(frozen=True)
class Question:
    """A fact that the command asks for where nobody stated it."""

    option: str
    text: str
    kind: Callable[[str], Any] = float
    default: Any = None
    is_needed: bool = True


QUESTIONS = (
    Question("clients", "How many sites join?", int),
    Question("examples", "How many patients does a site train on, on average?", int),
    Question("parameters", "How many parameters does the proxy have (columns x classes)?", int),
    Question("epsilon", "Which epsilon may the study spend?", float, 1.0),
    Question("prevalence", "Which share are cases, as published?", is_needed=False),
    Question("score", "Which AUROC do good models of this task have?", float, USUAL, False),
    Question("alone", "Which AUROC has your own model? It stays here.", is_needed=False),
)


@dataclass(frozen=True)
class Case:
    """The command's input: facts, the schema, and the sizes of the sites."""

    facts: Facts
    smallest: int | None
    largest: int | None
    schema: Schema | None = None
    schema_path: Path | None = None
    sizes: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def task(self) -> str:
        """The kind of task; classes without a schema."""
        return CLASSIFICATION if self.schema is None else self.schema.label.task

    @property
    def total(self) -> int | None:
        """All training examples, where the sizes are known."""
        return sum(self.sizes) or None


@dataclass(frozen=True)
class Advice:
    """All that the command says."""

    case: Case
    expected: Worth | None
    """None where the rule cannot judge."""
    settings: Settings
    all_collude: float | None
    """Epsilon if all others collude, where that is another one."""
    smallest: tuple[int, Worth] | None
    largest: tuple[int, Worth] | None
    needed: Needed | None
    """What would be enough, where joining does not pay."""
    least: int
    """The examples below which a site adds more noise than signal."""
    measured: Document | None = field(default=None)

    @property
    def facts(self) -> Facts:
        """The facts."""
        return self.case.facts

    @property
    def join(self) -> bool:
        """The verdict: what a rehearsal measured, else what is expected."""
        if self.measured is not None:
            return bool(self.measured["gain"] >= WORTH)
        return self.expected is not None and self.expected.join


def execute(args: argparse.Namespace) -> int:
    """Print what is expected, and what a rehearsal measured; 1 if it is not worth it."""
    if args.out is not None and args.out.exists():
        raise ConfigError(f"{args.out} exists. Name a new file with --out.")
    case = _case(args)
    if case.task != CLASSIFICATION and args.rehearsal is None and args.out is None:
        raise ConfigError(
            f"The rule of thumb judges classes. It cannot say what joining gains for the task "
            f"{case.task} ({KINDS[case.task]}). Measure it on records that are drawn from the "
            f"schema. Run: {_again(args, '--rehearsal')}"
        )
    if args.rehearsal == DRAWN and (case.schema is None or not case.sizes):
        raise ConfigError(
            "To draw records for a rehearsal, the schema and the counts of the sites are needed: "
            "proxyfl worth schema.toml counts.csv --rehearsal. Or name a public dataset after "
            "--rehearsal. To list them, run: proxyfl data"
        )
    with spinner("Expecting", quiet=args.json):
        advice = _advise(case)
    if args.rehearsal:
        with spinner("Rehearsing", quiet=args.json):
            advice = replace(advice, measured=_rehearse(args.rehearsal, advice))
    if args.out is not None:
        write_text(args.out, _study_text(advice, args.out))
    if args.json:
        print_json(_document(advice))
    else:
        console = Console(highlight=False)
        _show(advice, args, console)
        if args.explain:
            _explain(advice, console)
    return 0 if advice.join else 1


def _again(args: argparse.Namespace, *more: str) -> str:
    """This command with more options."""
    words = [str(word) for word in (args.schema, args.counts) if word is not None]
    if args.epsilon is not None:
        words += ["--epsilon", f"{args.epsilon:g}"]
    return command("worth", *words, *more)


def answer(facts: Facts) -> tuple[str, str, str]:
    """Whether to join, the gain and the price for these facts; a line each."""
    return _answer(_advise(Case(facts, None, None)))


def _case(args: argparse.Namespace) -> Case:
    """The facts of the files and the command line, and the answers to what is missing; checked."""
    schema = schemas.read(args.schema) if args.schema is not None else None
    counts = planning.read_counts(args.counts) if args.counts is not None else None
    values = vars(args).copy()
    notes = []
    if schema is not None:
        for name, value in (
            ("parameters", planning.parameters_of(schema)),
            ("classes", planning.classes_of(schema)),
            ("prevalence", planning.prevalence_of(schema)),
        ):
            values[name] = value if values[name] is None else values[name]
    if counts is not None:
        for name in ("clients", "examples", "smallest", "largest"):
            if values[name] is not None:
                raise ConfigError(f"{args.counts} states --{name} already. Leave the option out.")
        sizes = tuple(counts.sizes.values())
        values |= {
            "clients": len(sizes),
            "examples": planning.average_of(sizes),
            "smallest": min(sizes),
            "largest": max(sizes),
        }
        if values["prevalence"] is None and counts.cases is not None:
            values["prevalence"] = counts.cases
            notes.append(
                f"The share of cases, {counts.cases:.3g}, is counted in {args.counts}. No epsilon "
                "covers a count: take a published share before this leaves your house."
            )
    _complete(values, is_terminal=sys.stdin.isatty() and not args.json)
    facts = _facts(values)
    sizes = tuple(counts.sizes.values()) if counts is not None else ()
    return Case(
        facts, values["smallest"], values["largest"], schema, args.schema, sizes, tuple(notes)
    )


def _complete(values: dict[str, Any], *, is_terminal: bool) -> None:
    """Ask for the facts that are missing; where nobody can answer, name all of them at once."""
    missing = [each for each in QUESTIONS if each.is_needed and values[each.option] is None]
    if not missing:
        return
    if not is_terminal:
        named = ", ".join(f"--{each.option}" for each in missing)
        files = "" if values["schema"] else " A schema and a file of counts say most of it."
        raise InputError(
            f"Expected {named}.{files} For example: proxyfl worth schema.toml counts.csv --epsilon "
            "1. In a terminal the command asks."
        )
    for each in QUESTIONS:
        if values[each.option] is None:
            values[each.option] = _ask(each)


def _ask(question: Question) -> Any:
    """The answer to a question; its default, or None, for Enter."""
    if question.default is not None:
        hint = f" [{question.default:g}]"
    else:
        hint = "" if question.is_needed else " (Enter: not known)"
    while True:
        text = input(f"{question.text}{hint} ").strip()
        if not text and (question.default is not None or not question.is_needed):
            return question.default
        try:
            return question.kind(text)
        except ValueError:
            print(f"Expected a number, got {text!r}.")


def _facts(values: dict[str, Any]) -> Facts:
    """The facts, checked."""
    examples = values["examples"]
    for name in ("smallest", "largest"):
        size = values[name]
        if size is None:
            continue
        fits = 1 <= size <= examples if name == "smallest" else size >= examples
        if not fits:
            side = "at most" if name == "smallest" else "at least"
            raise ConfigError(
                f"Expected --{name} of {side} the average of {examples} examples, got {size}."
            )
    most = values["largest"] or examples
    return Facts(
        values["clients"],
        examples,
        values["parameters"],
        values["epsilon"],
        values["delta"] or 1 / (10 * max(1, most)),
        values["classes"] or 2,
        values["score"] or USUAL,
        values["seen"],
        values["prevalence"],
        values["colluders"],
        values["alone"],
    )


def _advise(case: Case) -> Advice:
    facts = case.facts
    settings = settings_for(facts, total=case.total)
    coalition = facts.coalition
    all_collude = None
    if coalition is not None and coalition.honest > 1:
        left = coalition.alone(settings.noise_multiplier)
        all_collude = epsilon_of([Segment(1.0, left, settings.rounds)], facts.delta, "pld")
    least = least_size(facts.width, gaussian_dp(facts.epsilon, facts.delta), facts.honest)
    if case.task != CLASSIFICATION:
        return Advice(case, None, settings, all_collude, None, None, None, least)
    expected = worth(facts)
    others = replace(facts, alone=None)  # a site's own score says nothing of the others
    smallest, largest = case.smallest, case.largest
    return Advice(
        case,
        expected,
        settings,
        all_collude,
        (smallest, worth(others, examples=smallest)) if smallest else None,
        (largest, worth(others, examples=largest)) if largest else None,
        None if expected.join else needed(facts),
        least,
    )


def _document(advice: Advice) -> Document:
    expected = advice.expected
    return {
        "facts": asdict(advice.facts),
        "task": advice.case.task,
        "sizes": list(advice.case.sizes),
        "notes": list(advice.case.notes),
        "expected": expected and asdict(expected) | {"join": expected.join},
        "join": advice.join,
        "settings": asdict(advice.settings),
        "epsilon_if_all_others_collude": advice.all_collude,
        "smallest": advice.smallest and asdict(advice.smallest[1]),
        "largest": advice.largest and asdict(advice.largest[1]),
        "least_size": advice.least,
        "weight_of_smallest": _weight(advice),
        "needed": advice.needed and asdict(advice.needed),
        "rehearsal": advice.measured,
    }


def _show(advice: Advice, args: argparse.Namespace, console: Console) -> None:
    """The answer in three lines, what would change it, and what to do next."""

    def say(text: str, style: str = "") -> None:
        console.print(text, style=style, soft_wrap=not console.is_terminal)

    for line, style in zip(_answer(advice), ("bold", "", ""), strict=True):
        say(line, style)
    if advice.needed is not None and advice.measured is None:
        say(_enough(advice.needed, advice.facts))
    for note in advice.case.notes:
        say(note)
    if advice.expected is not None and advice.measured is not None:
        say(
            f"The rule of thumb expected {advice.expected.gain:+.1f}. A rehearsal knows these "
            "settings and sizes, not how much your sites differ."
        )
    if args.out is not None:
        first = (
            "" if advice.case.schema is None else "State where your files are in it, as source. "
        )
        first = first or "Name your data in it. "
        say(f"\nWrote {args.out}. {first}Then run: {_run(args.out)}")
    if not args.explain:
        ways = ["--explain prints the settings and the reasons"]
        if args.out is None:
            ways.append("--out study.toml writes them to a file that runs")
        if args.rehearsal is None:
            ways.append("--rehearsal measures")
        say(f"\n{'; '.join(ways)}.")


def _answer(advice: Advice) -> tuple[str, str, str]:
    """Join or not, the gain with its spread, and the price; a line each."""
    return _verdict(advice), _gain(advice), _cost(advice)


def _explain(advice: Advice, console: Console) -> None:
    """The settings, and what the answer rests on."""

    def say(text: str) -> None:
        console.print(text, soft_wrap=not console.is_terminal)

    facts, expected = advice.facts, advice.expected
    say("\nSettings (a linear proxy on public features, full batches):")
    tree = planning.study_tree(facts, advice.settings, schema=advice.case.schema)
    for key, value in _settings.flat(tree).items():
        shown = float(f"{value:g}") if isinstance(value, float) else value
        console.print(f"  {key}={shown}", soft_wrap=True)
    if expected is None:
        say(f"\n{_least(advice)}")
        return
    say(
        f"\nA model of your own is taken to have an AUROC of {expected.alone:.3f}"
        f"{' (--alone)' if facts.alone else ''}, and the best one {facts.score:g} (--score). "
        f"Joining counts like {expected.counts_as:,.0f} examples; you have {facts.examples:,}, all "
        f"together {advice.case.total or facts.clients * facts.examples:,}."
    )
    for name, site in (("smallest", advice.smallest), ("largest", advice.largest)):
        if site is not None:
            examples, own = site
            say(
                f"The {name} site ({examples:,} examples): {own.alone:.3f} alone, "
                f"{own.gain:+.1f} points expected."
            )
    say(_least(advice))
    columns = advise_columns(facts)
    if columns is not None:
        say(columns)
    if facts.prevalence is None:
        say(
            "Classes are taken to be equally frequent. If cases are rarer, less can be learnt: "
            "give --prevalence, or state prevalence in the schema."
        )
    say(
        "A rule of thumb. It does not know how much the sites differ; a rehearsal on public data "
        "(--rehearsal SOURCE) knows more."
    )


def _verdict(advice: Advice) -> str:
    """Join or not, in one line."""
    facts, expected, measured = advice.facts, advice.expected, advice.measured
    if measured is not None:
        if advice.join:
            return "Join: the rehearsal gained."
        if measured["gain"] <= -WORTH:
            return "Do not join: the rehearsal lost."
        return "Do not join: the rehearsal gained less than a point."
    if expected is None:
        return f"Not judged: the rule of thumb knows classes, not the task {advice.case.task}."
    if expected.join:
        return "Join."
    if expected.most < WORTH:
        return "Do not join: your own model is as good as the best can be expected to be."
    if expected.share < CANNOT:
        return (
            f"Do not join: {facts.clients} sites of this size cannot do this at epsilon "
            f"{facts.epsilon:g}."
        )
    if expected.gain < WORTH:
        return "Do not join: the expected gain is less than a point."
    return "Do not join: too many runs would gain little or nothing."


def _gain(advice: Advice) -> str:
    """The gain with its spread, in one line."""
    expected, measured = advice.expected, advice.measured
    if measured is not None:
        return (
            f"Measured gain: {measured['gain']:+.1f} points of {measured['words']} "
            f"({measured['low']:+.1f} to {measured['high']:+.1f}), from {measured['alone']:.3f} "
            f"alone to {measured['joined']:.3f}."
        )
    if expected is None:
        return "Gain: --rehearsal measures it on records that are drawn from the schema."
    return (
        f"Expected gain: {expected.gain:.1f} points of AUROC (pooling: {expected.most:.1f}); one "
        f"run in six ends below {expected.low:+.1f}."
    )


def _weight(advice: Advice) -> float | None:
    """What the smallest site's steps should count for under gossip; None where it is as good as
    all, or not asked for."""
    if advice.smallest is None or advice.facts.colluders is not None:
        return None
    smallest = advice.smallest[0]
    if smallest >= advice.least:
        return None
    facts = advice.facts
    weight = site_weight(smallest, facts.width, gaussian_dp(facts.epsilon, facts.delta))
    return float(f"{weight:.2g}")


def _least(advice: Advice) -> str:
    """The size below which a site adds more noise than signal, and what to do about it."""
    text = (
        f"A site with fewer than {advice.least:,} examples adds more noise to the proxy than signal"
    )
    if advice.facts.colluders is not None:
        return f"{text}; it may join, since all members share the noise."
    weight = _weight(advice)
    if weight is None:
        return f"{text}."
    return f"{text}. The smallest site should count for less: learning.weight = {weight:g}."


def _cost(advice: Advice) -> str:
    """The price, in one line."""
    facts, settings = advice.facts, advice.settings
    if advice.all_collude is None:
        against = "against all other members"
    else:
        against = (
            f"against up to {facts.colluders} colluding members, {advice.all_collude:.2g} against "
            "all others"
        )
    return (
        f"Cost: epsilon {facts.epsilon:g} (delta {facts.delta:.2g}) {against}, once; "
        f"{settings.rounds + settings.settle} rounds."
    )


def _enough(needed: Needed, facts: Facts) -> str:
    """A sentence on what would change the verdict."""
    ways = []
    if needed.sites is not None:
        ways.append(f"{needed.sites} sites of this size")
    if needed.epsilon is not None:
        ways.append(f"epsilon {needed.epsilon:g}")
    if needed.parameters is not None:
        ways.append(f"a proxy of {needed.parameters:,} parameters (fewer columns)")
    if not ways:
        return "More sites, a larger epsilon or fewer columns would not change that."
    if facts.colluders is None and facts.clients > 2:
        ways.append("perhaps a masked sum (--colluders)")
    return f"It would take {', or '.join(ways)}."


def _run(out: Path) -> str:
    return command("run", out)


def _study_text(advice: Advice, out: Path) -> str:
    """The settings as a file for ``proxyfl run``, with the advice as its head."""
    head = "".join(f"# {line}\n" for line in ["The advice for these settings:", *_answer(advice)])
    case = advice.case
    tree = planning.study_tree(advice.facts, advice.settings, schema=case.schema)
    if case.schema_path is None:
        return head + _settings.tree_to_toml(tree)
    schema = os.path.relpath(case.schema_path, out.parent)
    text = _settings.tree_to_toml(tree | {"data": {"schema": schema}})
    source = '# source = ["north.csv", "south.csv"]    # your files, one for each site\n'
    return head + text.replace("[data]\n", f"[data]\n{source}", 1)


def _rehearse(source: str, advice: Advice) -> Document:
    """The gain on records that are drawn from the schema, or on a public dataset."""
    from proxyfl.simulation import run

    method = "proxyfl" if advice.facts.colluders is None else "proxysum"
    if source != DRAWN:
        return _measured(source, method, [run.run(_config(source, advice.facts))])
    results = []
    for seed in range(DRAWS):
        with tempfile.TemporaryDirectory(prefix="proxyfl-worth-") as folder:
            results.append(run.run(_drawn(advice, Path(folder), seed)))
    return _measured("records drawn from the schema", method, results)


def _measured(source: str, method: str, results: Sequence["Run"]) -> Document:
    """Means over all sites of all runs, and the gain of the best and the worst run or site."""
    from proxyfl.measures import MEASURES

    alone, joined, gains, by_run = [], [], [], []
    for result in results:
        of_run = []
        for client in result.clients:
            alone.append(result.kept("alone", client) or 0.0)
            joined.append(result.kept(method, client) or 0.0)
            of_run.append(100 * (result.gain(method, client) or 0.0))
        gains += of_run
        by_run.append(mean(of_run))
    spread = by_run if len(results) > 1 else gains
    spent = results[0].epsilon(method)
    measure = results[0].measure
    return {
        "source": source,
        "measure": measure,
        "words": MEASURES[measure].title,
        "alone": mean(alone),
        "joined": mean(joined),
        "gain": mean(gains),
        "low": min(spread),
        "high": max(spread),
        "runs": len(results),
        "worse": sum(gain < -1 for gain in gains),
        "epsilon": None if spent is None else spent.pld,
    }


def _drawn(advice: Advice, folder: Path, seed: int) -> "Config":
    """A run of ``alone`` and the method on tables that are drawn from the schema."""
    from proxyfl.data.sources.drawn import draw_tables
    from proxyfl.simulation.config import from_tree

    case = advice.case
    assert case.schema is not None
    tables = draw_tables(
        case.schema, folder, case.sizes, tests=TESTS, signal=case.facts.score, seed=seed
    )
    path = folder / "schema.toml"
    path.write_text(schemas.to_toml(case.schema), encoding="utf-8")
    tree = _rehearsal_tree(advice.facts, advice.settings, case.schema)
    if case.task == CLASSIFICATION:
        tree["measure"] = "auroc"  # in which the rule speaks, too
    tree["data"] = {
        "source": [str(file) for file in tables.train],
        "test": [str(file) for file in tables.test],
        "schema": str(path),
    }
    return from_tree(tree | {"seed": seed})


def _config(source: str, facts: Facts) -> "Config":
    """A run of ``alone`` and the method on ``source``, with the settings for its own proxy."""
    from proxyfl import models
    from proxyfl.data import sources
    from proxyfl.simulation.config import from_tree

    dataset = sources.load(source)
    if dataset.classes != facts.classes:
        raise ConfigError(
            f"The rehearsal {source!r} has {dataset.classes} classes, expected "
            f"{facts.classes}. Give its number with --classes."
        )
    proxy = models.build("linear", shape=dataset.shape, classes=dataset.classes, seed=0)
    own = replace(facts, parameters=models.parameter_count(proxy))
    tree = _rehearsal_tree(facts, settings_for(own))
    tree["data"] = {"source": source}
    tree["partition"] = {"kind": "iid", "clients": facts.clients, "examples": facts.examples}
    return from_tree(tree)


def _rehearsal_tree(facts: Facts, settings: Settings, schema: Schema | None = None) -> Document:
    """The study without pooling, and with an own model that is fitted quickly."""
    tree = planning.study_tree(facts, settings, schema=schema)
    tree["methods"] = tree["methods"][:2]
    tree["models"]["private"] = "logistic"
    return tree
