"""What clients hold between visits, and the store that it lies in."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from torso.personal.state import State
from torso.personal.store import EMPTY_STATE, ClientState, StateHandle, Store


def of(value: float) -> dict[str, torch.Tensor]:
    return {"w": torch.tensor([value])}


@dataclass
class Away(StateHandle):
    """A state that is not here, and how often it was fetched."""

    state: ClientState
    fetched: list[int] = field(default_factory=list)

    def fetch(self) -> ClientState:
        self.fetched.append(1)
        return self.state


def test_a_visit_replaces_the_kinds_that_it_leaves_and_no_others() -> None:
    before = ClientState(kept=of(1), memory=of(2), notes=of(3))
    after = before.updated(ClientState(kept={"v": torch.tensor([9.0])}, own=of(4)))
    assert set(after.kept) == {"v"}  # as the visit left it, not joined with what was there
    assert (after.memory, after.own["w"].item(), after.notes) == (before.memory, 4.0, before.notes)
    assert before
    assert not EMPTY_STATE


def test_a_round_makes_another_store() -> None:
    first = Store({0: ClientState(kept=of(1)), 2: ClientState(memory=of(2))})
    second = first.updated({2: ClientState(memory=of(5)), 3: ClientState(notes=of(6))})
    assert first[2].memory["w"].item() == 2.0
    assert second[2].memory["w"].item() == 5.0
    assert (list(first), list(second)) == ([0, 2], [0, 2, 3])
    assert first.updated({}) is first


def test_who_has_never_come_holds_nothing() -> None:
    store = Store({0: ClientState(kept=of(1))})
    assert store[7] is EMPTY_STATE
    assert 7 not in store
    assert len(store) == 1


def test_tensors_of_one_kind_are_of_those_who_have_any() -> None:
    store = Store({0: ClientState(kept=of(1)), 2: ClientState(memory=of(2)), 5: ClientState(kept=of(3), memory=of(4))})
    assert {k: held["w"].item() for k, held in store.of_kind("kept").items()} == {0: 1.0, 5: 3.0}
    assert {k: held["w"].item() for k, held in store.of_kind("memory").items()} == {2: 2.0, 5: 4.0}
    assert store.of_kind("own") == {}


def test_a_state_that_is_elsewhere_is_fetched_when_somebody_looks() -> None:
    near, far = Away(ClientState(kept=of(1))), Away(ClientState(kept=of(2)))
    store = Store({0: near, 1: far}, later=Store({1: ClientState(kept=of(3))}))
    part = store.updated({2: ClientState(own=of(5))}).of([1, 2])
    assert near.fetched == far.fetched == []  # neither a round nor a part of the store needs to look inside
    assert list(part) == [1, 2]
    assert part[1].kept["w"].item() == 2.0
    assert (len(near.fetched), len(far.fetched)) == (0, 1)
    here = store.here()
    assert here.entries[0] is near.state
    assert here.entries[1] is far.state


def test_a_part_of_a_store_keeps_what_the_same_clients_hold_later() -> None:
    later = Store({0: ClientState(kept=of(8)), 1: ClientState(kept=of(9))})
    part = Store({0: ClientState(kept=of(1)), 1: ClientState(kept=of(2))}, later).of([1, 4])
    assert list(part) == [1]
    assert part.later is not None
    assert list(part.later) == [1]
    assert part.later[1].kept["w"].item() == 9.0


def test_a_new_stage_goes_on_from_the_model_that_was_reported() -> None:
    """What clients and the server's rule remembered was of another method; rounds and costs are counted on."""
    state = State.begin(of(1), {0: ClientState(kept=of(2))}, round=3, shown=of(4), rule=of(5), drift=of(6))
    after = state.at_new_stage()
    assert (after.model["w"].item(), after.round) == (4.0, 3)
    assert len(after.clients) == 0
    assert not any((after.server.shown, after.server.rule, after.server.drift))
    assert state.reported.model["w"].item() == 4.0
    assert state.reported.clients is state.clients
