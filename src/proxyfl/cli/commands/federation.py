"""``proxyfl federation``: found one, change it, look at it, try it out.

Actions that train import what trains, which takes seconds.
"""

import contextlib
import dataclasses
import math
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from proxyfl._command import command
from proxyfl._files import write_text
from proxyfl.cli.options import JSON, Action, flag, option, print_json, repeatable
from proxyfl.data.tables import schema as schemas
from proxyfl.errors import ConfigError, ProxyFLError
from proxyfl.measures import DEFAULTS
from proxyfl.node.members import identity as cards
from proxyfl.node.members import manifest
from proxyfl.node.members.identity import Card, spoken
from proxyfl.node.members.trust import code_names, describe_code
from proxyfl.node.members.versions import RELEASE
from proxyfl.privacy.guarantee import largest, shown
from proxyfl.settings import rounds_to_settle

if TYPE_CHECKING:
    from proxyfl.node.trial import Layout, Outcome, Progress

DESCRIPTION = """\
Make and change the manifest that the members of a federation sign.
"""

EPILOG = """\
examples:
  proxyfl federation try --sites 4                 the whole of it on this machine, in two minutes
  proxyfl federation new heart --schema schema.toml --rounds 60 *.card.toml   tables
  proxyfl federation new scans --classes well,sick --shape 1,28,28 --rounds 60 *.card.toml
  proxyfl federation add heart east.card.toml --from-round 10
  proxyfl federation remove heart west             how a site is revoked
  proxyfl federation replace-card heart north.card.toml      a member's new key or address
  proxyfl federation show heart

The manifest holds no secrets. Each member signs it with `proxyfl node accept SITE MANIFEST`.
"""


FOLDER = option("folder DIR", "the folder of the manifest", Path)

_DELTA = 1e-5
"""The delta for which ``new`` names a least size; each site has its own."""

KIND = repeatable(
    "--kind NAME=KIND", "the kind of a site, where each kind of sites is to have its own proxy"
)

TERMS = (
    FOLDER,
    option("cards CARD", "the sites' cards", Path, nargs="+"),
    option("--name", "the federation's name (default: the folder's)"),
    option("--schema", "the public schema of a table; see `proxyfl schema --help`", Path),
    option("--shape", "of one example, without a schema: 13, or 1,28,28"),
    option("--classes", "in order, separated by commas, without a schema"),
    option("--proxy", "an architecture of `proxyfl models`", str, "linear"),
    option("--seed", "of the proxy's initial parameters", int, 0),
    option("--rounds", "how many, at most; must be stated, as each costs privacy", int),
    option("--until DATE", "nor does a round begin after this, such as 2027-03-31 (UTC)", str, ""),
    option("--settle N", "last rounds in which proxies only mix, or auto", str, "0"),
    option(
        "--average SHARE",
        "of the training rounds whose proxies are averaged before they settle",
        float,
        0.0,
    ),
    option("--balance", "for uneven classes, in the proxy's loss: weights or prior", str, "none"),
    option(
        "--prevalence",
        "publicly known shares of the classes, if no schema states them: 0.9,0.1",
        str,
        "",
    ),
    option("--measure", "in which gain is reported (default: accuracy, or as the task has it)"),
    option("--topology", "a graph (`proxyfl topology --help`)", str, "exponential"),
    option("--self-weight", "share that a site keeps", float, 0.5),
    KIND,
    option(
        "--exchange",
        "how the proxy is trained: gossip, or masked (one proxy, every step a masked sum)",
        str,
        "gossip",
        choices=("gossip", "masked"),
    ),
    option("--colluders T", "of masked sums: members that may collude (default: half)", int),
    option("--quorum K_MIN", "of masked sums: the fewest members of a sum (default: all)", int),
    option("--steps", "of masked sums: steps of a round", int, 1),
    option("--noise", "of masked sums: the noise multiplier of a sum", float, 4.0),
    option("--clip-norm", "of masked sums: largest norm of one gradient", float, 1.0),
    option("--optimizer", "of masked sums: adam or sgd", str, "adam"),
    option("--learning-rate", "of masked sums", float, 0.1),
)

LOWER = (
    option("--colluders T", "of masked sums: members that may collude (default: as before)", int),
    option("--quorum K_MIN", "of masked sums: the fewest members (default: as before)", int),
)


