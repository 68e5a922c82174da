"""Clients that come when training is over (spec 9.7): P-FL by hand, the zero-shot head, models that come out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from torso import Config, Result, run
from torso.data.batches import Batch, Deck
from torso.engine import OneByOne, Workspace
from torso.errors import RequestError
from torso.learn.local import learn
from torso.learn.objectives import BalancedSoftmax, CrossEntropy
from torso.learn.task import LocalTask
from torso.measure import Accuracy, evaluate
from torso.measure.accuracy import generic_prediction
from torso.measure.mixes import percent_by_mix, right_by_class
from torso.measure.newcomers import settled
from torso.nets import Tensors, apply
from torso.nets.dual import DualHead, HyperLinear
from torso.personal.state import State
from torso.runs.evaluation import evaluation_of
from torso.runs.job import Simulation, simulate

from .test_accuracy import three

# The model says 0, 0, 1, 0 | 0, 1 for the test labels 0, 0, 2, 3 | 1, 1: of class 0 it has 2 of 2, of class 1 1 of 2.


def measured(names: list[str], at_once: int = 1, **sections: dict[str, object]) -> dict[str, Accuracy]:
    model = {"body": "scale", "head_init": "eye", "head_bias": False}
    config = Config(model=model, measure={"names": names, "batch_size": 4}, **sections)
    federation = replace(three(), newcomers=np.array([0, 1]))
    job = simulate(config, federation)
    state = State.begin(job.model)
    with OneByOne(job.net, federation, workers=2, at_once=at_once) as engine:
        return evaluate(engine, job.roster, names, state, evaluation_of(job, job.plan[0], state), job.measured_clients)


@pytest.mark.parametrize("at_once", [1, 2])
def test_before_training_a_newcomer_has_the_generic_model_weighed_by_its_classes(at_once: int) -> None:
    """Client 0 has classes 0 and 2, half each: (½·2 + ½·0) / (½·2 + ½·1) = ⅔. Client 1 has two thirds of class 1 and a
    third of class 3: (⅔·1 + ⅓·0) / (⅔·2 + ⅓·1) = ⅖. Client 2 is no newcomer."""
    found = measured(["new_before"], at_once)["new_before"]
    assert found.clients == pytest.approx((200 / 3, 40.0))


@pytest.mark.parametrize("at_once", [1, 2])
def test_after_training_for_itself(at_once: int) -> None:
    """⌊10 % of 3⌋ = 0 samples are held out, so nothing tells epochs apart and the first is taken: one step of plain SGD
    on all of client 1's samples, written out here."""
    rate = 2.0
    found = measured(["new_after"], at_once, train={"lr": rate, "schedule": "const"}, personalize={"epochs": 3})
    pixels = torch.tensor([[1.0, 0.0], [0.6, 0.0], [0.0, 1.0]])
    scale, head = torch.ones(2, requires_grad=True), torch.eye(4, 2).requires_grad_()
    loss = torch.nn.functional.cross_entropy(pixels * scale @ head.T, torch.tensor([1, 1, 3]))
    moves = torch.autograd.grad(loss, [scale, head])
    scale, head = (old.detach() - rate * move for old, move in zip((scale, head), moves, strict=True))
    test, labels = torch.tensor([[4, 1], [5, 4], [1, 4], [5, 0], [5, 1], [1, 5]]) / 5, torch.tensor([0, 0, 2, 3, 1, 1])
    hit = (test * scale @ head.T).argmax(dim=1) == labels
    share = torch.tensor([0, 2 / 3, 0, 1 / 3])[labels]
    assert found["new_after"].clients[1] == pytest.approx(100 * float((hit * share).sum() / share.sum()))
    assert found["new_after"].clients[1] == pytest.approx(80.0)  # (⅔·2 + 0) / (⅔·2 + ⅓·1)


def test_measuring_newcomers_needs_some() -> None:
    for key in ("names", "during"):
        with pytest.raises(RequestError, match=rf"^measure\.{key} = 'new_before' .* data\.new_clients is 0"):
            simulate(Config(measure={key: ["new_before"]}))


