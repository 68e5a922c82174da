"""Uploads that may not be used: what is found, that nothing of them is left, and when a run ends for lack of others."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.methods.by_hand import equal, federated, on
from tests.methods.test_missing import THREE
from tests.methods.tiny import job, tiny_parts  # noqa: F401  a fixture
from tests.runs.samples import assert_same_state

import torso
from torso.config import Config
from torso.engine import Engine, engines
from torso.errors import RunFailed
from torso.personal.state import State
from torso.runs import aggregate
from torso.runs.aggregate import Aggregate
from torso.runs.events import Listener
from torso.runs.faults import Faults
from torso.runs.job import Simulation, simulate
from torso.runs.messages import Sent
from torso.runs.rounds import Round, TooFewAnswered, named, play_round
from torso.runs.sampling import weights_of
from torso.runs.telling import tell

SMALL = (
    "data.source=synthetic",
    "data.synthetic.samples=240",
    "data.synthetic.test_samples=80",
    "data.clients=6",
    "data.shards=5",
    "model.body=mlp",
    "train.rounds=2",
    "train.fraction=1.0",
    "train.local_epochs=1",
    "train.batch_size=20",
    "measure.names=initial",
)
METHODS = ("fedavg", "fedper", "scaffold", "feddyn", "ditto", "fedexp", "mtl", "fedfomo", "fedrod-hyper")
NAN = ("attack.kind=not-finite", "attack.fraction=0.34")


def task_of(*sets: str) -> Simulation:
    return simulate(Config.load(sets=[*SMALL, "run.clients_at_once=1", *sets]))


def two_rounds(task: Simulation, why: Faults, engine: str = "one-by-one") -> tuple[State, Round]:
    state = State.begin(task.model)
    with engines[engine](task.net, task.federation, task.config.run) as place:
        for _ in range(2):
            state, played = play_round(task.plan[0], state, task.roster, place, 0, lambda chosen: why)
    return state, played


@pytest.mark.parametrize("method", METHODS)
def test_a_client_that_sends_nan_is_one_whose_upload_came_too_late(method: str) -> None:
    """The same model, memories and cost, whatever the method makes of uploads; and the history says what it was."""
    task = task_of(f"method.name={method}", *NAN)
    hostile = sorted(task.federation.malicious)
    assert len(hostile) == 2
    state, played = two_rounds(task, {})
    without, late = two_rounds(task, dict.fromkeys(hostile, "late"))
    assert played == replace(late, why=dict.fromkeys(hostile, "not finite"))
    assert played.missing == tuple(hostile)
    assert_same_state(state, without)


@pytest.mark.parametrize("server", ["median", "trimmed-mean", "krum", "mean"])
def test_robust_rules_and_clipping_see_none_of_it(server: str) -> None:
    clip = ("method.server.clip=0.5",) if server == "mean" else ()
    task = task_of(f"method.server={server}", *clip, *NAN, *(("method.server.f=0",) if server == "krum" else ()))
    late = dict.fromkeys(task.federation.malicious, "late")
    if server == "trimmed-mean":  # 0.2 of four clients is nobody
        with pytest.raises(
            RunFailed, match=r"what clients \d, \d sent is not used \(not finite\); 4 left, and method.server"
        ):
            two_rounds(task, {})
        return
    assert_same_state(two_rounds(task, {})[0], two_rounds(task, late)[0])


@pytest.mark.parametrize("method", ["scaffold", "fedexp", "fedper", "fedfomo"])
def test_on_a_device_zeros_stand_for_what_is_left_out(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """There nobody waits to learn whose upload is not finite. The sums are the same."""
    task = task_of(f"method.name={method}", *NAN, "run.clients_at_once=3")
    expected, played = two_rounds(task, {}, "batched")
    monkeypatch.setattr(aggregate, "is_on_host", lambda tensor: False)
    found, again = two_rounds(task, {}, "batched")
    assert again == played
    assert_same_state(found, expected)


# one message at a time


def three(method: str = "scaffold", **train: int) -> Simulation:
    return on(job(method, head="eye", **train), federated(THREE))


def taken(task: Simulation, change: Callable[[Sent], Sent], clients: tuple[int, ...] = (0, 1, 2)) -> Aggregate:
    """What the server has of three uploads that are 1 everywhere, of which those of client 1 are changed."""
    server, samples = State.begin(task.model).server, {0: 1, 1: 1, 2: 3}
    told = tell(task.plan[0], server, task.roster, clients, 1, seed=0)
    came = Aggregate(task.plan[0], told, weights_of(task.roster, (0, 1, 2), "samples"), samples=samples)
    for client in clients:
        model = {name: torch.ones_like(told.model[name])[None] for name in task.plan[0].travels}
        drift = {name: torch.ones_like(told.model[name])[None] for name in task.plan[0].corrected}
        drift = drift if task.plan[0].method.drift.sends else {}
        sent = Sent(1, (client,), (samples[client],), model, torch.ones(1), torch.tensor([True]), drift)
        came.take(change(sent) if client == 1 else sent)
    came.close()
    return came


def with_first(part: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Sent], Sent]:
    def changed(sent: Sent) -> Sent:
        tensors = dict(getattr(sent, part))
        name = sorted(tensors)[0]
        return replace(sent, **{part: {**tensors, name: change(tensors[name])}})

    return changed


def one_number(value: float) -> Callable[[torch.Tensor], torch.Tensor]:
    """The last number of a tensor is another."""

    def change(tensor: torch.Tensor) -> torch.Tensor:
        flat = tensor.clone().flatten()
        flat[-1] = value
        return flat.view(tensor.shape)

    return change


def more(part: str, tensors: Mapping[str, torch.Tensor]) -> Callable[[Sent], Sent]:
    return lambda sent: replace(sent, **{part: {**getattr(sent, part), **tensors}})


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("not finite", with_first("model", one_number(math.nan))),
        ("not finite", with_first("model", one_number(-math.inf))),
        ("not finite", with_first("drift", one_number(math.nan))),
        ("not finite", lambda sent: replace(sent, loss=torch.tensor([math.nan]))),
        ("not finite", lambda sent: replace(sent, finite=torch.tensor([False]))),
        ("wrong form", with_first("model", lambda tensor: tensor[:, :1])),
        ("wrong form", with_first("model", lambda tensor: tensor.double())),
        ("wrong form", with_first("model", lambda tensor: tensor.unsqueeze(-1))),
        ("wrong form", more("model", {"another": torch.ones(1, 2)})),
        ("wrong form", lambda sent: replace(sent, drift={})),
        ("wrong form", lambda sent: replace(sent, said={"scores": torch.zeros(1, 2)})),
        ("wrong numbers", lambda sent: replace(sent, samples=(10**9,))),
        ("wrong numbers", lambda sent: replace(sent, round=2)),
    ],
)
def test_what_is_wrong_with_an_upload(kind: str, change: Callable[[Sent], Sent]) -> None:
    """And the mean of the two others is 1."""
    came = taken(three(), change)
    assert came.refused == {1: kind}
    assert came.clients == (0, 2)
    assert all(torch.allclose(tensor, torch.ones(())) for tensor in came.total.values())
    assert all(torch.equal(tensor, torch.full_like(tensor, 2.0)) for tensor in came.change.values())
    assert taken(three(), lambda sent: sent).refused == {}


@pytest.mark.parametrize("server", [{"clip": 1.0}, "fedexp"])
def test_a_length_that_is_not_finite_is_found_where_lengths_are_used(server: object) -> None:
    """1e30 is finite, and its square is not: FedEXP would divide by it, and a bound has no share of it."""
    task = on(job({"name": "fedavg", "server": server}, head="eye"), federated(THREE))
    assert taken(task, with_first("model", one_number(1e30))).refused == {1: "not finite"}
    assert taken(three("fedavg"), with_first("model", one_number(1e30))).refused == {}


def test_colluding_attackers_see_finite_uploads_alone() -> None:
    """One honest client of six sends NaN: the lie of the attackers is about the others, and is used."""
    task = task_of("attack.kind=inner-product", "attack.fraction=0.34")
    honest = min(set(range(6)) - task.federation.malicious)
    with engines["one-by-one"](task.net, task.federation, task.config.run) as place:
        state = State.begin(task.model)
        expected, _ = play_round(task.plan[0], state, task.roster, place, 0, lambda _: {honest: "late"})
        spoiled = Spoiled(place, {honest})
        found, played = play_round(task.plan[0], state, task.roster, spoiled, 0)  # type: ignore[arg-type]
    assert played.why == {honest: "not finite"}
    assert equal(found.model, expected.model)


class Spoiled:
    """An engine on which the uploads of some clients are NaN, as on a real federation: nobody knows who lies."""

    def __init__(self, inner: Engine, clients: set[int]) -> None:
        self.inner, self.clients = inner, clients

    def map(self, work: object, clients: object, store: object = None) -> object:
        for sent in self.inner.map(work, clients, store):  # type: ignore[arg-type]
            spoil = self.clients.intersection(sent.clients)  # type: ignore[attr-defined]
            yield with_first("model", one_number(math.nan))(sent) if spoil else sent  # type: ignore[arg-type]

    def available_clients(self) -> None:
        """All are there."""

    def counted(self, round: int, heard: object) -> None:
        """Nobody is told."""


class SpoiledSimulation(Spoiled):
    """The same where it is known who lies."""

    available_clients = counted = None  # type: ignore[assignment]


def test_an_honest_client_that_diverges_ends_a_simulation() -> None:
    """Leaving it out would hide that the method has diverged (spec 3.7)."""
    task = task_of()
    with engines["one-by-one"](task.net, task.federation, task.config.run) as place:
        state, engine = State.begin(task.model), SpoiledSimulation(place, {3})
        with pytest.raises(RunFailed, match=r"^non-finite weights after round 1$"):
            play_round(task.plan[0], state, task.roster, engine, 0)  # type: ignore[arg-type]
    burst = torso.run(Config.load(sets=[*SMALL, "train.lr=1e30"]))
    assert re.fullmatch(r"failed: non-finite loss in round 1, client \d", burst.status)


# too few are left


def spoiled(task: Simulation, clients: set[int], why: Faults | None = None) -> Round:
    with engines["one-by-one"](task.net, task.federation, task.config.run) as place:
        engine = Spoiled(place, clients)
        return play_round(task.plan[0], State.begin(task.model), task.roster, engine, 0, lambda _: why or {})[1]  # type: ignore[arg-type]


def test_too_few_finite_uploads_end_the_run_and_are_named() -> None:
    task = task_of("train.min_clients=4")
    assert spoiled(task, {0, 5}).participants == (1, 2, 3, 4)
    words = r"round 1: what clients 0, 2, 5 sent is not used \(not finite\); 3 left, and train.min_clients = 4"
    with pytest.raises(RunFailed, match=words):
        spoiled(task, {0, 2, 5})
    with pytest.raises(RunFailed, match=r"^non-finite weights after round 1$"):  # as ever, where all of them are
        spoiled(task, set(range(6)))


def test_a_round_is_played_again_where_others_may_be_heard_then() -> None:
    task = task_of("train.min_clients=4")
    with pytest.raises(TooFewAnswered):
        spoiled(task, {0, 2}, {5: "drop"})
    with pytest.raises(RunFailed):
        spoiled(task, {0, 2, 4}, {5: "drop"})


def test_many_clients_are_not_all_named() -> None:
    assert named([3]) == "client 3"
    assert named(range(12)) == "clients 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, … (12 in all)"


# a whole run


class Notes(Listener):
    def __init__(self) -> None:
        self.said: list[str] = []

    def note(self, text: str) -> None:
        self.said.append(text)


def test_a_run_goes_on_and_its_history_names_them(tmp_path: Path) -> None:
    notes = Notes()
    found = torso.run(Config.load(sets=[*SMALL, *NAN]), tmp_path / "run", listener=notes)
    hostile = list(found.malicious)
    assert found.ok
    lines = [json.loads(line) for line in (tmp_path / "run" / "history.jsonl").read_text().splitlines()]
    assert [line["missing"] for line in lines] == [hostile] * 2
    assert [line["faults"]["not finite"] for line in lines] == [hostile] * 2
    said = f"round 1: what {named(hostile)} sent is not used (not finite). The round goes on with the others"
    assert [text for text in notes.said if "not used" in text] == [said]
