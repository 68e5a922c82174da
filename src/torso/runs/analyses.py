"""What analyses get of a run: the federation at a given state, and the local training of a round once more."""

from __future__ import annotations

from typing import Any

from torso.engine import Engine
from torso.learn.phases import moved_by
from torso.measure.analyses import Snapshot, analyse_round, round_analyses
from torso.nets import learnable
from torso.personal.state import State
from torso.runs.evaluation import evaluation_of
from torso.runs.job import Job
from torso.runs.rounds import Round
from torso.runs.telling import tell, visit_of


def snapshot_of(job: Job, state: State, engine: Engine) -> Snapshot:
    """The federation at a state, as analyses see it."""
    stage = job.stage(state.round)
    trained = learnable(job.net, sorted(moved_by(stage.plan(stage.first))))
    how = evaluation_of(job, stage, state)
    seed = job.config.run.seed
    return Snapshot(engine, job.roster, job.net, state.reported, how, job.measured_clients, trained, seed)


def watch_round(job: Job, engine: Engine, before: State, after: State, played: Round) -> dict[str, Any]:
    """The analyses of a round's local models, by name. Empty if the config asks for none, or none is due.

    `before` and `after`: the run's state before and after the round."""
    measure = job.config.measure
    seed = job.config.run.seed
    names = round_analyses(measure.analyses)
    due = played.round % measure.analyses_every == 0 or played.round == job.rounds
    if not (names and due and played.participants):
        return {}
    stage = job.stage(played.round)
    told = tell(stage, before.server, job.roster, played.participants, played.round, seed)
    again = visit_of(stage, told, seed)
    return analyse_round(names, snapshot_of(job, after, engine), played.participants, again, before.clients)
