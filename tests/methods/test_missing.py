"""Participants that never answer: a mean is over those who came, and known answers for it (spec 1.2, 3.7, 3.8)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Self, cast

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from torso.data import Roster
from torso.data.inputs import Pixels
from torso.engine import Engine, OneByOne
from torso.engine.base import T, Work
from torso.personal.state import State
from torso.personal.store import Store
from torso.runs.aggregate import Aggregate
from torso.runs.job import Simulation
from torso.runs.messages import Sent
from torso.runs.rounds import Round, TooFewAnswered, play_round
from torso.runs.sampling import sample, weights_of
from torso.runs.telling import tell

from .by_hand import BODY, EYE, FIRST, HEAD, SECOND, Data, federated, losses, mean, on, same, sgd
from .tiny import job


class Missing:
    """An engine on which some clients never answer."""

    def __init__(self, inner: OneByOne, missing: set[int]) -> None:
        self.inner, self.missing = inner, missing

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        return None

    def map(self, work: Work[T], clients: Sequence[int], store: Store | None = None) -> Iterator[T]:
        return self.inner.map(work, [k for k in clients if k not in self.missing], store)


THREE = [FIRST, SECOND, Data.of([(1, 0.2), (0.2, 1), (1, 1)], [1, 0, 0])]  # 1, 1 and 3 samples


def round_without(task: Simulation, missing: set[int], state: State) -> tuple[State, Round]:
    with OneByOne(task.net, task.federation, workers=1) as inner:
        return play_round(task.stage(state.round + 1), state, task.roster, cast(Engine, Missing(inner, missing)), 0)


def test_who_came_is_weighed_by_hand() -> None:
    """n = 1, 1, 3. The second does not come: 1/4 and 3/4 of what the others sent, 2 and −6, is −4; of their losses 1
    and 5 it is 4; of ‖θ_k − 0‖² over six numbers, 24 and 216, it is 168. Counters have no mean: the largest stands."""
    task = on(job("fedexp", head="zeros"), federated(THREE))
    start = State.begin({name: torch.zeros_like(tensor) for name, tensor in task.model.items()}).server
    told = tell(task.plan[0], start, task.roster, (0, 1, 2), 1, seed=0)
    came = Aggregate(task.plan[0], told, weights_of(task.roster, (0, 1, 2), "samples"))
    came.terms = replace(came.terms, forms={0: {**came.terms.forms[0], "model/counter": (torch.int64, ())}})
    for client, value, loss in ((0, 2.0, 1.0), (2, -6.0, 5.0)):
        model = {name: torch.full_like(tensor, value)[None] for name, tensor in told.model.items()}
        model["counter"] = torch.tensor([client + 5])
        came.take(Sent(1, (client,), (1,), model, torch.tensor([loss]), torch.tensor([True])))
    assert came.close() == pytest.approx(4.0)
    assert all(torch.equal(came.total[name], torch.full_like(t, -4.0)) for name, t in told.model.items())
    assert came.total["counter"].item() == 7
    assert came.squares.item() == pytest.approx(168.0)


@pytest.mark.parametrize("missing", [set(), {0}, {1}, {0, 2}])
def test_a_missing_participant_does_not_bias_the_mean(missing: set[int]) -> None:
    """The mean is over those who came, by their samples: as if the others had not been asked. Two rounds."""
    task = on(job("fedavg", head="eye", lr=0.4), federated(THREE))
    theta, state = EYE, State.begin(task.model)
    sizes = {k: len(data.y) for k, data in enumerate(THREE) if k not in missing}
    shares = [size / sum(sizes.values()) for size in sizes.values()]
    for _ in range(2):
        state, played = round_without(task, missing, state)
        expected = float(sum(share * losses(theta, THREE[k]).mean() for k, share in zip(sizes, shares, strict=True)))
        assert played.loss == pytest.approx(expected, abs=1e-6)
        theta = mean([sgd(theta, THREE[k], 0.4) for k in sizes], shares)
        same(state.model, theta)


@pytest.mark.parametrize("method", ["scaffold", "feddyn"])
def test_the_mean_of_memories_is_over_all_clients_whoever_comes(method: str) -> None:
    """The server's mean is (1/N)Σ over all three after rounds in which one or two of them were missing. FedDyn's server
    works the changes out from the models that it gets, so that the last bits may differ."""
    task, state = on(job(method, head="eye", lr=0.4), federated(THREE)), None
    for missing in (set(), {1}, {0, 2}, {2}, set()):
        state, _ = round_without(task, missing, state or State.begin(task.model))
        memories = state.clients.of_kind("memory").values()
        assert len(memories) == 3
        for name, found in state.server.drift.items():
            assert_close(found, torch.stack([memory[name] for memory in memories]).sum(dim=0) / 3, atol=1e-7, rtol=1e-5)
        assert set(state.server.drift) == {BODY, HEAD}


def test_nobody_comes_and_the_round_has_not_happened() -> None:
    task = on(job("fedavg", head="eye"), federated(THREE))
    with pytest.raises(TooFewAnswered, match=r"round 1: nobody answered, and train.min_clients = 1"):
        round_without(task, {0, 1, 2}, State.begin(task.model))


def test_participants_are_those_who_answered() -> None:
    task = on(job("fedavg", head="eye"), federated(THREE))
    _, played = round_without(task, {1}, State.begin(task.model))
    assert (played.participants, played.missing) == ((0, 2), (1,))


def test_participants_are_drawn_from_those_who_can_come() -> None:
    roster = Roster("r", 2, Pixels(1, 2, 2), np.full(10, 5), newcomers=np.array([3]))
    for number in range(1, 20):
        usual = sample(roster, 0.5, 0, number)
        assert usual == sample(roster, 0.5, 0, number, here=range(10))
        assert len(usual) == 4
        some = sample(roster, 0.5, 0, number, here={1, 3, 4, 5, 8})  # of whom 3 never trains
        assert len(some) == 2
        assert set(some) <= {1, 4, 5, 8}
        assert len(sample(roster, 0.5, 0, number, least=6)) == 6
        assert sample(roster, 0.5, 0, number, here={1, 4}, least=3) == (1, 4)  # there are no more
    assert len({sample(roster, 0.5, 0, number, here={1, 4, 5, 8}) for number in range(50)}) == 6  # every pair
