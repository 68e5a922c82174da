"""Any number of workers gives the bits of one process; tensors travel once, and what clients keep stays away."""

from __future__ import annotations

import gc
import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import ray
from tests.engine.clusters import assert_near, config, last_of_first
from tests.engine.mortal import Mortal, Weak
from tests.runs.samples import StopAfter, bits

from torso import run
from torso.config import RunConfig
from torso.data import Federation
from torso.engine import Engine, OneByOne, Workspace, engines
from torso.engine.cluster import Cluster
from torso.engine.state_handles import RayStateHandle
from torso.methods import Method, methods
from torso.nets import Network
from torso.personal import personals
from torso.personal.state import State
from torso.personal.store import ClientState
from torso.runs.events import Listener
from torso.runs.job import simulate
from torso.runs.rounds import play_round
from torso.runs.run import Stopped
from torso.server.fedbuff import FedBuff
from torso.server.robust import CentredClipping
from torso.server.state import bytes_of

pytestmark = [pytest.mark.usefixtures("cluster"), pytest.mark.xdist_group("ray")]


@pytest.fixture(scope="module")
def lent(cluster: None) -> Iterator[Cluster]:
    """Three workers for all runs of this network and these data: to start some takes longer than such a run."""
    job = simulate(config("fedavg", run={"ray": {"workers": 3}}))
    cluster = engines["ray"](job.net, job.federation, job.config.run)
    assert isinstance(cluster, Cluster)
    with cluster as engine:
        yield engine


@contextmanager
def some_of(lent: Cluster, workers: int) -> Iterator[Cluster]:
    """The cluster with the first so many of its workers."""
    every = lent.workers
    lent.workers = every[:workers]
    yield lent
    lent.workers = every


