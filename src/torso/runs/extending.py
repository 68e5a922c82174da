"""Continue a finished run for more rounds."""

from __future__ import annotations

from torso.config import Config
from torso.errors import RequestError
from torso.results.folder import RunFolder
from torso.runs.job import Job
from torso.runs.stages import stages


def extend(folder: RunFolder, job: Job) -> str:
    """Reopen the folder of a finished run for more rounds. Returns a note for the user.

    Raises RequestError if the rounds so far cannot be kept."""
    done = folder.extends
    rounds = job.config.train.rounds
    if len(job.plan) > 1:
        raise RequestError(
            f"train.rounds = {rounds}: method {job.config.method.name!r} has {len(job.plan)} stages, and the finished "
            f"run of {done} rounds has been through them. Give another --out."
        )
    if job.config.privacy.epsilon:
        raise RequestError(
            f"train.rounds = {rounds}: privacy.epsilon = {job.config.privacy.epsilon:g} has been spent on the {done} "
            "rounds that are done. Give another --out."
        )
    found = folder.newest(job.model)
    if found is None or found.state.round != done:
        raise RequestError(
            f"{str(folder.path / 'checkpoints')!r} holds no checkpoint of round {done}, from which the finished run "
            "could go on. Give another --out."
        )
    folder.extend()
    note = f"the finished run of {done} rounds goes on to round {rounds}"
    # the rate of a round may depend on the number of rounds: then the result is not that of one longer run
    if _rates(job.config, job, done) != _rates(job.config.but(f"train.rounds={done}"), job, done):
        note += (
            f"; train.schedule = {job.config.train.schedule!r} goes by the number of rounds, so the first {done} had "
            f"other learning rates than those of a run of {rounds} from the start"
        )
    return note


def _rates(config: Config, job: Job, rounds: int) -> list[float]:
    (stage,) = stages(config, job.net)
    return [stage.rate(round) for round in range(1, rounds + 1)]
