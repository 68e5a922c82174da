"""What analyses need to know of a run: the federation at some moment, and the visits of a round once more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torso.engine import Engine
from torso.learn.phases import moved_by
from torso.measure.analyses import Scene, analyses, watch
from torso.nets import learnable
from torso.runs.rounds import Round, visit_of, weights_of
from torso.server.state import State

if TYPE_CHECKING:
    from torso.runs.run import Job


def scene_of(job: Job, state: State, engine: Engine) -> Scene:
    stage = job.stage(state.round)
    trained = learnable(job.net, sorted(moved_by(stage.plan(stage.first))))
    how, seed = job.evaluation(stage, state), job.config.run.seed
    return Scene(engine, job.federation, job.net, state.reported, how, job.measured_clients, trained, seed)


def watch_round(job: Job, engine: Engine, before: State, after: State, played: Round) -> dict[str, Any]:
    """A look at the participants' models of a round between two states, where somebody asks for that and it is due."""
    measure, seed = job.config.measure, job.config.run.seed
    names = [name for name in measure.analyses if analyses[name].when == "round"]
    due = played.round % measure.analyses_every == 0 or played.round == job.rounds
    if not (names and due and played.participants):
        return {}
    stage = job.stage(played.round)
    weights = weights_of(job.federation, played.participants, stage.train.weighting)
    again = visit_of(stage, before, job.federation.clients, played.round, weights, seed)
    return watch(names, scene_of(job, after, engine), played.participants, again)
