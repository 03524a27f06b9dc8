"""Survival in eight small hospitals: the days until a tumour comes back, at epsilon 2.

    python examples/survival.py

Patients who leave before that are censored. The shared proxy says the hazard of each public
interval, so a patient's loss is a sum over the patient's own intervals and DP-SGD needs nothing
special. The patients are made up. This is a simulation and protects nobody.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from proxyfl import Config, Run, from_table, noise_for, run

ROUNDS = 40


def patients(hospitals: int = 8, each: int = 60, seed: int = 0) -> pd.DataFrame:
    """One row per patient: older, higher grade and more nodes come back sooner."""
    draw = np.random.default_rng(seed)
    count = hospitals * each
    age = draw.uniform(30, 90, count)
    grade = draw.choice(["low", "middle", "high"], count)
    nodes = draw.poisson(3, count)
    risk = 0.03 * (age - 60) + 0.15 * (nodes - 3) + 0.7 * (grade == "high") - 0.7 * (grade == "low")
    recurs = draw.exponential(900 * np.exp(-risk))
    followed = draw.uniform(200, 1500, count)
    return pd.DataFrame(
        {
            "hospital": [f"hospital-{number % hospitals + 1}" for number in range(count)],
            "age": age.round(1),
            "grade": grade,
            "nodes": nodes,
            "days": np.minimum(recurs, followed).round(1),
            "recurred": np.where(recurs <= followed, "yes", "no"),
        }
    )


def main(rounds: int = ROUNDS) -> Run:
    """Each hospital fits its own hazards or trees at home and shares a proxy of hazards."""
    dataset = from_table(patients(), schema=Path(__file__).with_name("survival.toml"))
    delta = 1e-3
    noise = noise_for(2.0, sampling_rate=1.0, steps=rounds, delta=delta)
    config = Config(rounds=rounds, methods=("alone", "pooled", "proxyfl"))
    config = replace(
        config,
        evaluate_every=rounds,
        partition=replace(config.partition, kind="site"),
        models=replace(config.models, private="logistic|trees", proxy="hazards"),
        learning=replace(config.learning, batch_size=48, steps_per_round=1),
        proxy_optimizer=replace(
            config.proxy_optimizer, name="sgd", momentum=0.9, learning_rate=1.0
        ),
        exchange=replace(config.exchange, settle="auto", average=0.5),
        privacy=replace(config.privacy, noise_multiplier=noise, sampling_rate=1.0, delta=delta),
    )
    result = run(config, dataset=dataset)
    print(f"noise multiplier {noise:.1f}: {result.epsilon('proxyfl')}")
    print(f"pooled, which no privacy allows: C-index {result.kept('pooled', 0):.3f}")
    for client, name in result.clients.items():
        alone, joined = result.kept("alone", client), result.kept("proxyfl", client)
        print(f"{name}: C-index {alone:.3f} alone, {joined:.3f} joined")
    print("predicted and observed survival of all test patients, hospital-1, joined:")
    for time, predicted, observed in result.final("proxyfl", 0)["private_survival"]:
        print(f"  day {time:4.0f}: {predicted:.2f} predicted, {observed:.2f} observed")
    return result


if __name__ == "__main__":
    main()
