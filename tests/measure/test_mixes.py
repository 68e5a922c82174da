"""P-FL, inside and outside, local models: three clients and four classes, worked out by hand (data: test_accuracy.py).

The model says 0, 0, 1, 0 | 0, 1 for the test labels 0, 0, 2, 3 | 1, 1: it has 2 of 2 of class 0, 1 of 2 of class 1,
none of classes 2 and 3. The clients train on classes 0, 2 | 1, 1, 3 | 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from torso import Config, run
from torso.data import Federation
from torso.engine import Batched, OneByOne, Workspace
from torso.measure import Accuracy, Evaluation, evaluate
from torso.measure.mixes import right_by_side, weighted_accuracy
from torso.personal.state import State
from torso.personal.store import ClientState
from torso.runs.evaluation import evaluation_of
from torso.runs.events import Listener
from torso.runs.job import Simulation, simulate
from torso.runs.rounds import Round

from .test_accuracy import TEST, split, three

SWAPPED = torch.eye(4, 2)[[1, 0, 2, 3]]  # a head that says 1 where `three`'s says 0, and 0 where it says 1


def job_of(method: str = "fedavg", federation: Federation | None = None, **sections: dict[str, Any]) -> Simulation:
    model = {"body": "scale", "head_init": "eye", "head_bias": False}
    sections.setdefault("measure", {"batch_size": 4})
    return simulate(Config(method=method, model=model, **sections), federation or three())


def measured(
    job: Simulation, names: list[str], at_once: int = 1, own: Mapping[int, dict[str, Tensor]] | None = None
) -> dict[str, Accuracy]:
    state = State.begin(job.model, {k: ClientState(own=mine) for k, mine in (own or {}).items()})
    how = evaluation_of(job, job.plan[0], state)
    make = partial(OneByOne, workers=2) if at_once == 1 else Batched
    with make(job.net, job.federation, at_once=at_once) as engine:
        return evaluate(engine, job.roster, names, state, how, job.measured_clients)


@pytest.mark.parametrize("at_once", [1, 2, 3])
@pytest.mark.parametrize("batch_size", [2, 4, 128])
def test_p_fl_of_the_generic_model(at_once: int, batch_size: int) -> None:
    """Client 0: (½·2 + ½·0) / (½·2 + ½·1) = ⅔; client 1: (⅔·1 + ⅓·0) / (⅔·2 + ⅓·1) = ⅖; client 2: 2 / 2."""
    found = measured(job_of(measure={"batch_size": batch_size}), ["generic_as_personal", "generic"], at_once)
    assert found["generic_as_personal"].clients == pytest.approx((200 / 3, 40.0, 100.0))
    assert found["generic_as_personal"].mean == pytest.approx((200 / 3 + 140) / 3)
    assert found["generic"].mean == pytest.approx(50.0)


@pytest.mark.parametrize("at_once", [1, 3])
def test_p_fl_of_personal_models(at_once: int) -> None:
    """Client 0's own model says 1, 1, 0, 1, 1, 0: right once, of class 1, which it does not have. The others have no
    own model yet: theirs is the one that everybody began with."""
    own = {0: {"head.weight": SWAPPED}}
    found = measured(job_of("ditto"), ["personal", "generic_as_personal"], at_once, own)
    assert found["personal"].clients == pytest.approx((0.0, 40.0, 100.0))
    assert found["generic_as_personal"].clients == pytest.approx((200 / 3, 40.0, 100.0))


def test_equal_shares_are_the_plain_accuracy() -> None:
    """Spec 18, point 10. Right 1 of 2, 3 of 4, 0 of 5: G-FL is 4 of 11."""
    right, there = torch.tensor([1.0, 3.0, 0.0]), torch.tensor([2.0, 4.0, 5.0])
    counts = torch.tensor([[7, 7, 7], [0, 9, 0], [0, 0, 0]])
    even, one, nothing = weighted_accuracy(right, there, counts).tolist()
    assert even == pytest.approx(100 * 4 / 11)
    assert one == pytest.approx(75.0)
    assert math.isnan(nothing)


@pytest.mark.parametrize("at_once", [1, 2, 3])
def test_inside_and_outside(at_once: int) -> None:
    """Client 0: of its labels 0, 0, 2 two are right, its label 3 is outside and wrong. Client 1: 1 of 2 inside, nothing
    outside. Client 2 has no test samples."""
    found = measured(job_of(), ["id_before", "ood_before", "initial"], at_once)
    assert found["id_before"].clients == pytest.approx((200 / 3, 50.0, None))
    assert found["ood_before"].clients == (0.0, None, None)
    assert (found["ood_before"].mean, found["ood_before"].n) == (0.0, 1)


def test_inside_and_outside_recombine_to_the_whole() -> None:
    """Spec 18, point 10, on test data dealt anew (spec 9.5)."""
    job = simulate(Config(data={"clients": 10, "shards": 5, "test_shards": 10}))
    clients = list(job.measured_clients)
    workspace = Workspace.at(job.net, job.federation)
    _, there = right_by_side(workspace, clients, workspace.models(job.model, clients), 128)
    whole = measured(job, ["initial", "id_before", "ood_before"])
    assert (there > 0).all()  # both kinds of samples for everybody, or the test would say little
    share = there / there.sum(dim=1, keepdim=True)
    parts = torch.tensor([whole["ood_before"].clients, whole["id_before"].clients], dtype=torch.float64).T
    assert whole["initial"].clients == pytest.approx(tuple((share * parts).sum(dim=1).tolist()))


def test_nobody_has_samples_outside() -> None:
    inside = {**TEST, 0: TEST[0][:3]}
    found = measured(job_of(federation=replace(three(), test=split(inside))), ["ood_before", "ood_after"])
    for name in ("ood_before", "ood_after"):
        assert found[name].as_json() == {"mean": None, "std": None, "n": 0, "clients": [None] * 3}


def test_after_is_of_the_own_model() -> None:
    """Client 0's own model has its 0, 0, 2, 3 all wrong; client 1 holds its first model and has 1 of 2."""
    found = measured(job_of("ditto"), ["id_before", "id_after", "ood_after"], own={0: {"head.weight": SWAPPED}})
    assert found["id_before"].clients == pytest.approx((200 / 3, 50.0, None))
    assert found["id_after"].clients == pytest.approx((0.0, 50.0, None))
    assert found["ood_after"].clients == (0.0, None, None)


