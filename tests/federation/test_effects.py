"""Odds ratios behind a noisy, clipped proxy, against the product's own steps and statsmodels."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from proxyfl.data.examples import InMemory
from proxyfl.errors import ConfigError
from proxyfl.federation.effects import Mechanism, Member, Simulator, fit, together
from proxyfl.federation.trainers import optimizer_over
from proxyfl.privacy.dpsgd import DPSGD
from proxyfl.seeds import Seeded
from proxyfl.settings import DP, Optimizer

SGD = Optimizer("sgd", 0.5, 0.01, 0.9)
ADAM = Optimizer("adam", 0.1, 0.01)


def made_up(records: int, seed: int = 0) -> Tensor:
    """A yes/no and two numbers."""
    draw = np.random.default_rng(seed)
    sex = np.where(draw.random(records) < 0.4, 1.0, -1.0)
    others = np.clip(draw.normal(0.1, 0.4, (records, 2)), -1, 1)
    return torch.tensor(np.column_stack([sex, others]), dtype=torch.float32)


def one_site(
    x: Tensor, *, noise: float, clip_norm: float, optimizer: Optimizer = SGD, rounds: int = 40
) -> Mechanism:
    """A mechanism of one site with full batches."""
    records = len(x)
    member = Member.of(
        x, records=records, rate=1.0, batch_size=records, noise=noise, optimizer=optimizer
    )
    start = torch.zeros(2, x.shape[1] + 1)
    return Mechanism([member], clip_norm, rounds, 0, [], start)


class Labelled(Simulator):
    """A simulator whose labels are given."""

    labels: Tensor

    def _labels(self, truths: Tensor, generator: torch.Generator) -> list[Tensor]:
        return [self.labels[:, None].expand(-1, len(truths))]


@pytest.mark.parametrize("optimizer", [SGD, ADAM])
@pytest.mark.parametrize("clip_norm", [0.3, 10.0])
def test_steps_are_those_of_dpsgd(optimizer: Optimizer, clip_norm: float) -> None:
    """With the same labels and next to no noise, the simulated proxy is the one that DP-SGD trains,
    whether or not gradients are clipped."""
    x = made_up(80)
    y = (torch.arange(80) % 3 == 0).long()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3, 2))
    first = torch.cat([model[1].weight, model[1].bias[:, None]], 1).detach().clone()
    trainer = DPSGD(
        model,
        optimizer_over(optimizer, model),
        InMemory(x, y),
        dp=DP(noise_multiplier=1e-7, clip_norm=clip_norm, sampling_rate=1.0, delta=1e-3),
        classes=2,
        batch_size=80,
        batches=Seeded(0, "batches", 0),
        noise=Seeded(0, "noise", 0),
    )
    trainer.train(25)
    trained = torch.cat([model[1].weight, model[1].bias[:, None]], 1).detach()
    mechanism = one_site(x, noise=0.0, clip_norm=clip_norm, optimizer=optimizer, rounds=25)
    simulator = Labelled(replace(mechanism, start=first))
    simulator.labels = y.float()
    simulated = simulator.release(torch.zeros(1, 4), torch.Generator())[0]
    assert simulated.tolist() == pytest.approx((trained[1] - trained[0]).tolist(), abs=1e-3)


def test_without_noise_and_clipping_it_is_logistic_regression() -> None:
    """Estimates and standard errors of a proxy that was trained to its end are those of
    statsmodels' Logit on the same records."""
    sm = pytest.importorskip("statsmodels.api")
    x = made_up(600)
    design = np.column_stack([x.numpy(), np.ones(600)])
    truth = np.array([0.5, -1.0, 0.4, -0.3])
    draw = np.random.default_rng(1)
    y = (draw.random(600) < 1 / (1 + np.exp(-design @ truth))).astype(int)
    known = sm.Logit(y, design).fit(disp=0)
    optimizer = Optimizer("sgd", 1.0, 0.0, 0.9)
    mechanism = one_site(x, noise=0.0, clip_norm=100.0, optimizer=optimizer, rounds=200)
    half = torch.tensor(known.params, dtype=torch.float32) / 2
    fitted = fit(mechanism, torch.stack([-half, half]), draws=4000)
    for place in range(4):
        interval = fitted.interval(torch.eye(4)[place])
        assert interval.value == pytest.approx(known.params[place], abs=0.1 * known.bse[place])
        assert interval.error == pytest.approx(known.bse[place], rel=0.06)


