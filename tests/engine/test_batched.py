"""All clients at once are the clients one by one, and memory that runs out is no end of a run."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import pytest
import torch
from tests.near import assert_states_near, body_for, far

from torso import Config, Result, run
from torso.engine import Batched, OneByOne, Workspace, auto, batched
from torso.errors import DeviceFull
from torso.learn.gradients import gradients
from torso.learn.recorded import Recordable, Recorder
from torso.methods import methods
from torso.personal.state import State
from torso.runs.job import simulate
from torso.runs.rounds import play_round

RAGGED = {
    **{"clients": 12, "partition": "dirichlet-class", "alpha": 0.3, "server_fraction": 0.02},
    **{"source": "synthetic", "synthetic": {"samples": 600, "test_samples": 360}},
}


def go(method: str, engine: str, body: str = "mlp", at_once: int = 0) -> Result:
    return run(
        Config(
            method=method,
            data=RAGGED,
            model={"body": body},
            train={"rounds": 3, "local_epochs": 1, "fraction": 0.5, "batch_size": 16, "lr": 0.05},
            measure={"names": ["initial", "personalized", "generic"], "clients": 6},
            personalize={"epochs": 1},
            run={"engine": engine, "clients_at_once": at_once, "precision": "fp32"},
        )
    )


@pytest.mark.parametrize("method", sorted(methods))
def test_batched_is_one_by_one_to_rounding(method: str) -> None:
    """A ragged Dirichlet federation, three rounds: the model, what clients keep, and what is measured."""
    body = body_for(method)
    alone, together = go(method, "one-by-one", body), go(method, "batched", body)
    assert_states_near(alone, together, model=1e-4, kept=1e-3)
    for name, found in alone.accuracy.items():
        assert together.accuracy[name].mean == pytest.approx(found.mean, abs=1.0)


def test_convolutions_too() -> None:
    alone, together = go("fedbabu", "one-by-one", "conv3"), go("fedbabu", "batched", "conv3")
    assert alone.state is not None
    assert together.state is not None
    assert far(alone.state.model, together.state.model) < 1e-4


@pytest.mark.parametrize("body", ["conv3", "resnet8", "vgg11", "squeezenet"])
def test_in_double_precision_nothing_is_left_of_the_difference(body: str, double: None) -> None:
    """In float32 a single ReLU tie can move a small tensor by a percent (resnet8): nothing else does."""
    size = 8 if body in ("conv3", "resnet8") else 32
    data = {**RAGGED, "clients": 4, "source": "synthetic", "synthetic": {"samples": 32, "size": size, "channels": 3}}
    config = Config(
        method="fedavg",
        data=data,
        model={"body": body},
        train={"rounds": 1, "local_epochs": 1, "fraction": 1.0, "batch_size": 8, "lr": 0.01},
    )
    job = simulate(config)
    ends = []
    for place in (OneByOne(job.net, job.federation, workers=2), Batched(job.net, job.federation)):
        with place as engine:
            state, _ = play_round(job.plan[0], State.begin(job.model), job.roster, engine, seed=0)
            ends.append(state.model)
    assert far(*ends) < 1e-10


class Counted:
    """Work that has room for three clients at a time."""

    def __init__(self, context: int) -> None:
        self.context, self.tried = context, list[int]()

    def __call__(self, workspace: Workspace, clients: Sequence[int]) -> tuple[int, ...]:
        self.tried.append(len(clients))
        if len(clients) > self.context:
            raise torch.OutOfMemoryError("made up")
        return tuple(clients)


def engine(at_once: int = 0) -> Batched:
    job = simulate(Config(data=RAGGED))
    return Batched(job.net, job.federation, at_once=at_once)


def test_a_group_that_does_not_fit_is_halved_and_done_again() -> None:
    work = Counted(context=3)
    with engine(at_once=10) as place:
        found = list(place.map(work, range(12)))
        assert [client for group in found for client in group] == list(range(12))  # once each, in order
        assert work.tried == [10, 5, 2, 2, 2, 2, 2, 2]
        list(place.map(work, range(4)))
        assert work.tried[-2:] == [2, 2]  # it has learned


def test_a_client_that_does_not_fit_alone_ends_the_run() -> None:
    with engine() as place, pytest.raises(DeviceFull, match="client 0 alone does not fit"):
        list(place.map(Counted(context=0), range(12)))


def test_an_attempt_that_did_not_fit_is_gone_before_memory_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also what refers to itself, as recordings and their recorder do."""
    attempts, alive = list[weakref.ref[torch.Tensor]](), list[int]()

    class Large(Counted):
        def __call__(self, workspace: Workspace, clients: Sequence[int]) -> tuple[int, ...]:
            tensor, in_a_circle = torch.zeros(3), list[object]()
            in_a_circle += [in_a_circle, torch.zeros(3)]
            attempts.extend(weakref.ref(each) for each in (tensor, cast("torch.Tensor", in_a_circle[1])))
            return super().__call__(workspace, clients)

    monkeypatch.setattr(
        torch.cuda, "empty_cache", lambda: alive.append(sum(attempt() is not None for attempt in attempts))
    )
    with engine(at_once=4) as place:
        list(place.map(Large(context=3), range(4)))
    assert alive == [0]
    assert len(attempts) == 6  # two in each of three attempts


