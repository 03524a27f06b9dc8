"""How much differential privacy costs here, against the alternatives, in one run: ``make bench``.

Machines differ and are shared, so what counts are the ratios: all contenders run in turn, a few
steps each, many times over, in one process, on one thread, with the same allocator settings, and
medians of the thread's CPU time are compared. Prints tables and writes build/bench.json."""

import argparse
import gc
import json
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import nn

from proxyfl import DPSGD, Ledger, models
from proxyfl.data import Dataset
from proxyfl.data.examples import InMemory
from proxyfl.federation.precision import computing_in
from proxyfl.federation.trainers import optimizer_over
from proxyfl.machine import keep_freed_memory
from proxyfl.privacy.guarantee import Kind
from proxyfl.seeds import Randomness, Seeded, System
from proxyfl.settings import DP, Optimizer
from proxyfl.simulation import config
from proxyfl.simulation import run as runner

EXAMPLES, CLASSES = 1000, 10
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
KVASIR = Case("vgg", (3, 80, 100), 128)
BREAKHIS = Case("resnet18", (3, 64, 96), 32)
"""The paper's models for medical images, as docs/research/medical.md runs them."""
WITH_DP = (
    MLP,
    Case("lenet5", (1, 28, 28)),
    Case("cnn1", (1, 28, 28)),
    Case("cnn2", (1, 28, 28)),
    KVASIR,
    BREAKHIS,
)
REAL_NOISE = ((MLP, 1.35), (Case("resnet18", (3, 64, 64), 32), 1.25))
"""Models, and how many times as long a step with real noise may take as one with seeded noise."""
WITHOUT_DP = (Case("lenet5", (1, 28, 28)), Case("cnn2", (3, 32, 32)), KVASIR, BREAKHIS)


def contenders(case: Case, *, opacus: bool, only: str | None = None) -> dict[str, Step]:
    """One training step by each way: plain, ours, Opacus's default and its ghost clipping."""
    x, y = case.examples(EXAMPLES)
    # views: every way keeps all of the client's data in memory, as ours must
    batch = (x[: case.batch], y[: case.batch])
    ways: dict[str, Callable[[nn.Module], Step]] = {
        "plain": lambda model: _plain(model, *batch),
        "ours": lambda model: _ours(model, x, y, case.batch),
    }
    if opacus:
        ways["Opacus"] = lambda model: _opacus(model, *batch, "hooks")
        ways["Opacus ghost"] = lambda model: _opacus(model, *batch, "ghost")
    return {label: way(case.build()) for label, way in ways.items() if only in (None, label)}


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


def measure_noise(seconds: float) -> tuple[Table, list[dict[str, Any]]]:
    """What real noise costs: a table, and rows with name, value, goal and whether it was met."""
    table = Table("model", "seeded", "real", "real / seeded", "goal", title="Real noise (ms)")
    rows = []
    for case, goal in REAL_NOISE:
        times = measure(noise_steps(case), seconds=seconds)
        ratio = times["real"] / times["seeded"]
        numbers = (times["seeded"], times["real"], ratio, goal)
        table.add_row(case.model, *(f"{number:.2f}" for number in numbers))
        name = f"real noise / seeded noise, {case.model}"
        rows.append({"name": name, "value": ratio, "goal": goal, "met": ratio <= goal})
    return table, rows


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


def paper_round(rounds: int) -> float:
    """Seconds per ProxyFL round of the paper's MNIST setting: LeNet5/MLP, 8 x 1000 images, no
    evaluation."""
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.rand(8000, 1, 28, 28, generator=generator), torch.arange(8000) % CLASSES)
    names = tuple(str(i) for i in range(CLASSES))
    made_up = Dataset("made-up", x, y, x[:10], y[:10], CLASSES, names)
    settings = config.from_tree(
        {
            "methods": ["proxyfl"],
            "rounds": rounds,
            "evaluate_every": rounds,
            "partition": {"kind": "iid", "clients": 8, "examples": 1000},
            "models": {"private": "lenet5", "proxy": "mlp", "residual": False},
            "learning": {"alpha": 0.5, "beta": 0.5, "teacher": "current", "batch_size": 250},
            "privacy": {"noise_multiplier": 1.0, "clip_norm": 1.0},
            "exchange": {"self_weight": 0.0},
        }
    )
    result = runner.run(settings, dataset=made_up)
    totals = [0.0] * rounds
    for row in result.rows:
        totals[row["round"]] += row["seconds_training"] + row["seconds_exchange"]
    return statistics.median(totals[1:])


def main() -> None:
    """Run everything, print a table, write build/bench.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10, help="per model (default: 10)")
    parser.add_argument("--out", type=Path, default=Path("build/bench.json"))
    parser.add_argument(
        "--only",
        choices=["noise"],
        help="measure real against seeded noise alone, and write no file",
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    warnings.filterwarnings("ignore")  # Opacus's remarks about hooks
    noise, rows = measure_noise(args.seconds)
    if args.only:
        Console().print(noise)
        return
    results: dict[str, Any] = {
        "milliseconds": {},
        "rows": rows,
        "threads": 1,
        "batch": {case.model: case.batch for case in WITH_DP},
        "torch": torch.__version__,
    }
    table = Table(
        "model",
        "plain",
        "ours",
        "ours / plain",
        "Opacus / ours",
        "ghost / ours",
        title="One DP step (ms)",
    )
    for case in WITH_DP:
        times = measure(contenders(case, opacus=case is MLP), seconds=args.seconds)
        results["milliseconds"][case.model] = times
        ratios = [
            f"{times[o] / times['ours']:.1f}" if o in times else ""
            for o in ("Opacus", "Opacus ghost")
        ]
        row = (
            f"{times['plain']:.2f}",
            f"{times['ours']:.2f}",
            f"{times['ours'] / times['plain']:.2f}",
        )
        table.add_row(case.model, *row, *ratios)
    results["private_milliseconds"] = {}
    private = Table(
        "model",
        "default",
        "channels last",
        "bfloat16",
        "bfloat16 / default",
        title="A step without DP (ms)",
    )
    for case in WITHOUT_DP:
        times = measure(private_steps(case), seconds=args.seconds)
        results["private_milliseconds"][case.model] = times
        ratio = times["bfloat16"] / times["default"]
        private.add_row(case.model, *(f"{ms:.1f}" for ms in times.values()), f"{ratio:.2f}")
    memory = {}
    for way in ("plain", "ours", "Opacus", "Opacus ghost"):
        steps = contenders(MLP, opacus=way.startswith("Opacus"), only=way)
        memory[way] = peak_memory(steps[way])
    results["peak_memory_bytes"] = memory
    results["paper_round_seconds"] = paper_round(6)
    Console().print(table, private, noise)
    print(
        "peak memory of MLP steps (MB): "
        + ", ".join(f"{way} {b / 1e6:.1f}" for way, b in memory.items())
    )
    print(f"ours / plain in memory: {memory['ours'] / memory['plain']:.2f}")
    print(
        f"a ProxyFL round of the paper's MNIST setting, in one thread: "
        f"{results['paper_round_seconds']:.2f} s "
        "(the paper's released code on two cores of another machine of this size: 9.2 s)"
    )
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(results, indent=1) + "\n")
    print(f"written to {args.out}")


if __name__ == "__main__":
    main()
