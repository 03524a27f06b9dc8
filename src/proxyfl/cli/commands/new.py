"""``proxyfl new``: a project from your own files, in which run and report need no options."""

import argparse
import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from proxyfl import _settings
from proxyfl._command import command
from proxyfl._validate import suggestion
from proxyfl.cli import planning
from proxyfl.cli.commands.schema import OUTCOME
from proxyfl.cli.options import OneOf, Option, flag, option, repeatable
from proxyfl.data.tables import schema as schemas
from proxyfl.data.tables.draft import (
    SEEN,
    Answers,
    Spellings,
    check_outcome,
    check_roles,
    draft_text,
    propose_intervals,
    propose_range,
    shares_of,
    written_by_site,
)
from proxyfl.data.tables.schema import Schema
from proxyfl.data.tables.survey import MANY, Survey, propose_classes, survey
from proxyfl.errors import ConfigError, DataError, InputError
from proxyfl.tasks import CLASSIFICATION, REGRESSION, TIME_TO_EVENT

if TYPE_CHECKING:
    from proxyfl.privacy.worth import Facts

DESCRIPTION = """\
Make a project folder from your own files: a schema that is drafted from all of them, a study.toml
with the settings that the planner proposes (proxyfl worth --help), and a README. It asks in the
terminal for what it cannot know: the label, who is a person, how each site writes its classes,
plausible ranges. The label is a class, a number (--value), the time to an event (--event) or
several findings (--finding). With --yes it takes what it proposes. No record is copied; the project
refers to your files.
"""

EPILOG = """\
examples:
  proxyfl new stroke --tables north.csv south.csv east.csv
  proxyfl new stroke --tables north.csv south.csv --label died --person patient --yes
  proxyfl new stroke --tables north.csv south.csv --written died:yes=1,ja --written died:no=0,nein
  proxyfl new survival --tables north.csv south.csv --label days --event died
  proxyfl new sugar --tables north.csv south.csv --label hba1c --value
  proxyfl new chest --tables north.csv south.csv --finding edema --finding effusion
  proxyfl new hospitals --example hospitals
  proxyfl new photos --images pictures                pictures/CLASS/name.png
  proxyfl new biopsies --slides patches               patches cut from whole slides
  proxyfl new mine --python                           your own model and loop
  proxyfl new north --site                            one site of a real federation

Then, in the new folder: proxyfl run, and proxyfl report. That is a simulation on this machine.
"""

EXAMPLES = {"hospitals": "four hospitals with heart patients (UCI heart disease, in the package)"}
"""The examples that need no files."""

_WHAT: tuple[Option, ...] = (
    option("--tables FILE", "one table per site: CSV of any dialect, Parquet", Path, nargs="+"),
    option("--images DIR", "images by class, or an image store", Path),
    option("--slides STORE", "patches of whole slides (see proxyfl slides --help)", Path),
    flag("--python", "a model and a training loop of your own, in Python"),
    flag("--site", "one site of a real federation, in place of a simulated study"),
    option("--example NAME", f"without files: {', '.join(EXAMPLES)}", str),
)

OPTIONS = (
    option("name NAME", "the project's folder, which must be new", Path, nargs="?"),
    OneOf(_WHAT, required=True),
    *OUTCOME,
    option("--person COLUMN", "of tables: the column that names the individual"),
    repeatable(
        "--written COLUMN:NAME=TEXT,TEXT",
        "of tables: how files write a class of the label or a value of a category",
        default=[],
    ),
    repeatable(
        "--prevalence CLASS=SHARE",
        "of tables: a class's share as published, not as counted in these files",
        default=[],
    ),
    option("--epsilon E", "what the study may spend", float, 1.0),
    flag("--yes", "ask nothing: take what is proposed, or say what is missing"),
)

_HEAD = """\
# The public schema of this study, drafted from your files. For the simulation it is complete.
# What is marked "from the records" is a look at the data that no epsilon covers. Before a real
# federation, replace it by what is known beforehand: what a value can be, not what was seen.
"""

Ask = Callable[[str], str]


