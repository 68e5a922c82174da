"""What the server asks its clients for when it measures: the mean of kept parts, and how many samples a class has."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from tests.methods.by_hand import equal
from tests.runs import samples

from torso import run
from torso.data import Pixels, Roster
from torso.engine import Batched, OneByOne
from torso.measure.counts import class_counts_of, test_counts_of
from torso.measure.generic import generic_of
from torso.personal.models import generic_model
from torso.personal.state import State
from torso.personal.store import ClientState, StateHandle, Store
from torso.runs.job import simulate

HEADS = {0: torch.tensor([[4.0, 0.0], [0.0, 8.0]]), 2: torch.tensor([[-2.0, 0.0], [0.0, 0.0]])}


@dataclass(frozen=True)
class Away(StateHandle):
    """A state that only work on the engine should need."""

    state: ClientState

    def fetch(self) -> ClientState:
        return self.state


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
@pytest.mark.parametrize("at_once", [1, 4])
def test_the_generic_model_that_clients_are_asked_for_is_the_one_of_their_states(weighting: str, at_once: int) -> None:
    """Bit for bit, one by one or in stacks, here or elsewhere."""
    config = samples.tiny("fedper", "measure.names=[]", "train.rounds=2", f"train.weighting={weighting}")
    job = simulate(config, samples.digits())
    state = run(config, federation=samples.digits()).state
    assert state is not None
    assert state.clients.of_kind("kept")
    expected = generic_model(state.model, state.clients, job.roster, weighting)
    assert not equal(expected, state.model)
    away = Store({k: Away(state.clients[k]) for k in state.clients})
    make = Batched if at_once > 1 else OneByOne
    with make(job.net, job.federation, at_once=at_once) as engine:
        for clients in (state.clients, away):
            assert equal(generic_of(engine, state.model, clients, job.roster, weighting, keeps=True), expected)
        assert equal(generic_of(engine, state.model, away, job.roster, weighting, keeps=False), state.model)


def test_who_never_came_counts_with_what_it_would_start_from() -> None:
    """Three clients of 1, 1 and 2 samples (weights ¼, ¼, ½), the second at zero: ¼·4 − ½·2 = 0 and ¼·8 = 2. Of all
    alike: (4 − 2)/3 and 8/3."""
    nobody = np.array([], dtype=np.int64)
    roster = Roster("three", 2, Pixels(1, 1, 2), sizes=np.array([1, 1, 2]), newcomers=nobody)
    state = State.begin({"head": torch.zeros(2, 2)}, {k: ClientState(kept={"head": w}) for k, w in HEADS.items()})
    for weighting, expected in (("samples", [[0, 0], [0, 2]]), ("uniform", [[2 / 3, 0], [0, 8 / 3]])):
        found = generic_model(state.model, state.clients, roster, weighting)["head"]
        torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float32))


@pytest.mark.parametrize("at_once", [1, 3])
def test_clients_count_their_classes_and_the_server_those_of_its_test_set(at_once: int) -> None:
    federation = samples.digits()
    job = simulate(samples.tiny(), federation)
    make = Batched if at_once > 1 else OneByOne
    with make(job.net, federation, at_once=at_once) as engine:
        assert torch.equal(class_counts_of(engine, range(10)), federation.class_counts)
        assert torch.equal(class_counts_of(engine, [7, 2]), federation.class_counts[[7, 2]])
        assert torch.equal(test_counts_of(engine), torch.bincount(federation.test.labels, minlength=10))
