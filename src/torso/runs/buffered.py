"""Asynchronous rounds: which visits begin at the present model, and whose uploads make the next step of the server.

How long a visit lasts does not depend on what it computes, so a round is planned before anybody trains. All visits that
begin at one model are then computed together, in one call of the engine, and an upload that comes in a later round
waits until then (`Pending`). So stacks are as large as in a synchronous run, no old model is kept, and a checkpoint
has the visits under way as they are.

A client is busy from the beginning of its visit until its upload has become part of a step. It is not asked again
before, so it has one visit a model at most, and its own part moves when its upload counts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import NamedTuple

import numpy as np

from torso.data import Roster
from torso.nets import Tensors
from torso.personal.state import Pending
from torso.randomness import numpy_generator
from torso.runs.messages import Sent, Told
from torso.runs.speeds import Hours
from torso.runs.stage import Stage


class Flight(NamedTuple):
    """A visit under way. They are ordered by the time at which uploads come, then by client."""

    arrives: float  # in simulated hours
    client: int
    began: int  # rounds that were over when it began


@dataclass(frozen=True)
class Time:
    """When a step of the server begins, and how long visits last that begin in it."""

    hour: float
    round: int
    lasts: Hours


@dataclass(frozen=True)
class Plan:
    """One step of the server: visits in the order of the clients."""

    round: int
    begun: tuple[Flight, ...]  # visits that begin at the present model
    heard: tuple[Flight, ...]  # those whose uploads make the step
    hour: float  # at which it is taken

    @property
    def beginning(self) -> tuple[int, ...]:
        return tuple(flight.client for flight in self.begun)

    @property
    def clients(self) -> tuple[int, ...]:
        """The clients whose uploads make the round."""
        return tuple(flight.client for flight in self.heard)

    def staleness(self, clients: Sequence[int]) -> tuple[int, ...]:
        """How many steps of the server lie between the beginnings of these clients' visits and this step."""
        began = {flight.client: flight.began for flight in self.heard}
        return tuple(self.round - 1 - began[client] for client in clients)


def draw(roster: Roster, size: int, busy: Collection[int], seed: int, *purpose: int) -> tuple[int, ...]:
    """Training clients that are not busy, without replacement: as `sample` draws where nobody is."""
    passed = np.union1d(roster.newcomers, np.array(sorted(busy), dtype=np.int64))
    generator = numpy_generator(seed, "participants", *purpose)
    drawn = np.sort(generator.choice(roster.clients - len(passed), size, replace=False))
    # the j-th of those who are left has as many before it that are passed over as lie at or below it
    return tuple(int(k) for k in drawn + np.searchsorted(passed - np.arange(len(passed)), drawn, side="right"))


def plan_step(under_way: Iterable[Flight], time: Time, at_once: int, uploads: int, roster: Roster, seed: int) -> Plan:
    """Go on until so many uploads have come, with `at_once` clients training at any time.

    Uploads that come at the same moment are taken before others begin. Where all clients are busy, fewer train."""
    air, begun, heard, hour, fills = list(under_way), list[Flight](), list[Flight](), time.hour, 0
    heapify(air)
    while len(heard) < uploads:
        busy = {flight.client for flight in (*air, *heard)}
        size = min(at_once - len(air), roster.clients - len(roster.newcomers) - len(busy))
        chosen = draw(roster, size, busy, seed, time.round, *([fills] if fills else [])) if size > 0 else ()
        for client, lasts in zip(chosen, time.lasts(time.round, chosen), strict=True):
            begun.append(Flight(hour + lasts, client, time.round - 1))
            heappush(air, begun[-1])
        hour, fills = air[0].arrives, fills + 1
        while air and air[0].arrives == hour and len(heard) < uploads:
            heard.append(heappop(air))
    return Plan(time.round, _by_client(begun), _by_client(heard), hour)


def _by_client(flights: Sequence[Flight]) -> tuple[Flight, ...]:
    return tuple(sorted(flights, key=lambda flight: flight.client))


def flights_of(pending: Iterable[Pending]) -> list[Flight]:
    return [Flight(each.arrives, each.client, each.began) for each in pending]


def collect(
    stage: Stage, told: Told, plan: Plan, parts: Iterable[Sent], pending: Iterable[Pending]
) -> tuple[list[Sent], tuple[Pending, ...]]:
    """The uploads of a step in the order of the clients, and those that are still to come.

    `parts`: what those who begin now will send, as an engine computes it."""
    came: dict[int, Sent] = {}
    waiting: list[Pending] = []
    heard, begun = set(plan.clients), {flight.client: flight for flight in plan.begun}
    for part in parts:
        for place, client in enumerate(part.clients):
            sent = part.only([place])
            if client in heard:
                came[client] = sent
            else:
                waiting.append(_held(stage, told, begun[client], sent))
    for each in pending:
        if each.client in heard:
            came[each.client] = _as_of_now(stage, told, each)
        else:
            waiting.append(each)
    return [came[k] for k in plan.clients if k in came], tuple(sorted(waiting, key=lambda each: each.client))


def _held(stage: Stage, told: Told, flight: Flight, sent: Sent) -> Pending:
    """An upload that is still to come, as a change of the model that its client began at."""
    own = {name: tensor[0] for name, tensor in sent.model.items()}
    change = {name: own[name] - told.model[name] for name in stage.uploaded}
    return Pending(
        client=flight.client,
        began=flight.began,
        arrives=flight.arrives,
        samples=sent.samples[0],
        loss=sent.loss,
        finite=sent.finite,
        sent={**own, **change},
        left=sent.left.get(flight.client),
    )


def _as_of_now(stage: Stage, told: Told, held: Pending) -> Sent:
    """An upload from an older model, as if it had begun at the present one: θ + s(τ) Δ. What is no parameter (running
    statistics) is taken as it came."""
    share = stage.method.server.discount(told.round - 1 - held.began)
    moved: Tensors = {name: told.model[name] + share * held.sent[name] for name in stage.uploaded}
    return Sent(
        round=told.round,
        clients=(held.client,),
        samples=(held.samples,),
        model={name: tensor[None] for name, tensor in {**held.sent, **moved}.items()},
        loss=held.loss,
        finite=held.finite,
        left={} if held.left is None else {held.client: held.left},
    )