def execute(args: argparse.Namespace) -> int:
    """Makes the project and says what to do next."""
    if args.name is None:
        # an example has a name of its own; a project of one's own files deserves one
        if args.example is None:
            raise ConfigError("The project needs a name: proxyfl new NAME --tables north.csv ...")
        args.name = Path(args.example)
    _check_name(args.name)
    _check_options(args)
    if args.site:
        return _make_site(args.name)
    expectation = ""
    if args.tables:
        files, expectation = _make_tables(args)
    elif args.example is not None:
        files = _make_example(args.example)
    elif args.python:
        files = _make_python(args.name.name)
    else:
        files = _make_images(args)
    _write(args.name, files)
    print(f"Made {args.name} with {', '.join(files)}.")
    if "from the records" in files.get("schema.toml", "").partition("\n\n")[2]:
        print(
            "Some ranges and lists are from the records (marked in schema.toml): fine for this\n"
            "simulation, to be replaced by what is known beforehand in a real federation."
        )
    if expectation:
        print(textwrap.fill(expectation, 80))
    print(f"Next: cd {args.name} && {_next_command(args)} && proxyfl report")
    return 0


def _next_command(args: argparse.Namespace) -> str:
    return "python loop.py" if args.python else "proxyfl run"


def _check_name(folder: Path) -> None:
    if not folder.name:
        raise ConfigError("Expected the name of a new folder, got none. Run: proxyfl new --help")
    if folder.exists():
        raise ConfigError(f"{folder} exists already. Give another name, or remove it first.")


def _check_options(args: argparse.Namespace) -> None:
    """Refuses options that would do nothing."""
    if args.tables:
        return
    for name in ("label", "event", "finding", "value", "person", "written"):
        if getattr(args, name):
            raise ConfigError(f"--{name} is about tables: give --tables, or leave it out.")


def _write(folder: Path, files: Mapping[str, str]) -> None:
    """Writes the files into a new folder, or nothing."""
    try:
        folder.mkdir(parents=True)
    except OSError as problem:
        raise ConfigError(
            f"Cannot make {folder}: {problem.strerror}. Give a folder that you may write to."
        ) from problem
    try:
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as problem:
        shutil.rmtree(folder, ignore_errors=True)
        raise ConfigError(f"Cannot write {folder}: {problem.strerror}.") from problem


# Tables


def _make_tables(args: argparse.Namespace) -> tuple[dict[str, str], str]:
    """The files of a project, and what to expect of it."""
    paths: list[Path] = args.tables
    if len({path.resolve() for path in paths}) < len(paths):
        raise DataError("A file is named twice in --tables. Name each site's own table once.")
    seen = survey(paths)
    if len(paths) < 2:
        raise DataError(
            f"Expected one table per site, two or more, got {paths[0]}. If one file has all sites "
            "in a column, draft a schema and run it. Run: "
            f"{command('schema', 'draft', paths[0], '--label', args.label or 'LABEL')}"
        )
    ask = _asker(args)
    answers = _roles(args, seen, ask)
    written = _spellings_given(args.written, seen)
    if answers.task == CLASSIFICATION:
        answers = _classes(answers, seen, written, ask)
    else:
        check_outcome(seen, answers)
    answers = _values(answers, seen, written, ask)
    answers = _ranges(answers, seen, ask)
    answers = _intervals(answers, seen, ask)
    if answers.task == CLASSIFICATION:
        answers = _prevalence(args.prevalence, answers, ask)
    elif args.prevalence:
        raise ConfigError("--prevalence is about classes, and the label has none. Leave it out.")
    text = draft_text(args.name.name, seen, answers, from_data=True, head=_HEAD)
    schema = _parse(text)
    individuals = _individuals(args.tables, seen, schema)
    training = [max(1, round(0.8 * count)) for count in individuals.values()]
    facts = _table_facts(args, training, schema)
    tree = _table_study(args, training, facts, schema)
    expectation = f"Worth it? {_expectation(facts, schema)}"
    files = {
        "schema.toml": text,
        "study.toml": _study_text(args.name.name, tree),
        "README.md": _table_readme(args, seen, schema, facts, expectation),
    }
    return files, expectation


def _parse(text: str) -> Schema:
    import tomllib

    return schemas.parse(tomllib.loads(text), "the drafted schema")


def _asker(args: argparse.Namespace) -> Ask | None:
    """The function that asks; None with --yes. InputError where nobody can answer."""
    if args.yes:
        return None
    if not sys.stdin.isatty():
        raise InputError(
            "This command asks questions, and there is no terminal to answer in. Add --yes to take "
            "what it proposes."
        )
    return input


