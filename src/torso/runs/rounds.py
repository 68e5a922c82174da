"""One round: sample, broadcast, local learning, aggregate, server step (spec 1.2). It exists once."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from torso.data import Roster
from torso.data.batches import Shuffle, on_device
from torso.engine import SERVER, ComeAndGo, Engine, add_up
from torso.errors import RunFailed, TorsoError
from torso.learn.attacks import Tamper
from torso.learn.drift import NoDrift
from torso.learn.local import paces
from torso.learn.objectives import Objective
from torso.learn.phases import moved_by
from torso.learn.stacked import all_finite
from torso.learn.steps import Plain
from torso.nets import Tensors
from torso.personal import Personal
from torso.personal.state import Pending, State
from torso.randomness import numpy_generator
from torso.runs.aggregate import Aggregate
from torso.runs.buffered import Plan, Time, collect, flights_of, plan_step
from torso.runs.cost import Busy, cost_of
from torso.runs.faults import NOT_FINITE, TRAINED, UPLOADED, Faults
from torso.runs.messages import Told
from torso.runs.speeds import Hours, an_hour_each
from torso.runs.stages import Stage
from torso.runs.visit import Visit
from torso.server.state import Cost, ServerState
from torso.server.sums import add


@dataclass(frozen=True)
class Round:
    """What happened in a round, for the history."""

    round: int
    stage: str
    lr: float
    participants: tuple[int, ...]  # those who answered
    loss: float  # mean over participants, weighted as the aggregation weights them; NaN: nobody came
    cost: Cost
    missing: tuple[int, ...] = ()  # those who were asked and have not answered
    why: Faults = field(default_factory=dict)  # what went wrong with them, where that is known
    staleness: tuple[int, ...] = ()  # of the participants' uploads, where rounds are asynchronous
    privacy: Mapping[str, float | None] = field(default_factory=dict)  # ε so far and the next clip, in a private run


class TooFewAnswered(TorsoError):
    """A round that has not happened: nobody's state has changed by it."""

    def __init__(self, round: int, heard: Sequence[int], missing: Sequence[int], wanted: str) -> None:
        self.round, self.missing = round, tuple(missing)
        whom = "nobody" if not heard else f"{len(heard)} of {len(heard) + len(missing)} clients"
        super().__init__(f"round {round}: {whom} answered, and {wanted}")


def sample(
    roster: Roster, fraction: float, seed: int, round: int, here: Collection[int] | None = None, least: int = 1
) -> tuple[int, ...]:
    """m = max(⌊N·f⌋, least) training clients without replacement; the same for every method at one seed (spec 1.1).

    `here`: those who can come, where not everybody can; N is their number then, and the draw is the usual one where all
    are there. Its time depends on m, not on N (NumPy draws few of many without shuffling them all)."""
    newcomers = roster.newcomers
    count = roster.clients - len(newcomers)
    able = None if here is None else [k for k in roster.training.tolist() if k in here]
    if able is not None and len(able) < count:
        count = len(able)
    else:
        able = None
    size = min(max(math.floor(count * fraction + 1e-9), least), count)
    drawn = np.sort(numpy_generator(seed, "participants", round).choice(count, size, replace=False))
    if able is not None:
        return tuple(able[place] for place in drawn)
    # skip the newcomers: the j-th training client has as many newcomers before it as lie at or below it
    return tuple(int(k) for k in drawn + np.searchsorted(newcomers - np.arange(len(newcomers)), drawn, side="right"))


def poisson_sample(roster: Roster, chance: float, seed: int, round: int) -> tuple[int, ...]:
    """Each training client with this chance, whoever else comes; it may be nobody."""
    drawn = numpy_generator(seed, "participants", round).random(len(roster.training))
    return tuple(roster.training[drawn < chance].tolist())


