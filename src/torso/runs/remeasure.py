"""Measure the models of a finished run again with other settings, for example another fine-tuning, without training."""

from __future__ import annotations

from torso.config import Config
from torso.engine import engines
from torso.measure import Accuracy, evaluate_in_parts
from torso.results.result import Result
from torso.runs.evaluation import evaluation_of
from torso.runs.features import FeaturePlan
from torso.runs.job import simulate


def measured_again(result: Result, config: Config) -> dict[str, Accuracy]:
    """What a run of `config` would measure after the rounds of `result`, to the bit.

    `config` may differ from the run's config only in what is read after the last round: `measure` and `personalize`.
    The run must have taken place in this process."""
    federation, state = result.federation, result.state
    if federation is None or state is None:
        raise ValueError("a run that took place in another process has left no models to measure")
    job = simulate(config, federation)
    stage = job.stage(state.round)
    reported = state.reported
    how = evaluation_of(job, stage, state)
    features = FeaturePlan(job, lambda line: None)
    with engines[config.run.engine](job.net, job.federation, config.run) as engine:
        parts = features.measuring(engine, stage, reported.model, config.measure.names, how)
        return evaluate_in_parts(parts, job.roster, reported, how, job.measured_clients)