def test_only_what_is_asked_for_comes_back() -> None:
    """Both sides are found in one pass; the other one was not asked for."""
    assert set(measured(job_of(), ["ood_before", "id_after"])) == {"ood_before", "id_after"}


@pytest.mark.parametrize("method", ["fedavg", "ditto"])
def test_the_local_model_is_what_one_visit_leaves(method: str) -> None:
    """One step of client 1 at rate 2 gives it class 1 twice: (⅔·2) / (⅔·2 + ⅓·1) = 80 % (by hand: test_newcomers.py);
    Ditto's own model has not been trained yet."""
    train = {"lr": 2.0, "schedule": "const", "local_epochs": 1, "batch_size": 5}
    found = measured(job_of(method, train=train, personalize={"epochs": 0}), ["local", "personal"])
    assert found["local"].clients[1] == pytest.approx(80.0)
    assert found["personal"].clients[1] == pytest.approx(40.0)


@pytest.mark.parametrize(
    "names", [("personalized", "personal", "id_after", "ood_after", "benign"), ("local", "personal")]
)
def test_every_model_is_made_once_whoever_looks(names: tuple[str, ...]) -> None:
    job = job_of("fedrod-linear" if "local" in names else "fedavg", train={"local_epochs": 1})
    state, made = State.begin(job.model), {"own": 0, "visit": 0}
    how = evaluation_of(job, job.plan[0], state)

    def counted(what: str, *given: Any) -> Any:
        made[what] += 1
        return getattr(how, what)(*given)

    counting: Evaluation = replace(how, own=partial(counted, "own"), visit=partial(counted, "visit"))
    with Batched(job.net, job.federation, at_once=3) as engine:
        evaluate(engine, job.roster, names, state, counting, job.measured_clients)
    assert made == {"own": 1, "visit": int("local" in names)}


SMALL = {"data": {"clients": 5}, "train": {"rounds": 3, "local_epochs": 2, "fraction": 0.4}}


def test_local_only_is_the_run_of_everybody_alone() -> None:
    """Bit for bit what the method `local-only` does in the same rounds (spec 5.1), whatever the method that asks."""
    alone = run(Config(method="local-only", measure={"names": ["initial"]}, **SMALL)).accuracy["initial"]
    asked = run(Config(method="fedbabu", measure={"names": ["initial", "local_only"]}, **SMALL)).accuracy
    assert asked["local_only"] == alone
    assert asked["initial"] != alone


