"""Starts of one's own: every question that a run asks of a start, and what it does with the answer.

By hand on the federation of tiny.py: one sample of class 0, three of class 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.runs.samples import StopAfter, bits, digits, tiny
from torch.testing import assert_close

from torso import Config, RequestError, Result, run
from torso.engine import Workspace
from torso.methods import Exchange, Finished, Method, Start, starts
from torso.methods.starts import EarlierMethod, ReadRun, TrainingPlan
from torso.nets import Network, Tensors
from torso.papers.experiments.reuse import opening_key, training_key
from torso.runs.job import simulate
from torso.runs.run import Stopped
from torso.server.statistics import Declared, Statistic

from .tiny import federation


def counted(workspace: Workspace, clients: Sequence[int]) -> Tensors:
    return {"counts": workspace.train_deck(clients).class_counts(workspace.context.classes).float()}


@dataclass(frozen=True)
class Counts(Start):
    """The bias is `scale` times the class counts; nothing is trained where `rounds` is 0."""

    scale: float = 1.0
    rounds: int = 0

    def training_plan(self, run: TrainingPlan) -> TrainingPlan:
        return replace(run, rounds=self.rounds)

    def before_first_round(self, exchange: Exchange) -> Tensors:
        return {"head.bias": self.scale * exchange.ask(counted)["counts"]}

    def declares(self, net: Network, classes: int) -> Declared:
        return {"counts": Statistic((classes,), "counts", counts=True)}


@dataclass(frozen=True)
class AfterFedAvg(Start):
    """Two rounds of FedAvg, then a head of zeros and a training plan of its own."""

    rounds: int = 2

    def earlier(self) -> EarlierMethod | None:
        return EarlierMethod("fedavg", 2)

    def training_plan(self, run: TrainingPlan) -> TrainingPlan:
        return TrainingPlan(self.rounds, 1e-12, "const")

    def before_first_round(self, exchange: Exchange) -> Tensors:
        return {"head.weight": torch.zeros_like(exchange.model["head.weight"])}


@dataclass(frozen=True)
class Sevens(Start):
    """One tensor is all sevens."""

    name: str = "head.bias"
    size: int = 10
    late: bool = False

    def weights(self, drawn: Tensors, read: ReadRun) -> Tensors:
        return drawn if self.late else {self.name: torch.full((self.size,), 7.0)}

    def before_first_round(self, exchange: Exchange) -> Tensors:
        return {self.name: torch.full((self.size,), 7.0)} if self.late else {}

    def check(self, net: Network) -> None:
        if self.size > 1000:
            raise RequestError(f"method.start.size = {self.size} is more than anybody has.")


@pytest.fixture(autouse=True)
def _known(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, kind in {"counts": Counts, "after-fedavg": AfterFedAvg, "sevens": Sevens}.items():
        monkeypatch.setitem(starts, name, kind)


def on_two(start: Any) -> Result:
    config = Config(method={"name": "fedavg", "start": start}, model={"body": "scale"}, measure={"names": ["generic"]})
    return run(config, federation=federation())


def test_an_own_start_sets_the_head_by_asking_clients() -> None:
    """Counts (1, 3), times two. Two clients send two numbers each, and look at no image."""
    result = on_two({"name": "counts", "scale": 2.0})
    assert result.state is not None
    assert result.state.model["head.bias"].tolist() == [2.0, 6.0]
    assert (result.status, result.rounds) == ("ok", 0)
    assert (result.cost.bytes_up, result.cost.bytes_down, result.cost.forward_passes) == (16, 0, 0)


def test_training_goes_on_from_what_an_own_start_has_set() -> None:
    config = tiny("fedavg", "method.start=counts", "method.start.rounds=1", "train.lr=1e-12", "measure.names=generic")
    result = run(config, federation=digits())
    assert result.state is not None
    labels = digits().train.labels
    assert_close(result.state.model["head.bias"], labels.bincount(minlength=10).float())
    assert (result.rounds, result.cost.forward_passes > 0) == (1, True)


def test_what_a_start_does_before_its_first_round_comes_after_the_earlier_method(tmp_path: Path) -> None:
    """Two rounds of FedAvg move body and head; then the head is zero and the rate almost so. Resumed after the second
    round, where nothing has been set yet, it is the same run."""
    config = tiny("fedavg", "method.start=after-fedavg", "measure.names=generic")
    whole = run(config, federation=digits())
    alone = run(tiny("fedavg", "train.rounds=2", "measure.names=generic"), federation=digits())
    assert whole.state is not None
    assert alone.state is not None
    assert (whole.rounds, alone.rounds) == (4, 2)
    assert float(whole.state.model["head.weight"].abs().max()) < 1e-9
    for name, tensor in alone.state.model.items():
        if name != "head.weight":
            assert_close(whole.state.model[name], tensor)
    listener = StopAfter(2)
    with pytest.raises(Stopped):
        run(config, tmp_path / "run", listener=listener, stop=listener.stop, federation=digits())
    resumed = run(config, tmp_path / "run", resume=True, federation=digits())
    assert resumed.state is not None
    assert bits(resumed.state) == bits(whole.state)


def test_an_earlier_method_leaves_a_round_to_the_start() -> None:
    words = r"^method\.start = 'after-fedavg' trains 'fedavg' first and leaves no round to 'fedavg'"
    with pytest.raises(RequestError, match=words):
        simulate(tiny("fedavg", "method.start=after-fedavg", "method.start.rounds=0"), digits())


def test_runs_that_begin_with_the_same_rounds_are_known_by_what_the_start_says() -> None:
    fedavg = tiny("fedavg")
    assert opening_key(fedavg.but("method.start=finished")) == training_key(fedavg)
    assert opening_key(fedavg.but("method.start=after-fedavg")) == ""  # it has rounds of its own
    assert opening_key(fedavg.but("method.start=sevens")) == ""


def test_an_own_start_gives_the_first_weights() -> None:
    made = simulate(tiny("fedavg", "method.start=sevens"), digits()).model
    drawn = simulate(tiny("fedavg"), digits()).model
    assert made["head.bias"].tolist() == [7.0] * 10
    assert all(torch.equal(made[name], tensor) for name, tensor in drawn.items() if name != "head.bias")


def test_the_run_of_a_method_that_comes_first_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The earlier method itself begins at a finished run."""
    from torso.methods import methods

    done = run(tiny("fedavg", "train.rounds=1", "measure.names=generic"), tmp_path / "done", federation=digits())
    first = methods["fedavg"].but(start=Finished(run=str(tmp_path / "done")), name="first")
    monkeypatch.setitem(methods, "first", first)
    job = simulate(tiny("fedavg", "method.start=finished", "method.start.method=first"), digits())
    assert done.state is not None
    assert [stage.method.name for stage in job.plan] == ["first", "fedavg"]
    assert all(torch.equal(job.model[name], tensor) for name, tensor in done.state.model.items())


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        (("method.start.size=1001",), r"^method\.start\.size = 1001 is more than anybody has\.$"),
        (
            ("method.start.size=3",),
            r"begins with head\.bias to torch\.float32 \[3\]\. Expected: torch\.float32 \[10\]$",
        ),
        (("method.start.name=sevns",), r"^method\.start = 'sevns' is unknown; did you mean 'sevens'\?"),
        (("method.start.sise=3",), r"^method\.start\.sise is not a key; did you mean 'size'\?"),
    ],
)
def test_refusals_name_the_key(sets: tuple[str, ...], words: str) -> None:
    with pytest.raises(RequestError, match=words):
        simulate(tiny("fedavg", "method.start=sevens", *sets), digits())


def test_what_a_network_has_no_place_for_ends_the_run_by_name() -> None:
    """head_bias = false: the tensor would be dropped without a word."""
    config = tiny("fedavg", "method.start=sevens", "method.start.late=true", "model.head_bias=false")
    result = run(config, federation=digits())
    assert result.status.startswith(
        "failed: method.start = Sevens(name='head.bias', size=10, late=True) sets head.bias, which the network does "
        "not have. It has: body.blocks.0.linear.weight"
    )


def test_what_is_no_start_is_refused() -> None:
    @dataclass(frozen=True)
    class Marker:
        """As one was registered when a start was only a name."""

    with pytest.raises(
        RequestError, match=r"^method\.start = .*Marker\(\) is no start\. Expected: a class that derives"
    ):
        Method(start=Marker())  # type: ignore[arg-type]