def test_clipping_is_undone() -> None:
    """Clipping doubles the proxy's coefficients; the estimates are right on average, and their
    standard errors are those of the estimates."""
    x = made_up(500)
    truth = torch.tensor([0.5, -1.0, 0.4, -0.3])
    optimizer = Optimizer("sgd", 2.0, 0.0, 0.9)
    mechanism = one_site(x, noise=2.0, clip_norm=0.2, optimizer=optimizer, rounds=60)
    generator = torch.Generator().manual_seed(3)
    deltas = Simulator(mechanism).release(truth.expand(25, -1), generator)
    assert float(deltas[:, 1].mean()) < -1.5
    estimates, errors = [], []
    for number, delta in enumerate(deltas):
        fitted = fit(mechanism, torch.stack([-delta / 2, delta / 2]), draws=600, seed=number)
        intervals = [fitted.interval(torch.eye(4)[place]) for place in range(4)]
        estimates.append([each.value for each in intervals])
        errors.append([each.error for each in intervals])
    means, spread = np.mean(estimates, 0), np.std(estimates, 0, ddof=1)
    assert np.all(np.abs(means - truth.numpy()) < 4 * spread / math.sqrt(25))
    assert np.all(np.abs(np.log(np.mean(errors, 0) / spread)) < 0.6)


def test_noise_widens_the_interval() -> None:
    """The same proxy under more noise says less."""
    x = made_up(300)
    released = torch.tensor([[0.0] * 4, [0.4, -0.5, 0.2, -0.2]])
    widths = []
    for noise in (0.0, 6.0, 12.0):
        fitted = fit(one_site(x, noise=noise, clip_norm=2.0), released, draws=800)
        error = fitted.interval(torch.tensor([2.0, 0, 0, 0])).error
        assert error is not None
        widths.append(error)
    assert widths[0] * 1.1 < widths[1]
    assert widths[1] * 1.1 < widths[2]


def test_what_cannot_be_known_has_a_reason() -> None:
    """A constant column has no effect that can be told; too much noise leaves none at all."""
    x = made_up(200)
    x[:, 2] = 1.0
    released = torch.tensor([[0.0] * 4, [0.2, -0.2, 0.1, -0.2]])
    fitted = fit(one_site(x, noise=1.0, clip_norm=2.0), released, draws=600)
    constant = fitted.interval(torch.tensor([0.0, 0, 1, 0]))
    assert constant.value is None
    assert constant.reason == "the inputs do not vary in it"
    assert fitted.interval(torch.tensor([2.0, 0, 0, 0])).reason == ""
    rare = torch.tensor([[0.0] * 4, [0.2, -0.2, 0.1, -4.0]])
    few = fit(one_site(made_up(200), noise=0.1, clip_norm=5.0), rare, draws=400)
    assert few.interval(torch.tensor([2.0, 0, 0, 0])).reason.startswith("fewer than 15 records")
    drowned = fit(one_site(x, noise=2000.0, clip_norm=2.0), released, draws=600)
    assert drowned.interval(torch.tensor([2.0, 0, 0, 0])).value is None


def test_inputs_that_stand_for_more() -> None:
    """A tenth of the records, each standing for ten, gives the same standard errors."""
    x = made_up(1500)
    whole = one_site(x, noise=5.0, clip_norm=1.0)
    few = x[::10]
    member = replace(
        whole.members[0], inputs=few, stands_for=torch.full((150,), 10.0), rates=torch.ones(150)
    )
    released = torch.tensor([[0.0] * 4, [0.6, -0.8, 0.3, -0.3]])
    errors = []
    for mechanism in (whole, replace(whole, members=[member])):
        fitted = fit(mechanism, released, draws=2000)
        errors.append([fitted.interval(torch.eye(4)[place]).error for place in range(4)])
    assert errors[1] == pytest.approx(errors[0], rel=0.2)


def test_a_masked_sum_is_one_member_with_all_records() -> None:
    """The records are side by side, batches add up, and each keeps its own rate."""
    parts = []
    for records, rate in ((30, 1.0), (50, 0.5)):
        parts.append(
            Member.of(
                made_up(records),
                records=records,
                rate=rate,
                batch_size=rate * records,
                noise=1.0,
                optimizer=SGD,
            )
        )
    summed = together(parts, noise=3.0)
    assert len(summed.inputs) == 80
    assert summed.batch_size == 55
    assert summed.rates.unique().tolist() == [0.5, 1.0]
    with pytest.raises(ConfigError, match="a mixing matrix for each of 5 rounds, got 0"):
        Mechanism(parts, 1.0, 5, 0, [], torch.zeros(2, 4))
