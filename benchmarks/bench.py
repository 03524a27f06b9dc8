"""What everything costs here, against its goal and the alternatives, in one run: ``make bench``.

Machines differ and are shared, so what counts are the ratios: all contenders run in turn, a few
steps each, many times over, in one process, on one thread, with the same allocator settings, and
medians of the thread's CPU time are compared. Whole commands run in processes of their own, and
their CPU time is counted.

Prints tables and a row for each goal, and writes build/bench.json: ``rows`` with name, value, goal,
met and unit. ``python -m benchmarks.figures`` puts its figures into README and docs. Opacus is
compared in the same process, of the version that is printed.
"""

import argparse
import gc
import json
import os
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import nn

from benchmarks import scaling, waiting, whole
from proxyfl import DPSGD, Ledger, models
from proxyfl.data.examples import InMemory
from proxyfl.federation.precision import computing_in
from proxyfl.federation.trainers import optimizer_over
from proxyfl.machine import keep_freed_memory
from proxyfl.pooling import with_quick_pooling
from proxyfl.privacy.guarantee import Kind
from proxyfl.seeds import Randomness, Seeded, System
from proxyfl.settings import DP, Optimizer

EXAMPLES = 1000
CLASSES = 10
Step = Callable[[], object]


class Case(NamedTuple):
    """A model, the shape of what it is shown, and how many at a time."""

    model: str
    shape: tuple[int, ...]
    batch: int = 250

    def build(self) -> nn.Module:
        """The model, with the same first weights each time."""
        return models.build(self.model, shape=self.shape, classes=CLASSES, seed=0)

    def examples(self, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """That many made-up examples and their classes."""
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(count, *self.shape, generator=generator)
        y = torch.randint(CLASSES, (count,), generator=generator)
        return x, y


MLP = Case("mlp", (1, 28, 28))
LINEAR = Case("linear", (1, 28, 28))
LENET5 = Case("lenet5", (1, 28, 28))
CNN1 = Case("cnn1", (1, 28, 28))
CNN2 = Case("cnn2", (1, 28, 28))
KVASIR = Case("vgg", (3, 80, 100), 128)
BREAKHIS = Case("resnet18", (3, 64, 96), 32)
"""The paper's models for medical images, as docs/research/medical.md runs them."""
RESNET = Case("resnet18", (3, 64, 64), 32)
WITHOUT_DP = (LENET5, Case("cnn2", (3, 32, 32)), KVASIR, BREAKHIS)
WITH_OPACUS = (MLP, LENET5, RESNET)
WITH_DP = {
    "linear": LINEAR,
    "MLP": MLP,
    "LeNet5": LENET5,
    "CNN1": CNN1,
    "CNN2": CNN2,
    "ResNet-18 at 64 px": RESNET,
    "VGG at 100 x 80": KVASIR,
}
"""The cases of the table of DP steps, by the name in it."""


@dataclass(frozen=True)
class Goal:
    """A row of the table of goals; ``at_least`` where more is better."""

    name: str
    goal: float
    unit: str = ""
    at_least: bool = False

    def row(self, value: float | None) -> dict[str, Any]:
        """The row with what was measured; None for what this run did not measure."""
        met = None
        if value is not None:
            met = value >= self.goal if self.at_least else value <= self.goal
        bound = ">=" if self.at_least else "<="
        return {
            "name": self.name,
            "value": value,
            "goal": self.goal,
            "bound": bound,
            "unit": self.unit,
            "met": met,
        }


GOALS = (
    Goal("real noise / seeded noise, MLP", 1.35),
    Goal("real noise / seeded noise, ResNet-18 at 64 px", 1.25),
    Goal("DP / plain, MLP", 1.25),
    Goal("DP / plain, linear", 1.4),
    Goal("DP / plain, LeNet5", 1.0),
    Goal("DP / plain, CNN1", 0.85),
    Goal("DP / plain, CNN2", 0.8),
    Goal("DP / improved plain, LeNet5", 1.25),
    Goal("DP / improved plain, CNN1", 1.25),
    Goal("DP / improved plain, CNN2", 1.25),
    Goal("Opacus ghost clipping / ours, MLP", 2.4, at_least=True),
    Goal("Opacus ghost clipping / ours, LeNet5", 2.0, at_least=True),
    Goal("Opacus ghost clipping / ours, ResNet-18 at 64 px", 2.5, at_least=True),
    Goal("DP / plain, ResNet-18 at 64 px", 1.25),
    Goal("round of the paper's MNIST setting", 0.5, "s CPU"),
    Goal("around the rounds of that run", 5, "s CPU"),
    Goal("demo", 8, "s CPU"),
    Goal("memory per further client, 1 worker", 10, "MB"),
    Goal("memory per further client, 2 workers / 1 worker", 1.2),
    Goal("1,000 linear clients / 8, time per client and round", 1.2),
    Goal("proxyfl epsilon --help", 0.2, "s CPU"),
    Goal("proxyfl worth", 0.8, "s CPU"),
    Goal("proxyfl node status", 0.4, "s CPU"),
    Goal("site waiting for 1 missing member of 32", 0.5, "% of a core"),
    Goal("make test", 10, "min"),
)
"""Every goal, in the order in which it is printed."""

TEST_MINUTES = Path("build/test-minutes")
"""``make test`` writes here how long it took."""


def contenders(case: Case, *, opacus: bool, only: str | None = None) -> dict[str, Step]:
    """One training step by each way: plain, plain as private models are trained (channels last,
    quick pooling), ours, Opacus's default and its ghost clipping."""
    x, y = case.examples(EXAMPLES)
    # views: every way keeps all of the client's data in memory, as ours must
    batch = (x[: case.batch], y[: case.batch])
    ways: dict[str, Callable[[nn.Module], Step]] = {
        "plain": lambda model: _plain(model, *batch),
        "improved": lambda model: _plain(laid_out(model), *batch),
        "ours": lambda model: _ours(model, x, y, case.batch),
    }
    if opacus:
        ways["Opacus"] = lambda model: _opacus(model, *batch, "hooks")
        ways["Opacus ghost"] = lambda model: _opacus(model, *batch, "ghost")
    return {label: way(case.build()) for label, way in ways.items() if only in (None, label)}


def laid_out(model: nn.Module) -> nn.Module:
    """A model as private ones are trained."""
    layout: Any = {"memory_format": torch.channels_last}
    return with_quick_pooling(model.to(**layout))


def _adam(model: nn.Module) -> torch.optim.Optimizer:
    return optimizer_over(Optimizer("adam", learning_rate=0.001, weight_decay=1e-4), model)


def _plain(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Step:
    adam = _adam(model)

    def step() -> None:
        adam.zero_grad()
        F.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]  # torch leaves backward untyped
        adam.step()

    return step


def _ours(
    model: nn.Module, x: torch.Tensor, y: torch.Tensor, batch: int, *, real: bool = False
) -> Step:
    """All of it: the ledger, Poisson sampling of about a batch, clipping, noise, Adam. With
    ``real``, batches and noise are those of a site."""
    batches: Randomness = System() if real else Seeded(0, "batches")
    noise: Randomness = System() if real else Seeded(0, "noise")
    trainer = DPSGD(
        model,
        _adam(model),
        InMemory(x, y),
        dp=DP(clip_norm=1.0, noise_multiplier=1.0),
        classes=CLASSES,
        batch_size=batch,
        ledger=Ledger("bench", delta=1e-3, kind=Kind.END_TO_END, simulated=not real),
        batches=batches,
        noise=noise,
    )
    trainer.begin_round(0, 10**6)
    return lambda: trainer.step(trainer.draw())


def _opacus(model: nn.Module, x: torch.Tensor, y: torch.Tensor, mode: str) -> Step:
    from opacus import PrivacyEngine
    from torch.utils.data import DataLoader, TensorDataset

    loader = DataLoader(TensorDataset(x, y), batch_size=len(x))
    made: Any = PrivacyEngine().make_private(
        module=model,
        optimizer=_adam(model),
        data_loader=loader,
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        poisson_sampling=False,
        grad_sample_mode=mode,
        criterion=nn.CrossEntropyLoss(),
    )
    module, adam = made[0], made[1]
    criterion = made[2] if mode == "ghost" else nn.CrossEntropyLoss()

    def step() -> None:
        adam.zero_grad()
        criterion(module(x), y).backward()
        adam.step()

    return step


def private_steps(case: Case) -> dict[str, Step]:
    """One step without DP in torch's default layout, channels last as private models are laid out,
    and in bfloat16."""
    x, y = case.examples(case.batch)
    last: Any = {"memory_format": torch.channels_last}
    return {
        "default": _plain(case.build(), x, y),
        "channels last": _plain(case.build().to(**last), x, y),
        "bfloat16": _plain(computing_in("bfloat16", case.build().to(**last)), x, y),
    }


def noise_steps(case: Case) -> dict[str, Step]:
    """One DP step with noise from a seed, and one with a site's noise."""
    x, y = case.examples(EXAMPLES)
    return {
        "seeded": _ours(case.build(), x, y, case.batch),
        "real": _ours(case.build(), x, y, case.batch, real=True),
    }


def measure(steps: dict[str, Step], *, seconds: float) -> dict[str, float]:
    """Median milliseconds of CPU time of each step, the contenders taking turns so that what else
    runs hits all alike."""
    for step in steps.values():
        step()
        step()
    times: dict[str, list[float]] = {name: [] for name in steps}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or min(map(len, times.values())) < 5:
        for name, step in steps.items():
            step()  # brings this way's data back into the cache
            for _ in range(4):
                started = time.thread_time()
                step()
                times[name].append((time.thread_time() - started) * 1e3)
    return {name: statistics.median(values) for name, values in times.items()}


def peak_memory(step: Step) -> int:
    """Bytes of tensors alive at the peak of one step: parameters, gradients, optimizer state, batch
    and temporaries."""
    step()
    with torch.profiler.profile(profile_memory=True) as profile:
        gc.collect()
        before = sum(t.untyped_storage().nbytes() for t in _distinct_tensors())
        step()
    alive = peak = before
    for event in sorted(
        profile.profiler.kineto_results.events(), key=lambda event: event.start_ns()
    ):
        if event.name() == "[memory]":
            alive += event.nbytes()
            peak = max(peak, alive)
    return peak


def _distinct_tensors() -> list[torch.Tensor]:
    storages = {}
    for thing in gc.get_objects():
        if type(thing) in (torch.Tensor, nn.Parameter):
            storages[thing.untyped_storage().data_ptr()] = thing
    return list(storages.values())


def steps_with_dp(seconds: float, names: Sequence[str]) -> tuple[Table, dict[str, Any]]:
    """A DP step of these cases against a plain one and Opacus's: a table, and milliseconds by case
    and way."""
    table = Table("model", "plain", "ours", "ours / plain", "improved plain", "ours / improved")
    table.title = "One DP step (ms)"
    for column in ("Opacus / ours", "ghost / ours"):
        table.add_column(column)
    found = {}
    for name in names:
        case = WITH_DP[name]
        times = measure(contenders(case, opacus=case in WITH_OPACUS), seconds=seconds)
        found[name] = times
        ours = times["ours"]
        cells = [f"{times['plain']:.2f}", f"{ours:.2f}", f"{ours / times['plain']:.2f}"]
        cells += [f"{times['improved']:.2f}", f"{ours / times['improved']:.2f}"]
        for other in ("Opacus", "Opacus ghost"):
            cells.append(f"{times[other] / ours:.1f}" if other in times else "")
        table.add_row(name, *cells)
    return table, found


def ratios_of(steps: dict[str, dict[str, float]]) -> dict[str, float]:
    """The goals' values that follow from steps with DP."""
    values = {}
    for name, times in steps.items():
        values[f"DP / plain, {name}"] = times["ours"] / times["plain"]
        values[f"DP / improved plain, {name}"] = times["ours"] / times["improved"]
        if "Opacus ghost" in times:
            ratio = times["Opacus ghost"] / times["ours"]
            values[f"Opacus ghost clipping / ours, {name}"] = ratio
    return values


def real_noise(seconds: float) -> dict[str, float]:
    """A step with a site's noise against one with seeded noise."""
    values = {}
    for name in ("MLP", "ResNet-18 at 64 px"):
        times = measure(noise_steps(WITH_DP[name]), seconds=seconds)
        values[f"real noise / seeded noise, {name}"] = times["real"] / times["seeded"]
    return values


def run_values(_seconds: float) -> dict[str, float]:
    """The paper's MNIST setting, and what is around its rounds."""
    a_round, around = whole.paper_run()
    return {"round of the paper's MNIST setting": a_round, "around the rounds of that run": around}


def memory_values(_seconds: float) -> dict[str, float]:
    """What a further client takes, in one process and in two."""
    one, two = scaling.memory_per_client(1), scaling.memory_per_client(2)
    return {
        "memory per further client, 1 worker": one,
        "memory per further client, 2 workers / 1 worker": two / one,
    }


def clients_values(_seconds: float) -> dict[str, float]:
    """Many small clients against few."""
    by_clients = scaling.many_small_clients()
    few, many = by_clients.values()
    return {"1,000 linear clients / 8, time per client and round": many / few}


def command_values(_seconds: float) -> dict[str, float]:
    """Commands that train nothing."""
    found = whole.commands()
    return {f"proxyfl {name}": seconds for name, seconds in found.items()}


def waiting_values(_seconds: float) -> dict[str, float]:
    """A site that waits."""
    return {"site waiting for 1 missing member of 32": waiting.share_of_a_core()}


def suite_values(_seconds: float) -> dict[str, float]:
    """The last ``make test``, if there was one."""
    if not TEST_MINUTES.exists():
        return {}
    return {"make test": float(TEST_MINUTES.read_text())}


PARTS: dict[str, Callable[[float], dict[str, float]]] = {
    "noise": real_noise,
    "run": run_values,
    "demo": lambda _seconds: {"demo": whole.demo()},
    "memory": memory_values,
    "clients": clients_values,
    "commands": command_values,
    "waiting": waiting_values,
    "tests": suite_values,
}
"""Parts of the table beside ``steps``, each by itself with ``--only``."""


def table_of(rows: Sequence[dict[str, Any]]) -> Table:
    """The goals as they are printed."""
    table = Table("what", "measured", "goal", "met", title="Goals")
    for row in rows:
        value = "not measured" if row["value"] is None else f"{row['value']:.2f}"
        goal = f"{row['bound']} {row['goal']:g} {row['unit']}"
        met = {True: "yes", False: "no", None: ""}[row["met"]]
        table.add_row(row["name"], value, goal, met)
    return table


def main() -> None:
    """Run everything, print tables, write build/bench.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=8, help="per model (default: 8)")
    parser.add_argument("--out", type=Path, default=Path("build/bench.json"))
    parser.add_argument(
        "--only", nargs="+", choices=["steps", "private", *PARTS], help="measure these parts alone"
    )
    parser.add_argument(
        "--models",
        nargs="+",
        choices=list(WITH_DP),
        default=list(WITH_DP),
        metavar="MODEL",
        help=f"whose steps with DP to measure: {', '.join(WITH_DP)} (default: all)",
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    warnings.filterwarnings("ignore")  # Opacus's remarks about hooks
    chosen = args.only or ["steps", "private", *PARTS]
    values: dict[str, float] = {}
    results: dict[str, Any] = {
        "threads": 1,
        "torch": torch.__version__,
        "opacus": version("opacus"),
        "processor": _processor(),
        "load": os.getloadavg()[0],
        "batch": {name: case.batch for name, case in WITH_DP.items()},
    }
    console = Console()
    if "steps" in chosen:
        table, steps = steps_with_dp(args.seconds, args.models)
        results["milliseconds"] = steps
        values |= ratios_of(steps)
        console.print(table)
        if "MLP" in args.models:
            results["peak_memory_bytes"] = _peaks()
    if "private" in chosen:
        table, results["private_milliseconds"] = _steps_without_dp(args.seconds)
        console.print(table)
    failed = []
    for name, part in PARTS.items():
        if name in chosen:
            try:
                measured = part(args.seconds)
            except Exception as problem:  # the other parts are worth having
                failed.append(f"{name}: {problem}")
                continue
            values |= measured
            for what, value in measured.items():
                console.print(f"{what}: {value:.2f}", highlight=False)
    results["rows"] = [goal.row(values.get(goal.name)) for goal in GOALS]
    console.print(table_of(results["rows"]))
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(results, indent=1) + "\n")
    console.print(f"written to {args.out}")
    if failed:
        raise SystemExit("Not measured, because they failed:\n" + "\n".join(failed))


def _steps_without_dp(seconds: float) -> tuple[Table, dict[str, Any]]:
    table = Table("model", "default", "channels last", "bfloat16", "bfloat16 / default")
    table.title = "A step without DP (ms)"
    found = {}
    for case in WITHOUT_DP:
        times = measure(private_steps(case), seconds=seconds)
        found[case.model] = times
        ratio = times["bfloat16"] / times["default"]
        table.add_row(case.model, *(f"{ms:.1f}" for ms in times.values()), f"{ratio:.2f}")
    return table, found


def _peaks() -> dict[str, int]:
    """The peak memory of an MLP step by each way."""
    memory = {}
    for way in ("plain", "ours", "Opacus", "Opacus ghost"):
        steps = contenders(MLP, opacus=way.startswith("Opacus"), only=way)
        memory[way] = peak_memory(steps[way])
    return memory


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return ""


if __name__ == "__main__":
    main()
