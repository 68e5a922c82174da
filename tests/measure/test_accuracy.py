"""Accuracies on three clients and four classes whose values are worked out by hand."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.methods import tiny

from torso import Config, run
from torso.data import Federation, Split
from torso.data.batches import Shuffle
from torso.engine import OneByOne, Workspace
from torso.errors import RequestError
from torso.measure import Accuracy, evaluate
from torso.measure.accuracy import class_means
from torso.personal.state import State
from torso.runs.evaluation import evaluation_of
from torso.runs.job import Simulation, simulate
from torso.runs.sampling import participants

# pixels in tenths of 255·0.2 = 51, so that x / 255 is a multiple of 0.2
TRAIN = {0: [((5, 0), 0), ((1, 2), 2)], 1: [((5, 0), 1), ((3, 0), 1), ((0, 5), 3)], 2: [((0, 5), 0)]}
TEST = {0: [((4, 1), 0), ((5, 4), 0), ((1, 4), 2), ((5, 0), 3)], 1: [((5, 1), 1), ((1, 5), 1)], 2: []}


def split(clients: dict[int, list[tuple[tuple[int, int], int]]]) -> Split:
    rows = [sample for client in sorted(clients) for sample in clients[client]]
    images = torch.tensor([pixels for pixels, _ in rows], dtype=torch.uint8).mul(51).view(-1, 1, 2, 1)
    offsets = np.cumsum([0, *(len(clients[client]) for client in sorted(clients))])
    return Split(images, torch.tensor([label for _, label in rows]), torch.arange(len(rows)), offsets)


def three() -> Federation:
    return replace(tiny.federation(), train=split(TRAIN), test=split(TEST), classes=4, clients=3)


def measured(
    names: list[str], at_once: int = 1, scale: float = 1.0, **sections: dict[str, object]
) -> dict[str, Accuracy]:
    """Head rows (1, 0), (0, 1), 0, 0: class 0 where the first pixel is larger, else class 1. The body times `scale`."""
    config = Config(model={"body": "scale", "head_init": "eye", "head_bias": False}, **sections)
    job: Simulation = simulate(config, three())
    job.model["body.blocks.0.weight"] *= scale
    how = evaluation_of(job, job.plan[0], State.begin(job.model))
    with OneByOne(job.net, job.federation, workers=2, at_once=at_once) as engine:
        return evaluate(engine, job.roster, names, State.begin(job.model), how, job.measured_clients)


@pytest.mark.parametrize("at_once", [1, 2, 3])
def test_initial_is_per_client_and_leaves_out_clients_without_test_data(at_once: int) -> None:
    """Client 0: says 0, 0, 1, 0 for labels 0, 0, 2, 3 → 50 %. Client 1: says 0, 1 for 1, 1 → 50 %. Client 2: none."""
    found = measured(["initial"], at_once)["initial"]
    assert found.clients == (50.0, 50.0, None)
    assert (found.mean, found.std, found.n) == (50.0, 0.0, 2)


@pytest.mark.parametrize("templates", ["cosine", "l2"])
@pytest.mark.parametrize("scale", [math.nan, math.inf])
def test_a_model_that_diverged_is_right_about_nothing(scale: float, templates: str) -> None:
    """Not about class 0 either, which argmax finds among NaN; (0, x) and (x, 0) times infinity hold NaN, too."""
    names = ["initial", "personalized", "without_head", "generic", "generic_as_personal", "personal", "local"]
    found = measured([*names, "id_before", "ood_after"], scale=scale, measure={"templates": templates})
    assert {name: accuracy.mean for name, accuracy in found.items()} == dict.fromkeys(found, 0.0)


def test_generic_counts_every_test_sample_once() -> None:
    assert measured(["generic"], measure={"batch_size": 4})["generic"].mean == pytest.approx(100 * 3 / 6)


@pytest.mark.parametrize("at_once", [1, 3])
@pytest.mark.parametrize(
    ("templates", "expected"),
    [
        # client 0 has templates 0: (1, 0) and 2: (0.2, 0.4). (1, 0.8): cosine 0.78 to class 0, 0.91 to class 2, wrong;
        # distance 0.8 to class 0, 0.89 to class 2, right. (1, 0) is of class 3, which it does not have: always wrong.
        ("cosine", (50.0, 50.0, None)),
        ("l2", (75.0, 50.0, None)),
    ],
)
def test_without_head_by_hand(templates: str, expected: tuple[float | None, ...], at_once: int) -> None:
    """Client 1 has class 1 at (0.8, 0), class 3 at (0, 1): (1, 0.2) is of class 1, right; (0.2, 1) of 3, wrong."""
    found = measured(["without_head"], at_once, measure={"templates": templates})["without_head"]
    assert found.clients == expected


def test_spread_is_the_population_standard_deviation() -> None:
    found = Accuracy.over([10.0, 20.0, math.nan, 60.0])
    assert found.mean == pytest.approx(30.0)
    assert found.std == pytest.approx(math.sqrt((400 + 100 + 900) / 3))
    assert (found.n, found.clients) == (3, (10.0, 20.0, None, 60.0))


def test_nothing_to_measure_is_null_in_json_not_nan() -> None:
    assert Accuracy.over([math.nan]).as_json() == {"mean": None, "std": None, "n": 0, "clients": [None]}


def config(method: object = "fedavg", **personalize: object) -> Config:
    return Config(
        method=method,
        data={"clients": 5},
        train={"rounds": 1, "local_epochs": 1, "batch_size": 10},
        personalize=personalize,
        measure={"names": ["initial", "personalized"]},
    )


@pytest.mark.parametrize("method", ["fedavg", "fedrep"])
def test_a_sweep_is_the_same_as_separate_runs(method: str) -> None:
    swept = run(config(method, epochs=3, lr=0.05, sweep=[0, 1, 2])).accuracy
    for epochs in (0, 1, 2):
        alone = run(config(method, epochs=epochs, lr=0.05)).accuracy["personalized"]
        assert swept[f"personalized@{epochs}"] == alone
    assert swept["personalized"] == run(config(method, epochs=3, lr=0.05)).accuracy["personalized"]
    assert swept["personalized@0"] == swept["initial"]


def test_the_part_that_is_fine_tuned_makes_a_difference_and_zero_rate_makes_none() -> None:
    by_part = {
        part: run(config(epochs=5, lr=0.05, part=part)).accuracy["personalized"] for part in ("body", "head", "full")
    }
    assert len({found.clients for found in by_part.values()}) > 1
    still = run(config(epochs=5, lr=0.0)).accuracy
    assert still["personalized"] == still["initial"]


def test_fine_tuning_leaves_the_run_untouched() -> None:
    """Measuring in mid-run changes no bit of the training."""
    plain = Config(
        data={"source": "synthetic", "clients": 5, "synthetic": {"samples": 300, "test_samples": 100}},
        train={"rounds": 4, "batch_size": 10, "local_epochs": 2},
        personalize={"epochs": 2},
        model={"body": "conv3"},
    )
    looked = plain.but("measure.every=1", 'measure.during=["personalized", "without_head", "generic"]')
    one, other = run(plain), run(looked)
    assert one.state is not None
    assert other.state is not None
    assert all(torch.equal(tensor, other.state.model[name]) for name, tensor in one.state.model.items())
    assert one.accuracy == other.accuracy


def test_clients_of_the_last_round_are_those_that_are_measured() -> None:
    """Three of ten clients; one of them where one is asked for; privacy keeps them secret."""
    config = Config.load(None, ["data.clients=10", "train.rounds=2", "train.fraction=0.3", "measure.among=last-round"])
    task = simulate(config)
    last = participants(task.stage(2), task.roster, 0, 2)
    assert task.measured_clients == last
    assert last != participants(task.stage(1), task.roster, 0, 1)
    assert run(config).accuracy["initial"].n == 3
    (one,) = simulate(config.but("measure.clients=1")).measured_clients
    assert one in last
    with pytest.raises(RequestError, match=r"measure.among = 'last-round' shows who took part"):
        simulate(config.but("privacy.noise=1.0"))


def test_a_limited_number_of_clients_is_the_same_subset_for_every_method() -> None:
    sets = ("measure.clients=3", "train.rounds=1")
    one, other = (run(Config.load(None, [f"method.name={m}", *sets])) for m in ("fedavg", "fedbabu"))
    assert one.accuracy["initial"].n == other.accuracy["initial"].n == 3


@pytest.mark.parametrize("order", ["shuffled", "code"])
def test_class_means_are_of_batches_in_the_order_that_is_asked_for(order: str) -> None:
    """BatchNorm by the batch: the features of a sample depend on its neighbours. FedBABU's code takes batches of a
    client's shards one after the other, so class by class; shuffled, they are those of the key `templates` (9.3)."""
    config = Config(
        data={"source": "synthetic", "clients": 2, "synthetic": {"samples": 40, "test_samples": 10, "classes": 4}},
        model={"body": "conv3"},
        measure={"template_order": order, "batch_size": 8},
    )
    job = simulate(config)
    workspace, how = Workspace.at(job.net, job.federation), evaluation_of(job, job.plan[0], State.begin(job.model))
    rows, labels = job.federation.train.rows(1), job.federation.train.labels
    if order == "shuffled":
        met = workspace.train_deck([1]).shuffled(
            8, workspace.context.lens, Shuffle(config.run.seed, "templates", 0), 0, None
        )
        batches = [(batch.inputs[0], batch.labels[0]) for batch in met]
    else:
        assert labels[rows].diff().ne(0).sum() > 1, "the rows stand class by class: nothing is tested"
        sorted_rows = torch.cat([rows[labels[rows] == c] for c in range(4)])
        batches = [
            (workspace.context.lens.look(workspace.federation.train.samples, some[None])[0], labels[some])
            for some in sorted_rows.split(8)
        ]
    body = copy.deepcopy(job.net).eval()
    total = torch.zeros(4, job.net.body.features)
    with torch.no_grad():
        for images, said in batches:
            total.index_add_(0, said, body.features(images))
    count = torch.bincount(labels[rows], minlength=4)
    means, known = class_means(workspace, [1], workspace.models(job.model, [1]), how)
    assert known[0].tolist() == (count > 0).tolist()
    torch.testing.assert_close(means[0], total / count.clamp(min=1).unsqueeze(1), rtol=1e-4, atol=1e-5)
