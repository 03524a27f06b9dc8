"""``proxyfl federation new``: the first version of a manifest, from cards and what all agree on."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from proxyfl.node.members.card import Card
    from proxyfl.node.members.manifest import Input


def add_arguments(new: argparse.ArgumentParser) -> None:
    """The words of ``proxyfl federation new``."""
    new.add_argument("folder", type=Path, metavar="DIR")
    new.add_argument("cards", type=Path, nargs="+", metavar="CARD")
    new.add_argument("--name", help="the federation's name (default: the folder's)")
    new.add_argument(
        "--schema",
        type=Path,
        help="the public schema of a table; see proxyfl schema",
    )
    new.add_argument(
        "--shape", help="of one example, without a schema: 13, or 1,28,28"
    )
    new.add_argument(
        "--classes", help="in order, separated by commas, without a schema"
    )
    new.add_argument(
        "--proxy", default="linear", help="an architecture of `proxyfl models`"
    )
    new.add_argument(
        "--seed", type=int, default=0, help="of the proxy's initial parameters"
    )
    new.add_argument(
        "--rounds",
        type=int,
        help="how many (default: 60, or as many as --until lets)",
    )
    new.add_argument(
        "--until",
        default="",
        metavar="DATE",
        help="no round begins after this, such as 2027-03-31 (UTC)",
    )
    new.add_argument(
        "--settle",
        default="0",
        metavar="N",
        help="last rounds in which proxies only mix, or auto",
    )
    new.add_argument(
        "--average",
        type=float,
        default=0.0,
        metavar="SHARE",
        help="of the training rounds whose proxies are averaged before they settle",
    )
    new.add_argument(
        "--balance",
        default="none",
        help="for uneven classes, in the proxy's loss: weights or prior",
    )
    new.add_argument(
        "--prevalence",
        default="",
        help="publicly known shares of the classes, if no schema states them: 0.9,0.1",
    )
    new.add_argument(
        "--measure", default="accuracy", help="in which gain is reported"
    )
    new.add_argument("--topology", default="exponential")
    new.add_argument("--self-weight", type=float, default=0.5)


def read_card(path: Path) -> "Card":
    """The card in a file."""
    from proxyfl import _settings
    from proxyfl.node.members.card import Card

    return _settings.build(Card, _settings.read_toml(path, "card"), source=path)


def found(args: argparse.Namespace) -> None:
    """Write the first version of a manifest."""
    from proxyfl.data.tables import schema as schemas
    from proxyfl.errors import ConfigError
    from proxyfl.node.members import manifest

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
    from proxyfl.errors import ConfigError
    from proxyfl.federation.averaging import rounds_to_settle

    if text == "auto":
        return rounds_to_settle(members, rounds)
    if not text.isdecimal():
        raise ConfigError(f"Expected --settle N or auto, got {text!r}.")
    return int(text)


def _numbers(option: str, text: str) -> tuple[float, ...]:
    from proxyfl.errors import ConfigError

    try:
        return tuple(float(part) for part in text.split(",") if part)
    except ValueError:
        raise ConfigError(
            f"Expected {option} such as 0.9,0.1, got {text!r}."
        ) from None


def _input(args: argparse.Namespace) -> "Input":
    from proxyfl.errors import ConfigError
    from proxyfl.node.members.manifest import Input

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
    return Input(shape, tuple(args.classes.split(",")))
