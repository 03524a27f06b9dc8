"""Four hospitals from Python: what joining gains each of them, at epsilon 1.

    python examples/four_hospitals.py

The hospitals are made up. With ``main("heart_disease")`` they are the four real ones of the UCI
heart disease data, which are fetched once. This is a simulation and protects nobody.
"""

from dataclasses import replace

from proxyfl import Config, Run, noise_for, run

ROUNDS = 40


def main(source: str = "synthetic") -> Run:
    """Each hospital keeps its own boosted trees and shares a linear proxy, trained with DP-SGD."""
    config = Config(rounds=ROUNDS, methods=("alone", "pooled", "proxyfl"), measure="auroc")
    delta = 1e-4
    noise = noise_for(1.0, sampling_rate=1.0, steps=ROUNDS, delta=delta)
    made_up = replace(config.data.synthetic, sites=4, examples=200, tests=200)
    config = replace(
        config,
        evaluate_every=ROUNDS,
        data=replace(config.data, source=source, synthetic=made_up),
        partition=replace(config.partition, kind="site"),
        models=replace(config.models, private="logistic|trees", proxy="linear"),
        learning=replace(
            config.learning,
            batch_size=100,
            steps_per_round=1,
            balance="prior",
            prevalence=(0.7, 0.3) if source == "synthetic" else (0.5, 0.5),
        ),
        privacy=replace(config.privacy, noise_multiplier=noise, sampling_rate=1.0, delta=delta),
    )
    result = run(config)
    print(f"noise multiplier {noise:.1f}: {result.epsilon('proxyfl')}")
    for client, name in result.clients.items():
        alone = result.kept("alone", client)
        joined = result.kept("proxyfl", client)
        print(f"{name}: AUROC {alone:.3f} alone, {joined:.3f} joined")
    return result


if __name__ == "__main__":
    main()