def _roles(args: argparse.Namespace, seen: Survey, ask: Ask | None) -> Answers:
    """The columns of label and person, as given, guessed or asked for."""
    where = ", ".join(map(str, args.tables))
    findings = tuple(args.finding)
    stated = Answers(
        args.label, None, args.person, event=args.event, findings=findings, is_value=args.value
    )
    check_roles(seen, stated, where)
    has_label = args.label is not None or bool(findings)
    label = args.label if has_label else seen.guess_label()
    event = args.event
    is_value = args.value
    person = args.person or seen.guess_person()
    if ask is not None:
        _show_columns(seen)
        if not has_label:
            label = _ask_column(ask, "Which column is to be predicted?", seen, label)
            label, event = _ask_time(ask, seen, label)
        if args.person is None:
            question = "Which column names the person (a dash for none)?"
            person = _ask_column(ask, question, seen, person, optional=True)
    if label is None and not findings:
        raise ConfigError(
            "No column has a name that is typical of an outcome. Name the one to predict with "
            f"--label: {', '.join(seen.columns)}."
        )
    if not is_value and event is None and label is not None and _is_value(seen, label):
        if ask is None:
            raise DataError(
                f"The label {label!r} has more than {MANY} different numbers, too many for "
                "classes. To predict the number itself, add --value. For a time to an event, "
                "name the event's column with --event."
            )
        question = f"{label} is a number. Predict its value? [Y/n] "
        is_value = ask(question).strip().lower() not in ("n", "no")
    answers = Answers(label, None, person, event=event, findings=findings, is_value=is_value)
    check_roles(seen, answers, where)
    for column in answers.roles:
        absent = seen.absent(column)
        if absent:
            role = "person" if column == person else "label"
            raise DataError(
                f"The column {column!r} is the {role}, and {absent[0]} has no such column. Give "
                "the column one name in all files."
            )
    if person is not None:
        _check_persons(seen, person)
    _warn_of_time(answers, seen)
    return answers


def _is_value(seen: Survey, label: str) -> bool:
    """True for a column of more numbers than there can be classes."""
    column = seen.columns[label]
    return column.is_numeric and len(column.texts) > MANY


def _ask_time(ask: Ask, seen: Survey, label: str | None) -> tuple[str | None, str | None]:
    """(label, event), where a column is called like the time until the outcome."""
    time = seen.guess_time()
    if time is None or label is None or time == label:
        return label, None
    question = f"Is {time} the time until {label}, or until the follow-up ended? [y/N] "
    if ask(question).strip().lower() in ("y", "yes"):
        return time, label
    return label, None


def _warn_of_time(answers: Answers, seen: Survey) -> None:
    """Says that a time of follow-up is known only after the outcome."""
    time = seen.guess_time()
    if time is None or answers.task == TIME_TO_EVENT or time in answers.roles:
        return
    outcome = answers.label or "the findings"
    event = answers.label if answers.task == CLASSIFICATION else "EVENT"
    text = (
        f"The column {time!r} is called like a time of follow-up. If it is known only after "
        f"{outcome}, a model that sees it predicts the past: predict the time (--label {time} "
        f'--event {event}), or make it type = "ignored" in schema.toml.'
    )
    print(textwrap.fill(text, 80))


def _intervals(answers: Answers, seen: Survey, ask: Ask | None) -> Answers:
    """The ends of the intervals of a time: usual ones, which can be changed."""
    if answers.task != TIME_TO_EVENT:
        return answers
    assert answers.label is not None
    ends, unit = propose_intervals(seen.columns[answers.label])
    if ask is None:
        return replace(answers, intervals=ends)
    shown = " ".join(f"{end:g}" for end in ends)
    while True:
        text = ask(f"Intervals that end at {shown} {unit}: Enter, or other ends: ").strip()
        try:
            chosen = tuple(float(word) for word in text.replace(",", " ").split()) or ends
        except ValueError:
            chosen = ()
        if chosen and all(low < high for low, high in zip((0.0, *chosen), chosen, strict=False)):
            return replace(answers, intervals=chosen)
        print(f"Expected rising numbers such as {shown}, got {text!r}.")


