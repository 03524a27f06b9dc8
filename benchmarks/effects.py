"""Do 95 % intervals of odds ratios cover 95 %? A study by simulation, for docs/concepts/effects.md.

Each setting is a federation that was made up: sites of unlike sizes, columns of yes/no and of
numbers, true coefficients, and a mechanism from weak to strong noise. For each of many repetitions
labels, batches and noise are drawn, a proxy is released, and ``proxyfl.federation.effects`` gives
intervals without knowing the truth. The estimator's settings were fixed with the ``tuned`` ones;
``drawn-N`` are drawn at random and were looked at once.

    python -m benchmarks.effects --repeat 100 --out effects.jsonl [NAME ...]
    python -m benchmarks.effects --record effects.jsonl [...]
    python -m benchmarks.effects --hospitals FOLDER

The last line runs the product on four columns of the four hospitals in the package, and prints
its odds ratios beside those of statsmodels on the pooled records.

Resumable: repetitions that are in the file are not done again. The mechanism is the vectorised one;
``tests/simulation/test_effects.py`` shows that it is the product's.
"""

import argparse
import json
import math
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from proxyfl.federation.effects import Fit, Mechanism, Member, Simulator, fit, together
from proxyfl.settings import Optimizer, rounds_to_settle

RESULTS = Path(__file__).resolve().parents[1] / "experiments" / "results" / "effects.json"
DRAWS = 600
TRUTH = (0.5, -0.8, 0.3, 1.0, 0.0, 0.0, -0.4, 0.6)


@dataclass(frozen=True)
class Setting:
    """A made-up federation and its mechanism."""

    sizes: tuple[int, ...] = (150, 150, 150, 150)
    columns: int = 5
    """Every second one is a yes/no, the others are numbers."""
    noise_multiplier: float = 5.0
    clip_norm: float = 1.0
    learning_rate: float = 0.7
    optimizer: str = "sgd"
    rounds: int = 40
    rate: float = 1.0
    exchange: str = "pushsum"
    unlike: float = 0.0
    """How far inputs differ between sites, in shifts of their means."""
    own: bool = False
    """Whether the first site's inputs stand for all."""
    intercept: float = -0.5
    truth: tuple[float, ...] = TRUTH
    seed: int = field(default=1, kw_only=True)


NAMED = {
    "tuned-weak": Setting(),
    "tuned-strong": Setting(noise_multiplier=16, learning_rate=0.29),
    "tuned-small": Setting(sizes=(40, 60, 150, 300), noise_multiplier=8, learning_rate=0.4),
    "no noise to speak of, no clipping": Setting(noise_multiplier=0.01, clip_norm=10),
    "no clipping": Setting(noise_multiplier=4, clip_norm=5, learning_rate=0.3),
    "clipping bites": Setting(noise_multiplier=8, clip_norm=0.2, learning_rate=2.0),
    "masked sum": Setting(noise_multiplier=10, exchange="masked"),
    "masked sum, Adam": Setting(
        noise_multiplier=6, exchange="masked", optimizer="adam", learning_rate=0.1
    ),
    "batches of a third": Setting(noise_multiplier=3, rate=0.33, rounds=60),
    "own inputs, alike": Setting(sizes=(150, 100, 200, 250), own=True),
    "own inputs, unlike": Setting(sizes=(150, 100, 200, 250), own=True, unlike=0.3),
    "few steps": Setting(rounds=15, learning_rate=0.3),
    "rare event": Setting(sizes=(300,) * 4, intercept=-3.0, noise_multiplier=4),
    "sixteen small sites": Setting(sizes=(50,) * 16, noise_multiplier=5, learning_rate=0.4),
}


