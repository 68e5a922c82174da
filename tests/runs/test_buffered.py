"""Asynchronous rounds and simulated time: what is planned, that a run can be stopped in the middle, what is refused."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.near import far
from torch.testing import assert_close

import torso
from torso.config import Config, SpeedsConfig
from torso.data import Roster
from torso.errors import RequestError
from torso.measure.analyses import analyses
from torso.results.checkpoint import load_newest
from torso.results.result import Result
from torso.runs.buffered import RunningVisit, StepPlan, StepTime, collect, draw, plan_step
from torso.runs.job import simulate
from torso.runs.messages import Sent, Told
from torso.runs.run import Stopped
from torso.runs.sampling import sample
from torso.runs.speeds import hours_of

from .samples import StopAfter, bits, digits, tiny

BUFFERED = (
    "method.server=fedbuff",
    "method.server.buffer=2",
    "train.fraction=0.4",
    "train.rounds=6",
    "train.schedule=const",
    "run.speeds.sigma=1.0",
    "run.speeds.jitter=0.3",
    "measure.names=initial",
)


def _roster(clients: int) -> Roster:
    return simulate(tiny("fedavg", f"data.clients={clients}", "data.new_clients=2", "data.shards=5")).roster


def _lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """FedPer: a head stays with each client."""
    out = tmp_path_factory.mktemp("buffered") / "whole"
    return torso.run(tiny("fedper", *BUFFERED), out=out, federation=digits())


# speeds


def test_clients_differ_as_sigma_says_and_visits_as_jitter_says() -> None:
    logs = np.log(hours_of(SpeedsConfig(hours=3.0, sigma=0.8), 0, 1, range(4000)))
    assert logs.mean() == pytest.approx(np.log(3.0), abs=0.05)
    assert logs.std() == pytest.approx(0.8, abs=0.03)
    visits = np.log([hours_of(SpeedsConfig(jitter=0.5), 0, round, [7])[0] for round in range(2000)])
    assert visits.std() == pytest.approx(0.5, abs=0.03)


def test_a_speed_belongs_to_seed_and_client_alone() -> None:
    speeds = SpeedsConfig(sigma=1.0)
    assert hours_of(speeds, 0, 1, [5, 2]) == hours_of(speeds, 0, 9, [5, 2])
    assert hours_of(speeds, 0, 1, [2]) == hours_of(speeds, 0, 1, [5, 2])[1:]
    assert hours_of(speeds, 1, 1, [5, 2]) != hours_of(speeds, 0, 1, [5, 2])
    assert hours_of(SpeedsConfig(hours=2.0), 0, 1, [5, 2]) == [2.0, 2.0]


def test_a_synchronous_round_lasts_as_long_as_its_slowest_participant(tmp_path: Path) -> None:
    sets = ("run.speeds.sigma=1.0", "run.speeds.jitter=0.3", "measure.names=initial", "train.rounds=3")
    result = torso.run(tiny("fedavg", *sets), out=tmp_path / "run", federation=digits())
    speeds, hour = SpeedsConfig(sigma=1.0, jitter=0.3), 0.0
    for line in _lines(tmp_path / "run"):
        hour += max(hours_of(speeds, 0, line["round"], line["participants"]))
        assert line["hours"] == hour
        assert "staleness" not in line
    assert result.cost.hours == hour == Result.read(tmp_path / "run").cost.hours


def test_without_speeds_nothing_is_said_of_hours(tmp_path: Path) -> None:
    torso.run(tiny("fedavg", "train.rounds=1", "measure.names=initial"), out=tmp_path / "run", federation=digits())
    assert "hours" not in _lines(tmp_path / "run")[0]
    assert "hours" not in json.loads((tmp_path / "run" / "result.json").read_text())["cost"]


# what is planned


def _steps(roster: Roster, at_once: int, uploads: int, count: int, speeds: SpeedsConfig) -> list[StepPlan]:
    air, hour, plans = list[RunningVisit](), 0.0, list[StepPlan]()

    def lasts(round: int, clients: Sequence[int]) -> list[float]:
        return hours_of(speeds, 0, round, clients)

    for round in range(1, count + 1):
        plan = plan_step(air, StepTime(hour, round, lasts), at_once, uploads, roster, seed=0)
        air = [flight for flight in (*air, *plan.begun) if flight not in plan.heard]
        hour, plans = plan.hour, [*plans, plan]
        assert len({flight.client for flight in air}) == len(air) <= at_once
        assert all(flight.arrives >= hour for flight in air)
    return plans


def test_as_many_train_at_once_as_asked_and_nobody_twice() -> None:
    roster = _roster(20)
    plans = _steps(roster, 6, 3, 60, SpeedsConfig(sigma=1.0, jitter=0.5))
    assert all(len(set(plan.clients)) == 3 for plan in plans)
    assert set(roster.newcomers.tolist()).isdisjoint(k for plan in plans for k in plan.beginning)
    hours = [plan.hour for plan in plans]
    assert hours == sorted(hours)
    stale = Counter(age for plan in plans for age in plan.staleness(plan.clients))
    assert {0, 1} <= stale.keys()
    assert max(stale) > 3
    assert {flight.client for plan in plans for flight in plan.heard} == set(roster.training.tolist())


def test_where_all_clients_are_busy_fewer_train() -> None:
    """Ten train at once of ten: who has uploaded begins again when the step is taken."""
    plans = _steps(_roster(12), 10, 4, 20, SpeedsConfig(sigma=1.0))
    assert [len(plan.begun) for plan in plans] == [10] + [4] * 19
    for before, after in pairwise(plans):
        assert before.clients == after.beginning


def test_equal_speeds_are_synchronous_rounds() -> None:
    """K = M of more clients: the participants are those of synchronous rounds, an hour after the other."""
    roster = _roster(20)
    plans = _steps(roster, 5, 5, 6, SpeedsConfig())
    assert [plan.clients for plan in plans] == [sample(roster, 5 / 18, 0, round) for round in range(1, 7)]
    assert [plan.hour for plan in plans] == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]


def test_who_is_free_is_drawn_alike() -> None:
    roster = _roster(12)
    free = [k for k in roster.training.tolist() if k not in (0, 5, 11)]
    drawn = Counter(k for round in range(3000) for k in draw(roster, 2, {0, 5, 11}, 0, round))
    assert set(drawn) == set(free)
    assert all(count == pytest.approx(6000 / len(free), rel=0.15) for count in drawn.values())


# uploads


def test_parameters_are_moved_to_the_present_model_and_statistics_come_as_they_are() -> None:
    """Client 1 began at θ = 0 and uploads 1 two steps later, when θ = 10: it counts as 10 + 1/√3. Running statistics
    and counters, which it uploads as 5, stay 5."""
    sets = ("model.body=resnet8", "model.norm=running", "data.shards=5", "data.clients=4", "data.synthetic.samples=40")
    job = simulate(tiny("fedavg", *BUFFERED, "data.source=synthetic", *sets))
    stage, model = job.plan[0], job.model
    parameters = set(stage.uploaded)
    rest = stage.travels - parameters
    assert any(name.endswith("running_mean") for name in rest)

    def told(round: int, value: int) -> Told:
        return Told(round, {n: torch.full_like(t, value) for n, t in model.items()}, tuple(stage.travels), 1)

    uploads = {n: torch.full((2, *model[n].shape), 1 if n in parameters else 5) for n in stage.travels}
    uploads = {n: t.to(model[n].dtype) for n, t in uploads.items()}
    part = Sent(1, (0, 1), (9, 9), uploads, torch.tensor([0.5, 0.25]), torch.tensor([True, True]))
    first = StepPlan(1, (RunningVisit(1.0, 0, 0), RunningVisit(9.0, 1, 0)), (RunningVisit(1.0, 0, 0),), 1.0)
    (now,), waiting = collect(stage, told(1, 0), first, [part], ())
    assert now.clients == (0,)
    assert all(torch.equal(tensor[0], uploads[name][0]) for name, tensor in now.model.items())
    third = StepPlan(3, (), (RunningVisit(9.0, 1, 0),), 9.0)
    (late,), nothing = collect(stage, told(3, 10), third, [], waiting)
    assert (late.clients, late.samples, late.loss.tolist(), nothing) == ((1,), (9,), [0.25], ())
    for name, tensor in late.model.items():
        expected = 10 + 3**-0.5 if name in parameters else 5
        assert_close(tensor, torch.full_like(uploads[name][:1], expected))


# runs


def test_history_says_when_and_how_old(whole: Result) -> None:
    assert whole.folder is not None
    lines = _lines(whole.folder)
    assert all(len(line["staleness"]) == len(line["participants"]) == 2 for line in lines)
    assert any(max(line["staleness"]) > 0 for line in lines)
    hours = [line["hours"] for line in lines]
    assert hours == sorted(hours)
    assert whole.cost.hours == hours[-1]
    one = lines[0]["bytes_up"] // 2
    assert [line["bytes_up"] for line in lines] == [2 * one * line["round"] for line in lines]
    assert lines[-1]["bytes_down"] > lines[-1]["bytes_up"]  # some have been sent a model and train


@pytest.mark.parametrize("stopped", [1, 4])
def test_a_run_stopped_with_visits_under_way_goes_on_to_the_bit(whole: Result, stopped: int, tmp_path: Path) -> None:
    config, cut = tiny("fedper", *BUFFERED), StopAfter(stopped)
    with pytest.raises(Stopped):
        torso.run(config, out=tmp_path / "cut", listener=cut, stop=cut.stop, federation=digits())
    job = simulate(config, digits())
    left = load_newest(tmp_path / "cut" / "checkpoints", job.model, None)
    assert left is not None
    assert 2 <= len(left.state.pending) <= 4
    assert any(visit.left for visit in left.state.pending)
    torso.run(config, out=tmp_path / "cut", resume=True, federation=digits())
    assert whole.folder is not None
    ends = [load_newest(folder / "checkpoints", job.model, None) for folder in (whole.folder, tmp_path / "cut")]
    assert ends[0] is not None
    assert ends[1] is not None
    assert bits(ends[0].state) == bits(ends[1].state)
    keys = ("participants", "staleness", "hours", "loss")
    lines = [[{key: line[key] for key in keys} for line in _lines(f)] for f in (whole.folder, tmp_path / "cut")]
    assert lines[0] == lines[1]


def test_stacked_clients_and_more_rounds_give_the_same_run(whole: Result, tmp_path: Path) -> None:
    """Batched, first four rounds, then extended to six."""
    config = tiny("fedper", *BUFFERED, "run.engine=batched", "train.rounds=4")
    torso.run(config, out=tmp_path / "run", federation=digits())
    result = torso.run(config.but("train.rounds=6"), out=tmp_path / "run", resume=True, federation=digits())
    assert result.state is not None
    assert whole.state is not None
    assert far(result.state.model, whole.state.model) < 1e-5
    assert result.cost == whole.cost
    for client, mine in whole.state.clients.of_kind("kept").items():
        assert far(mine, result.state.clients[client].kept) < 1e-4


def test_a_damaged_visit_is_no_checkpoint(whole: Result, tmp_path: Path) -> None:
    """Its numbers are under the checksum of the note, and its tensors must fit the network."""
    assert whole.folder is not None
    note = json.loads(next(iter(sorted((whole.folder / "checkpoints").glob("round-*.json")))).read_text())
    assert {each["client"] for each in note["pending"]}
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    for path in (whole.folder / "checkpoints").iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    for path in folder.glob("round-*.json"):
        path.write_text(path.read_text().replace('"arrives": ', '"arrives": 9'))
    with pytest.raises(RequestError, match=r"no whole checkpoint.*checksum"):
        load_newest(folder, simulate(tiny("fedper", *BUFFERED), digits()).model, None)


# refusals


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        (["method.name=scaffold"], r"method\.drift = 'scaffold'.*same one\. Accepted: .*none"),
        (["method.name=feddyn"], r"method\.drift = .*same one"),
        (["method.name=mtl"], r"method\.drift = 'multi-task'.*same one"),
        (["method.name=fedfomo"], r"method\.personal = .*no such rounds"),
        (["method.server.buffer=11"], r"11 uploads make a step.*10 clients train.*buffer of 10 or less"),
        (["run.faults.drop=0.1"], r"run\.faults has no meaning"),
        (["attack.kind=alie"], r"attack\.kind = .*looks at all uploads"),
        (
            ["run.engine=flower", "run.speeds.sigma=0.0"],
            r"asynchronous rounds, which run\.engine = 'flower' does not have",
        ),
        (["method.name=fedavg", "method.server=mean", "run.engine=flower"], r"run\.speeds is for simulations"),
        (["method.name=local-only"], r"act on what travels, and nothing does"),
        (["run.speeds.sigma=-1"], r"run\.speeds\.sigma = -1"),
        (["method.server.buffer=0"], r"method\.server\.buffer = 0"),
    ],
)
def test_what_cannot_be_asynchronous_is_refused_by_name(sets: list[str], words: str) -> None:
    rule = ["method.server=fedbuff", "method.server.buffer=2", "data.clients=10", "run.speeds.sigma=1.0"]
    with pytest.raises(RequestError, match=words):
        simulate(Config.load(sets=[*rule, *sets]))


def test_analyses_of_rounds_are_refused() -> None:
    name = next(name for name, kind in analyses.items() if kind.when == "round")
    with pytest.raises(RequestError, match=rf"measure\.analyses = '{name}'"):
        simulate(tiny("fedavg", *BUFFERED, f"measure.analyses={name}"), digits())