def _check_persons(seen: Survey, person: str) -> None:
    """Raises DataError for names that occur at two sites: nobody may be at both."""
    first: dict[str, str] = {}
    twice: dict[str, tuple[str, str]] = {}
    for site, column in seen.columns[person].by_file.items():
        for name in sorted(column.texts):
            if first.setdefault(name, site) != site:
                twice.setdefault(name, (first[name], site))
    if not twice:
        return
    name, (one, other) = next(iter(twice.items()))
    raise DataError(
        f"{len(twice)} or more values of {person!r} are at two sites, such as {name} at {one} and "
        f"at {other}, and nobody can be at two sites. If each site numbers its own patients, put "
        f"the site before the number in the files ({other}-{name}). If they are the same people, "
        "decide to whom each belongs and remove the other rows."
    )


def _show_columns(seen: Survey) -> None:
    rows = ", ".join(f"{name} {count}" for name, count in seen.rows.items())
    print(f"Rows: {rows}.\nColumns:")
    for name, column in seen.columns.items():
        about = "numbers" if column.is_numeric else "dates" if column.formats else "texts"
        if column.is_id:
            about += ", unique: an id?"
        absent = seen.absent(name)
        if absent:
            about += f", not in {', '.join(absent)}"
        print(f"  {name:24} {about}")


def _ask_column(
    ask: Ask, question: str, seen: Survey, guess: str | None, *, optional: bool = False
) -> str | None:
    while True:
        answer = ask(f"{question} [{guess or '-'}] ").strip() or guess or "-"
        if answer == "-" and optional:
            return None
        if answer in seen.columns:
            return answer
        print(f"No column {answer!r}.{suggestion(answer, seen.columns)}")


def _spellings_given(texts: Sequence[str], seen: Survey) -> dict[str, dict[str, tuple[str, ...]]]:
    """Column -> name -> spellings, from ``--written COLUMN:NAME=TEXT,TEXT``."""
    given: dict[str, dict[str, tuple[str, ...]]] = {}
    for text in texts:
        column, colon, rest = text.partition(":")
        name, equals, spellings = rest.partition("=")
        if not (colon and equals and name.strip() and spellings.strip()):
            raise ConfigError(
                f"Expected --written COLUMN:NAME=TEXT,TEXT, such as died:yes=1,ja, got {text!r}."
            )
        if column not in seen.columns:
            known = suggestion(column, seen.columns)
            raise ConfigError(f"--written {text}: no column {column!r}.{known}")
        words = tuple(word.strip() for word in spellings.split(",") if word.strip())
        given.setdefault(column, {})[name.strip()] = words
    return given


def _classes(
    answers: Answers, seen: Survey, written: Mapping[str, Spellings], ask: Ask | None
) -> Answers:
    """The classes, and how each site writes them."""
    assert answers.label is not None
    column = seen.columns[answers.label]
    if len(column.texts) > MANY:
        raise DataError(
            f"The label {answers.label!r} has more than {MANY} different values, too many for "
            "classes. Name a column with few values with --label."
        )
    if len(column.texts) < 2:
        only = ", ".join(column.texts) or "no value"
        raise DataError(
            f"The label {answers.label!r} has one value only ({only}) in all files, so there "
            "is nothing to predict. Give another column with --label, or more records."
        )
    proposed = written.get(answers.label) or propose_classes(column)
    classes = _settle(
        answers.label, column.texts, proposed, written_by_site(seen, answers.label), ask
    )
    return replace(answers, classes=classes)


def _prevalence(texts: Sequence[str], answers: Answers, ask: Ask | None) -> Answers:
    """The published share of each class, as given or asked for; none where nobody knows."""
    classes = list(answers.classes)
    if texts or ask is None:
        return replace(answers, prevalence=shares_of(classes, texts))
    print(
        "What share of cases does the literature report? The proxy starts from it, which helps "
        "most with a rare class. Do not take it from these files."
    )
    while True:
        example = f"{classes[-1]}=0.05"
        words = ask(f"CLASS=SHARE, such as {example} (Enter: not known): ").split()
        try:
            return replace(answers, prevalence=shares_of(classes, words))
        except ConfigError as error:
            print(error)


def _values(
    answers: Answers, seen: Survey, written: Mapping[str, Spellings], ask: Ask | None
) -> Answers:
    """The values of categories that sites write differently."""
    values = {}
    for name, column in seen.columns.items():
        if name in answers.roles or column.formats or column.is_id or not column.texts:
            continue
        is_text = not column.is_numeric and len(column.texts) <= MANY
        if name in written:
            proposed: Spellings | None = written[name]
        elif is_text:
            proposed = propose_classes(column)
        else:
            continue
        values[name] = _settle(name, column.texts, proposed, written_by_site(seen, name), ask)
    return replace(answers, values=values)