def read_card(path: Path) -> Card:
    """The card in a file. What a newer release says on it beyond ours is left out, and named."""
    card, later = cards.read_card(path)
    if later:
        ignored = ", ".join(later)
        note = f"note: {path}: ignores {ignored}, which release {RELEASE} does not know"
        print(note, file=sys.stderr)
    return card


def write_first(args: Namespace) -> None:
    """Write the first version of a manifest."""
    if (args.folder / manifest.FILE).exists():
        raise ConfigError(
            f"{args.folder / manifest.FILE} exists already. To add sites to it, run: "
            f"{command('federation', 'add', args.folder, *args.cards)}"
        )
    schema = None
    if args.schema is not None:
        schema = schemas.read(args.schema)
    form = _input(args) if schema is None else manifest.input_of(schema)
    rounds = args.rounds
    if rounds is None:
        raise ConfigError(
            "State how many rounds there are at most, such as --rounds 60: every round costs "
            "each site privacy, and all members sign the number. --until can end it earlier. "
            "What fits a site's budget: proxyfl plan --help"
        )
    members = tuple(read_card(path) for path in args.cards)
    agreed = manifest.Manifest(
        args.name or args.folder.name,
        rounds=rounds,
        settle=_settle(args.settle, len(args.cards), rounds),
        average=args.average,
        ends=args.until,
        measure=args.measure or _measure(form),
        input=form,
        schema=schema,
        release=RELEASE,
        proxy=manifest.Proxy(
            args.proxy, args.seed, args.balance, _numbers("--prevalence", args.prevalence)
        ),
        graph=manifest.Graph(
            args.topology,
            args.self_weight,
            kinds=_kinds(args.kind, members),
            masked=_masked_terms(args, len(args.cards)),
        ),
        members=members,
    )
    manifest.write(args.folder, agreed)


