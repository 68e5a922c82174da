"""One round: sample, broadcast, local learning, aggregate, server step (spec 1.2). It exists once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from torso.data import Roster
from torso.engine import Engine, comes_and_goes
from torso.errors import RunFailed, TorsoError
from torso.learn.stacked import all_finite
from torso.many import ClientSet
from torso.personal.state import State
from torso.registry import chosen
from torso.runs.aggregate import Aggregate
from torso.runs.cost import cost_of
from torso.runs.faults import NOT_FINITE, Faults
from torso.runs.messages import Told
from torso.runs.sampling import participants, weights_of
from torso.runs.server_step import server_pass, server_step
from torso.runs.speeds import Hours
from torso.runs.stages import Stage
from torso.runs.telling import tell, visit_of
from torso.runs.turns import turn_of
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
    number = state.round + 1
    here = engine.present() if comes_and_goes(engine) else None
    turn = turn_of(stage, state, roster, participants(stage, roster, seed, number, here), seed, hours)
    before = _with_origin(stage, state.server)
    told = tell(stage, before, roster, turn.beginning, number, seed, len(turn.clients))
    why = faults(turn.clients) if faults else {}
    able = tuple(k for k in turn.beginning if k not in why) if why else turn.beginning
    empty = _aggregate(stage, told, roster, turn.clients, before)
    came, pending = turn.receive(engine, visit_of(stage, told, seed), able, state, empty)
    loss, heard = came.close(), came.clients
    counted = frozenset(heard)
    missing = tuple(k for k in turn.clients if k not in counted) if len(heard) < len(turn.clients) else ()
    why = {**why, **came.refused}
    _check_enough(stage, came, missing, again=comes_and_goes(engine))
    server = server_step(stage, before, came, roster, seed)
    if stage.method.server_data != "none":
        server, server_loss = server_pass(stage, server, roster, engine, seed, number)
        loss = loss if turn.clients else server_loss
    if not bool(all_finite(server.model[name] for name in stage.moving)):
        raise RunFailed(f"non-finite weights after round {number}")
    busy = turn.busy(heard, why)
    cost = before.cost + cost_of(stage, roster, before, told, busy)
    cost = replace(cost, hours=turn.hour(before.cost.hours, busy))
    server = replace(server, round=number, met=ClientSet(server.met).union(heard), cost=cost)
    if comes_and_goes(engine):
        engine.counted(number, heard)
    stale = turn.staleness(heard)
    played = Round(number, stage.method.name, stage.rate(number), heard, loss, cost, missing, why, stale)
    return State(server, state.clients.updated(came.left), pending), played


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