def test_who_shares_the_device_takes_a_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Batched, "company", 2)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 300)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 200)
    with engine() as place:
        place.each["Visit"] = 10.0
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (500, 1000))
        assert batched.free_bytes(place.device) == 600  # 500 + 300 − 200
        assert batched.free_bytes(place.device, 2) == 270  # its half, 0.94 · 1000 / 2, less 200
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (0, 1000))
        assert batched.free_bytes(place.device, 2) == 100  # others have the rest: 0 + 300 − 200
        assert place.size("Visit") == 8  # 0.85 · 100 / 10


def test_what_is_free_decides_how_many_come_next(monkeypatch: pytest.MonkeyPatch) -> None:
    place = engine()
    assert place.size("Visit") == 10  # nothing is known yet
    place.each["Visit"] = 100.0
    monkeypatch.setattr(batched, "free_bytes", lambda device, company: 500)
    assert place.size("Visit") == 4  # 0.85 · 500 / 100
    monkeypatch.setattr(batched, "free_bytes", lambda device, company: 10)
    assert place.size("Visit") == 1  # never none
    monkeypatch.setattr(batched, "free_bytes", lambda device, company: 10**9)
    assert place.size("Visit") == 12  # no more than there are
    assert engine(at_once=7).size("Visit") == 7


def test_auto_is_one_by_one_on_cpu() -> None:
    job = simulate(Config(data=RAGGED))
    assert isinstance(auto(job.net, job.federation, job.config.run), OneByOne)


class Homes(Recorder):
    """A recorder's memory without its recordings: what is left in it is overwritten by the next visit, on CPU too."""

    def gradients(self, *asked: Any) -> Any:
        return self.compute(*asked)

    def _taped(self, play: Recordable) -> Callable[[], None]:
        return play.run


@pytest.mark.parametrize("joins_steps", [False, True])
@pytest.mark.parametrize("method", ["fedavg", "ditto", "fedavg-brm-ft", "pfedme", "fedfomo", "fedrep"])
def test_nothing_that_is_kept_stays_in_the_memory_of_recordings(
    method: str, joins_steps: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twelve clients in stacks of five, own models, fine-tuned, before the local ones they began at.

    Several steps in a recording read their rate from memory, and the product with it is rounded once more."""
    names = ["personalized", "personal", "local", "initial"]
    settings = {"data": RAGGED, "measure": {"names": names}, "personalize": {"epochs": 1}}
    train = {"rounds": 2, "local_epochs": 1, "fraction": 0.5, "batch_size": 16, "lr": 0.05}
    config = Config(method=method, train=train, run={"engine": "batched", "clients_at_once": 5}, **settings)
    plain = run(config)
    at = Workspace.at
    context = {"recorder": Homes(gradients)}
    context["recorder"].joins_steps = joins_steps
    monkeypatch.setattr(
        Workspace,
        "at",
        lambda *a, **k: replace(workspace := at(*a, **k), context=replace(workspace.context, **context)),
    )
    at_home = run(config)
    assert plain.accuracy == at_home.accuracy
    assert plain.state is not None
    assert at_home.state is not None
    assert far(plain.state.model, at_home.state.model) <= (1e-6 if joins_steps else 0)