def _settle(
    name: str, texts: Iterable[str], proposed: Spellings | None, sites: str, ask: Ask | None
) -> dict[str, tuple[str, ...]]:
    """The spellings by name: as proposed, if every text has a place, or as people answer."""
    chosen = dict(proposed or {})
    left = _unplaced_spellings(texts, chosen)
    if ask is not None and proposed is not None and not left and _is_merged(chosen):
        shown = "; ".join(f"{key} = {', '.join(words)}" for key, words in chosen.items())
        print(f"{name} is written as {sites}.")
        if ask(f"Taken together as {shown}. Right? [Y/n] ").strip().lower() in ("n", "no"):
            chosen, left = {}, sorted(texts)
    if not left:
        return chosen
    if ask is None:
        example = f"--written '{name}:NAME={','.join(left)}'"
        raise ConfigError(
            f"The sites write {name!r} differently ({sites}), and it is not clear which of them "
            f"mean the same. State it for each class or value: {example}"
        )
    print(f"{name} is written as {sites}.")
    for text in left:
        answer = ask(f"Which class or value is {text!r}? [{text}] ").strip() or text
        chosen[answer] = (*chosen.get(answer, ()), text)
    return chosen


def _is_merged(spellings: Spellings) -> bool:
    return any(set(words) != {key} for key, words in spellings.items())


def _unplaced_spellings(texts: Iterable[str], chosen: Spellings) -> list[str]:
    placed = {text for words in chosen.values() for text in words} | set(chosen)
    return sorted(set(texts) - placed)


def _ranges(answers: Answers, seen: Survey, ask: Ask | None) -> Answers:
    """The plausible range of each number: all proposed at once, each can be changed."""
    ranges = {}
    looked = []
    for name, column in seen.columns.items():
        is_outcome = name == answers.label and answers.task == REGRESSION
        is_role = name in answers.roles and not is_outcome
        taken = is_role or name in answers.values or bool(column.formats)
        id_like = column.is_id and seen.is_named_id(name)
        if taken or id_like or not column.is_numeric or set(column.texts) <= {"0", "1"}:
            continue
        ranges[name], _, from_records = propose_range(column)
        if from_records:
            looked.append(name)
    if ask is None or not ranges:
        return replace(answers, ranges=ranges)
    print("Plausible ranges:")
    for name, (low, high) in ranges.items():
        print(f"  {name:24} {low:g} to {high:g}{f'    {SEEN}' if name in looked else ''}")
    while text := ask("Enter to accept all, or COLUMN LOW HIGH to change one: ").strip():
        name, low, high = _range_from(text, ranges)
        if name:
            ranges[name] = (low, high)
            print(f"  {name:24} {low:g} to {high:g}")
    return replace(answers, ranges=ranges)


def _range_from(text: str, ranges: Mapping[str, Any]) -> tuple[str, float, float]:
    """(column, low, high) of an answer; an empty name, and a sentence, if it is none."""
    *words, low, high = ["", "", *text.replace(",", " ").split()][-max(3, len(text.split())) :]
    name = " ".join(word for word in words if word)
    try:
        bounds = float(low), float(high)
    except ValueError:
        bounds = (0.0, 0.0)
    if name not in ranges or bounds[0] >= bounds[1]:
        print(f"Expected COLUMN LOW HIGH, such as age 0 110, got {text!r}.")
        return "", 0.0, 0.0
    return name, *bounds


def _table_facts(args: argparse.Namespace, training: Sequence[int], schema: Schema) -> "Facts":
    """The facts by which `proxyfl worth` proposes settings for sites of these sizes."""
    from proxyfl.privacy.worth import Facts

    average = planning.average_of(training)
    return Facts(
        len(training),
        average,
        planning.parameters_of(schema),
        args.epsilon,
        10.0 ** -len(str(10 * average)),
        planning.classes_of(schema),
        prevalence=planning.prevalence_of(schema),
    )


