"""One round: sample, broadcast, local training, aggregate, server step (spec 1.2). All methods and engines share it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from torso.data import Roster
from torso.engine import Engine, can_look_ahead, has_availability
from torso.errors import RunFailed, TorsoError
from torso.learn.stacked import all_finite
from torso.many import ClientSet
from torso.personal.state import PendingVisit, State
from torso.registry import chosen
from torso.runs.aggregate import Aggregate
from torso.runs.cost import cost_of
from torso.runs.faults import NOT_FINITE, Faults
from torso.runs.messages import Told
from torso.runs.round_plans import RoundPlan, plan_round
from torso.runs.sampling import participants, weights_of
from torso.runs.server_step import server_pass, server_step
from torso.runs.speeds import Hours
from torso.runs.stage import Stage
from torso.runs.telling import tell, visit_of
from torso.server.state import Cost, ServerState


@dataclass(frozen=True)
class Round:
    """What happened in a round, for listeners and the history."""

    round: int
    stage: str  # the name of the stage's method
    lr: float
    participants: tuple[int, ...]  # the clients whose uploads are used
    loss: float  # mean over participants, weighted as in the aggregation; NaN if there are none
    cost: Cost  # of all rounds so far
    missing: tuple[int, ...] = ()  # clients that were asked and whose uploads are not used
    why: Faults = field(default_factory=dict)  # missing client -> what went wrong, if that is known
    staleness: tuple[int, ...] = ()  # of the participants' uploads in server steps, if rounds are asynchronous
    privacy: Mapping[str, float | None] = field(default_factory=dict)  # in a private run: ε so far and the next clip


class TooFewAnswered(TorsoError):
    """Too few clients have answered in a round. No state has changed, so the round can be played again."""

    def __init__(self, round: int, heard: Sequence[int], missing: Sequence[int], wanted: str) -> None:
        self.round, self.missing = round, tuple(missing)
        whom = "nobody" if not heard else f"{len(heard)} of {len(heard) + len(missing)} clients"
        super().__init__(f"round {round}: {whom} answered, and {wanted}")


def play_round(
    stage: Stage,
    state: State,
    roster: Roster,
    engine: Engine,
    seed: int,
    faults: Callable[[Sequence[int]], Faults] | None = None,
    hours: Hours | None = None,
) -> tuple[State, Round]:
    """Play a round. Returns the new state, and what happened.

    Raises RunFailed if the result is not finite or too few uploads are finite, and TooFewAnswered if too few
    participants have answered. Then nothing has changed, and the round can be played again.

    `faults`: gives the faults of participants. `hours`: gives the durations of visits, if time is simulated."""
    return end_round(begin_round(stage, state, roster, engine, seed, faults, hours))


@dataclass(frozen=True)
class BegunRound:
    """A round whose work the engine has queued, before any number is read from the device."""

    stage: Stage
    state: State  # before the round
    server: ServerState  # the server's part of `state`, with the stage's first model if it is needed
    roster: Roster
    engine: Engine
    seed: int
    round_plan: RoundPlan  # the plan of the round
    told: Told
    aggregate: Aggregate
    pending: tuple[PendingVisit, ...]  # uploads that arrive in later rounds
    why: Faults
    guess: tuple[State, Round] | None = None  # the outcome if all uploads are finite (its loss is NaN)

    @property
    def number(self) -> int:
        return self.told.round


def begin_round(
    stage: Stage,
    state: State,
    roster: Roster,
    engine: Engine,
    seed: int,
    faults: Callable[[Sequence[int]], Faults] | None = None,
    hours: Hours | None = None,
) -> BegunRound:
    """The first half of `play_round`, up to the point where numbers are read from the device."""
    number = state.round + 1
    available = engine.available_clients() if has_availability(engine) else None
    chosen = participants(stage, roster, seed, number, available)
    round_plan = plan_round(stage, state, roster, chosen, seed, hours)
    before = _with_origin(stage, state.server)
    told = tell(stage, before, roster, round_plan.beginning, number, seed, len(round_plan.clients))
    why = faults(round_plan.clients) if faults else {}
    able = tuple(k for k in round_plan.beginning if k not in why) if why else round_plan.beginning
    empty = _aggregate(stage, told, roster, round_plan.clients, before)
    aggregate, pending = round_plan.receive(engine, visit_of(stage, told, seed), able, state, empty)
    begun = BegunRound(stage, state, before, roster, engine, seed, round_plan, told, aggregate, pending, why)
    if can_look_ahead(engine) and not why and aggregate.is_simple:
        return _guessed(begun)
    return begun


def _guessed(begun: BegunRound) -> BegunRound:
    """The round with its outcome if all uploads are finite. The flags that tell this start on their way to the host."""
    aggregate, stage = begun.aggregate, begun.stage
    if aggregate.clients != begun.round_plan.clients or stage.method.server_data != "none":
        return begun
    server = server_step(stage, begun.server, aggregate, begun.roster, begun.seed)
    aggregate.ask(all_finite(server.model[name] for name in stage.moving))
    return replace(begun, guess=_settled(begun, server, math.nan))


def end_round(begun: BegunRound) -> tuple[State, Round]:
    """The second half of `play_round`: read the numbers from the device, check them, and make the new state."""
    stage, aggregate, round_plan = begun.stage, begun.aggregate, begun.round_plan
    loss = aggregate.close()
    if begun.guess is not None and aggregate.as_asked:
        state, played = begun.guess
        return state, replace(played, loss=loss)
    missing = _missing(begun)
    _check_enough(stage, aggregate, missing, again=has_availability(begun.engine))
    server = server_step(stage, begun.server, aggregate, begun.roster, begun.seed)
    if stage.method.server_data != "none":
        server, server_loss = server_pass(stage, server, begun.roster, begun.engine, begun.seed, begun.number)
        loss = loss if round_plan.clients else server_loss
    if not bool(all_finite(server.model[name] for name in stage.moving)):
        raise RunFailed(f"non-finite weights after round {begun.number}")
    state, played = _settled(begun, server, loss)
    if has_availability(begun.engine):
        begun.engine.counted(begun.number, played.participants)
    return state, played


def _missing(begun: BegunRound) -> tuple[int, ...]:
    """The clients that were asked and whose uploads are not used."""
    counted = frozenset(begun.aggregate.clients)
    if len(counted) == len(begun.round_plan.clients):  # only clients that were asked can be counted
        return ()
    return tuple(k for k in begun.round_plan.clients if k not in counted)


def _settled(begun: BegunRound, server: ServerState, loss: float) -> tuple[State, Round]:
    """The new state and the record of the round, after the server's step."""
    stage = begun.stage
    before = begun.server
    aggregate = begun.aggregate
    round_plan = begun.round_plan
    number = begun.number
    heard = aggregate.clients
    why = {**begun.why, **aggregate.refused}
    busy = round_plan.busy(heard, why)
    cost = before.cost + cost_of(stage, begun.roster, before, begun.told, busy)
    cost = replace(cost, hours=round_plan.hour(before.cost.hours, busy))
    server = replace(server, round=number, met=ClientSet(server.met).union(heard), cost=cost)
    played = Round(
        round=number,
        stage=stage.method.name,
        lr=stage.rate(number),
        participants=heard,
        loss=loss,
        cost=cost,
        missing=_missing(begun),
        why=why,
        staleness=round_plan.staleness(heard),
    )
    return State(server, begun.state.clients.updated(aggregate.left), begun.pending), played