def participants(
    stage: Stage, roster: Roster, seed: int, round: int, here: Collection[int] | None = None
) -> tuple[int, ...]:
    """Nobody waits for a server that shares nothing: local-only clients all train in every round (spec 5.1).

    Nobody comes where clients train nothing, and the server learns alone. `here`: as in `sample`. Under privacy the
    draw is what the accountant counts on, from all clients: who is not there is missing."""
    if not stage.plan(round):
        return ()
    if stage.privacy:
        seed = stage.privacy.sampling_seed
        if stage.privacy.poisson:
            return poisson_sample(roster, stage.train.fraction, seed, round)
        return sample(roster, stage.train.fraction, seed, round)
    return sample(roster, stage.train.fraction if stage.travels else 1.0, seed, round, here, stage.train.min_clients)


def weights_of(roster: Roster, clients: Sequence[int], weighting: str) -> dict[int, float]:
    """The shares of clients in a mean over them, which sum to 1."""
    if not clients:
        return {}
    sizes = roster.sizes_of(clients).astype(np.float64)
    shares = sizes / sizes.sum() if weighting == "samples" else np.full(len(clients), 1 / len(clients))
    return dict(zip(clients, shares.tolist(), strict=True))


def play_round(
    stage: Stage,
    state: State,
    roster: Roster,
    engine: Engine,
    seed: int,
    faults: Callable[[Sequence[int]], Faults] | None = None,
    hours: Hours | None = None,
) -> tuple[State, Round]:
    """The next state, and what happened. Raises RunFailed when the result is not finite, or too few uploads are;
    TooFewAnswered when too few of the participants did: nothing has changed then, and the round can be played again.

    `faults`: what goes wrong with whom of the participants; `hours`: how long they take, where time is simulated."""
    number = state.round + 1
    here = engine.present() if isinstance(engine, ComeAndGo) else None
    chosen = participants(stage, roster, seed, number, here)
    plan = _planned(stage, state, roster, seed, hours, len(chosen))
    asked, chosen = (plan.beginning, plan.clients) if plan else (chosen, chosen)
    server = state.server
    if stage.method.personal.from_start and not server.origin:
        server = replace(server, origin={name: server.model[name] for name in stage.moving})
    told = tell(stage, server, roster, asked, number, seed)
    if plan:
        told = replace(told, participants=len(chosen))
    visit = visit_of(stage, told, seed)
    why = faults(chosen) if faults else {}
    able, pending = tuple(k for k in asked if k not in why), tuple[Pending, ...]()
    declared = dict(zip(chosen, roster.sizes_of(chosen).tolist(), strict=True))
    weights = weights_of(roster, chosen, "uniform" if stage.privacy else stage.train.weighting)
    came = Aggregate(stage, told, weights, roster.malicious, declared, server.privacy)
    if plan:
        sent, pending = collect(stage, told, plan, engine.map(visit, able, state.clients), state.pending)
        for each in sent:
            came.take(each)
    else:
        came = add_up(engine, visit, able, state.clients, came, here=came.holds_uploads)
    loss, heard = came.close(), came.clients
    missing, why = tuple(k for k in chosen if k not in set(heard)), {**why, **came.refused}
    _check_enough(stage, came, missing, again=isinstance(engine, ComeAndGo))
    if stage.privacy and not heard:  # a round all the same: the sum is noise alone
        loss = math.nan
    before, server = server, _server_step(stage, server, came, roster)
    if stage.method.server_data != "none":
        server, server_loss = _server_pass(stage, server, roster, engine, seed, number)
        loss = loss if chosen else server_loss
    if not bool(all_finite(server.model[name] for name in stage.moving)):
        raise RunFailed(f"non-finite weights after round {number}")
    busy = Busy(asked, chosen, chosen) if plan else _busy(chosen, heard, why)
    cost = server.cost + cost_of(stage, roster, before, told, busy)
    if plan:
        cost = replace(cost, hours=plan.hour)
    elif hours and busy.trained:  # a synchronous round lasts as long as its slowest participant
        cost = replace(cost, hours=cost.hours + max(hours(number, busy.trained)))
    server = replace(server, round=number, met=server.met.union(heard), cost=cost)
    stale = plan.staleness(heard) if plan else ()
    played = Round(number, stage.method.name, stage.rate(number), heard, loss, cost, missing, why, stale)
    if isinstance(engine, ComeAndGo):
        engine.counted(number, heard)
    return State(server, state.clients.updated(came.left), pending), played


