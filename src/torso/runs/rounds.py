"""One round: sample, broadcast, local learning, aggregate, server step (spec 1.2). It exists once."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from torso.data import Federation
from torso.data.batches import Shuffle
from torso.engine import SERVER, Engine
from torso.errors import RunFailed
from torso.learn.attacks import Tamper
from torso.learn.drift import NoDrift
from torso.learn.phases import moved_by
from torso.learn.stacked import all_finite
from torso.learn.steps import Plain
from torso.nets import Tensors, learnable
from torso.personal import Personal
from torso.randomness import numpy_generator
from torso.runs.cost import cost_of
from torso.runs.stages import Stage
from torso.runs.visit import Sent, Visit
from torso.server.state import Cost, State
from torso.server.sums import add


@dataclass(frozen=True)
class Round:
    """What happened in a round, for the history."""

    round: int
    stage: str
    lr: float
    participants: tuple[int, ...]
    loss: float  # mean over participants, weighted as the aggregation weights them
    cost: Cost


def sample(federation: Federation, fraction: float, seed: int, round: int) -> tuple[int, ...]:
    """m = max(⌊N·f⌋, 1) training clients without replacement; the same for every method at one seed (spec 1.1).

    Its time depends on m, not on N (NumPy draws few of many without shuffling them all)."""
    newcomers = federation.newcomers
    count = federation.clients - len(newcomers)
    size = max(math.floor(count * fraction + 1e-9), 1)
    drawn = np.sort(numpy_generator(seed, "participants", round).choice(count, size, replace=False))
    # skip the newcomers: the j-th training client has as many newcomers before it as lie at or below it
    return tuple(int(k) for k in drawn + np.searchsorted(newcomers - np.arange(len(newcomers)), drawn, side="right"))


def participants(stage: Stage, federation: Federation, seed: int, round: int) -> tuple[int, ...]:
    """Nobody waits for a server that shares nothing: local-only clients all train in every round (spec 5.1).

    Nobody comes where clients train nothing, and the server learns alone."""
    if not stage.plan(round):
        return ()
    return sample(federation, stage.train.fraction if stage.travels else 1.0, seed, round)


def weights_of(federation: Federation, clients: Sequence[int], weighting: str) -> dict[int, float]:
    sizes = federation.train.sizes_of(clients).astype(np.float64)
    shares = sizes / sizes.sum() if weighting == "samples" else np.full(len(clients), 1 / len(clients))
    return dict(zip(clients, shares.tolist(), strict=True))


def play_round(stage: Stage, state: State, federation: Federation, engine: Engine, seed: int) -> tuple[State, Round]:
    """The next state, and what happened. Raises RunFailed when a loss or the result is not finite."""
    number = state.round + 1
    chosen = participants(stage, federation, seed, number)
    weights = weights_of(federation, chosen, stage.train.weighting)
    if stage.method.personal.from_start and not state.origin:
        state = replace(state, origin={name: state.model[name] for name in stage.moving})
    visit = visit_of(stage, state, federation.clients, number, weights, seed)
    came, losses = _gather(engine.map(visit, chosen), number)
    state = _server_step(stage, state, came, federation)
    loss = sum(weights[k] * losses[k] for k in chosen)
    if stage.method.server_data != "none":
        state, server_loss = _server_pass(stage, state, engine, seed, number)
        loss = loss if chosen else server_loss
    if not bool(all_finite(state.model[name] for name in stage.moving)):
        raise RunFailed(f"non-finite weights after round {number}")
    spent = cost_of(stage, federation, visit, chosen)
    state = replace(
        state,
        round=number,
        private={**state.private, **came.kept} if came.kept else state.private,
        memory={**state.memory, **came.memory} if came.memory else state.memory,
        own={**state.own, **came.own} if came.own else state.own,
        notes={**state.notes, **came.notes} if came.notes else state.notes,
        met=state.met.union(chosen),
        cost=state.cost + spent,
    )
    return state, Round(number, stage.method.name, stage.rate(number), chosen, loss, state.cost)


def visit_of(stage: Stage, state: State, clients: int, number: int, weights: Mapping[int, float], seed: int) -> Visit:
    """The visit of a round: what the participants, the keys of `weights`, are told; of `clients` in all."""
    method, chosen = stage.method, tuple(weights)
    return Visit(
        state=state,
        weights=weights,
        plan=stage.plan(number),
        habits=stage.habits(),
        personal=method.personal,
        shuffle=Shuffle(seed, "train", number),
        travels=stage.travels,
        corrected=stage.corrected,
        keeps=stage.keeps,
        batch_size=stage.train.batch_size,
        squares=method.server.uses_squares,
        averaged=not method.server.apart,
        meta_data=method.meta_data,
        gathered=_mean_model(stage, state, chosen) if method.drift.gathers else {},
        offers={k: _offer(stage, state, clients, number, k, seed) for k in chosen} if method.server.apart else {},
        tamper=_tamper(stage, len(chosen), number, seed),
    )


def _tamper(stage: Stage, participants: int, number: int, seed: int) -> Tamper | None:
    """How uploads are replaced, where the attack does that (spec 9.6)."""
    if not stage.attack.replaces_uploads():
        return None
    return Tamper(stage.attack, learnable(stage.net, sorted(stage.travels)), participants, seed, number)


def _mean_model(stage: Stage, state: State, chosen: Sequence[int]) -> Tensors:
    """The plain mean of what the participants hold before the round (spec 5.5)."""
    mean: Tensors = {}
    for client in chosen:
        own = state.private.get(client, {})
        add(mean, {name: own.get(name, state.model[name]) / len(chosen) for name in stage.corrected})
    return mean


def _offer(stage: Stage, state: State, clients: int, number: int, client: int, seed: int) -> tuple[int, ...]:
    """Whose models the server sends to a client besides: of those that have uploaded one (spec 5.6)."""
    personal = stage.method.personal
    notes = state.notes.get(client) or personal.notes(client, clients, stage.net)
    rng = numpy_generator(seed, "offer", number, client)
    return personal.offer(notes, sorted(state.private), number, rng)


def _gather(arriving: Iterator[Sent], number: int) -> tuple[Sent, dict[int, float]]:
    """All that came back, summed, and the losses by client; a non-finite one ends the run (spec 3.7).

    Losses are read once, when everything has been asked of the device."""
    came = Sent.merged(arriving)
    losses = dict(zip(came.clients, came.loss.tolist(), strict=True))
    for client, loss in sorted(losses.items()):
        if not math.isfinite(loss):
            raise RunFailed(f"non-finite loss in round {number}, client {client}")
    if not bool(came.finite):
        raise RunFailed(f"non-finite weights after round {number}")
    return came, losses


def _server_step(stage: Stage, state: State, came: Sent, federation: Federation) -> State:
    """The rule moves the parameters; the drift correction may shift what is broadcast (spec 3.7 to 3.10)."""
    if not came.total:
        return state
    drift, clients = stage.method.drift, federation.clients - len(federation.newcomers)
    old = {name: state.model[name] for name in stage.corrected}
    moved = stage.method.server.step(state.rule, old, {name: came.total[name] for name in old}, came.squares)
    reported = {**came.total, **moved.shared}
    memory = {name: state.drift.get(name, 0.0) + change / clients for name, change in came.change.items()}
    return replace(
        state,
        model={**state.model, **drift.settle(reported, memory)},
        shown=moved.shown or ({name: reported[name] for name in memory} if drift.shows_mean else {}),
        rule=moved.state,
        drift=memory,
    )


def _server_pass(stage: Stage, state: State, engine: Engine, seed: int, number: int) -> tuple[State, float]:
    """One epoch on the server's own data, with the round's rate (spec 3.3): the server visits itself."""
    plan = stage.server_plan(number)
    visit = replace(
        visit_of(stage, replace(state, private={}), 0, number, {}, seed),
        weights={SERVER: 1.0},
        plan=plan,
        habits=replace(stage.habits(), drift=NoDrift(), step=Plain()),
        personal=Personal(),
        shuffle=Shuffle(seed, "server", number),
        travels=moved_by(plan),
        keeps=frozenset(),
        averaged=True,
        meta_data=False,
    )
    (sent,) = engine.map(visit, [SERVER])
    loss = float(sent.loss)
    if not math.isfinite(loss):
        raise RunFailed(f"non-finite loss on the server's data in round {number}")
    return replace(state, model={**state.model, **sent.total}, shown={}), loss