def _with_origin(stage: Stage, server: ServerState) -> ServerState:
    """The server's state with the stage's first model, if clients' own models begin at it."""
    if not stage.method.personal.from_start or server.origin:
        return server
    return replace(server, origin={name: server.model[name] for name in stage.moving})


def _aggregate(stage: Stage, told: Told, roster: Roster, clients: Sequence[int], server: ServerState) -> Aggregate:
    """The empty aggregate of a round. With privacy all clients have the same weight."""
    declared = dict(zip(clients, roster.sizes_of(clients).tolist(), strict=True))
    weights = weights_of(roster, clients, "uniform" if stage.privacy else stage.train.weighting)
    return Aggregate(stage, told, weights, roster.malicious, declared, server.privacy)


def _check_enough(stage: Stage, aggregate: Aggregate, missing: Sequence[int], again: bool) -> None:
    """Raise an error if the uploads of a round are too few: TooFewAnswered if a repetition may help, else RunFailed.

    `again`: in a repetition, a client whose upload had a wrong form may send a right one (a real federation). An upload
    that is not finite would come back the same."""
    heard = len(aggregate.clients)
    rule = stage.method.server
    honest = [k for k, kind in aggregate.refused.items() if kind == NOT_FINITE and k not in aggregate.malicious]
    if honest and not again:  # a simulation knows that these are no attackers: the method has diverged (spec 3.7)
        raise _diverged(aggregate, honest)
    if stage.privacy:  # the round counts as it is: a failure or a repetition would tell who was drawn
        return
    least = stage.train.min_clients if missing else 0
    wanted = f"train.min_clients = {stage.train.min_clients}"
    if rule.least > max(heard, least) and (heard or missing):
        least = rule.least
        wanted = f"{chosen('method.server', rule)} needs {rule.least}"
    if heard >= least:
        return
    lost = sorted(k for k, kind in aggregate.refused.items() if kind == NOT_FINITE or not again)  # would fail again
    if not lost or heard + len(missing) - len(lost) >= least:
        raise TooFewAnswered(aggregate.round, aggregate.clients, missing, wanted)
    if heard or any(aggregate.refused[k] != NOT_FINITE for k in lost):
        kinds = ", ".join(sorted({aggregate.refused[k] for k in lost}))
        raise RunFailed(
            f"round {aggregate.round}: what {named(lost)} sent is not used ({kinds}); {heard} left, and {wanted}"
        )
    raise _diverged(aggregate, lost)


def _diverged(aggregate: Aggregate, clients: Sequence[int]) -> RunFailed:
    """The error if numbers of these clients are not finite."""
    burst = aggregate.burst.intersection(clients)
    if burst:
        return RunFailed(f"non-finite loss in round {aggregate.round}, client {min(burst)}")
    return RunFailed(f"non-finite weights after round {aggregate.round}")


def named(clients: Sequence[int]) -> str:
    """Clients as text, for example "clients 1, 4". Of many, the first ten and their number."""
    plural = "s" if len(clients) > 1 else ""
    some = ", ".join(map(str, clients[:10]))
    more = f", … ({len(clients)} in all)" if len(clients) > 10 else ""
    return f"client{plural} {some}{more}"