def _planned(stage: Stage, state: State, roster: Roster, seed: int, hours: Hours | None, at_once: int) -> Plan | None:
    """Who begins and who is heard in an asynchronous round; None: the round is synchronous, or nobody takes part."""
    uploads = stage.method.server.waits_for
    if not uploads or not at_once:
        return None
    time = Time(state.cost.hours, state.round + 1, hours or an_hour_each)
    return plan_step(flights_of(state.pending), time, at_once, uploads, roster, seed)


def _check_enough(stage: Stage, came: Aggregate, missing: Sequence[int], again: bool) -> None:
    """Whether a round can go on with those who were heard. It is played again where the others may be heard then.

    `again`: a client whose upload had a wrong form may send another one. One that is not finite comes back the same."""
    heard, rule = len(came.clients), stage.method.server
    honest = [k for k, kind in came.refused.items() if kind == NOT_FINITE and k not in came.malicious]
    if honest and not again:  # a simulation knows who lies: this one has diverged, and so has the method (spec 3.7)
        raise _diverged(came, honest)
    if stage.privacy and (heard or len(came.refused) < len(missing) or not missing):  # it counts as it is
        return
    least, wanted = stage.train.min_clients if missing else 0, f"train.min_clients = {stage.train.min_clients}"
    if rule.least > max(heard, least) and (heard or missing):
        least, wanted = rule.least, f"{rule} needs {rule.least}"
    if heard >= least:
        return
    lost = sorted(k for k, kind in came.refused.items() if kind == NOT_FINITE or not again)
    if not lost or heard + len(missing) - len(lost) >= least:
        raise TooFewAnswered(came.round, came.clients, missing, wanted)
    if heard or any(came.refused[k] != NOT_FINITE for k in lost):
        kinds = ", ".join(sorted({came.refused[k] for k in lost}))
        raise RunFailed(
            f"round {came.round}: what {named(lost)} sent is not used ({kinds}); {heard} left, and {wanted}"
        )
    raise _diverged(came, lost)


def _diverged(came: Aggregate, clients: Sequence[int]) -> RunFailed:
    """What is said where the numbers of clients are not finite."""
    if burst := came.burst.intersection(clients):
        return RunFailed(f"non-finite loss in round {came.round}, client {min(burst)}")
    return RunFailed(f"non-finite weights after round {came.round}")


def named(clients: Sequence[int]) -> str:
    """Clients in words, not all of many."""
    some = ", ".join(map(str, clients[:10]))
    return f"client{'s' * (len(clients) > 1)} {some}" + (f", … ({len(clients)} in all)" if len(clients) > 10 else "")


def _busy(chosen: Sequence[int], heard: Sequence[int], why: Faults) -> Busy:
    """Who did how much of a round."""
    counted = frozenset(heard)
    return Busy(
        sent=tuple(k for k in chosen if why.get(k) != "drop"),
        trained=tuple(k for k in chosen if k in counted or why.get(k) in TRAINED),
        uploaded=tuple(k for k in chosen if k in counted or why.get(k) in UPLOADED),
    )


def tell(stage: Stage, server: ServerState, roster: Roster, chosen: Sequence[int], number: int, seed: int) -> Told:
    """What the participants of a round are told."""
    method, keeps_uploads = stage.method, stage.method.server.keeps_uploads
    told = method.drift.sends or method.drift.follows
    drift = server.drift if told else {}
    if told and not drift:
        drift = {name: server.model[name].new_zeros(server.model[name].shape) for name in stage.corrected}
    offers = {k: _offer(stage, server, roster, number, k, seed) for k in chosen} if keeps_uploads else {}
    return Told(
        round=number,
        model=server.model,
        travels=() if keeps_uploads else tuple(sorted(stage.travels)),
        participants=stage.privacy.told if stage.privacy else len(chosen),
        drift=drift,
        mean=_mean_model(stage, server, chosen) if method.drift.gathers else {},
        origin=server.origin,
        offers={k: others for k, others in offers.items() if others},
        uploads=server.uploads if any(offers.values()) else {},
    )


