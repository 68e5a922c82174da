"""A round that begins before the numbers of the last one are read is the round that begins after them."""

from __future__ import annotations

from typing import Any

import pytest
from tests.runs.samples import assert_same_state
from tests.runs.test_uploads import METHODS, NAN, SMALL

from torso.config import Config
from torso.engine import Batched, engines
from torso.errors import RunFailed
from torso.personal.state import State
from torso.runs import aggregate
from torso.runs.events import Listener
from torso.runs.job import simulate
from torso.runs.loop import Loop
from torso.runs.player import Player
from torso.runs.rounds import BegunRound, Round

ROUNDS = 5


def played(*sets: str) -> tuple[State, list[Round], str]:
    """The rounds of a run of stacked clients, the state after them, and how it failed."""
    config = Config.load(sets=[*SMALL, "run.clients_at_once=4", *sets, f"train.rounds={ROUNDS}"])
    task, seen, failed = simulate(config), list[Round](), ""

    class Watching(Listener):
        def round(self, played: Round, *rest: Any) -> None:
            seen.append(played)

    loop = Loop(task, listener=Watching())
    with engines["batched"](task.net, task.federation, config.run) as engine:
        try:
            for _ in range(ROUNDS):
                loop.round(engine)
        except RunFailed as failure:
            failed = str(failure)
    return loop.state, seen, failed


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Which rounds have begun ahead; from now on they may."""
    numbers, inner = list[int](), Player.look_ahead

    def watched(self: Player, *given: Any) -> BegunRound | None:
        found = inner(self, *given)
        numbers.extend([found.number] if found else [])
        return found

    monkeypatch.setattr(Player, "look_ahead", watched)
    return numbers


def ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Batched, "may_look_ahead", lambda self: True)
    monkeypatch.setattr(aggregate, "is_on_host", lambda tensor: False)  # as on a device


@pytest.mark.parametrize("method", [*METHODS, "fedavgm"])
def test_the_same_rounds(method: str, begun: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    sets = f"method.name={method}", "measure.every=3", "measure.during=initial"
    state, rounds, _ = played(*sets)
    assert begun == []
    ahead(monkeypatch)
    found, again, _ = played(*sets)
    assert again == rounds
    assert_same_state(found, state)
    holds = method in ("mtl", "fedfomo")  # the server holds single uploads
    assert begun == ([] if holds else [2, 3, 5])  # after round 3 somebody measures


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "fedper"])
def test_what_is_not_finite_is_found_out_and_the_next_round_begins_again(
    method: str, begun: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    sets = f"method.name={method}", *NAN, "train.fraction=0.5"
    state, rounds, _ = played(*sets)
    assert any(each.missing for each in rounds)
    assert not all(each.missing for each in rounds)
    ahead(monkeypatch)
    found, again, _ = played(*sets)
    assert again == rounds
    assert_same_state(found, state)
    assert begun


def test_a_run_that_diverges_fails_in_the_same_round(begun: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    sets = "method.name=fedavg", "train.lr=1e6"
    state, rounds, why = played(*sets)
    assert "round" in why
    ahead(monkeypatch)
    found, again, later = played(*sets)
    assert (again, later) == (rounds, why)
    assert_same_state(found, state)