def test_equal_shares_of_every_class_are_the_plain_accuracy() -> None:
    """Spec 18, point 10: P-FL with equal shares is G-FL of the same model."""
    config = Config(data={"clients": 1, "partition": "iid", "source": "synthetic"})
    job = simulate(config)
    workspace = Workspace.at(job.net, job.federation)
    tensors = workspace.models(job.model, [0])
    right, there = right_by_class(workspace, [0], tensors, 128)
    counts = job.federation.class_counts[0]
    assert len(set(counts.tolist())) == 1  # the synthetic source deals equal classes
    assert_close(percent_by_mix(workspace, [0], tensors, 128, generic_prediction), 100 * right.sum(dim=1) / there.sum())


@pytest.fixture(scope="module")
def rod() -> Result:
    return run(
        Config(
            method="fedrod-hyper",
            data={"clients": 10, "new_clients": 3},
            train={"rounds": 2, "local_epochs": 1, "fraction": 0.5, "lr": 0.05},
            measure={"names": ["new_before", "new_after", "generic", "personalized"]},
        )
    )


def test_a_newcomer_gets_a_head_made_from_its_class_proportions_alone(rod: Result) -> None:
    """φ = V₂·relu(V₁·a), added to the generic logits: written out here (spec 6.3)."""
    assert rod.federation is not None
    assert rod.state is not None
    newcomer = int(rod.federation.newcomers[0])
    assert newcomer not in rod.state.server.met
    net = rod.network(newcomer, personal=False)
    model, counts = rod.state.model, rod.federation.class_counts[newcomer].double()
    mix = counts / counts.sum()
    hidden = torch.relu(model["head.personal.first.weight"].double() @ mix)
    phi = (model["head.personal.second.weight"].double() @ hidden).view(10, -1)
    images = torch.rand(4, 1, 8, 8)
    features = net.features(images).double()
    said = features @ (model["head.generic.weight"].double() + phi).T
    if "head.generic.bias" in model:
        said = said + model["head.generic.bias"].double()
    assert_close(net(images).double(), said, atol=1e-5, rtol=1e-5)


def test_newcomers_are_measured_and_train_for_themselves(rod: Result) -> None:
    assert rod.accuracy["new_before"].n == rod.accuracy["new_after"].n == 3
    assert rod.accuracy["personalized"].n == 7


def test_a_clients_network_answers_as_the_evaluator_sees_it(rod: Result) -> None:
    """The model that comes out and the one that is measured give the same logits, personal head included."""
    assert rod.federation is not None
    assert rod.state is not None
    assert rod.initial is not None
    client, images = 1, torch.rand(5, 1, 8, 8)
    workspace = Workspace.at(rod.initial, rod.federation)
    said = apply(
        workspace.context.net.eval(),
        workspace.holding(rod.state.clients).models(rod.state.model, [client]),
        images[None],
    )
    net = rod.network(client, personal=False)
    assert_close(net(images), said.own[0])
    assert isinstance(net.head, DualHead)
    assert isinstance(net.head.personal, HyperLinear)
    assert_close(rod.network()(images), said.logits[0])  # the generic model speaks for nobody


def test_ditto_gives_the_clients_own_model_and_unknown_clients_are_refused() -> None:
    result = run(
        Config(
            method="ditto",
            data={"clients": 4, "partition": "iid"},
            train={"rounds": 1, "local_epochs": 1, "fraction": 0.5},
            measure={"names": ["personalized"]},
        )
    )
    assert result.state is not None
    assert result.initial is not None
    came = set(result.state.clients.of_kind("own"))
    (visited, *_), (absent, *_) = sorted(came), sorted(set(range(4)) - came)
    own = result.network(visited).state_dict()
    assert all(torch.equal(own[name], tensor) for name, tensor in result.state.clients[visited].own.items())
    start = result.initial.state_dict()
    assert all(torch.equal(tensor, start[name]) for name, tensor in result.network(absent).state_dict().items())
    with pytest.raises(RequestError, match="Accepted: 0 to 3"):
        result.network(4)