def visit_of(stage: Stage, told: Told, seed: int) -> Visit:
    """What a participant does in a round with what it is told: the same on the server's side and on the client's."""
    number = told.round
    return Visit(
        told=told,
        plan=stage.plan(number),
        habits=stage.habits(),
        personal=stage.method.personal,
        shuffle=Shuffle(seed, "train", number),
        travels=stage.travels,
        corrected=stage.corrected,
        keeps=stage.keeps,
        batch_size=stage.train.batch_size,
        meta_data=stage.method.meta_data,
        tamper=_tamper(stage, told.participants, number, seed),
    )


def _tamper(stage: Stage, participants: int, number: int, seed: int) -> Tamper | None:
    """How uploads are replaced, where the attack does that (spec 9.6)."""
    if not stage.attack.replaces_uploads():
        return None
    return Tamper(stage.attack, stage.uploaded, participants, seed, number)


def _mean_model(stage: Stage, server: ServerState, chosen: Sequence[int]) -> Tensors:
    """The plain mean of what the participants hold before the round (spec 5.5)."""
    mean: Tensors = {}
    for client in chosen:
        own = server.uploads.get(client, {})
        add(mean, {name: own.get(name, server.model[name]) / len(chosen) for name in stage.corrected})
    return mean


def _offer(stage: Stage, server: ServerState, roster: Roster, number: int, client: int, seed: int) -> tuple[int, ...]:
    """Whose models the server sends to a client besides: of those that have uploaded one (spec 5.6)."""
    personal = stage.method.personal
    known = server.scores.get(client) or personal.known(client, roster.clients)
    return personal.offer(known, sorted(server.uploads), number, numpy_generator(seed, "offer", number, client))


def _server_step(stage: Stage, server: ServerState, came: Aggregate, roster: Roster) -> ServerState:
    """The rule moves the parameters; the drift correction may shift what is broadcast (spec 3.7 to 3.10)."""
    if came.uploads:
        server = replace(server, uploads={**server.uploads, **came.uploads})
    if came.told:
        server = replace(server, scores={**server.scores, **_heard(stage, server, roster, came)})
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
    sizes = roster.sizes_of(came.clients)
    batches = [math.ceil(size / stage.train.batch_size) for size in sizes.tolist()]
    device = next(iter(old.values())).device
    pace = paces(stage.plan(came.round), batches, stage.habits(), device)
    shares = on_device(device, [came.weights[k] for k in came.clients])
    each = {name: (shares * pace[name]).sum() / shares.sum() for name in old if name in pace}
    return {
        name: (old[name] - mean[name]) / gone.clamp(min=torch.finfo(gone.dtype).tiny) for name, gone in each.items()
    }


def _heard(stage: Stage, server: ServerState, roster: Roster, came: Aggregate) -> Mapping[int, Tensors]:
    """What the server knows of clients that have told it something about the models that they were offered."""
    personal = stage.method.personal
    known = {k: server.scores.get(k) or personal.known(k, roster.clients) for k in came.told}
    return {k: personal.heard(known[k], senders, told) for k, (senders, told) in came.told.items()}


def _server_objective(stage: Stage) -> Objective:
    """The method's loss; the server has no model of others to compare with."""
    objective = stage.method.objective
    return objective.for_itself() if objective.teachers else objective


def _server_pass(
    stage: Stage, server: ServerState, roster: Roster, engine: Engine, seed: int, number: int
) -> tuple[ServerState, float]:
    """One epoch on the server's own data, with the round's rate (spec 3.3): the server visits itself."""
    plan = stage.server_plan(number)
    told = Told(number, server.model, tuple(sorted(moved_by(plan))), participants=1)
    visit = replace(
        visit_of(stage, told, seed),
        plan=plan,
        habits=replace(stage.habits(), drift=NoDrift(), step=Plain(), objective=_server_objective(stage)),
        personal=Personal(),
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
