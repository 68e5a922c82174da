"""FedBuff by hand: three clients of known speeds, whose uploads are 0, 1 and 2 steps old (Nguyen et al. 2022)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from torso.engine import OneByOne
from torso.methods import methods
from torso.personal.state import State
from torso.runs.job import Simulation
from torso.runs.rounds import Round, play_round
from torso.server.fedbuff import FedBuff

from .by_hand import EYE, FIRST, SECOND, Data, Model, equal, federated, mean, on, same, sgd
from .tiny import job

CLIENTS = [FIRST, SECOND, Data.of([(1, 0.2), (0.2, 1), (1, 1)], [1, 0, 0])]
HOURS = {0: 1.0, 1: 2.5, 2: 4.25}
LR = 0.5


def task_of(rule: FedBuff, method: str = "fedavg") -> Simulation:
    asked = methods[method].but(server=rule)
    return on(job(asked, head="eye", lr=LR, weighting="uniform"), federated(CLIENTS))


def steps(task: Simulation, count: int, hours: dict[int, float] | None = None) -> list[tuple[State, Round]]:
    state, told, mine = State.begin(task.model), [], hours or HOURS

    def lasts(_: int, clients: Sequence[int]) -> list[float]:
        return [mine[k] for k in clients]

    with OneByOne(task.net, task.federation, workers=1) as engine:
        for number in range(1, count + 1):
            state, played = play_round(task.stage(number), state, task.roster, engine, 0, hours=lasts)
            told.append((state, played))
    return told


def change(client: int, start: Model) -> Model:
    """Δ: one plain step on the client's samples."""
    return sgd(start, CLIENTS[client], LR).minus(start)


@pytest.mark.parametrize(("eta", "power"), [(1.0, 0.5), (0.5, 0.5), (1.0, 0.0), (1.0, 2.0)])
def test_single_uploads_are_discounted_by_their_age(eta: float, power: float) -> None:
    """K = 1, M = 3. Client 0 comes at 1 h and 2 h, each time from the newest model; client 1 at 2.5 h from the first
    one, two steps old; client 0 at 3 h from the model of 2 h, one step old. s(τ) = (1 + τ)^−power."""
    told = steps(task_of(FedBuff(lr=eta, buffer=1, staleness=power)), 4)
    assert [played.participants for _, played in told] == [(0,), (0,), (1,), (0,)]
    assert [played.staleness for _, played in told] == [(0,), (0,), (2,), (1,)]
    assert [played.cost.hours for _, played in told] == [1.0, 2.0, 2.5, 3.0]
    one = EYE.moved(change(0, EYE), eta)
    two = one.moved(change(0, one), eta)
    three = two.moved(change(1, EYE), eta * 3**-power)
    four = three.moved(change(0, two), eta * 2**-power)
    for (state, _), expected in zip(told, (one, two, three, four), strict=True):
        same(state.model, expected)


def test_a_buffer_of_two_takes_the_mean_of_what_they_changed() -> None:
    """K = 2, M = 3. Clients 0 and 1 make the first step at 2.5 h and begin anew; client 0 comes at 3.5 h, client 2 at
    4.25 h, from the first model: θ₂ = θ₁ + (Δ₀ + Δ₂/√2) / 2. At 5 h client 1 comes, at 5.25 h client 0 again."""
    told = steps(task_of(FedBuff(buffer=2)), 3)
    assert [(p.participants, p.staleness, p.cost.hours) for _, p in told] == [
        ((0, 1), (0, 0), 2.5),
        ((0, 2), (0, 1), 4.25),
        ((0, 1), (0, 1), 5.25),
    ]
    one = EYE.moved(mean([change(0, EYE), change(1, EYE)], [0.5, 0.5]), 1)
    two = one.moved(mean([change(0, one), change(2, EYE)], [0.5, 0.5 / 2**0.5]), 1)
    three = two.moved(mean([change(0, two), change(1, one)], [0.5, 0.5 / 2**0.5]), 1)
    same(told[1][0].model, two)
    same(told[2][0].model, three)


def test_momentum_of_the_server() -> None:
    """m ← m/2 + Δ, θ ← θ + m: two fresh uploads of client 0."""
    state, _ = steps(task_of(FedBuff(beta=0.5, buffer=1)), 2)[-1]
    one = EYE.moved(change(0, EYE), 1)
    same(state.model, one.moved(change(0, one), 1).moved(change(0, EYE), 0.5))


@pytest.mark.parametrize("method", ["fedavg", "fedper", "fedrod-linear"])
@pytest.mark.parametrize("hours", [dict.fromkeys(range(3), 1.0), HOURS], ids=["equal", "unequal"])
def test_a_buffer_for_all_is_the_synchronous_run_to_the_bit(method: str, hours: dict[int, float]) -> None:
    """K = M = all: nobody can begin anew before all have come."""
    buffered = steps(task_of(FedBuff(buffer=3), method), 3, hours)
    plain = on(job(methods[method], head="eye", lr=LR, weighting="uniform"), federated(CLIENTS))
    usual = steps(plain, 3, hours)
    for (state, played), (other, round) in zip(buffered, usual, strict=True):
        assert equal(state.model, other.model)
        assert played.participants == round.participants
        assert played.cost == round.cost
        assert played.loss == round.loss
        assert all(
            torch.equal(tensor, other.clients[k].kept[name])
            for k in range(3)
            for name, tensor in state.clients[k].kept.items()
        )


def test_a_personal_head_moves_when_the_upload_counts() -> None:
    """FedPer, K = 1: client 1 has trained at 0 h, and holds nothing until its upload makes a step at 2.5 h."""
    told = [state for state, _ in steps(task_of(FedBuff(buffer=1), "fedper"), 4)]
    assert [1 in state.clients for state in told] == [False, False, True, True]
    head = told[0].clients[0].kept["head.weight"]
    assert not torch.equal(head, told[1].clients[0].kept["head.weight"])
    assert [sorted(visit.client for visit in state.pending) for state in told] == [[1, 2], [1, 2], [0, 2], [1, 2]]
