"""Meta-BSM (spec 6.5) and FedAvg+Meta (spec 5.7): the balanced images of the server, against NumPy.

The reference never differentiates: derivatives with respect to ζ and γ are central differences in float64, with what
is fed to the weighing net held fixed, since it is detached there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from torso.data.batches import Batch
from torso.errors import RequestError
from torso.learn.meta import GAMMA, MetaWeighted, sample_weights
from torso.learn.objectives import BalancedSoftmax, balanced_softmax, cross_entropy
from torso.learn.sgd import Sgd
from torso.learn.steps import Learner, LocalSettings
from torso.nets import LinearHead, Network, Tensors, build
from torso.nets.heads import Dual, Head
from torso.personal.state import State

from .by_hand import EYE, Data, Floats, Model, federated, gradient, last, losses, mean, on, same, story
from .tiny import head, job

NOTES = ("first.weight", "first.bias", "second.weight", "second.bias", GAMMA)
Kind = Literal["cross-entropy", "weighted"]


def answers(notes: Mapping[str, Floats], fed: Floats) -> Floats:
    """sigmoid(w₂ · relu(w₁ ℓ + b₁) + b₂) per sample."""
    hidden = np.maximum(np.outer(fed, notes["first.weight"]) + notes["first.bias"], 0)
    found: Floats = 1 / (1 + np.exp(-(hidden @ notes["second.weight"] + notes["second.bias"])))
    return found


def shift(counts: Floats, gamma: float, absent: float = -np.inf) -> Floats:
    """γ log N_c, or what an absent class gets."""
    found: Floats = np.where(counts > 0, gamma * np.log(np.maximum(counts, 1)), absent)
    return found


class Task(NamedTuple):
    """One mini-batch of one client."""

    model: Model
    batch: Data
    meta: Data
    counts: Floats
    lr: float
    kind: Kind = "cross-entropy"

    def fed(self, notes: Mapping[str, Floats]) -> tuple[Floats, Floats]:
        """The losses that the net is fed: of the batch, and of the balanced images after the step."""
        mine = losses(self.model, self.batch, shift(self.counts, notes[GAMMA].item()))
        ahead = self.ahead(notes, mine)
        return mine, losses(ahead, self.meta, shift(self.counts, notes[GAMMA].item(), 0.0))

    def ahead(self, notes: Mapping[str, Floats], fed: Floats) -> Model:
        """w − η∇ mean(q ℓ)."""
        grad = gradient(self.model, self.batch, shift(self.counts, notes[GAMMA].item()), answers(notes, fed))
        return self.model.moved(grad, -self.lr)

    def objective(self, notes: Mapping[str, Floats], fed: tuple[Floats, Floats]) -> float:
        ahead = self.ahead(notes, fed[0])
        if self.kind == "cross-entropy":
            return float(losses(ahead, self.meta).mean())
        balanced = losses(ahead, self.meta, shift(self.counts, notes[GAMMA].item(), 0.0))  # log max(N, 1)
        return float((answers(notes, fed[1]) * balanced).mean())

    def slopes(self, notes: Mapping[str, Floats], eps: float = 1e-6) -> dict[str, Floats]:
        """Central differences of the objective, one number of ζ and γ after the other."""
        fed, found = self.fed(notes), {}
        for name, values in notes.items():
            slope = np.zeros_like(values)
            for place in range(len(values)):
                sides = []
                for side in (eps, -eps):
                    changed = values.copy()
                    changed[place] += side
                    sides.append(self.objective({**notes, name: changed}, fed))
                slope[place] = (sides[0] - sides[1]) / (2 * eps)
            found[name] = slope
        return found


def drawn(hidden: int, seed: int) -> dict[str, Floats]:
    """A net whose hidden units are partly on, and γ somewhere between."""
    rng = np.random.default_rng(seed)
    sizes = {"first.weight": hidden, "first.bias": hidden, "second.weight": hidden, "second.bias": 1}
    return {**{n: rng.normal(size=size) for n, size in sizes.items()}, GAMMA: np.array([0.7])}


def stacked(many: list[dict[str, Floats]]) -> Tensors:
    return {name: torch.from_numpy(np.stack([one[name] for one in many])) for name in NOTES}


def learner_of(net: Network, tensors: Tensors, counts: Tensor, lr: float, step: MetaWeighted) -> Learner:
    names = tuple(name for name, _ in net.named_parameters())
    settings = LocalSettings(50, objective=BalancedSoftmax(), step=step)
    return Learner(net, settings, counts, tensors, names, dict.fromkeys(names, lr), Sgd(0.0, 0.0), None)


def batch_of(data: list[Data]) -> Batch:
    """Samples of G clients as a batch, the shorter ones padded with their own first sample."""
    width = max(len(one.y) for one in data)
    images, labels = torch.zeros(len(data), width, 1, 1, 2, dtype=torch.float64), torch.zeros(len(data), width).long()
    real = torch.zeros(len(data), width)
    for g, one in enumerate(data):
        n = len(one.y)
        images[g], labels[g] = torch.from_numpy(one.x[0]), int(one.y[0])
        images[g, :n, 0, 0], labels[g, :n], real[g, :n] = torch.from_numpy(one.x), torch.from_numpy(one.y), 1.0
    return Batch(images, labels, None if bool(real.all()) else real)


# two clients and three classes; the second has no class 1, and fewer samples
COUNTS = np.array([[3.0, 1.0, 5.0], [4.0, 0.0, 2.0]])
BATCHES = [Data.of([(1, 0), (0.5, 1), (0.2, 0.7), (1, 1)], [0, 1, 2, 2]), Data.of([(1, 0.2), (0.3, 1)], [0, 2])]
META = Data.of([(1, 0), (0, 1), (0.6, 0.4)], [0, 1, 2])
START = Model(np.array([0.9, 1.2]), np.array([[0.5, -0.3], [0.1, 0.8], [-0.6, 0.2]]))


def prepared(top: Head, kind: Kind, learn_gamma: bool = True) -> tuple[MetaWeighted, Learner, Batch, Batch, str]:
    step = MetaWeighted(meta_loss=kind, hidden=5, learn_gamma=learn_gamma)
    net = build("scale", 3, (1, 1, 2), top, head_bias=False)
    name = "head.generic.weight" if isinstance(top, Dual) else "head.weight"
    own = {"body.blocks.0.weight": torch.from_numpy(START.s), name: torch.from_numpy(START.w)}
    tensors = {n: own.get(n, t.detach().double()).expand(2, *t.shape).clone() for n, t in net.state_dict().items()}
    counts = torch.from_numpy(COUNTS).long()
    tensors |= {n: t.double() for n, t in net.facts(counts, tensors).items()}
    learner = learner_of(net, tensors, counts, 0.8, step)
    learner.notes = stacked([drawn(5, 1), drawn(5, 2)])
    return step, learner, batch_of(BATCHES), batch_of([META, META]), name


@pytest.mark.parametrize("kind", ["cross-entropy", "weighted"])
@pytest.mark.parametrize("top", [LinearHead(), Dual("hyper"), Dual("linear")])
def test_gradient_of_the_meta_loss_is_that_of_central_differences(kind: Kind, top: Head) -> None:
    """All four tensors of ζ, and γ; a class is absent, and D_meta has a label that the second client never saw."""
    step, learner, batch, meta, _ = prepared(top, kind)
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in learner.notes.items()}
    value = step.meta_objective(learner, leaves, batch, meta)
    grads = dict(zip(leaves, torch.autograd.grad(value.sum(), list(leaves.values())), strict=True))
    for g, data in enumerate(BATCHES):
        notes, task = drawn(5, g + 1), Task(START, data, META, COUNTS[g], 0.8, kind)
        assert value[g].item() == pytest.approx(task.objective(notes, task.fed(notes)), abs=1e-12)
        for name, slope in task.slopes(notes).items():
            assert_close(grads[name][g], torch.from_numpy(slope), atol=1e-8, rtol=1e-6)
            assert np.abs(slope).max() > 1e-6  # there is something to see


def test_gradient_through_a_deep_network() -> None:
    """The same for two hidden layers of 200, with the objective itself as the function whose differences are taken."""
    torch.manual_seed(0)
    net = build("mlp", 3, (1, 2, 2), LinearHead())
    tensors = {n: t.detach().double().expand(2, *t.shape).clone() for n, t in net.state_dict().items()}
    step = MetaWeighted(hidden=3)
    learner = learner_of(net, tensors, torch.tensor([[2, 0, 3], [1, 1, 1]]), 0.5, step)
    notes = stacked([drawn(3, 5), drawn(3, 6)])
    batch = Batch(torch.rand(2, 5, 1, 2, 2).double(), torch.tensor([[0, 2, 2, 0, 2], [0, 1, 2, 1, 0]]))
    meta = Batch(torch.rand(2, 3, 1, 2, 2).double(), torch.tensor([[0, 1, 2]] * 2))
    leaves = {n: t.clone().requires_grad_() for n, t in notes.items() if n != GAMMA}
    value = step.meta_objective(learner, {**notes, **leaves}, batch, meta).sum()
    grads = dict(zip(leaves, torch.autograd.grad(value, list(leaves.values())), strict=True))
    for name, grad in grads.items():
        for place in np.ndindex(*grad.shape):
            sides = []
            for eps in (1e-5, -1e-5):
                changed = notes[name].clone()
                changed[place] += eps
                sides.append(step.meta_objective(learner, {**notes, name: changed}, batch, meta).sum().item())
            assert grad[place].item() == pytest.approx((sides[0] - sides[1]) / 2e-5, abs=1e-8, rel=1e-4)


def walked(
    task: Task, notes: dict[str, Floats], rate: float, learn_gamma: bool = True
) -> tuple[Model, dict[str, Floats]]:
    """ζ and γ step on the meta loss; then w steps on mean(q ℓ) with the new ζ and γ, nothing flowing through q."""
    slopes = task.slopes(notes)
    notes = {n: t - rate * slopes[n] if n != GAMMA or learn_gamma else t for n, t in notes.items()}
    offset = shift(task.counts, notes[GAMMA].item())
    weights = answers(notes, losses(task.model, task.batch, offset))
    return task.model.moved(gradient(task.model, task.batch, offset, weights), -rate), notes


CLIENTS = [
    Data.of([(1, 0), (1, 0.2), (0.8, 0), (1, 0.6)], [0, 0, 0, 1]),
    Data.of([(0.2, 1), (0, 1), (0.4, 1)], [0, 1, 1]),
]
ROWS = (0, 3, 4, 5)  # D_meta: two of each class
BALANCED = Data(np.concatenate([c.x for c in CLIENTS])[list(ROWS)], np.concatenate([c.y for c in CLIENTS])[list(ROWS)])


@pytest.mark.parametrize(
    ("kind", "learn_gamma"), [("cross-entropy", True), ("cross-entropy", False), ("weighted", True)]
)
@pytest.mark.parametrize("at_once", [1, 2])
def test_meta_bsm_rounds_against_numpy(kind: Kind, learn_gamma: bool, at_once: int) -> None:
    """Two rounds of two epochs, every batch whole. ζ_k and γ_k stay with their client and go on where they were."""
    options = {"hidden": 4, "meta_loss": kind, "learn_gamma": learn_gamma}
    task = on(job({"name": "fedrod-meta-bsm", "step": options}, head="eye", local_epochs=2), federated(CLIENTS, ROWS))
    first = {n: t.double().numpy() for n, t in MetaWeighted(hidden=4).notes(0).items()}
    assert first[GAMMA].tolist() == [1.0]
    w, notes = EYE, [first, first]
    for state, _ in story(task, 2, at_once):
        came = []
        for k, data in enumerate(CLIENTS):
            mine = w
            for _ in range(2):
                counts = np.bincount(data.y, minlength=2).astype(np.float64)
                mine, notes[k] = walked(Task(mine, data, BALANCED, counts, 1.0, kind), notes[k], 1.0, learn_gamma)
            came.append(mine)
            for name in NOTES:
                assert_close(
                    state.clients[k].notes[name].double(), torch.from_numpy(notes[k][name]), atol=2e-5, rtol=2e-4
                )
        w = mean(came, [4 / 7, 3 / 7])
        same(state.model, w, "head.generic.weight", tol=2e-5)
    assert not torch.allclose(state.clients[0].notes["second.weight"], state.clients[1].notes["second.weight"])
    assert (state.clients[0].notes[GAMMA].item() == 1.0) != learn_gamma


def test_meta_bsm_weighs_the_generic_loss_alone() -> None:
    """The personal branch has plain cross-entropy, as in Fed-RoD: after one step the same hypernetwork."""
    data = federated(CLIENTS, ROWS)
    meta, plain = (last(on(job(name, head="eye"), data)) for name in ("fedrod-meta-bsm", "fedrod-hyper"))
    for name in ("head.personal.first.weight", "head.personal.second.weight"):
        assert_close(meta.model[name], plain.model[name])
    assert not torch.allclose(meta.model["head.generic.weight"], plain.model["head.generic.weight"])


def test_weights_lie_between_nought_and_one_and_no_gradient_reaches_the_loss() -> None:
    notes = {n: t.expand(2, *t.shape).clone().requires_grad_() for n, t in MetaWeighted().notes(0).items()}
    assert {n: tuple(t.shape) for n, t in notes.items()} == {
        "first.weight": (2, 100),
        "first.bias": (2, 100),
        "second.weight": (2, 100),
        "second.bias": (2, 1),
        GAMMA: (2, 1),
    }
    fed = (10 * torch.rand(2, 50)).requires_grad_()
    found = sample_weights(notes, fed)
    assert bool(((found > 0) & (found < 1)).all())
    (grad,) = torch.autograd.grad(found.sum(), [fed], allow_unused=True)
    assert grad is None


def test_meta_bsm_needs_the_balanced_softmax() -> None:
    with pytest.raises(RequestError, match="balanced-softmax"):
        job({"name": "fedrod-meta-bsm", "objective": "cross-entropy"})


# The balanced soft-max with a γ that is learned (spec 6.1)


def test_balanced_softmax_can_learn_gamma_where_a_class_is_absent() -> None:
    rng = np.random.default_rng(0)
    values, labels = rng.normal(size=(2, 4, 3)), np.array([[0, 1, 2, 2], [0, 2, 2, 0]])
    logits = torch.from_numpy(values).requires_grad_()
    gamma = torch.tensor([[0.7], [1.3]], dtype=torch.float64, requires_grad=True)
    found = balanced_softmax(logits, torch.from_numpy(labels), torch.from_numpy(COUNTS).long(), gamma)
    slope, by_logit = torch.autograd.grad(found.sum(), [gamma, logits])

    def total(g: int, at: float) -> float:
        z = values[g] + shift(COUNTS[g], at)
        return float((np.log(np.exp(z).sum(axis=1)) - z[np.arange(4), labels[g]]).sum())

    for g, at in enumerate((0.7, 1.3)):
        assert found[g].sum().item() == pytest.approx(total(g, at), abs=1e-12)
        assert slope[g].item() == pytest.approx((total(g, at + 1e-6) - total(g, at - 1e-6)) / 2e-6, abs=1e-8)
    assert bool(torch.isfinite(by_logit).all())
    assert by_logit[1, :, 1].abs().max() == 0.0  # the absent class gets no gradient
    for g, at in enumerate((0.7, 1.3)):
        alone = BalancedSoftmax(at).per_sample(
            logits, logits, torch.from_numpy(labels), torch.from_numpy(COUNTS).long()
        )
        assert_close(alone[g], found[g])


def test_balanced_softmax_with_gamma_nought_is_cross_entropy_over_all_classes() -> None:
    """Even where a class is absent: 0⁰ = 1. An unseen label is finite there, and wherever absent counts as one."""
    logits, labels, counts = torch.randn(1, 4, 3), torch.tensor([[0, 1, 2, 1]]), torch.tensor([[4, 0, 2]])
    plain = cross_entropy(logits, labels)
    assert torch.equal(BalancedSoftmax(0.0).per_sample(logits, logits, labels, counts), plain)
    assert torch.equal(balanced_softmax(logits, labels, counts, 0.0, absent_as_one=True), plain)
    as_one = balanced_softmax(logits, labels, counts, 1.0, absent_as_one=True)
    assert torch.equal(as_one, balanced_softmax(logits, labels, counts.clamp(min=1), 1.0))
    assert bool(torch.isfinite(as_one).all())
    assert torch.isinf(balanced_softmax(logits, labels, counts, 1.0)).tolist() == [[False, True, False, True]]


# FedAvg+Meta (spec 5.7)


def test_fedavg_meta_trains_on_the_clients_data_and_the_balanced_images() -> None:
    """D_meta is samples 0 and 1. From W = 0 client 0 has x = (1, 0) twice and (0, 1) once: its columns move by ⅔ and ⅓
    of ½; client 1 has (1, 0) once and (0, 1) four times: ⅕ and ⅘. Weights stay ¼ and ¾: own samples only."""
    state = last(job("fedavg-meta"))
    first, second = 0.25 * 2 / 3 + 0.75 / 5, 0.25 / 3 + 0.75 * 4 / 5
    assert_close(head(state), 0.5 * torch.tensor([[first, -second], [-first, second]]))


def test_fedavg_meta_images_travel_once_to_each_client() -> None:
    """Six parameters of 4 bytes each way, and two images of two bytes to each client that comes for the first time."""

    def spent(state: State) -> tuple[int, int]:
        return state.cost.bytes_up, state.cost.bytes_down

    told = story(job("fedavg-meta"), 3)
    assert [spent(state) for state, _ in told] == [(48 * r, 48 * r + 2 * 4) for r in (1, 2, 3)]
    few = story(job("fedavg-meta", fraction=0.5), 6)
    for r, (state, _) in enumerate(few, start=1):
        assert spent(state) == (24 * r, 24 * r + 4 * len(state.server.met))
    assert len(few[0][0].server.met) == 1
    assert len(few[-1][0].server.met) == 2


@pytest.mark.parametrize("options", [{}, {"learn_gamma": False}])
def test_meta_bsm_images_travel_once_to_each_client(options: dict[str, Any]) -> None:
    plain, meta = (
        last(job({"name": name, **more}, head="eye"), 3)
        for name, more in (("fedrod-hyper", {}), ("fedrod-meta-bsm", {"step": options}))
    )
    assert meta.cost.bytes_up == plain.cost.bytes_up
    assert meta.cost.bytes_down - plain.cost.bytes_down == 2 * 4
