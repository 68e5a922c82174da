"""One round: sample, broadcast, local learning, aggregate, server step (spec 1.2). It exists once."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from torso.data import Roster
from torso.data.batches import Shuffle
from torso.engine import SERVER, ComeAndGo, Engine, add_up
from torso.errors import RunFailed, TorsoError
from torso.learn.attacks import Tamper
from torso.learn.drift import NoDrift
from torso.learn.phases import moved_by
from torso.learn.stacked import all_finite
from torso.learn.steps import Plain
from torso.nets import Tensors
from torso.personal import Personal
from torso.personal.state import State
from torso.randomness import numpy_generator
from torso.runs.aggregate import Aggregate
from torso.runs.cost import Busy, cost_of
from torso.runs.faults import TRAINED, UPLOADED, Faults
from torso.runs.messages import Told
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
) -> tuple[State, Round]:
    """The next state, and what happened. Raises RunFailed when a loss or the result is not finite, TooFewAnswered when
    too few of the participants did: nothing has changed then, and the round can be played again.

    `faults`: what goes wrong with whom of the participants."""
    number = state.round + 1
    here = engine.present() if isinstance(engine, ComeAndGo) else None
    chosen = participants(stage, roster, seed, number, here)
    server = state.server
    if stage.method.personal.from_start and not server.origin:
        server = replace(server, origin={name: server.model[name] for name in stage.moving})
    told = tell(stage, server, roster, chosen, number, seed)
    visit = visit_of(stage, told, seed)
    why = faults(chosen) if faults else {}
    able = tuple(k for k in chosen if k not in why)
    weights = weights_of(roster, chosen, "uniform" if stage.privacy else stage.train.weighting)
    nothing = Aggregate(stage, told, weights, roster.malicious, server.privacy)
    came = add_up(engine, visit, able, state.clients, nothing, here=nothing.holds_uploads)
    loss, heard = came.close(), came.clients
    missing = tuple(k for k in chosen if k not in set(heard))
    if missing and len(heard) < stage.train.min_clients and not stage.privacy:  # a private round counts as it is
        raise TooFewAnswered(number, heard, missing, f"train.min_clients = {stage.train.min_clients}")
    if chosen and len(heard) < stage.method.server.least:
        raise TooFewAnswered(number, heard, missing, f"{stage.method.server} needs {stage.method.server.least}")
    if stage.privacy and not heard:  # a round all the same: the sum is noise alone
        loss = math.nan
    before, server = server, _server_step(stage, server, came, roster)
    if stage.method.server_data != "none":
        server, server_loss = _server_pass(stage, server, roster, engine, seed, number)
        loss = loss if chosen else server_loss
    if not bool(all_finite(server.model[name] for name in stage.moving)):
        raise RunFailed(f"non-finite weights after round {number}")
    spent = cost_of(stage, roster, before, told, _busy(chosen, heard, why))
    server = replace(server, round=number, met=server.met.union(heard), cost=server.cost + spent)
    played = Round(number, stage.method.name, stage.rate(number), heard, loss, server.cost, missing, why)
    if isinstance(engine, ComeAndGo):
        engine.counted(number, heard)
    return State(server, state.clients.updated(came.left)), played


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
    drift = server.drift if method.drift.sends else {}
    if method.drift.sends and not drift:
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
    return replace(
        server,
        model={**server.model, **drift.settle(reported, memory)},
        shown=moved.shown or ({name: reported[name] for name in memory} if drift.shows_mean else {}),
        rule=moved.state,
        drift=memory,
        privacy=came.privacy,
    )


def _heard(stage: Stage, server: ServerState, roster: Roster, came: Aggregate) -> Mapping[int, Tensors]:
    """What the server knows of clients that have told it something about the models that they were offered."""
    personal = stage.method.personal
    known = {k: server.scores.get(k) or personal.known(k, roster.clients) for k in came.told}
    return {k: personal.heard(known[k], senders, told) for k, (senders, told) in came.told.items()}


def _server_pass(
    stage: Stage, server: ServerState, roster: Roster, engine: Engine, seed: int, number: int
) -> tuple[ServerState, float]:
    """One epoch on the server's own data, with the round's rate (spec 3.3): the server visits itself."""
    plan = stage.server_plan(number)
    told = Told(number, server.model, tuple(sorted(moved_by(plan))), participants=1)
    visit = replace(
        visit_of(stage, told, seed),
        plan=plan,
        habits=replace(stage.habits(), drift=NoDrift(), step=Plain()),
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
