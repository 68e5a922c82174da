"""The models of a run that has ended, measured once more: with another fine-tuning, say. Nothing is trained anew."""

from __future__ import annotations

from torso.config import Config
from torso.engine import engines
from torso.measure import Accuracy, evaluate_in_parts
from torso.results.result import Result
from torso.runs.evaluation import evaluation_of
from torso.runs.features import FeaturePlan
from torso.runs.job import simulate


def measured_again(result: Result, config: Config) -> dict[str, Accuracy]:
    """What a run of `config` would have measured, if its rounds are those of `result`: the bits are the same.

    Only what is read after the last round may differ: `measure`, `personalize`. The run took place in this process."""
    federation, state = result.federation, result.state
    if federation is None or state is None:
        raise ValueError("a run that took place elsewhere has left no models to measure")
    job = simulate(config, federation)
    stage, reported = job.stage(state.round), state.reported
    how, features = evaluation_of(job, stage, state), FeaturePlan(job, lambda line: None)
    with engines[config.run.engine](job.net, job.federation, config.run) as engine:
        parts = features.measuring(engine, stage, reported.model, config.measure.names, how)
        return evaluate_in_parts(parts, job.roster, reported, how, job.measured_clients)