def _table_study(
    args: argparse.Namespace, training: Sequence[int], facts: "Facts", schema: Schema
) -> dict[str, Any]:
    """The settings of the study: those of `proxyfl worth` for these sites."""
    from proxyfl.privacy.worth import settings_for

    settings = settings_for(facts, total=sum(training))
    sources = [os.path.relpath(path, args.name) for path in args.tables]
    tree = planning.study_tree(facts, settings, schema=schema)
    return tree | {"data": {"source": sources, "schema": "schema.toml"}}


def _expectation(facts: "Facts", schema: Schema) -> str:
    """What `proxyfl worth` expects of these sites, in two sentences."""
    from proxyfl.cli.commands.worth import answer

    if schema.label.task != CLASSIFICATION:
        return (
            "The rule of thumb of `proxyfl worth` judges classes only; what joining gains here, "
            "the run shows."
        )
    verdict, gain, _ = answer(facts)
    return f"{verdict} {gain} (`proxyfl worth` knows more.)"


def _individuals(paths: Sequence[Path], seen: Survey, schema: Schema) -> dict[str, int]:
    """The number of persons of each file, or of rows where nobody is named."""
    if schema.person is None:
        return dict(seen.rows)
    from proxyfl.data.tables.reading import read

    counts = {}
    for file, path in zip(seen.rows, paths, strict=True):
        persons: set[str] = set()
        for part in read(path):
            persons.update(part.columns[schema.person])
        counts[file] = len(persons)
    return counts


def _study_text(name: str, tree: Mapping[str, Any]) -> str:
    head = (
        f"# The study {name}, a simulation. Run it in this folder with: proxyfl run\n"
        "# Every setting: docs/reference/settings.md, or proxyfl run --print-config.\n"
    )
    return head + _settings.tree_to_toml(dict(tree))


def _outcome_named(schema: Schema) -> str:
    described = schema.label.outcome.described()
    return f"`{schema.label.column}` ({described})" if schema.label.column else described


def _table_readme(
    args: argparse.Namespace, seen: Survey, schema: Schema, facts: "Facts", expectation: str
) -> str:
    from proxyfl.privacy.worth import advise_columns

    columns = advise_columns(facts)
    advice = ""
    if columns is not None and schema.label.task == CLASSIFICATION:
        advice = "\n" + textwrap.fill(f"- {columns}", 98, subsequent_indent="  ")
    sites = "\n".join(f"| {file} | {rows} |" for file, rows in seen.rows.items())
    unit = "patient" if schema.person is not None else "record"
    return f"""\
# {args.name.name}

A simulated federation of {len(seen.rows)} sites that predicts {_outcome_named(schema)},
at epsilon {args.epsilon:g} per {unit}.
`proxyfl run` is a simulation on this machine and protects nobody.

| site | rows |
|---|---|
{sites}

    proxyfl run        trains alone, joined (proxyfl) and pooled, on several splits
    proxyfl report     writes a page about it

- `schema.toml` says what the columns mean. Lines marked "{SEEN}" were read from the data; before a
  real federation, replace them by what is known beforehand.
- `study.toml` has the settings that the planner proposes (`proxyfl worth --help`).{advice}
{textwrap.fill(expectation, 98, initial_indent="- ", subsequent_indent="  ")}

To check the files against the schema after a change:

    proxyfl schema check {" ".join(os.path.relpath(path, args.name) for path in args.tables)} \\
        --schema schema.toml
"""


# What is not a table


def _make_example(name: str) -> dict[str, str]:
    if name not in EXAMPLES:
        raise ConfigError(f"Unknown example {name!r}.{suggestion(name, EXAMPLES)}")
    tree = {
        "methods": ["alone", "proxyfl", "pooled"],
        "rounds": 43,
        "evaluate_every": 43,
        "checkpoint_every": 43,
        "measure": "auroc",
        "data": {"source": "heart_disease"},
        "partition": {"kind": "site", "clients": 4},
        "models": {"private": "logistic|trees", "proxy": "linear"},
        "learning": {
            "batch_size": 184,
            "steps_per_round": 1,
            "balance": "prior",
            "prevalence": [0.5, 0.5],
        },
        "proxy_optimizer": {
            "name": "sgd",
            "momentum": 0.9,
            "learning_rate": 0.29,
            "weight_decay": 0.0,
        },
        "privacy": {"sampling_rate": 1.0, "delta": 0.000413, "noise_multiplier": 17.83},
        "exchange": {"settle": "auto", "average": 0.5},
    }
    readme = """\
# Four hospitals

A simulated federation of four hospitals (Cleveland, Hungary, Switzerland, Long Beach) that predict
whether a coronary artery is narrowed, at epsilon 1. `proxyfl run` protects nobody.

    proxyfl run
    proxyfl report

Data: Janosi, Steinbrunn, Pfisterer and Detrano (1988), Heart Disease, UCI Machine Learning
Repository, CC BY 4.0, https://doi.org/10.24432/C52P4X. They are part of the package.
"""
    return {"study.toml": _study_text("hospitals", tree), "README.md": readme}