@pytest.fixture
def borrowed(lent: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """Runs of the engine `ray` go to two of the workers that are there."""

    def borrow(net: Network, federation: Federation, run: RunConfig) -> Any:
        lent.held |= {"net": net, "federation": federation}
        return nullcontext(lent)

    monkeypatch.setitem(engines, "ray", borrow)
    with some_of(lent, 2):
        yield lent


# equality


@pytest.mark.usefixtures("borrowed")
@pytest.mark.parametrize(
    "method", ["fedavg", "fedbabu", "fedper", "scaffold", "ditto", "fedfomo", "mtl", "lp", "fedncm"]
)
def test_two_workers_are_one_process_to_rounding(method: str) -> None:
    """What travels, what stays, what clients are offered of others, what the server knows of all: and the measures."""
    assert_near(run(config(method, "one-by-one")), run(config(method)))


@pytest.mark.parametrize(
    "method",
    [
        *("fedavg", "fedper", "scaffold", "feddyn", "fedexp", "ditto", "fedfomo", "mtl"),
        pytest.param(methods["fedavg"].but(server=CentredClipping(clip=0.5)), id="centred-clipping"),
        pytest.param(methods["fedper"].but(server=FedBuff(buffer=2)), id="fedbuff"),
    ],
)
def test_any_number_of_workers_and_of_threads_gives_the_same_bits(method: str | Method, lent: Cluster) -> None:
    """All that the server and the clients hold after three rounds."""
    job = simulate(config(method))
    lent.held |= {"net": job.net, "federation": job.federation}

    def after_three_rounds(engine: Engine) -> dict[str, Any]:
        state = State.begin(job.model)
        for _ in range(3):
            state, _ = play_round(job.plan[0], state, job.roster, engine, 0)
        return bits(state)

    with OneByOne(job.net, job.federation, workers=1) as engine:
        alone = after_three_rounds(engine)
    with OneByOne(job.net, job.federation, workers=2) as engine:
        assert after_three_rounds(engine) == alone
    for workers in (1, 2, 3):
        with some_of(lent, workers) as engine:
            assert after_three_rounds(engine) == alone, workers


def test_a_private_sum_goes_from_worker_to_worker(lent: Cluster) -> None:
    """Clipped where it is made, noised once, by the driver."""
    job = simulate(config("fedper").but("privacy.noise=0.5", "privacy.clip=0.3", "privacy.quantile=0.5"))
    lent.held |= {"net": job.net, "federation": job.federation}
    with OneByOne(job.net, job.federation, workers=1) as engine:
        alone = play_round(job.plan[0], State.begin(job.model), job.roster, engine, 0)
    with some_of(lent, 2) as engine:
        state, _ = play_round(job.plan[0], State.begin(job.model), job.roster, engine, 0)
    assert bits(State(state.server, state.clients.here())) == bits(alone[0])


@pytest.mark.usefixtures("borrowed")
def test_a_run_on_a_cluster_is_the_run_of_one_process_to_the_bit() -> None:
    """Its measures too, and what clients hold is here when it has ended."""
    one, other = run(config("fedper", "one-by-one")), run(config("fedper"))
    assert one.state is not None
    assert other.state is not None
    assert bits(one.state) == bits(other.state)
    assert one.accuracy == other.accuracy
    assert {type(entry) for entry in other.state.clients.entries.values()} == {ClientState}


# what travels


def test_what_a_worker_holds_does_not_travel_again(borrowed: Cluster) -> None:
    """All clients take part in Ditto: what they keep goes neither out nor in, and no worker piles it up."""
    job = simulate(config("ditto", train={"fraction": 1.0}))
    with engines["ray"](job.net, job.federation, job.config.run) as engine:
        state, _ = play_round(job.plan[0], State.begin(job.model), job.roster, engine, 0)
        model = bytes_of(state.model)
        assert sum(bytes_of(own) for own in state.clients.of_kind("own").values()) == 12 * model
        sent = borrowed.bytes_out
        state, _ = play_round(job.plan[0], state, job.roster, engine, 0)
        assert 2 * model <= borrowed.bytes_out - sent < 2.5 * model  # the model to both, the sum from one to the other
        assert _on_the_shelves(borrowed) <= 4 * len(job.model)  # the shared one and the first, of two workers
        del state
        assert _on_the_shelves(borrowed) <= 2 * len(job.model)  # what the driver has forgotten, they forget


def test_what_clients_keep_does_not_come_to_the_driver(borrowed: Cluster) -> None:
    """Twelve heads of FedPer stay away, and so do their bodies: the sum of these comes from each of two workers."""
    job = simulate(config("fedper", train={"fraction": 1.0}))
    (stage,) = job.plan
    head = bytes_of({name: job.model[name] for name in stage.keeps})
    body = bytes_of({name: job.model[name] for name in stage.travels})
    with engines["ray"](job.net, job.federation, job.config.run) as engine:
        state = State.begin(job.model)
        for _ in range(2):
            before = borrowed.bytes_in
            state, _ = play_round(stage, state, job.roster, engine, 0)
            assert 2 * body < borrowed.bytes_in - before < 2.5 * body
        assert {type(entry) for entry in state.clients.entries.values()} == {RayStateHandle}
        assert bytes_of(state.clients[3].kept) == head  # fetched for who asks …
        assert isinstance(state.clients.entries[3], RayStateHandle)  # … and not kept here
        assert {type(entry) for entry in state.clients.here().entries.values()} == {ClientState}


def test_large_states_lie_apart(borrowed: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that one that has become old does not keep the memory of others; sizes are known after the first round."""
    monkeypatch.setattr("torso.engine.cluster.LARGE", 8000)  # a head has 8040 bytes
    job = simulate(config("fedper", train={"fraction": 1.0}))
    objects, states = [], []
    with engines["ray"](job.net, job.federation, job.config.run) as engine:
        monkeypatch.setattr(borrowed, "_state_bytes", 0)
        state = State.begin(job.model)
        for _ in range(2):
            state, _ = play_round(job.plan[0], state, job.roster, engine, 0)
            objects.append(len({entry.where for entry in state.clients.entries.values()}))
            states.append(state)
        assert objects == [2, 12]
        with OneByOne(job.net, job.federation, workers=1) as here:
            alone, _ = play_round(job.plan[0], states[0], job.roster, here, 0)
        assert bits(states[1]) == bits(alone)


def _on_the_shelves(engine: Cluster) -> int:
    """How many tensors the workers hold, once they have heard what is gone."""
    gc.collect()
    list(engine.map(Nothing(), range(2)))
    return sum(ray.get(place.actor.__ray_call__.remote(lambda actor: len(actor.cache))) for place in engine.workers)


class Nothing:
    def __call__(self, workspace: Workspace, clients: Any) -> None: ...


# errors


@pytest.mark.usefixtures("borrowed")
def test_what_work_raises_is_raised_here_in_its_own_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(personals, "weak", Weak)
    found = run(config(methods["fedavg"].but(personal=Weak())))
    assert found.status == "failed: too weak to visit"


# workers that die


class Heard(Listener):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.mark.parametrize("share", ["body", "head"])
def test_a_worker_killed_in_mid_round_is_replaced_and_changes_no_bit(
    share: str, borrowed: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Private heads, which Ray keeps with the driver since they are small, and private bodies, which lie in the object
    store: what the dead worker had left its clients outlives it."""
    monkeypatch.setitem(personals, "mortal", Mortal)
    (tmp_path / "lives").mkdir()
    mortal = Mortal(folder=str(tmp_path / "lives"), client=last_of_first(2))
    method = methods["fedper"].but(share=share, personal=mortal)
    whole = run(config(method))
    (tmp_path / "lives" / "one").touch()
    heard = Heard()
    found = run(config(method), tmp_path / "out", listener=heard)
    assert not list((tmp_path / "lives").iterdir())
    assert whole.state is not None
    assert found.state is not None
    assert bits(found.state) == bits(whole.state)
    assert found.accuracy == whole.accuracy
    lines = [json.loads(line) for line in (tmp_path / "out" / "history.jsonl").read_text().splitlines()]
    assert ["replaced" in line for line in lines] == [False, True, False]
    (told,) = lines[1]["replaced"]
    assert "was lost with a share of" in told
    assert "took its place and did it again" in told
    assert heard.notes == [told]


def test_workers_do_not_hear_ctrl_c(borrowed: Cluster) -> None:
    """A terminal sends it to all processes; the driver stops after the round, and needs them until then."""
    for place in borrowed.workers:
        os.kill(ray.get(place.actor.hello.remote())[0], signal.SIGINT)
    listener = StopAfter(1)
    with pytest.raises(Stopped, match="stopped after round 1 of 3"):
        run(config("fedavg"), listener=listener, stop=listener.stop)
    assert borrowed.repaired() == ()
