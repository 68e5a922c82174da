"""The server's step after a round: its rule, its statistics, and an epoch on the server's own data if it has any."""

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


def server_step(stage: Stage, server: ServerState, aggregate: Aggregate, roster: Roster, seed: int) -> ServerState:
    """The server's state after its step. The drift correction may shift what is broadcast (spec 3.7 to 3.10)."""
    if aggregate.uploads:
        server = replace(server, uploads={**server.uploads, **aggregate.uploads})
    if aggregate.statistics.single and stage.method.personal.declares(1):
        server = replace(server, of_clients={**server.of_clients, **_heard(stage, server, roster, aggregate)})
    moved = _moved(stage, server, aggregate, roster)
    if type(stage.method.statistics) is NoStatistics:
        return moved
    return _combined(stage, moved, aggregate, server.model, seed)


def _moved(stage: Stage, server: ServerState, aggregate: Aggregate, roster: Roster) -> ServerState:
    """The state after the step of the server's rule."""
    total = aggregate.shared(server)
    if not total:
        return server
    drift = stage.method.drift
    clients = roster.clients - len(roster.newcomers)
    old = {name: server.model[name] for name in stage.corrected}
    moved = stage.method.server.step(server.rule, old, {name: total[name] for name in old}, aggregate.squares)
    reported = {**total, **moved.shared}
    memory = {name: server.drift.get(name, 0.0) + change / clients for name, change in aggregate.change.items()}
    if drift.follows:
        memory = _mean_gradient(stage, roster, aggregate, old, total)
    shown = moved.shown
    if not shown and drift.shows_mean:  # accuracy is reported on the mean, which is not what is broadcast
        shown = {name: reported[name] for name in memory}
    return replace(
        server,
        model={**server.model, **drift.settle(reported, memory)},
        shown=shown,
        rule=moved.state,
        drift=memory,
        privacy=aggregate.privacy,
    )


def _mean_gradient(stage: Stage, roster: Roster, aggregate: Aggregate, old: Tensors, mean: Tensors) -> Tensors:
    """The participants' mean gradient [*]: their mean update divided by their mean of lr × steps (spec 19.7)."""
    sizes = roster.sizes_of(aggregate.clients) + (roster.meta_samples if stage.method.meta_data else 0)
    batches = epoch_steps(sizes.tolist(), stage.train.batch_size, stage.skips_single(roster.input))
    device = next(iter(old.values())).device
    pace = paces(stage.plan(aggregate.round), batches, stage.settings(), device)  # [G]: lr × steps
    weights = on_device(device, [aggregate.weights[k] for k in aggregate.clients])
    mean_pace = {name: (weights * pace[name]).sum() / weights.sum() for name in old if name in pace}
    return {
        name: (old[name] - mean[name]) / length.clamp(min=torch.finfo(length.dtype).tiny)
        for name, length in mean_pace.items()
    }


def _combined(stage: Stage, server: ServerState, aggregate: Aggregate, before: Tensors, seed: int) -> ServerState:
    """The state with the round's statistics, which are combined after the rule has moved the model.

    If no client has sent statistics, the old ones stay. With privacy clients send none, and the statistics follow from
    the model alone, also if no client took part. `before`: the model before the round."""
    statistics = stage.method.statistics
    if not (aggregate.clients or stage.privacy) or not stage.gathers(aggregate.round):
        return server
    held = replace(held_by(stage, server, seed), before=before)
    if not stage.privacy:
        held = statistics.combine(held, aggregate.statistics_of())
    shown = {**server.shown, **statistics.shows(held)}
    return replace(server, statistics=held.shared, of_clients=held.own, shown=shown)


def _heard(stage: Stage, server: ServerState, roster: Roster, aggregate: Aggregate) -> Mapping[int, Tensors]:
    """Client -> what the server knows of it, after it has told something about the models that it was offered."""
    personal = stage.method.personal
    known = {k: server.of_clients.get(k) or personal.known(k, roster.clients) for k in aggregate.statistics.single}
    device = next(iter(server.model.values())).device
    senders = {k: on_device(device, aggregate.offers[k]).long() for k in aggregate.statistics.single}
    return {k: personal.heard(known[k], senders[k], said) for k, said in aggregate.statistics.single.items()}


def server_pass(
    stage: Stage, server: ServerState, roster: Roster, engine: Engine, seed: int, number: int
) -> tuple[ServerState, float]:
    """One epoch on the server's own data, with the round's learning rate (spec 3.3). Returns the state and the loss.

    The engine runs it as a visit of the client SERVER."""
    plan = stage.server_plan(number)
    told = Told(number, server.model, tuple(sorted(moved_by(plan))), participants=1)
    visit = replace(
        visit_of(stage, told, seed),
        plan=plan,
        settings=replace(
            stage.settings(), drift=NoDrift(), step=Plain(), objective=stage.method.objective.without_teachers()
        ),
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