def _masked_terms(args: Namespace, members: int) -> manifest.Masked | None:
    """The terms of masked sums; None where sites gossip."""
    if args.exchange == "gossip":
        if args.colluders is not None or args.quorum is not None:
            raise ConfigError("--colluders and --quorum are terms of --exchange masked. Add it.")
        return None
    quorum = members if args.quorum is None else args.quorum
    return manifest.Masked(
        max(1, quorum // 2) if args.colluders is None else args.colluders,
        quorum,
        steps=args.steps,
        noise_multiplier=args.noise,
        clip_norm=args.clip_norm,
        optimizer=args.optimizer,
        learning_rate=args.learning_rate,
    )


def _kinds(stated: Sequence[str] | None, members: Sequence[Card]) -> tuple[str, ...]:
    """The kind of each member, by --kind NAME=KIND; empty if none is stated."""
    if not stated:
        return ()
    known = {card.name for card in members}
    kinds = {}
    for text in stated:
        name, equals, kind = text.partition("=")
        if not equals or name not in known:
            raise ConfigError(
                f"Expected --kind NAME=KIND with the name of a site, got {text!r:.80}. Known: "
                f"{', '.join(sorted(known))}."
            )
        kinds[name] = kind
    missing = sorted(known - kinds.keys())
    if missing:
        raise ConfigError(f"Give the kind of {', '.join(missing)} as well: --kind NAME=KIND.")
    return tuple(kinds[card.name] for card in members)


def _settle(text: str, members: int, rounds: int) -> int:
    if text == "auto":
        return rounds_to_settle(members, rounds)
    if not text.isdecimal():
        raise ConfigError(f"Expected --settle N or auto, got {text!r}.")
    return int(text)


def _numbers(option: str, text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(",") if part)
    except ValueError:
        raise ConfigError(f"Expected {option} such as 0.9,0.1, got {text!r}.") from None


def _measure(form: manifest.Input) -> str:
    """The measure of a federation that names none."""
    task = form.task
    return "accuracy" if task.is_classification else DEFAULTS[task.kind]


def _outputs(agreed: manifest.Manifest) -> str:
    task = agreed.task
    return f"{task.outputs} classes" if task.is_classification else f"the task {task.kind}"


def _describe_outcome(schema: schemas.Schema) -> str:
    """The outcome in words: the label's column, or the whole task."""
    if schema.label.outcome.is_classification:
        return repr(schema.label.column)
    return f"{', '.join(schema.label.columns)} ({schema.label.outcome.described()})"


def _input(args: Namespace) -> manifest.Input:
    if args.shape is None or args.classes is None:
        raise ConfigError(
            "Say what an example looks like: --schema FILE for tables, else --shape and --classes."
        )
    try:
        shape = tuple(int(part) for part in args.shape.split(","))
    except ValueError:
        raise ConfigError(f"Expected --shape such as 1,28,28, got {args.shape!r}.") from None
    return manifest.Input(shape, tuple(args.classes.split(",")))


_PLAIN_ALONE = (
    "alone is plain: three fifths of a site's digits are of one class, and nobody is corrected for "
    "that. Part of the gain is the skew's (docs/research/joining.md)."
)


def new(args: Namespace) -> int:
    """Make the first version of a manifest."""
    write_first(args)
    code = show(args)
    text = _least_size(manifest.read(args.folder))
    if text and not args.json:
        Console(highlight=False, markup=False).print(text, soft_wrap=True)
    return code


def _least_size(agreed: manifest.Manifest) -> str:
    """From how many examples on a site adds more signal than noise; empty for a proxy that the rule
    does not know."""
    from proxyfl.privacy.accounting import Segment, epsilon_of
    from proxyfl.privacy.worth import gaussian_dp, least_size

    if agreed.proxy.architecture != "linear" or not agreed.task.is_classification:
        return ""
    width = 1 + math.prod(agreed.input.shape)
    if agreed.masked is None:
        least, at, coalition = least_size(width, gaussian_dp(1.0, _DELTA)), "epsilon 1", None
    else:
        coalition = agreed.masked.coalition
        steps = agreed.training_rounds * agreed.masked.steps
        segment = Segment(1.0, agreed.masked.noise_multiplier, steps, coalition)
        spent = epsilon_of([segment], _DELTA, "pld")
        least = least_size(width, gaussian_dp(spent, _DELTA), coalition.honest)
        at = f"epsilon {shown(spent, 2)}, the most that this noise costs"
    text = (
        f"At {at} (delta {_DELTA:g}) a site with fewer than about {least:,} examples adds more "
        "noise to the proxy than signal."
    )
    if coalition is None:
        text += " Preflight says for what a smaller one should count (learning.weight)."
    return text


def add(args: Namespace) -> int:
    """Add sites to the manifest."""
    cards = [read_card(path) for path in args.cards]
    old = manifest.read(args.folder)
    kinds = _kinds(args.kind, cards)
    next_one = manifest.successor(old, add=cards, joins=args.from_round, kinds=kinds)
    manifest.write(args.folder, next_one)
    return show(args)


def remove(args: Namespace) -> int:
    """Remove sites from the manifest."""
    old = manifest.read(args.folder)
    terms = {"colluders": args.colluders, "quorum": args.quorum}
    manifest.write(args.folder, manifest.successor(old, remove=args.names, **terms))
    return show(args)


def replace_card(args: Namespace) -> int:
    """Replace members' cards by new ones of theirs."""
    cards = [read_card(path) for path in args.cards]
    old = manifest.read(args.folder)
    manifest.write(args.folder, manifest.successor(old, replace=cards))
    return show(args)


def show(args: Namespace) -> int:
    """Print what a manifest says."""
    agreed = manifest.read(args.folder)
    if args.json:
        code = code_names(agreed)
        print_json({**dataclasses.asdict(agreed), "hash": agreed.digest, "code": code})
        return 0
    console = Console(highlight=False, markup=False)

    def say(text: str, style: str | None = None) -> None:
        console.print(_printable(text), style=style, soft_wrap=True)

    length = f"{agreed.rounds} rounds"
    if agreed.ends:
        length = f"at most {length} until {agreed.ends}"
    say(
        f"{agreed.name}, version {agreed.version}: {len(agreed.members)} members, "
        f"{length}, proxy {agreed.proxy.architecture} for {list(agreed.input.shape)} and "
        f"{_outputs(agreed)}, "
        f"{'masked sums' if agreed.masked else agreed.graph.topology + ' graph'}"
    )
    if agreed.masked is not None:
        masked = agreed.masked
        say(
            f"one proxy: {masked.steps} steps a round, each a masked sum over at least "
            f"{masked.quorum} members, noise multiplier {masked.noise_multiplier:g}, "
            f"{masked.optimizer} with learning rate {masked.learning_rate:g} at every site. "
            f"{masked.coalition.sentence}"
        )
    if code_names(agreed):
        say(describe_code(agreed), "bold")
    if agreed.schema is not None:
        say(
            f"schema {agreed.schema.name}, {agreed.schema.fingerprint}: predicts "
            f"{_describe_outcome(agreed.schema)} from {', '.join(agreed.schema.features)}"
        )
    if agreed.settle:
        averaged = ""
        if agreed.average:
            averaged = f", after each site averages the last {agreed.average:.0%}"
        say(
            f"in the last {agreed.settle} rounds sites only average proxies, without "
            f"training{averaged}"
        )
    if agreed.proxy.balance != "none":
        say(
            f"uneven classes in the proxy's loss: {agreed.proxy.balance}, by the public shares "
            f"{list(agreed.prevalence)}"
        )
    say(f"gain is reported in {agreed.measure}")
    if agreed.graph.kinds:
        kinds = [f"{kind} ({', '.join(names)})" for kind, names in agreed.kinds()]
        say(f"one proxy for each kind of members, who exchange within it: {'; '.join(kinds)}")
    table = Table("member", "address", "from round", "fingerprint of its key")
    for card in agreed.members:
        address = card.address or "dials out only"
        table.add_row(card.name, address, str(card.joins), spoken(card.fingerprint))
    console.print(table)
    for note in manifest.notes(agreed):
        say(f"note: {note}")
    say(f"hash {agreed.digest}")
    file = args.folder / manifest.FILE if args.folder.is_dir() else args.folder
    say(
        "Each member compares fingerprints and hash, and then signs for its site. Run: "
        f"{command('node', 'accept', 'SITE', file)}"
    )
    return 0


def try_out(args: Namespace) -> int:
    """Run a whole federation on this machine, with a page that shows it."""
    started = time.monotonic()
    folder = args.out or Path(tempfile.mkdtemp(prefix="proxyfl-try-"))
    watched = _Watched(started, Console(highlight=False, stderr=args.json), args.rounds)
    with contextlib.ExitStack() as stack:
        server = None
        if not args.no_page:
            from proxyfl.report.trial import TrialServer

            server = stack.enter_context(TrialServer(watched.body))
            watched.say(f"Watch it here: {server.url}")
        watched.say("Loading PyTorch")
        from proxyfl.node import trial

        watched.say(f"Making {args.sites} sites in {folder}")
        layout = trial.lay_out(
            folder,
            sites=args.sites,
            rounds=args.rounds,
            template=trial.quick_site(),
            say=watched.report,
        )
        watched.say(f"{args.sites} processes are starting, with mutual TLS 1.3 on loopback")
        watched.layout = layout
        try:
            codes = trial.run(layout, watch=watched.look)
            failed = [place.name for place, code in zip(layout.sites, codes, strict=True) if code]
            if failed:
                raise ProxyFLError(
                    f"{', '.join(failed)} failed. See node.log in the folder: {folder}"
                )
            watched.next_commands = _next_commands(layout.sites[0])
            watched.phase = f"One run on public data. {_PLAIN_ALONE}"
        except ProxyFLError as error:
            watched.phase = str(error)
            raise
        finally:
            watched.ended = True
            if server is not None:
                server.end()
    if not args.no_page:
        from proxyfl.report.trial import page

        write_text(folder / "try.html", page(watched.body(), live=False))
    _tell(trial.outcomes(layout), layout.manifest.measure, watched.console, as_json=args.json)
    if not args.json:
        watched.console.print(_PLAIN_ALONE)
        watched.console.print(f"{time.monotonic() - started:.0f} s in all")
    watched.say(f"The sites' folders stay in {folder}. Next:")
    for line in watched.next_commands:
        watched.say(f"  {line}")
    return 0


def _next_commands(place: Path) -> list[str]:
    """What can be done with a site that has ended."""
    return [
        command("report", place),
        command("node", "status", place),
        command("node", "export", place, f"{place}-model"),
    ]


class _Watched:
    """A trial as its page and the terminal show it; never silent for long."""

    def __init__(self, started: float, console: Console, rounds: int) -> None:
        self.started = started
        self.console = console
        self.rounds = rounds
        self.layout: Layout | None = None
        self.phase = "Its sites are made: data, keys, certificates, a manifest that all sign."
        self.next_commands: list[str] = []
        self.ended = False
        self._told = (started, "")

    def say(self, line: str) -> None:
        """Print a line."""
        self._told = (time.monotonic(), line)
        self.console.print(line, soft_wrap=True, markup=False)

    def report(self, phase: str) -> None:
        """Show a step on the page, and print it unless a line was just printed."""
        self.phase = phase
        if time.monotonic() - self._told[0] >= _NEWS_SECONDS:
            self.say(f"{time.monotonic() - self.started:4.0f} s  {phase}")

    def look(self) -> None:
        """Print a line on how far the sites are: news at most each 2 s, anything each 5 s."""
        now = time.monotonic()
        if now - self._told[0] < _NEWS_SECONDS:
            return
        self.phase = self._describe()
        if self.phase != self._told[1] or now - self._told[0] >= _SILENT_SECONDS:
            self.say(f"{now - self.started:4.0f} s  {self.phase}")
            self._told = (now, self.phase)

    def body(self) -> str:
        """The body of the page now."""
        from proxyfl.report import trial as pages

        sites: Sequence[Progress] = ()
        measure = "accuracy"
        if self.layout is not None:
            from proxyfl.node import trial

            sites = trial.progress(self.layout)
            measure = self.layout.manifest.measure
        return pages.body(
            sites,
            rounds=self.rounds,
            measure=measure,
            phase=self.phase,
            ended=self.ended,
            next_commands=self.next_commands,
        )

    def _describe(self) -> str:
        from proxyfl.node import trial

        assert self.layout is not None
        sites = trial.progress(self.layout)
        done = min(site.rounds for site in sites)
        judged = sum(site.outcome is not None for site in sites)
        if not any(site.rounds for site in sites):
            places = self.layout.sites
            begun = sum((place / "node.log").stat().st_size > 0 for place in places)
            return (
                f"The sites start: {begun} of {len(places)} have loaded their data and look for "
                "their peers."
            )
        if done == self.rounds:
            have = f"{judged} of {len(sites)} have"
            return f"All rounds are done. Each trains alone, to compare: {have}."
        scores = [f"{site.name} {site.scores[-1]:.3f}" for site in sites if site.scores]
        spent = max(site.spent[-1] for site in sites if site.spent)
        more = f" and {len(scores) - 4} more" if len(scores) > 4 else ""
        return (
            f"Round {done} of {self.rounds}: {', '.join(scores[:4])}{more}; epsilon {shown(spent)}"
        )


_NEWS_SECONDS = 2.0
_SILENT_SECONDS = 5.0


def _tell(outcomes: "list[Outcome]", measure: str, console: Console, *, as_json: bool) -> None:
    """Print the gains, as a table or as JSON."""
    if as_json:
        print_json([_plain(outcome, measure) for outcome in outcomes])
        return
    table = Table("site", "private model", "examples", "alone", "joined", "gain", "epsilon")
    for outcome in outcomes:
        gain = outcome.gain(measure)
        table.add_row(
            outcome.name,
            outcome.architecture,
            str(outcome.examples),
            _number(outcome.alone),
            _number(outcome.joined),
            "-" if gain is None else f"{100 * gain:+.1f} points",
            shown(outcome.epsilon.best),
        )
    console.print(table)
    worst = largest(outcome.epsilon for outcome in outcomes)
    console.print(f"Largest cost: {worst}.")


def _plain(outcome: "Outcome", measure: str) -> dict[str, object]:
    return {
        "site": outcome.name,
        "architecture": outcome.architecture,
        "examples": outcome.examples,
        "alone": outcome.alone,
        "joined": outcome.joined,
        "gain": outcome.gain(measure),
        "epsilon": str(outcome.epsilon),
    }


def _printable(text: str) -> str:
    """``text`` without characters that command a terminal: a manifest may be anybody's."""
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


ACTIONS = (
    Action("new", "collect cards into a manifest", (*TERMS, JSON), new),
    Action(
        "add",
        "a new version of the manifest, with a site added",
        (
            FOLDER,
            option("cards CARD", "the sites' cards", Path, nargs="+"),
            option("--from-round", "the site's first round", int, 0),
            KIND,
            JSON,
        ),
        add,
    ),
    Action(
        "remove",
        "a new version of the manifest, without a site",
        (FOLDER, option("names NAME", "the sites' names", nargs="+"), *LOWER, JSON),
        remove,
    ),
    Action(
        "replace-card",
        "a new version of the manifest, with a member's new card: its key or address has changed",
        (FOLDER, option("cards CARD", "the members' new cards", Path, nargs="+"), JSON),
        replace_card,
    ),
    Action("show", "what a manifest says", (FOLDER, JSON), show),
    Action(
        "try",
        "a whole federation on this machine, for a first look",
        (
            option("--sites", "how many", int, 4),
            option("--rounds", "how many", int, 30),
            option("--out DIR", "the sites' folders; a new one of their own unless given", Path),
            flag("--no-page", "for scripts: serve no page that shows the sites"),
            JSON,
        ),
        try_out,
    ),
)
