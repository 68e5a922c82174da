"""Statistics beside weights: how the server combines them, by hand; what is refused; that they resume to the bit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from tests.methods import tiny
from tests.methods.test_pairs import _config, federation, resumes
from tests.methods.tiny import tiny_parts  # noqa: F401  a fixture

from torso.errors import RequestError
from torso.learn.drift import Proximal
from torso.methods import AXES, Method, methods
from torso.nets import Network, Tensors
from torso.runs.aggregate import Aggregate
from torso.runs.job import simulate
from torso.runs.messages import Sent
from torso.runs.sampling import weights_of
from torso.runs.telling import tell, visit_of
from torso.server.rules import NoMean
from torso.server.state import ServerState
from torso.server.statistics import Declared, RoundStatistics, ServerView, Statistic, Statistics, VisitEnd


@dataclass(frozen=True)
class Three(Statistics):
    """A number by each rule; the first weighs the models."""

    weighs: ClassVar[str] = "each"

    def declares(self, net: Network, classes: int) -> Declared:
        return {rule: Statistic((), f"a number to {rule}", rule) for rule in ("sum", "mean", "each")}  # type: ignore[arg-type]

    def of_clients(self, at: VisitEnd) -> Tensors:
        ones = torch.ones(len(at.task.deck.clients))
        return {"sum": ones, "mean": 2 * ones, "each": 3 * ones}

    def combine(self, held: ServerView, received: RoundStatistics) -> ServerView:
        own = {k: {"each": said["each"]} for k, said in received.each.items()}
        return replace(held, shared=dict(received.combined), own={**held.own, **own})


@pytest.fixture
def _three(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(AXES["statistics"], "three", Three)


def sent(model: Tensors, client: int, value: float, numbers: Sequence[float]) -> Sent:
    said = {name: torch.tensor([number]) for name, number in zip(("sum", "mean", "each"), numbers, strict=True)}
    stacked = {name: torch.full_like(tensor, value)[None] for name, tensor in model.items()}
    return Sent(1, (client,), (1 + 2 * client,), stacked, torch.ones(1), torch.tensor([True]), said=said)


@pytest.mark.usefixtures("_three")
@pytest.mark.parametrize("missing", [False, True])
def test_each_rule_by_hand(missing: bool) -> None:
    """Shares ¼ and ¾ of samples 1 and 3. Sum 1 + 10, mean ¼·2 + ¾·6 = 5. Models 0 and 8 weigh 1 and 3: 6. Where the
    second is missing, the first stands for all."""
    task = tiny.job(methods["fedavg"].but(statistics=Three()))
    stage = task.plan[0]
    told = tell(stage, ServerState(task.model), task.roster, (0, 1), 1, seed=0)
    received = Aggregate(stage, told, weights_of(task.roster, (0, 1), "samples"))
    received.take(sent(task.model, 0, 0.0, (1.0, 2.0, 1.0)))
    if not missing:
        received.take(sent(task.model, 1, 8.0, (10.0, 6.0, 3.0)))
    received.close()
    found = received.statistics_of()
    wanted: tuple[Any, ...] = (1.0, 2.0, 0.0, {0: 1.0}) if missing else (11.0, 5.0, 6.0, {0: 0.25, 1: 0.75})
    assert (float(found.combined["sum"]), float(found.combined["mean"])) == wanted[:2]
    assert all(torch.equal(t, torch.full_like(t, wanted[2])) for t in received.total.values())
    assert found.weights == pytest.approx(wanted[3])
    assert {k: float(said["each"]) for k, said in found.each.items()} == ({0: 1.0} if missing else {0: 1.0, 1: 3.0})


@pytest.mark.usefixtures("_three")
def test_a_number_that_is_not_finite_leaves_its_client_out() -> None:
    task = tiny.job(methods["fedavg"].but(statistics=Three()))
    stage = task.plan[0]
    told = tell(stage, ServerState(task.model), task.roster, (0, 1), 1, seed=0)
    received = Aggregate(stage, told, weights_of(task.roster, (0, 1), "samples"))
    received.take(sent(task.model, 0, 0.0, (1.0, 2.0, 1.0)))
    received.take(sent(task.model, 1, 8.0, (torch.nan, 6.0, 3.0)))
    received.close()
    assert received.refused == {1: "not finite"}
    assert received.statistics_of().clients == (0,)
    assert float(received.statistics.combined["sum"]) == 1.0


@pytest.mark.usefixtures("_three")
def test_a_missing_statistic_is_a_wrong_form() -> None:
    task = tiny.job(methods["fedavg"].but(statistics=Three()))
    told = tell(task.plan[0], ServerState(task.model), task.roster, (0, 1), 1, seed=0)
    received = Aggregate(task.plan[0], told, weights_of(task.roster, (0, 1), "samples"))
    received.take(replace(sent(task.model, 0, 0.0, (1.0, 2.0, 1.0)), said={}))
    assert received.refused == {0: "wrong form"}


@pytest.mark.usefixtures("_three")
@pytest.mark.parametrize("base", ["fedavg", "fedper", "ditto", "scaffold", "local-only"])
def test_it_resumes_to_the_bit_beside_other_choices(base: str, tmp_path: Path) -> None:
    job = simulate(_config(methods[base].but(statistics=Three())), federation())
    first, _ = resumes(job, tmp_path)
    assert len(first.server.met) == 2  # something travels, so the server draws who takes part
    assert first.server.statistics == {"sum": torch.tensor(2.0), "mean": torch.tensor(2.0)}
    assert {k: float(own["each"]) for k, own in first.server.of_clients.items()} == dict.fromkeys(first.server.met, 3.0)


@dataclass(frozen=True)
class Halved(Statistics):
    """Everybody is told half of its last model."""

    mixes: ClassVar[bool] = True

    def to_one(self, held: ServerView, client: int) -> Tensors:
        return {name: tensor / 2 for name, tensor in held.uploads.get(client, held.model).items()}


def test_a_model_of_its_own_is_where_a_visit_begins_and_what_it_is_held_near(monkeypatch: pytest.MonkeyPatch) -> None:
    """With rate 0 nothing learns, so every client sends what it was told: half of the start, then a quarter. With a
    proximal term the anchor is the same."""
    monkeypatch.setitem(AXES["statistics"], "halved", Halved)
    method = Method(server=NoMean(), statistics=Halved(), drift=Proximal(0.5))
    task = tiny.job(method, head="eye", lr=1e-30)
    state = tiny.play(task, rounds=2)
    for own in state.server.uploads.values():
        torch.testing.assert_close(own["head.weight"], torch.eye(2) / 4)
        torch.testing.assert_close(own["body.blocks.0.weight"], torch.full((2,), 0.25))
    told = tell(task.plan[0], state.server, task.roster, (0, 1), 3, seed=0)
    assert set(told.for_clients([1]).own) == {1}
    assert set(told.message(0).tensors) == {"said/head.weight", "said/body.blocks.0.weight"}
    assert visit_of(task.plan[0], told, 0).statistics == Halved()


@pytest.mark.usefixtures("_three")
@pytest.mark.parametrize(
    ("sets", "words"),
    [
        (["method.server=median"], "which nothing bounds"),
        (["method.server.clip=1.0"], "which nothing bounds"),
        (["method.server=fedbuff"], "began at different models"),
        (["privacy.noise=1.0", "privacy.clip=1.0"], "more than the noised sum of models"),
    ],
)
def test_what_does_not_go_with_statistics_is_refused_by_name(sets: list[str], words: str) -> None:
    config = _config(methods["fedavg"].but(statistics=Three()))
    with pytest.raises(RequestError, match=f"three.*{words}|{words}.*three"):
        simulate(config.but(*sets), federation())
