"""Make the message (`Told`) and the work (`Visit`) of a round's participants from the server's state."""

from __future__ import annotations

from collections.abc import Sequence

from torso.data import Roster
from torso.data.batches import Shuffle
from torso.learn.tamper import Tamper
from torso.nets import Tensors
from torso.randomness import numpy_generator
from torso.runs.messages import Told
from torso.runs.stage import Stage
from torso.runs.visit import Visit
from torso.server import NoStatistics
from torso.server.state import ServerState
from torso.server.statistics import ServerView, Statistics
from torso.server.sums import add


def tell(
    stage: Stage,
    server: ServerState,
    roster: Roster,
    chosen: Sequence[int],
    number: int,
    seed: int,
    participants: int | None = None,
) -> Told:
    """What the server tells the clients `chosen`, whose visits begin in round `number`.

    `participants`: the number of uploads that make the round, if it is not that of `chosen`."""
    if participants is None:
        participants = len(chosen)
    method = stage.method
    keeps_uploads = method.server.keeps_uploads
    drift: Tensors = {}
    if method.drift.sends or method.drift.follows:
        drift = server.drift
        if not drift:  # before the first round
            drift = {name: server.model[name].new_zeros(server.model[name].shape) for name in stage.corrected}
    held = held_by(stage, server, seed)
    offers = {k: _offer(stage, server, roster, number, k, seed) for k in chosen} if keeps_uploads else {}
    return Told(
        round=number,
        model=server.model,
        travels=() if keeps_uploads else tuple(sorted(stage.travels)),
        participants=stage.privacy.told if stage.privacy else participants,
        drift=drift,
        mean=_mean_model(stage, server, chosen) if method.drift.gathers else {},
        origin=server.origin,
        offers={k: others for k, others in offers.items() if others},
        uploads=server.uploads if any(offers.values()) else {},
        said=method.statistics.to_all(held),
        own=_own(method.statistics, held, chosen),
    )


def _own(statistics: Statistics, held: ServerView, chosen: Sequence[int]) -> dict[int, Tensors]:
    """Client -> the statistics for it alone. Clients without any are left out."""
    if type(statistics) is NoStatistics:
        return {}
    return {k: own for k in chosen if (own := statistics.to_one(held, k))}


def held_by(stage: Stage, server: ServerState, seed: int) -> ServerView:
    """What the server knows when it combines statistics or sends them to clients."""
    statistics = stage.method.statistics
    if type(statistics) is NoStatistics:
        return ServerView()
    shared = server.statistics
    if not shared:
        first = statistics.first(stage.net, stage.net.classes, seed)
        shared = {name: tensor.to(next(iter(server.model.values())).device) for name, tensor in first.items()}
    return ServerView(shared, server.of_clients, server.model, server.uploads, stage.corrected)


def visit_of(stage: Stage, told: Told, seed: int) -> Visit:
    """The work of a participant, given the server's message. Server and client make the same object from it."""
    number = told.round
    return Visit(
        told=told,
        plan=stage.plan(number),
        settings=stage.settings(),
        personal=stage.method.personal,
        shuffle=Shuffle(seed, "train", number),
        travels=stage.travels,
        corrected=stage.corrected,
        keeps=stage.keeps,
        batch_size=stage.train.batch_size,
        statistics=stage.method.statistics if stage.gathers(number) else NoStatistics(),
        meta_data=stage.method.meta_data,
        tamper=_tamper(stage, told.participants, number, seed),
    )


def _tamper(stage: Stage, participants: int, number: int, seed: int) -> Tamper | None:
    """The replacement of attackers' uploads; None if the attack does not replace uploads (spec 9.6)."""
    if not stage.attack.replaces_uploads():
        return None
    return Tamper(stage.attack, stage.uploaded, participants, seed, number)


def _mean_model(stage: Stage, server: ServerState, chosen: Sequence[int]) -> Tensors:
    """The plain mean [*] of the models that the participants hold before the round (spec 5.5)."""
    mean: Tensors = {}
    for client in chosen:
        own = server.uploads.get(client, {})
        add(mean, {name: own.get(name, server.model[name]) / len(chosen) for name in stage.corrected})
    return mean


def _offer(stage: Stage, server: ServerState, roster: Roster, number: int, client: int, seed: int) -> tuple[int, ...]:
    """The other clients whose models the server sends to a client, among those that have uploaded one (spec 5.6)."""
    personal = stage.method.personal
    known = server.of_clients.get(client) or personal.known(client, roster.clients)
    return personal.offer(known, sorted(server.uploads), number, numpy_generator(seed, "offer", number, client))
