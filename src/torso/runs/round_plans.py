"""The two kinds of rounds: synchronous (the server waits for all participants) and asynchronous (buffered.py).

Both have the interface `RoundPlan`, so that the code of a round exists once (rounds.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torso.data import Roster
from torso.engine import Engine, add_up
from torso.personal.state import PendingVisit, State
from torso.runs.aggregate import Aggregate
from torso.runs.buffered import StepPlan, StepTime, collect, plan_step, running_visits
from torso.runs.cost import Busy
from torso.runs.faults import TRAINED, UPLOADED, Faults
from torso.runs.speeds import Hours, an_hour_each
from torso.runs.stage import Stage
from torso.runs.visit import Visit

Clients = tuple[int, ...]


class RoundPlan(Protocol):
    """The plan of one round, made before any client trains."""

    @property
    def beginning(self) -> Clients:
        """The clients that are sent the current model and train."""
        ...

    @property
    def clients(self) -> Clients:
        """The clients whose uploads make the round."""
        ...

    def receive(
        self, engine: Engine, visit: Visit, able: Clients, state: State, aggregate: Aggregate
    ) -> tuple[Aggregate, tuple[PendingVisit, ...]]:
        """Have the clients `able` train, and add the uploads of `clients` to `aggregate`.

        `able`: the clients of `beginning` without a fault. Returns the aggregate, and the uploads that arrive in later
        rounds."""
        ...

    def busy(self, heard: Sequence[int], why: Faults) -> Busy:
        """The clients that did each part of the round. `heard`: whose uploads are used. `why`: faults of the others."""
        ...

    def hour(self, before: float, busy: Busy) -> float:
        """The simulated hour at which the round is over; 0 if time is not simulated."""
        ...

    def staleness(self, heard: Sequence[int]) -> tuple[int, ...]:
        """The staleness of these clients' uploads in server steps. Empty in a synchronous round."""
        ...


@dataclass(frozen=True)
class SynchronousRound:
    """A synchronous round: the server waits for all participants."""

    round: int
    clients: Clients
    hours: Hours | None  # durations of visits; None: time is not simulated

    @property
    def beginning(self) -> Clients:
        return self.clients

    def receive(
        self, engine: Engine, visit: Visit, able: Clients, state: State, aggregate: Aggregate
    ) -> tuple[Aggregate, tuple[PendingVisit, ...]]:
        return add_up(engine, visit, able, state.clients, aggregate, here=aggregate.holds_uploads), ()

    def busy(self, heard: Sequence[int], why: Faults) -> Busy:
        if not why and len(heard) == len(self.clients):  # all have answered (only clients that were asked can)
            return Busy(self.clients, self.clients, self.clients)
        counted = frozenset(heard)
        return Busy(
            sent=tuple(k for k in self.clients if why.get(k) != "drop"),
            trained=tuple(k for k in self.clients if k in counted or why.get(k) in TRAINED),
            uploaded=tuple(k for k in self.clients if k in counted or why.get(k) in UPLOADED),
        )

    def hour(self, before: float, busy: Busy) -> float:
        """The round lasts as long as its slowest participant."""
        if self.hours is None or not busy.trained:
            return before
        return before + max(self.hours(self.round, busy.trained))

    def staleness(self, heard: Sequence[int]) -> tuple[int, ...]:
        return ()


@dataclass(frozen=True)
class AsynchronousRound:
    """An asynchronous round: it is over when a given number of uploads has arrived. Other clients may still train."""

    plan: StepPlan

    @property
    def beginning(self) -> Clients:
        return self.plan.beginning

    @property
    def clients(self) -> Clients:
        return self.plan.clients

    def receive(
        self, engine: Engine, visit: Visit, able: Clients, state: State, aggregate: Aggregate
    ) -> tuple[Aggregate, tuple[PendingVisit, ...]]:
        parts = engine.map(visit, able, state.clients)
        sent, pending = collect(aggregate.stage, visit.told, self.plan, parts, state.pending)
        for each in sent:
            aggregate.take(each)
        return aggregate, pending

    def busy(self, heard: Sequence[int], why: Faults) -> Busy:
        """As in the interface. The work of a visit is counted in the round in which its upload arrives."""
        return Busy(self.beginning, self.clients, self.clients)

    def hour(self, before: float, busy: Busy) -> float:
        return self.plan.hour

    def staleness(self, heard: Sequence[int]) -> tuple[int, ...]:
        return self.plan.staleness(heard)


def plan_round(
    stage: Stage, state: State, roster: Roster, chosen: Clients, seed: int, hours: Hours | None
) -> RoundPlan:
    """The plan of the next round.

    `chosen`: its participants. For an asynchronous round only their number counts: that many clients train at any
    time."""
    number = state.round + 1
    uploads = stage.method.server.uploads_per_step
    if not uploads or not chosen:
        return SynchronousRound(number, chosen, hours)
    time = StepTime(state.cost.hours, number, hours or an_hour_each)
    return AsynchronousRound(plan_step(running_visits(state.pending), time, len(chosen), uploads, roster, seed))
