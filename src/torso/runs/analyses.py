"""What analyses need to know of a run: the federation at some moment, and the visits of a round once more."""

from __future__ import annotations

from typing import Any

from torso.engine import Engine
from torso.learn.phases import moved_by
from torso.measure.analyses import Scene, of_rounds, watch
from torso.nets import learnable
from torso.personal.state import State
from torso.runs.evaluation import evaluation_of
from torso.runs.job import Job
from torso.runs.rounds import Round
from torso.runs.telling import tell, visit_of


def scene_of(job: Job, state: State, engine: Engine) -> Scene:
    stage = job.stage(state.round)
    trained = learnable(job.net, sorted(moved_by(stage.plan(stage.first))))
    how, seed = evaluation_of(job, stage, state), job.config.run.seed
    return Scene(engine, job.roster, job.net, state.reported, how, job.measured_clients, trained, seed)


def watch_round(job: Job, engine: Engine, before: State, after: State, played: Round) -> dict[str, Any]:
    """A look at the participants' models of a round between two states, where somebody asks for that and it is due."""
    measure, seed = job.config.measure, job.config.run.seed
    names = of_rounds(measure.analyses)
    due = played.round % measure.analyses_every == 0 or played.round == job.rounds
    if not (names and due and played.participants):
        return {}
    stage = job.stage(played.round)
    told = tell(stage, before.server, job.roster, played.participants, played.round, seed)
    again = visit_of(stage, told, seed)
    return watch(names, scene_of(job, after, engine), played.participants, again, before.clients)
