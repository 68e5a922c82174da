"""`torso audit`: compares the privacy that a config claims with the bounds that runs with canaries prove."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import torch

from torso.audit.bounds import Family, Profile, Scores, epsilon_bound, gaussian_profile, noise_bound
from torso.audit.trials import AuditorView, Trials, scores_of
from torso.config import Config
from torso.errors import RequestError
from torso.results.result import versions
from torso.runs.job import simulate
from torso.server.accountant import Releases, epsilon_of, library

LEAST = 40  # canaries of each kind, present and absent; fewer give no useful bound
_CELL = 1e-3  # discretisation interval of a privacy loss distribution


@dataclass(frozen=True)
class Claim:
    """The privacy that a run claims."""

    noise: float  # noise multiplier
    rate: float  # probability of a client to take part in a round
    rounds: int
    delta: float

    def epsilon(self, noise: float) -> float:
        """The accountant's ε for this noise multiplier."""
        if not math.isfinite(noise):
            return 0.0
        return epsilon_of([Releases(self.rounds, noise, self.rate)], self.delta)

    def profile(self, noise: float) -> Profile:
        """The privacy profile of all rounds with this noise multiplier."""
        if self.rate >= 1:
            return gaussian_profile(math.sqrt(self.rounds) / noise)
        loss = library().pld.privacy_loss_distribution.from_gaussian_mechanism(
            noise, sampling_prob=self.rate, value_discretization_interval=_CELL
        )
        composed = loss.self_compose(self.rounds)
        return lambda epsilons: np.asarray(composed.get_delta_for_epsilon(epsilons))


@dataclass(frozen=True)
class Audit:
    """The outcome of an audit: two bounds, which hold together with `confidence`.

    `epsilon` is a lower bound of ε at δ. It assumes nothing about the mechanism. If a run has several canaries, it
    assumes that their scores are independent. `noise_at_most` is an upper bound of the noise multiplier. It assumes
    Gaussian noise and Poisson sampling."""

    claim: Claim
    claimed: float  # ε of the claim
    epsilon: float
    noise_at_most: float
    epsilon_of_noise: float  # the accountant's ε for `noise_at_most`
    confidence: float
    sees: AuditorView
    runs: int
    canaries: int  # per run
    setting: Mapping[str, Any] = field(default_factory=dict)  # config and machine, for the report

    @property
    def refuted(self) -> bool:
        """Whether a bound contradicts the claim."""
        return self.epsilon > self.claimed or self.noise_at_most < self.claim.noise

    def as_json(self) -> dict[str, Any]:
        found = {**asdict(self), "refuted": self.refuted}
        found["noise_at_most"] = self.noise_at_most if math.isfinite(self.noise_at_most) else None
        return found

    def lines(self) -> list[str]:
        """The report of the audit for the terminal."""
        runs = f"{self.runs} runs × {self.canaries} canaries" if self.canaries > 1 else f"{self.runs} runs"
        assumption = ", if canaries of one run do not depend on each other" if self.canaries > 1 else ""
        observed = "every round's model" if self.sees == "all" else "the first and the last model"
        claim = self.claim
        noise = "no bound on the noise: too few canaries for this claim"
        if math.isfinite(self.noise_at_most):
            noise = (
                f"noise ≤ {self.noise_at_most:.3g}, if it is Gaussian as claimed; the accountant gives ε = "
                f"{self.epsilon_of_noise:.3g} for that"
            )
        verdict = "The claim is REFUTED" if self.refuted else "The claim stands: the audit does not contradict it"
        return [
            f"claimed   ε ≤ {self.claimed:.3g} at δ = {claim.delta:.2g}: noise {claim.noise:.3g}, {claim.rounds} "
            f"rounds, each client with chance {claim.rate:g}",
            f"audited   ε ≥ {self.epsilon:.3g} at the same δ, whatever the mechanism{assumption}",
            f"          {noise}",
            f"from      {runs}; the auditor sees {observed} and chooses what canaries send",
            f"{verdict} (confidence {self.confidence:.0%})",
        ]


def audit(
    config: Config,
    runs: int,
    canaries: int = 1,
    sees: AuditorView = "all",
    confidence: float = 0.95,
    claimed_noise: float = 0.0,
    told: Callable[[int], None] = lambda done: None,
) -> Audit:
    """Run a private config with canaries, and compare the bounds with its claim.

    `sees`: what the auditor knows (`scores_of`). `claimed_noise`: if given, the claim is computed for this noise
    multiplier instead of that of the config. `told` is called with the number of finished runs.

    With one canary per run the scores are independent. Several canaries share one run. They are drawn, sampled and
    directed independently, and the bounds treat their scores as independent."""
    if runs * canaries < 4 * LEAST:
        raise RequestError(
            f"--runs {runs} × --canaries {canaries} = {runs * canaries} scores show nothing. Expected: "
            f"{4 * LEAST} or more"
        )
    trials = Trials(simulate(config), canaries)
    privacy, stage = trials.privacy, trials.stage
    if not privacy.noise:
        raise RequestError("privacy.noise = 0 claims nothing that could be audited. Example: --set privacy.epsilon=8")
    claim = Claim(claimed_noise or privacy.noise, privacy.rate, stage.rounds, privacy.delta)
    first = config.run.seed * runs
    began = time.perf_counter()
    traces = list(trials.traces(range(first, first + runs), told))
    seconds = time.perf_counter() - began
    found = judge(scores_of(traces, privacy.rate, privacy.noise, sees), claim, sees, confidence, runs, canaries)
    return replace(found, setting={**_setting(trials), "seconds": round(seconds, 1)})


def _setting(trials: Trials) -> dict[str, Any]:
    job, stage = trials.job, trials.stage
    cuda = job.device.type == "cuda"
    return {
        "method": job.config.method.name,
        "data": job.roster.name,
        "model": job.config.model.body,
        "clients": len(job.roster.training),
        "parameters": sum(job.model[name].numel() for name in stage.uploaded),
        "noise": trials.privacy.noise,
        "clip": trials.privacy.clip,
        "local_epochs": job.config.train.local_epochs,
        "lr": job.config.train.lr,
        "device": torch.cuda.get_device_name(job.device) if cuda else "CPU",
        "versions": versions(),
    }


def judge(scores: Scores, claim: Claim, sees: AuditorView, confidence: float, runs: int, canaries: int) -> Audit:
    """Compute both bounds from the scores."""
    each = (1 + confidence) / 2  # each bound may be wrong with half of the probability 1 - confidence
    family: Family = claim.profile
    noise = noise_bound(scores, family, each, claim.noise)
    return Audit(
        claim=claim,
        claimed=claim.epsilon(claim.noise),
        epsilon=epsilon_bound(scores, claim.delta, each),
        noise_at_most=noise,
        epsilon_of_noise=claim.epsilon(noise),
        confidence=confidence,
        sees=sees,
        runs=runs,
        canaries=canaries,
    )