def drawn(number: int) -> Setting:
    """A setting drawn at random, the same at each call."""
    draw = np.random.default_rng(1000 + number)
    sites = int(draw.choice([2, 3, 4, 6, 8, 12]))
    sizes = tuple(int(each) for each in np.exp(draw.uniform(3.9, 6.2, sites)))
    columns = int(draw.integers(2, 9))
    clip_norm = float(np.exp(draw.uniform(math.log(0.3), math.log(4))))
    records = sum(sizes) / math.sqrt(sites)
    strength = float(np.exp(draw.uniform(math.log(0.005), math.log(0.05))))
    masked = bool(draw.integers(0, 2))
    adam = masked and bool(draw.integers(0, 2))
    return Setting(
        sizes=sizes,
        columns=columns,
        noise_multiplier=round(records * strength, 2),
        clip_norm=round(clip_norm, 2),
        learning_rate=0.1 if adam else round(0.6 / clip_norm, 2),
        optimizer="adam" if adam else "sgd",
        rounds=int(draw.integers(30, 80)),
        rate=float(draw.choice([1.0, 1.0, 0.5])),
        exchange="masked" if masked else "pushsum",
        intercept=round(float(draw.uniform(-2, 0.5)), 2),
        truth=tuple(np.round(draw.normal(0, 0.6, columns), 2).tolist()),
        seed=number,
    )


SETTINGS = NAMED | {f"drawn-{number}": drawn(number) for number in range(16)}


def inputs_of(setting: Setting) -> list[Tensor]:
    """The inputs of each site."""
    draw = np.random.default_rng(setting.seed)
    sites = []
    for size in setting.sizes:
        columns = []
        for column in range(setting.columns):
            shift = setting.unlike * draw.normal()
            if column % 2 == 0:
                share = min(max(0.25 + 0.1 * (column % 5) + shift / 2, 0.1), 0.9)
                columns.append(np.where(draw.random(size) < share, 1.0, -1.0))
            else:
                columns.append(np.clip(draw.normal(0.1 + shift, 0.4, size), -1, 1))
        sites.append(torch.tensor(np.stack(columns, 1), dtype=torch.float32))
    return sites


