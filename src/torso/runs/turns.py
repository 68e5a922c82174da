"""How a round goes: all its participants together, or one after the other as their uploads come (buffered.py).

Both answer the same questions, so that there is one round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torso.data import Roster
from torso.engine import Engine, add_up
from torso.personal.state import Pending, State
from torso.runs.aggregate import Aggregate
from torso.runs.buffered import Plan, Time, collect, flights_of, plan_step
from torso.runs.cost import Busy
from torso.runs.faults import TRAINED, UPLOADED, Faults
from torso.runs.speeds import Hours, an_hour_each
from torso.runs.stage import Stage
from torso.runs.visit import Visit

Clients = tuple[int, ...]


class Turn(Protocol):
    """One round, as planned before anybody trains."""

    @property
    def beginning(self) -> Clients:
        """Who is sent the present model and trains."""
        ...

    @property
    def clients(self) -> Clients:
        """Whose uploads make the round."""
        ...

    def receive(
        self, engine: Engine, visit: Visit, able: Clients, state: State, came: Aggregate
    ) -> tuple[Aggregate, tuple[Pending, ...]]:
        """Have those of `beginning` train who are `able` to, and take in the uploads of `clients`; which are still to
        come."""
        ...

    def busy(self, heard: Sequence[int], why: Faults) -> Busy:
        """Who did how much, when these clients were heard and this went wrong with others."""
        ...

    def hour(self, before: float, busy: Busy) -> float:
        """The simulated hour at which the round is over; 0 where time is not simulated."""
        ...

    def staleness(self, heard: Sequence[int]) -> tuple[int, ...]:
        """Of these clients' uploads, where rounds are asynchronous."""
        ...


@dataclass(frozen=True)
class Together:
    """A synchronous round: the server waits for all participants."""

    round: int
    clients: Clients
    hours: Hours | None

    @property
    def beginning(self) -> Clients:
        return self.clients

    def receive(
        self, engine: Engine, visit: Visit, able: Clients, state: State, came: Aggregate
    ) -> tuple[Aggregate, tuple[Pending, ...]]:
        return add_up(engine, visit, able, state.clients, came, here=came.holds_uploads), ()

    def busy(self, heard: Sequence[int], why: Faults) -> Busy:
        if not why and len(heard) == len(self.clients):  # who was heard was asked
            return Busy(self.clients, self.clients, self.clients)
        counted = frozenset(heard)
        return Busy(
            sent=tuple(k for k in self.clients if why.get(k) != "drop"),
            trained=tuple(k for k in self.clients if k in counted or why.get(k) in TRAINED),
            uploaded=tuple(k for k in self.clients if k in counted or why.get(k) in UPLOADED),
        )

    def hour(self, before: float, busy: Busy) -> float:
        """It lasts as long as its slowest participant."""
        return before + max(self.hours(self.round, busy.trained)) if self.hours and busy.trained else before

    def staleness(self, heard: Sequence[int]) -> tuple[int, ...]:
        return ()


@dataclass(frozen=True)
class Buffered:
    """An asynchronous round: it is over when so many uploads have come, whoever else still trains."""

    plan: Plan

    @property
    def beginning(self) -> Clients:
        return self.plan.beginning

    @property
    def clients(self) -> Clients:
        return self.plan.clients

    def receive(
        self, engine: Engine, visit: Visit, able: Clients, state: State, came: Aggregate
    ) -> tuple[Aggregate, tuple[Pending, ...]]:
        parts = engine.map(visit, able, state.clients)
        sent, pending = collect(came.stage, visit.told, self.plan, parts, state.pending)
        for each in sent:
            came.take(each)
        return came, pending

    def busy(self, heard: Sequence[int], why: Faults) -> Busy:
        """The work of a visit is counted when its upload comes."""
        return Busy(self.beginning, self.clients, self.clients)

    def hour(self, before: float, busy: Busy) -> float:
        return self.plan.hour

    def staleness(self, heard: Sequence[int]) -> tuple[int, ...]:
        return self.plan.staleness(heard)


def turn_of(stage: Stage, state: State, roster: Roster, chosen: Clients, seed: int, hours: Hours | None) -> Turn:
    """The next round. `chosen`: its participants, or, where it is asynchronous, as many as train at the same time."""
    number, uploads = state.round + 1, stage.method.server.waits_for
    if not uploads or not chosen:
        return Together(number, chosen, hours)
    time = Time(state.cost.hours, number, hours or an_hour_each)
    return Buffered(plan_step(flights_of(state.pending), time, len(chosen), uploads, roster, seed))