def _make_images(args: argparse.Namespace) -> dict[str, str]:
    from proxyfl.data.stores.reading import is_store

    folder: Path = args.images or args.slides
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder (looked from {Path.cwd()}). Check the name.")
    if args.slides is not None and not is_store(folder):
        raise DataError(
            f"{folder} is not a store of patches. First cut the slides into patches. Run: "
            f"{command('slides', 'extract', 'SLIDES', '--out', 'patches')}"
        )
    from proxyfl.data.sources import load

    dataset = load(str(folder))
    has_sites = dataset.site is not None
    tree: dict[str, Any] = {
        "methods": ["alone", "proxyfl", "pooled"],
        "data": {"source": os.path.relpath(folder, args.name)},
        "partition": {"kind": "site"} if has_sites else {"kind": "iid", "clients": 4},
    }
    readme = f"""\
# {args.name.name}

A simulated federation on {len(dataset.train)} images of {dataset.classes} classes
({", ".join(dataset.class_names[:12])}). `proxyfl run` protects nobody.

    proxyfl run
    proxyfl report

Few images gain by features of public networks or fixed wavelets: `proxyfl embed --help`.
"""
    return {"study.toml": _study_text(args.name.name, tree), "README.md": readme}


_MODEL = '''\
"""The two models of this study. Change them as you like: both map a batch of inputs to logits."""

import torch
from torch import nn


def proxy(shape: tuple[int, ...], classes: int) -> nn.Module:
    """The shared model: small, so that the noise that hides a record does not drown it."""
    return nn.Sequential(nn.Flatten(), nn.Linear(_inputs(shape), classes))


def private(shape: tuple[int, ...], classes: int) -> nn.Module:
    """The model that stays local: as large as you like."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(_inputs(shape), 64), nn.ReLU(), nn.Linear(64, classes)
    )


def _inputs(shape: tuple[int, ...]) -> int:
    return int(torch.tensor(shape).prod())
'''

_LOOP = '''\
"""Runs the study and does something of your own after every round: python loop.py"""

from pathlib import Path

import proxyfl
from proxyfl.simulation import config


class Follow(proxyfl.Callback):
    """Prints the mean accuracy of the private models whenever they are scored."""

    def round_ended(self, name, round, rows):
        """After every round of a method, with a row for each client."""
        scores = [row["private_accuracy"] for row in rows if "private_accuracy" in row]
        if scores:
            print(f"{name} round {round + 1}: {sum(scores) / len(scores):.3f}")


if __name__ == "__main__":
    study = config.load(Path("study.toml"))
    result = proxyfl.run(study, out=Path("runs") / "first", callbacks=[Follow()])
    for client, name in result.clients.items():
        gain = result.gain("proxyfl", client)
        print(f"{name}: gain {100 * gain:+.1f} points, {result.epsilon('proxyfl')}")
'''


def _make_python(name: str) -> dict[str, str]:
    tree = {
        "methods": ["alone", "proxyfl"],
        "rounds": 30,
        "models": {"private": "model:private", "proxy": "model:proxy"},
    }
    readme = f"""\
# {name}

Models of your own (`model.py`) in a simulated federation on handwritten digits, and a program that
follows it (`loop.py`). `data.source` in `study.toml` names your own data: docs/guides/data.md.

    python loop.py      or: proxyfl run
    proxyfl report
"""
    return {
        "model.py": _MODEL,
        "loop.py": _LOOP,
        "study.toml": _study_text(name, tree),
        "README.md": readme,
    }


def _make_site(folder: Path) -> int:
    """A site's folder with its keys, as `proxyfl node init` makes it."""
    from proxyfl.cli.main import parser

    args = parser(only="node").parse_args(["node", "init", str(folder)])
    code: int = args.run(args)
    return code
