"""Clients that fail: what is drawn, what a round makes of it, and that a faulty run can be repeated and resumed."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
import torch

import torso
from torso.config import Config, FaultsConfig
from torso.engine import engines
from torso.errors import NoWorkerLeft, RequestError
from torso.personal.state import State
from torso.personal.store import KINDS
from torso.runs.faults import FAULTS, Faults, faults_of
from torso.runs.job import Simulation, simulate
from torso.runs.rounds import Round, TooFewAnswered, play_round
from torso.runs.run import Stopped
from torso.server.state import Cost

from .samples import StopAfter
from .test_uploads import SMALL

_SMALL = (*SMALL, "train.rounds=4")


def _job(*sets: str) -> Simulation:
    return simulate(Config.load(sets=[*_SMALL, *sets]))


def _played(job: Simulation, state: State, why: Faults) -> tuple[State, Round]:
    with engines["one-by-one"](job.net, job.federation, job.config.run) as engine:
        return play_round(job.plan[0], state, job.roster, engine, 0, lambda chosen: why)


def _lines(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]


def test_faults_come_as_often_as_their_chances_say() -> None:
    chances = FaultsConfig(drop=0.1, crash=0.2, late=0.3, corrupt=0.15)
    drawn = Counter(faults_of(chances, 0, 1, 0, range(4000)).values())
    for name in FAULTS:
        assert drawn[name] / 4000 == pytest.approx(getattr(chances, name), abs=0.03)


def test_a_fault_belongs_to_seed_round_client_and_attempt_alone() -> None:
    chances = FaultsConfig(drop=0.5)
    every = faults_of(chances, 0, 3, 0, range(40))
    assert faults_of(chances, 0, 3, 0, [7, 5, 30]) == {k: "drop" for k in (7, 5, 30) if k in every}
    others = [faults_of(chances, *key, range(40)) for key in ((1, 3, 0), (0, 4, 0), (0, 3, 1))]
    assert all(other != every for other in others)
    assert faults_of(FaultsConfig(), 0, 3, 0, range(40)) == {}


def test_the_mean_is_over_those_who_were_heard() -> None:
    """A round without clients 1 and 4 is the round of a federation that samples the four others alone."""
    job = _job()
    state, played = _played(job, State.begin(job.model), {1: "late", 4: "drop"})
    assert played.participants == (0, 2, 3, 5)
    assert played.missing == (1, 4)
    sizes = job.roster.sizes_of(played.participants).astype(float)
    alone = [_played(job, State.begin(job.model), dict.fromkeys(set(range(6)) - {k}, "drop"))[0] for k in (0, 2, 3, 5)]
    for name, tensor in state.model.items():
        mean = sum(w * one.model[name] for w, one in zip(sizes / sizes.sum(), alone, strict=True))
        torch.testing.assert_close(tensor, mean)


def test_what_each_fault_costs() -> None:
    """Of six equal clients: nothing for one that drops out; training and no upload for one that crashes."""
    job = _job()
    begin = State.begin(job.model)

    def cost(why: Faults) -> Cost:
        return _played(job, begin, why)[1].cost

    whole = cost({})
    for fault, sent, trained, uploaded in (
        ("drop", 5, 5, 5),
        ("crash", 6, 6, 5),
        ("late", 6, 6, 6),
        ("corrupt", 6, 6, 6),
    ):
        found = cost({2: fault})
        assert found.bytes_down == whole.bytes_down * sent / 6
        assert found.bytes_up == whole.bytes_up * uploaded / 6
        assert (found.forward_passes == whole.forward_passes) == (trained == 6)


def _moved(before: State, after: State, client: int) -> list[str]:
    """What of all that a client holds is not the same to the bit."""
    was, now = before.clients[client], after.clients[client]
    assert was
    return [
        f"{kind} {name}"
        for kind in KINDS
        for name, tensor in getattr(was, kind).items()
        if not torch.equal(tensor, getattr(now, kind)[name])
    ]


@pytest.mark.parametrize("method", ["fedper", "scaffold", "feddyn", "ditto", "fedrod-linear"])
def test_a_client_that_was_not_heard_holds_what_it_held(method: str) -> None:
    job = _job(f"method.name={method}")
    before, _ = _played(job, State.begin(job.model), {})
    after, _ = _played(job, before, {3: "crash"})
    assert not _moved(before, after, 3)
    assert _moved(before, after, 0)


@pytest.mark.parametrize("method", ["scaffold", "feddyn"])
def test_the_servers_memory_stays_the_mean_of_the_clients(method: str) -> None:
    """SCAFFOLD's c is the mean of all c_k, FedDyn's h that of all g_k, whoever was heard (spec 3.7, 3.8)."""
    job = _job(f"method.name={method}")
    state = State.begin(job.model)
    for why in ({0: "late"}, {1: "crash", 2: "drop"}, {5: "corrupt"}):
        state, _ = _played(job, state, why)
    for name, memory in state.server.drift.items():
        mean = sum(state.clients[k].memory.get(name, torch.zeros_like(memory)) for k in range(6)) / 6
        torch.testing.assert_close(memory, mean, rtol=1e-4, atol=1e-6)


def test_a_round_that_too_few_answer_is_played_again(tmp_path: Path) -> None:
    config = Config.load(sets=[*_SMALL, "run.faults.drop=0.5", "train.min_clients=4"])
    result = torso.run(config, out=tmp_path / "run")
    assert result.ok
    assert all(len(line["participants"]) >= 4 for line in _lines(tmp_path / "run"))  # type: ignore[arg-type]
    with pytest.raises(TooFewAnswered):
        _job_with_nobody()
    with pytest.raises(NoWorkerLeft, match=r"nobody answered.*10 times in a row"):
        torso.run(config.but("run.faults.drop=1.0"))


def test_more_answers_than_clients_are_refused() -> None:
    with pytest.raises(RequestError, match=r"train.min_clients = 7: .* and 6 clients train. Accepted: 1 to 6"):
        _job("train.min_clients=7")


def _job_with_nobody() -> None:
    job = _job()
    _played(job, State.begin(job.model), dict.fromkeys(range(6), "drop"))


def test_a_faulty_run_is_repeatable_and_resumable(tmp_path: Path) -> None:
    sets = [*_SMALL, "method.name=scaffold", "run.faults.drop=0.2", "run.faults.late=0.2", "run.checkpoint_every=1"]
    whole = torso.run(Config.load(sets=sets), out=tmp_path / "whole")
    other = torso.run(Config.load(sets=[*sets, "run.engine=batched"]), out=tmp_path / "other")
    lines = _lines(tmp_path / "whole")
    assert any("faults" in line for line in lines)
    assert [line.get("faults") for line in lines] == [line.get("faults") for line in _lines(tmp_path / "other")]
    assert other.ok
    cut = StopAfter(2)
    with pytest.raises(Stopped):
        torso.run(Config.load(sets=sets), out=tmp_path / "cut", listener=cut, stop=cut.stop)
    again = torso.run(Config.load(sets=sets), out=tmp_path / "cut", resume=True)
    for name, tensor in whole.network().state_dict().items():
        assert torch.equal(tensor, again.network().state_dict()[name])


def test_history_says_who_was_missing_and_why(tmp_path: Path) -> None:
    torso.run(Config.load(sets=[*_SMALL, "run.faults.drop=0.3", "run.faults.corrupt=0.2"]), out=tmp_path / "run")
    for line in _lines(tmp_path / "run"):
        faults = line.get("faults", {})
        assert isinstance(faults, dict)
        named = sorted(client for clients in faults.values() for client in clients)
        assert named == line.get("missing", [])
        assert set(faults) <= set(FAULTS)


def test_chances_beyond_one_are_refused() -> None:
    with pytest.raises(RequestError, match=r"run\.faults.*add up to 1\.2"):
        Config.load(sets=["run.faults.drop=0.6", "run.faults.late=0.6"])
    with pytest.raises(RequestError, match=r"run\.faults is for simulations"):
        _job("run.faults.drop=0.1", "run.engine=flower")
