"""An audit from a config to its verdict."""

from dataclasses import dataclass
from typing import Any

from proxyfl._validate import number
from proxyfl.audit import onerun, steps
from proxyfl.audit.evidence import collect
from proxyfl.audit.observe import Observation, Progress, method_of, observe, silent
from proxyfl.audit.onerun import OneRun
from proxyfl.audit.steps import Steps
from proxyfl.simulation.config import Config

STEP_BY_STEP = "step by step"
ONE_RUN = "one run, f-DP"

VERDICTS = {
    "not contradicted": "What peers see does not contradict the claimed epsilon.",
    "exceeded": "The claimed epsilon does not hold: peers learn more than it allows.",
    "irregular": "The noise is not the one that was accounted for: it differs from round to round "
    "by more than chance, or other releases explain part of it.",
}
"""Each verdict in a sentence."""


@dataclass(frozen=True)
class Finding:
    """The result of an audit. ``by_steps`` is the bound step by step, ``estimate`` without
    margins."""

    observation: Observation
    steps: Steps
    by_steps: float
    estimate: float
    one_run: OneRun
    confidence: float
    recorded: float | None = None

    @property
    def epsilon(self) -> float:
        """The claim: what a run recorded, or else the smaller of the two in the audit's ledger."""
        if self.recorded is not None:
            return self.recorded
        return self.observation.claimed.best

    @property
    def lower_bound(self) -> float:
        """The larger of what the steps and the guesses show."""
        return max(self.by_steps, self.one_run.by_curve)

    @property
    def method(self) -> str:
        """The one of the two that showed more."""
        return STEP_BY_STEP if self.by_steps >= self.one_run.by_curve else ONE_RUN

    @property
    def verdict(self) -> str:
        """A key of ``VERDICTS``."""
        if self.lower_bound > self.epsilon:
            return "exceeded"
        if not self.steps.regular:
            return "irregular"
        return "not contradicted"

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        mechanism = self.observation.mechanism
        guesses = self.one_run.guesses
        return {
            "epsilon": self.epsilon,
            "claim": "settings" if self.recorded is None else "recorded by the run",
            "delta": self.observation.claimed.delta,
            "kind": str(self.observation.claimed.kind),
            "lower_bound": self.lower_bound,
            "method": self.method,
            "ceiling": self.one_run.ceiling,
            "confidence": self.confidence,
            "verdict": self.verdict,
            "audited_method": self.observation.method,
            "client": self.observation.client,
            "canaries": len(self.observation.canaries),
            "rounds": len(self.observation.audited.rounds),
            "steps": sum(self.observation.audited.steps),
            "sampling_rate": mechanism.sampling_rate,
            "noise_multiplier": mechanism.noise_multiplier,
            "step_by_step": {
                "lower_bound": self.by_steps,
                "estimate": self.estimate,
                "share": self.steps.share,
                "noise": self.steps.noise,
                "explained_noise": self.steps.explained,
                "steady_noise": self.steps.steady,
            },
            "one_run": {
                "f_dp": self.one_run.by_curve,
                "steinke": self.one_run.by_point,
                "ideal": self.one_run.ideal,
                "guesses": guesses.made,
                "right": guesses.right,
            },
        }


def audit(
    config: Config,
    *,
    method: str | None = None,
    client: int = 0,
    canaries: int | None = None,
    confidence: float = 0.95,
    recorded: float | None = None,
    progress: Progress = silent,
) -> Finding:
    """Audit one client of ``config``, against the epsilon that a run ``recorded`` if there is one.

    ``progress`` hears of each round twice: run and examined.
    """
    number("confidence", confidence, above=0.5, below=1)
    name = method_of(config, method)
    observation = observe(config, method=name, client=client, canaries=canaries, progress=progress)
    evidence = collect(observation, progress)
    measured = steps.measure(evidence, observation, confidence=confidence)
    return Finding(
        observation=observation,
        steps=measured,
        by_steps=steps.epsilon(measured.noise_at_most, observation),
        estimate=steps.epsilon(measured.noise_estimate, observation),
        one_run=onerun.guess(evidence, observation, confidence=confidence),
        confidence=confidence,
        recorded=recorded,
    )
