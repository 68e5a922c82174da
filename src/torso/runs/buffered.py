"""Plan asynchronous rounds: which visits begin at the current model, and whose uploads make the next server step.

A visit's duration does not depend on what it computes, so a round is planned before any client trains. All visits that
begin at one model are then computed together, in one call of the engine. An upload that arrives in a later round waits
until then (`PendingVisit`). So stacks are as large as in a synchronous run, no old model is kept, and a checkpoint
contains the visits that are under way.

A client is busy from the beginning of its visit until its upload has become part of a server step. It is not chosen
again before that. So it has at most one visit per model, and its personal part changes when its upload counts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import NamedTuple

import numpy as np

from torso.data import Roster
from torso.nets import Tensors
from torso.personal.state import PendingVisit
from torso.randomness import numpy_generator
from torso.runs.messages import Sent, Told
from torso.runs.speeds import Hours
from torso.runs.stage import Stage


class RunningVisit(NamedTuple):
    """A visit that is under way. Visits are ordered by the time at which their uploads arrive, then by client."""

    arrives: float  # in simulated hours
    client: int
    began: int  # number of rounds that were over when it began


@dataclass(frozen=True)
class StepTime:
    """The simulated time of one server step."""

    hour: float  # at which the step before was taken
    round: int  # the number of this step
    lasts: Hours  # the duration of the visits that begin in it, in hours


@dataclass(frozen=True)
class StepPlan:
    """The plan of one server step. Visits are in the order of the clients."""

    round: int
    begun: tuple[RunningVisit, ...]  # visits that begin at the current model
    heard: tuple[RunningVisit, ...]  # visits whose uploads make the step
    hour: float  # at which the step is taken

    @property
    def beginning(self) -> tuple[int, ...]:
        """The clients whose visits begin."""
        return tuple(visit.client for visit in self.begun)

    @property
    def clients(self) -> tuple[int, ...]:
        """The clients whose uploads make the step."""
        return tuple(visit.client for visit in self.heard)

    def staleness(self, clients: Sequence[int]) -> tuple[int, ...]:
        """The number of server steps between the beginning of each client's visit and this step."""
        began = {visit.client: visit.began for visit in self.heard}
        return tuple(self.round - 1 - began[client] for client in clients)


def draw(roster: Roster, size: int, busy: Collection[int], seed: int, *purpose: int) -> tuple[int, ...]:
    """Draw training clients that are not busy, without replacement. If none is busy, the draw is that of `sample`."""
    excluded = np.union1d(roster.newcomers, np.array(sorted(busy), dtype=np.int64))
    generator = numpy_generator(seed, "participants", *purpose)
    drawn = np.sort(generator.choice(roster.clients - len(excluded), size, replace=False))
    # `drawn` counts the clients that are not excluded: add to each the number of excluded clients before it
    excluded_before = np.searchsorted(excluded - np.arange(len(excluded)), drawn, side="right")
    return tuple(int(k) for k in drawn + excluded_before)


def plan_step(
    under_way: Iterable[RunningVisit], time: StepTime, at_once: int, uploads: int, roster: Roster, seed: int
) -> StepPlan:
    """Plan visits until `uploads` uploads have arrived, with `at_once` clients training at any time.

    Uploads that arrive at the same moment are taken before other visits begin. If all clients are busy, fewer train."""
    training = list(under_way)
    heapify(training)
    begun: list[RunningVisit] = []
    heard: list[RunningVisit] = []
    hour = time.hour
    draws = 0
    while len(heard) < uploads:
        busy = {visit.client for visit in (*training, *heard)}
        size = min(at_once - len(training), roster.clients - len(roster.newcomers) - len(busy))
        chosen: tuple[int, ...] = ()
        if size > 0:
            purpose = (time.round, draws) if draws else (time.round,)  # the first draw is that of a synchronous round
            chosen = draw(roster, size, busy, seed, *purpose)
        for client, lasts in zip(chosen, time.lasts(time.round, chosen), strict=True):
            visit = RunningVisit(hour + lasts, client, time.round - 1)
            begun.append(visit)
            heappush(training, visit)
        draws += 1
        hour = training[0].arrives
        while training and training[0].arrives == hour and len(heard) < uploads:
            heard.append(heappop(training))
    return StepPlan(time.round, _by_client(begun), _by_client(heard), hour)


def _by_client(flights: Sequence[RunningVisit]) -> tuple[RunningVisit, ...]:
    return tuple(sorted(flights, key=lambda visit: visit.client))


def running_visits(pending: Iterable[PendingVisit]) -> list[RunningVisit]:
    """The visits of uploads that have not arrived yet."""
    return [RunningVisit(each.arrives, each.client, each.began) for each in pending]


def collect(
    stage: Stage, told: Told, plan: StepPlan, parts: Iterable[Sent], pending: Iterable[PendingVisit]
) -> tuple[list[Sent], tuple[PendingVisit, ...]]:
    """The uploads of a step in the order of the clients, and the uploads that arrive later.

    `parts`: what the visits that begin now send, as an engine computes it. `pending`: uploads of earlier visits."""
    uploads: dict[int, Sent] = {}
    waiting: list[PendingVisit] = []
    heard = set(plan.clients)
    begun = {visit.client: visit for visit in plan.begun}
    for part in parts:
        for place, client in enumerate(part.clients):
            sent = part.only([place])
            if client in heard:
                uploads[client] = sent
            else:
                waiting.append(_held(stage, told, begun[client], sent))
    for each in pending:
        if each.client in heard:
            uploads[each.client] = _as_of_now(stage, told, each)
        else:
            waiting.append(each)
    in_order = [uploads[k] for k in plan.clients if k in uploads]
    return in_order, tuple(sorted(waiting, key=lambda each: each.client))


def _held(stage: Stage, told: Told, visit: RunningVisit, sent: Sent) -> PendingVisit:
    """An upload that arrives later. Its parameters are kept as a change Δ of the model at which the visit began."""
    own = {name: tensor[0] for name, tensor in sent.model.items()}
    change = {name: own[name] - told.model[name] for name in stage.uploaded}
    return PendingVisit(
        client=visit.client,
        began=visit.began,
        arrives=visit.arrives,
        samples=sent.samples[0],
        loss=sent.loss,
        finite=sent.finite,
        sent={**own, **change},
        left=sent.left.get(visit.client),
    )


def _as_of_now(stage: Stage, told: Told, held: PendingVisit) -> Sent:
    """A stale upload as if its visit had begun at the current model θ: θ + s(τ) Δ, with staleness τ and discount s.

    Tensors that are no parameters (running statistics) are taken unchanged."""
    discount = stage.method.server.discount(told.round - 1 - held.began)
    moved: Tensors = {name: told.model[name] + discount * held.sent[name] for name in stage.uploaded}
    return Sent(
        round=told.round,
        clients=(held.client,),
        samples=(held.samples,),
        model={name: tensor[None] for name, tensor in {**held.sent, **moved}.items()},
        loss=held.loss,
        finite=held.finite,
        left={} if held.left is None else {held.client: held.left},
    )