@pytest.mark.parametrize(
    ("method", "balances"),
    [
        ({"objective": "balanced-softmax", "train": "body", "share": "body"}, False),  # the others fine-tune, too
        ("fedavg-brm-ft", False),
        ("fedavg-brm", True),  # a client's own model is what a visit leaves
        ("fedrod-linear", True),  # for the generic branch; the personal one has cross-entropy in any case
    ],
)
def test_newcomers_train_as_others_do_for_their_own_model(method: object, balances: bool) -> None:
    job = simulate(Config(method=method, data={"new_clients": 2}))
    how = evaluation_of(job, job.plan[-1], State.begin(job.model)).arrival_settings.objective
    assert type(how) is (BalancedSoftmax if balances else CrossEntropy)


def test_a_head_that_was_made_trains_as_a_layer_of_the_newcomers_own() -> None:
    """φ = H(a) is what it begins with (spec 9.7): as Fed-RoD with a linear personal head of these weights trains."""
    sections = {"data": {"clients": 10, "new_clients": 2}, "model": {"head_bias": False}, "personalize": {"epochs": 2}}
    hyper, linear = (simulate(Config(method=name, **sections)) for name in ("fedrod-hyper", "fedrod-linear"))
    clients = hyper.federation.newcomers.tolist()
    held = Workspace.at(hyper.net, hyper.federation).models(hyper.model, clients)
    hidden = torch.relu(held["head.personal.first.weight"] @ held["head.personal.mix"][..., None])
    made = (held["head.personal.second.weight"] @ hidden).view_as(held["head.generic.weight"])
    shared = {n: t for n, t in held.items() if "personal" not in n}
    ours = taught(hyper, clients, {**held, hyper.net.generated_head: torch.zeros_like(made)})
    theirs = taught(linear, clients, {**shared, "head.personal.weight": made})
    assert torch.equal(ours["head.personal.second.weight"], held["head.personal.second.weight"])  # what made it stays
    assert not torch.allclose(theirs["head.personal.weight"], made, atol=1e-3)
    assert_close(made + ours[hyper.net.generated_head], theirs["head.personal.weight"])
    assert_close({n: ours[n] for n in shared}, {n: theirs[n] for n in shared})


def taught(job: Simulation, clients: list[int], tensors: Tensors) -> Tensors:
    workspace, how = Workspace.at(job.net, job.federation), evaluation_of(job, job.plan[-1], State.begin(job.model))
    return learn(
        LocalTask(workspace.context, workspace.train_deck(clients), how.arrival, how.arrival_settings, how.shuffle),
        tensors,
    ).tensors


def test_newcomers_train_everything_at_the_last_rate_and_hold_a_tenth_out() -> None:
    """Spec 9.7: 5 epochs at 0.4 · 0.5² after three rounds; of 20 samples 2 choose the epoch, whatever is learned."""
    job = simulate(
        Config(
            data={
                "new_clients": 2,
                "clients": 4,
                "source": "synthetic",
                "synthetic": {"samples": 80},
                "partition": "iid",
            },
            model={"body": "mlp"},
            train={"lr": 0.4, "rounds": 3, "schedule": "exp", "decay": 0.5},
        )
    )
    how = evaluation_of(job, job.plan[-1], State.begin(job.model, round=3))
    (phase,) = how.arrival
    assert phase.epochs == 5
    assert phase.rates == pytest.approx(dict.fromkeys(job.model, 0.1))
    workspace, newcomer = Workspace.at(job.net, job.federation), int(job.federation.newcomers[0])
    seen: list[int] = []

    def looked(deck: Deck, *args: object) -> Iterator[Batch]:
        seen.append(deck.sizes[0])
        return in_order(deck, *args)  # type: ignore[arg-type]

    in_order = Deck.in_order
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Deck, "in_order", looked)
        settled(workspace, [newcomer], workspace.models(job.model, [newcomer]), how)
    assert set(seen) == {2}
