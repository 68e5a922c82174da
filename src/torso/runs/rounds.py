"""One round: sample, broadcast, local learning, aggregate, server step (spec 1.2). It exists once."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from torso.data import Roster
from torso.engine import Engine, comes_and_goes, looks_ahead
from torso.errors import RunFailed, TorsoError
from torso.learn.stacked import all_finite
from torso.many import ClientSet
from torso.personal.state import Pending, State
from torso.registry import chosen
from torso.runs.aggregate import Aggregate
from torso.runs.cost import cost_of
from torso.runs.faults import NOT_FINITE, Faults
from torso.runs.messages import Told
from torso.runs.sampling import participants, weights_of
from torso.runs.server_step import server_pass, server_step
from torso.runs.speeds import Hours
from torso.runs.stage import Stage
from torso.runs.telling import tell, visit_of
from torso.runs.turns import Turn, turn_of
from torso.server.state import Cost, ServerState


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
    return end_round(begin_round(stage, state, roster, engine, seed, faults, hours))


@dataclass(frozen=True)
class Begun:
    """A round that has been asked of the engine; nothing has been read from the device."""

    stage: Stage
    state: State  # before it …
    server: ServerState  # … and the server's, with the stage's first model where it is needed
    roster: Roster
    engine: Engine
    seed: int
    turn: Turn
    told: Told
    came: Aggregate
    pending: tuple[Pending, ...]
    why: Faults
    guess: tuple[State, Round] | None = None  # what it comes to if all that was sent is finite, without the loss

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
) -> Begun:
    """A round up to where numbers are read from the device: as `play_round`, which raises what goes wrong."""
    number = state.round + 1
    here = engine.present() if comes_and_goes(engine) else None
    turn = turn_of(stage, state, roster, participants(stage, roster, seed, number, here), seed, hours)
    before = _with_origin(stage, state.server)
    told = tell(stage, before, roster, turn.beginning, number, seed, len(turn.clients))
    why = faults(turn.clients) if faults else {}
    able = tuple(k for k in turn.beginning if k not in why) if why else turn.beginning
    empty = _aggregate(stage, told, roster, turn.clients, before)
    came, pending = turn.receive(engine, visit_of(stage, told, seed), able, state, empty)
    begun = Begun(stage, state, before, roster, engine, seed, turn, told, came, pending, why)
    return _guessed(begun) if looks_ahead(engine) and not why and came.is_simple else begun


def _guessed(begun: Begun) -> Begun:
    """With the next state if nothing goes wrong: whether that is so is on its way to the host."""
    came, stage = begun.came, begun.stage
    if came.clients != begun.turn.clients or stage.method.server_data != "none":
        return begun
    server = server_step(stage, begun.server, came, begun.roster, begun.seed)
    came.ask(all_finite(server.model[name] for name in stage.moving))
    return replace(begun, guess=_settled(begun, server, math.nan))


def end_round(begun: Begun) -> tuple[State, Round]:
    """The next state, and what happened, when the device has said so."""
    stage, came, turn = begun.stage, begun.came, begun.turn
    loss = came.close()
    if begun.guess is not None and came.as_asked:
        state, played = begun.guess
        return state, replace(played, loss=loss)
    missing = _missing(begun)
    _check_enough(stage, came, missing, again=comes_and_goes(begun.engine))
    server = server_step(stage, begun.server, came, begun.roster, begun.seed)
    if stage.method.server_data != "none":
        server, server_loss = server_pass(stage, server, begun.roster, begun.engine, begun.seed, begun.number)
        loss = loss if turn.clients else server_loss
    if not bool(all_finite(server.model[name] for name in stage.moving)):
        raise RunFailed(f"non-finite weights after round {begun.number}")
    state, played = _settled(begun, server, loss)
    if comes_and_goes(begun.engine):
        begun.engine.counted(begun.number, played.participants)
    return state, played


def _missing(begun: Begun) -> tuple[int, ...]:
    counted = frozenset(begun.came.clients)
    if len(counted) == len(begun.turn.clients):  # who was heard was asked
        return ()
    return tuple(k for k in begun.turn.clients if k not in counted)


def _settled(begun: Begun, server: ServerState, loss: float) -> tuple[State, Round]:
    """The next state, and what happened, once the server has moved."""
    stage, before, came, turn, number = begun.stage, begun.server, begun.came, begun.turn, begun.number
    heard, missing, why = came.clients, _missing(begun), {**begun.why, **came.refused}
    busy = turn.busy(heard, why)
    cost = before.cost + cost_of(stage, begun.roster, before, begun.told, busy)
    cost = replace(cost, hours=turn.hour(before.cost.hours, busy))
    server = replace(server, round=number, met=ClientSet(server.met).union(heard), cost=cost)
    stale = turn.staleness(heard)
    played = Round(number, stage.method.name, stage.rate(number), heard, loss, cost, missing, why, stale)
    return State(server, begun.state.clients.updated(came.left), begun.pending), played


def _with_origin(stage: Stage, server: ServerState) -> ServerState:
    """The server's state with the stage's first model, where clients' own models begin at it."""
    if not stage.method.personal.from_start or server.origin:
        return server
    return replace(server, origin={name: server.model[name] for name in stage.moving})


def _aggregate(stage: Stage, told: Told, roster: Roster, clients: Sequence[int], server: ServerState) -> Aggregate:
    """The sums of a round before anybody has come. Under privacy all clients weigh the same."""
    declared = dict(zip(clients, roster.sizes_of(clients).tolist(), strict=True))
    weights = weights_of(roster, clients, "uniform" if stage.privacy else stage.train.weighting)
    return Aggregate(stage, told, weights, roster.malicious, declared, server.privacy)


def _check_enough(stage: Stage, came: Aggregate, missing: Sequence[int], again: bool) -> None:
    """Whether a round can go on with those who were heard. It is played again where the others may be heard then.

    `again`: a client whose upload had a wrong form may send another one. One that is not finite comes back the same."""
    heard, rule = len(came.clients), stage.method.server
    honest = [k for k, kind in came.refused.items() if kind == NOT_FINITE and k not in came.malicious]
    if honest and not again:  # a simulation knows who lies: this one has diverged, and so has the method (spec 3.7)
        raise _diverged(came, honest)
    if stage.privacy:  # it counts as it is: an end or a repetition would tell of those who were drawn
        return
    least, wanted = stage.train.min_clients if missing else 0, f"train.min_clients = {stage.train.min_clients}"
    if rule.least > max(heard, least) and (heard or missing):
        least, wanted = rule.least, f"{chosen('method.server', rule)} needs {rule.least}"
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
