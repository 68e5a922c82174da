"""What the server makes of a round: the step of its rule, and a pass over data of its own."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import torch

from torso.data import Roster
from torso.data.batches import Shuffle, epoch_steps
from torso.data.sending import on_device
from torso.engine import SERVER, Engine
from torso.errors import RunFailed
from torso.learn.drift import NoDrift
from torso.learn.local import paces
from torso.learn.phases import moved_by
from torso.learn.steps import Plain
from torso.nets import Tensors
from torso.personal import Personal
from torso.runs.aggregate import Aggregate
from torso.runs.messages import Told
from torso.runs.stage import Stage
from torso.runs.telling import held_by, visit_of
from torso.server import NoStatistics
from torso.server.state import ServerState


def server_step(stage: Stage, server: ServerState, came: Aggregate, roster: Roster, seed: int) -> ServerState:
    """The rule moves the parameters; the drift correction may shift what is broadcast (spec 3.7 to 3.10)."""
    if came.uploads:
        server = replace(server, uploads={**server.uploads, **came.uploads})
    if came.gathered.single and stage.method.personal.declares(1):
        server = replace(server, of_clients={**server.of_clients, **_heard(stage, server, roster, came)})
    moved = _moved(stage, server, came, roster)
    return moved if type(stage.method.statistics) is NoStatistics else _combined(stage, moved, came, server.model, seed)


def _moved(stage: Stage, server: ServerState, came: Aggregate, roster: Roster) -> ServerState:
    """The step of the rule."""
    total = came.shared(server)
    if not total:
        return server
    drift, clients = stage.method.drift, roster.clients - len(roster.newcomers)
    old = {name: server.model[name] for name in stage.corrected}
    moved = stage.method.server.step(server.rule, old, {name: total[name] for name in old}, came.squares)
    reported = {**total, **moved.shared}
    memory = {name: server.drift.get(name, 0.0) + change / clients for name, change in came.change.items()}
    if drift.follows:
        memory = _mean_gradient(stage, roster, came, old, total)
    return replace(
        server,
        model={**server.model, **drift.settle(reported, memory)},
        shown=moved.shown or ({name: reported[name] for name in memory} if drift.shows_mean else {}),
        rule=moved.state,
        drift=memory,
        privacy=came.privacy,
    )


def _mean_gradient(stage: Stage, roster: Roster, came: Aggregate, old: Tensors, mean: Tensors) -> Tensors:
    """How far the participants moved on average, divided by their mean of lr × steps (spec 19.7)."""
    sizes = roster.sizes_of(came.clients) + (roster.meta_samples if stage.method.meta_data else 0)
    batches = epoch_steps(sizes.tolist(), stage.train.batch_size, stage.skips_single(roster.input))
    device = next(iter(old.values())).device
    pace = paces(stage.plan(came.round), batches, stage.settings(), device)
    shares = on_device(device, [came.weights[k] for k in came.clients])
    each = {name: (shares * pace[name]).sum() / shares.sum() for name in old if name in pace}
    return {
        name: (old[name] - mean[name]) / gone.clamp(min=torch.finfo(gone.dtype).tiny) for name, gone in each.items()
    }


def _combined(stage: Stage, server: ServerState, came: Aggregate, before: Tensors, seed: int) -> ServerState:
    """What the server makes of the statistics, after its rule has moved the model; where none came it holds on. Under
    privacy nobody sends any, and the model moves whoever came."""
    statistics = stage.method.statistics
    if not (came.clients or stage.privacy) or not stage.gathers(came.round):
        return server
    held = replace(held_by(stage, server, seed), before=before)
    if not stage.privacy:
        held = statistics.combine(held, came.statistics_of())
    shown = {**server.shown, **statistics.shows(held)}
    return replace(server, statistics=held.shared, of_clients=held.own, shown=shown)


def _heard(stage: Stage, server: ServerState, roster: Roster, came: Aggregate) -> Mapping[int, Tensors]:
    """What the server holds of clients that have told it something about the models that they were offered."""
    personal = stage.method.personal
    known = {k: server.of_clients.get(k) or personal.known(k, roster.clients) for k in came.gathered.single}
    device = next(iter(server.model.values())).device
    senders = {k: on_device(device, came.offers[k]).long() for k in came.gathered.single}
    return {k: personal.heard(known[k], senders[k], said) for k, said in came.gathered.single.items()}


def server_pass(
    stage: Stage, server: ServerState, roster: Roster, engine: Engine, seed: int, number: int
) -> tuple[ServerState, float]:
    """One epoch on the server's own data, with the round's rate (spec 3.3): the server visits itself."""
    plan = stage.server_plan(number)
    told = Told(number, server.model, tuple(sorted(moved_by(plan))), participants=1)
    visit = replace(
        visit_of(stage, told, seed),
        plan=plan,
        settings=replace(stage.settings(), drift=NoDrift(), step=Plain(), objective=stage.method.objective.untaught()),
        personal=Personal(),
        statistics=NoStatistics(),
        shuffle=Shuffle(seed, "server", number),
        travels=moved_by(plan),
        keeps=frozenset(),
        meta_data=False,
        tamper=None,
    )
    (sent,) = engine.map(visit, [SERVER])
    loss = float(sent.loss)
    if not math.isfinite(loss):
        raise RunFailed(f"non-finite loss on the server's data in round {number}")
    learned = {name: tensor[0] for name, tensor in sent.model.items()}
    return replace(server, model={**server.model, **learned}, shown={}), loss