@pytest.mark.parametrize("at_once", [1, 3])
def test_the_best_epoch_on_test_data_is_each_clients_own(at_once: int) -> None:
    """Spec 5.1. Test labels 0, 0, 2, 3 | 1, 1. First epoch, the model of `three`: 50 and 50 %. Second, always class 1:
    0 and 100 %. Third, always class 3: 25 and 0 %. The first is best for client 0, the second for client 1; no epoch
    has a mean above 50 %, and the last has 12.5 %. Client 2 has no test samples."""
    job = job_of("local-only")
    first = job.model
    second, third = ({**first, "head.weight": torch.eye(4)[:, [k]].expand(4, 2)} for k in (1, 3))

    def by_epoch(workspace: Workspace, clients: Sequence[int]) -> Iterator[dict[str, Tensor]]:
        return (workspace.models(model, clients) for model in (first, second, third))

    how = replace(evaluation_of(job, job.plan[0], State.begin(first)), alone_by_epoch=by_epoch)
    with Batched(job.net, job.federation, at_once=at_once) as engine:
        names = ["local_only_best_on_test"]
        found = evaluate(engine, job.roster, names, State.begin(first), how, job.measured_clients)
    best = found["local_only_best_on_test"]
    assert best.clients == (50.0, 100.0, None)
    assert (best.mean, best.n) == (75.0, 2)


class Rounds(Listener):
    """What was measured after each round."""

    def __init__(self) -> None:
        self.found: list[tuple[float | None, ...]] = []

    def round(self, round: Round, seconds: float, accuracy: Mapping[str, Accuracy]) -> None:
        self.found += [found.clients for found in accuracy.values()]


def test_the_best_epoch_on_test_data_is_one_of_the_run_of_everybody_alone() -> None:
    """With one epoch a round, the history of `local-only` has every epoch but the last, which its end has."""
    train, heard = {"rounds": 5, "local_epochs": 1, "lr": 0.5}, Rounds()
    names = ["initial", "local_only_best_on_test"]
    measure = {"names": names, "every": 1, "during": ["initial"]}
    found = run(Config(method="local-only", data={"clients": 5}, train=train, measure=measure), listener=heard).accuracy
    epochs = np.array([*heard.found, found["initial"].clients])
    assert epochs.shape == (5, 5)
    assert len(set(epochs.argmax(axis=0).tolist())) > 1  # not the same epoch for all, or the test would say little
    assert found["local_only_best_on_test"].clients == tuple(epochs.max(axis=0).tolist())


def test_epochs_of_a_client_alone_are_all_there_and_end_where_it_ends() -> None:
    """Three rounds of two epochs; a method without rounds has none, and so nothing to choose from."""
    job = simulate(Config(method="local-only", **SMALL))
    how = evaluation_of(job, job.plan[0], State.begin(job.model))
    workspace, clients = Workspace.at(job.net, job.federation), [0, 3]
    epochs = [{n: t.clone() for n, t in models.items()} for models in how.alone_by_epoch(workspace, clients)]
    assert len(epochs) == 6
    end = how.alone(workspace, clients)
    assert all(torch.equal(epochs[-1][name], end[name]) for name in end)
    assert not any(torch.equal(epochs[-2][name], end[name]) for name in end)
    none = job_of("fedncm")
    assert measured(none, ["local_only_best_on_test"])["local_only_best_on_test"].clients == (None, None, None)


def test_the_generic_model_on_a_test_set_with_a_long_tail() -> None:
    """100, 46, 21, 10 test images of the four classes (spec 10.4), each counted once."""
    synthetic = {"classes": 4, "samples": 400, "test_samples": 400, "noise": 2.0}
    data = {"source": "synthetic", "clients": 4, "partition": "iid", "synthetic": synthetic}
    result = run(
        Config(
            data={**data, "imbalance": 10.0, "imbalance_test": True},
            train={"rounds": 1, "local_epochs": 1},
            measure={"names": ["generic"]},
        )
    )
    assert result.federation is not None
    test = result.federation.test
    assert np.bincount(test.labels.numpy()).tolist() == [100, 46, 21, 10]
    pixels = test.samples.permute(0, 3, 1, 2).float() / 255
    mean, std = (torch.tensor(c).view(1, -1, 1, 1) for c in (result.federation.input.mean, result.federation.input.std))
    with torch.no_grad():
        said = result.network().eval()((pixels - mean) / std).argmax(dim=1)
    assert result.accuracy["generic"].mean == pytest.approx(100 * float((said == test.labels).float().mean()))