def mechanism_of(setting: Setting, sites: Sequence[Tensor]) -> Mechanism:
    """The mechanism, with ``sites`` as the inputs that are known of each."""
    momentum = 0.9 if setting.optimizer == "sgd" else 0.0
    optimizer = Optimizer(setting.optimizer, setting.learning_rate, 0.0, momentum)
    noise = setting.noise_multiplier * setting.clip_norm
    members = []
    for size, known in zip(setting.sizes, sites, strict=True):
        batch = max(1.0, size * setting.rate)
        one = Member.of(
            known,
            records=size,
            rate=setting.rate,
            batch_size=batch,
            noise=noise,
            optimizer=optimizer,
        )
        members.append(one)
    count = len(members)
    settle = rounds_to_settle(count, setting.rounds)
    mixing = []
    if setting.exchange == "masked":
        # half of all may collude: each adds a share of the noise that the other half must have
        honest = count - count // 2
        members = [together(members, noise=noise * math.sqrt(count / honest))]
    else:
        period = max(count - 1, 1).bit_length()
        for round in range(setting.rounds):
            matrix = torch.eye(count, dtype=torch.float64) / 2
            for site in range(count):
                matrix[(site + 2 ** (round % period)) % count, site] += 0.5
            mixing.append(matrix)
    training = setting.rounds - settle
    return Mechanism(
        members,
        setting.clip_norm,
        setting.rounds,
        settle,
        mixing,
        torch.zeros(2, setting.columns + 1),
        average_from=training - max(1, training // 2),
    )


def effects_of(setting: Setting) -> list[Tensor]:
    """Yes against no, or a quarter of the range, of each column."""
    effects = []
    for column in range(setting.columns):
        effect = torch.zeros(setting.columns + 1)
        effect[column] = 2.0 if column % 2 == 0 else 0.5
        effects.append(effect)
    return effects


def repetition(setting: Setting, number: int) -> dict[str, object]:
    """One proxy, and which of its intervals cover the truth (None: there is no interval)."""
    sites = inputs_of(setting)
    truth = torch.tensor([*setting.truth[: setting.columns], setting.intercept])
    generator = torch.Generator().manual_seed(10_000 * setting.seed + number)
    delta = Simulator(mechanism_of(setting, sites)).release(truth[None], generator)[0]
    known = [sites[0]] * len(sites) if setting.own else sites
    fitted: Fit = fit(
        mechanism_of(setting, known), torch.stack([-delta / 2, delta / 2]), draws=DRAWS, seed=number
    )
    covers: list[bool | None] = []
    widths: list[float | None] = []
    naive = []
    for effect in effects_of(setting):
        value = float(effect @ truth)
        interval = fitted.interval(effect)
        naive.append(round(float(effect @ delta) - value, 4))
        if interval.low is None or interval.high is None:
            covers.append(None)
            widths.append(None)
        else:
            covers.append(interval.low <= value <= interval.high)
            widths.append(round(interval.high - interval.low, 4))
    return {
        "repetition": number,
        "covers": covers,
        "widths": widths,
        "naive": naive,
        "typical": round(fitted.typical_error, 4),
    }


def interval_of(hits: int, trials: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share."""
    z = 1.96
    middle = (hits + z * z / 2) / (trials + z * z)
    half = z * math.sqrt(hits * (trials - hits) / trials + z * z / 4) / (trials + z * z)
    return middle - half, middle + half


def record(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """For each setting: how many effects were asked for, had an interval, and were covered."""
    rows: dict[str, dict[int, dict[str, Any]]] = {}
    for path in paths:
        for line in path.read_text().splitlines():
            row = json.loads(line)
            rows.setdefault(row["setting"], {})[row["repetition"]] = row
    counts = []
    for name in SETTINGS:
        if name in rows:
            every = [each for row in rows[name].values() for each in row["covers"]]
            known = [each for each in every if each is not None]
            typical = float(np.median([row["typical"] for row in rows[name].values()]))
            count = {"repetitions": len(rows[name]), "asked": len(every), "intervals": len(known)}
            error = {"covered": sum(known), "typical_error": round(typical, 2)}
            counts.append({"setting": name} | count | error)
    return counts


def table(counts: Sequence[dict[str, Any]]) -> list[str]:
    """The lines of the table in docs/concepts/effects.md: a setting each, and two for all."""
    lines = []
    sums: dict[str, list[int]] = {}
    for each in counts:
        name = each["setting"]
        sort = "all drawn at random" if name.startswith("drawn") else "all others"
        if not name.startswith("tuned"):
            total = sums.setdefault(sort, [0, 0, 0])
            for place, key in enumerate(("covered", "intervals", "asked")):
                total[place] += each[key]
        lines.append(_line(name, each["covered"], each["intervals"], each["asked"]))
    lines += [_line(f"**{sort}**", *total) for sort, total in sums.items()]
    return lines


def _line(name: str, covered: int, intervals: int, asked: int) -> str:
    share = "-"
    if intervals:
        low, high = interval_of(covered, intervals)
        share = f"{100 * covered / intervals:.1f} ({100 * low:.1f} to {100 * high:.1f})"
    return f"| {name} | {share} | {intervals} | {asked - intervals} |"


HOSPITALS_SCHEMA = """
name = "heart"
others = "ignore"
missing = ["?"]
[label]
column = "num"
classes = ["no disease", "disease"]
written = {"no disease" = ["0"], disease = ["1", "2", "3", "4"]}
prevalence = [0.5, 0.5]
[columns.age]
type = "number"
unit = "years"
range = [25, 80]
indicator = false
[columns.sex]
type = "yes/no"
yes = ["1", "1.0"]
no = ["0", "0.0"]
indicator = false
[columns.exang]
type = "yes/no"
yes = ["1", "1.0"]
no = ["0", "0.0"]
indicator = false
[columns.oldpeak]
type = "number"
unit = "mm"
range = [-3, 7]
fill = 0
indicator = false
"""


def hospitals(folder: Path) -> None:
    """Train on the four hospitals at epsilon 3, by gossip and by a masked sum, and print the odds
    ratios of both, of the proxies' own coefficients, and of a pooled logistic regression."""
    import statsmodels.api as sm

    from proxyfl.data.sources.heart import HEADER, HOSPITALS, find
    from proxyfl.data.tables import schema as schemas
    from proxyfl.data.tables.contrasts import contrasts
    from proxyfl.simulation.config import load
    from proxyfl.simulation.effects import effects
    from proxyfl.simulation.prepare import prepare
    from proxyfl.simulation.run import run

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "schema.toml").write_text(HOSPITALS_SCHEMA)
    sources = []
    for name, remote in HOSPITALS.items():
        text = (find() / remote.name).read_text()
        (folder / f"{name}.csv").write_text(",".join(HEADER) + "\n" + text)
        sources.append(str(folder / f"{name}.csv"))
    settings = {
        "rounds": 60,
        "evaluate_every": 60,
        "methods": '["proxyfl", "proxysum"]',
        "data.source": json.dumps(sources),
        "data.schema": folder / "schema.toml",
        "partition.kind": "site",
        "models.private": "logistic",
        "models.proxy": "linear",
        "learning.batch_size": 184,
        "learning.steps_per_round": 1,
        "proxy_optimizer.name": "sgd",
        "proxy_optimizer.momentum": 0.9,
        "proxy_optimizer.weight_decay": 0,
        "proxy_optimizer.learning_rate": 0.7,
        "privacy.sampling_rate": 1.0,
        "privacy.delta": 0.000413,
        "privacy.noise_multiplier": 8.4,
        "exchange.settle": '"auto"',
        "exchange.average": 0.5,
    }
    config = load(None, [f"{key}={value}" for key, value in settings.items()])
    out = folder / "run"
    result = run(config, out=out)
    print(f"epsilon: {result.epsilon('proxyfl')}, {result.epsilon('proxysum')}")
    clients = prepare(config).clients
    x = torch.cat([each.examples.take(torch.arange(len(each))).flatten(1) for each in clients])
    y = torch.cat([each.examples.labels for each in clients])
    design = sm.add_constant(x.double().numpy(), prepend=False)
    pooled = sm.Logit(y.numpy(), design).fit(disp=0)
    tables = {method: effects(out, method=method).effects for method in config.methods}
    for place, each in enumerate(contrasts(schemas.parse(tomllib.loads(HOSPITALS_SCHEMA)))):
        weights = np.array([*each.weights, 0.0])
        value = float(weights @ pooled.params)
        error = math.sqrt(float(weights @ pooled.cov_params() @ weights))
        ends = [math.exp(value + sign * 1.96 * error) for sign in (-1, 1)]
        line = f"{each.column}: {each.change}: pooled {math.exp(value):.2f}"
        line += f" ({ends[0]:.2f} to {ends[1]:.2f})"
        for method, rows in tables.items():
            line += f"; {method} {rows[place]}, uncorrected {rows[place].uncorrected:.2f}"
        print(line)


def main() -> None:
    """Run what is missing, or write the record and print its table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="settings (default: all)")
    parser.add_argument("--repeat", type=int, default=100)
    parser.add_argument("--out", type=Path, default=Path("effects.jsonl"))
    parser.add_argument("--record", type=Path, nargs="+")
    parser.add_argument("--hospitals", type=Path)
    args = parser.parse_args()
    if args.hospitals:
        hospitals(args.hospitals)
        return
    if args.record:
        counts = record(args.record)
        lines = ",\n".join(json.dumps(each) for each in counts)
        RESULTS.write_text(f"[\n{lines}\n]\n")
        print("\n".join(table(counts)))
        return
    torch.set_num_threads(1)
    done = set()
    if args.out.is_file():
        for line in args.out.read_text().splitlines():
            row = json.loads(line)
            done.add((row["setting"], row["repetition"]))
    for name in args.names or SETTINGS:
        for number in range(args.repeat):
            if (name, number) not in done:
                row = {"setting": name} | repetition(SETTINGS[name], number)
                with args.out.open("a") as file:
                    file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
