"""``proxyfl federation new``: the first version of a manifest, from cards and what all agree on."""

from argparse import Namespace
from pathlib import Path

from proxyfl import _settings
from proxyfl.data.tables import schema as schemas
from proxyfl.errors import ConfigError
from proxyfl.federation.averaging import rounds_to_settle
from proxyfl.node.members import manifest
from proxyfl.node.members.card import Card


def read_card(path: Path) -> Card:
    """The card in a file."""
    return _settings.build(Card, _settings.read_toml(path, "card"), source=path)


def found(args: Namespace) -> None:
    """Write the first version of a manifest."""
    if (args.folder / manifest.FILE).exists():
        raise ConfigError(
            f"{args.folder / manifest.FILE} exists already. `proxyfl federation add` changes it."
        )
    schema = None
    if args.schema is not None:
        schema = schemas.read(args.schema)
    rounds = args.rounds
    if rounds is None:
        rounds = manifest.MOST_ROUNDS if args.until else 60
    agreed = manifest.Manifest(
        args.name or args.folder.name,
        rounds=rounds,
        settle=_settle(args.settle, len(args.cards), rounds),
        average=args.average,
        ends=args.until,
        measure=args.measure,
        input=_input(args) if schema is None else manifest.input_of(schema),
        schema=schema,
        proxy=manifest.Proxy(
            args.proxy,
            args.seed,
            args.balance,
            _numbers("--prevalence", args.prevalence),
        ),
        graph=manifest.Graph(args.topology, args.self_weight),
        members=tuple(read_card(path) for path in args.cards),
    )
    manifest.write(args.folder, agreed)


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
        raise ConfigError(
            f"Expected {option} such as 0.9,0.1, got {text!r}."
        ) from None


def _input(args: Namespace) -> manifest.Input:
    if args.shape is None or args.classes is None:
        raise ConfigError(
            "Say what an example looks like: --schema FILE for tables, else --shape and --classes."
        )
    try:
        shape = tuple(int(part) for part in args.shape.split(","))
    except ValueError:
        raise ConfigError(
            f"Expected --shape such as 1,28,28, got {args.shape!r}."
        ) from None
    return manifest.Input(shape, tuple(args.classes.split(",")))
