"""A head of simplex corners, FedETF and FedGELA: by hand, and what must not change (spec 19.9, 19.10)."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from torso import Config, RequestError, Result, run
from torso.learn.objectives import ClassShares, CrossEntropy, class_shares
from torso.learn.task import LocalResult
from torso.nets import Head, build, part_names
from torso.nets.heads import Dual, LinearHead, MlpHead, Simplex
from torso.nets.simplex import SimplexHead, simplex
from torso.personal import OwnModelStart, ScaledHead

EVEN = {"source": "synthetic", "clients": 4, "partition": "iid", "synthetic": {"samples": 160, "test_samples": 40}}


def test_three_corners_by_hand() -> None:
    """U = I: rows √1.5·(⅔, −⅓, −⅓) and its turns, of length 1 and with cosines −½."""
    a, b = 1.5**0.5 * 2 / 3, -(1.5**0.5) / 3
    found = simplex(torch.eye(3))
    assert_close(found, torch.tensor([[a, b, b], [b, a, b], [b, b, a]]))
    assert_close(found @ found.T, torch.eye(3) * 1.5 - 0.5)


@pytest.mark.parametrize("classes", [2, 10])
def test_corners_are_drawn_with_equal_angles(classes: int) -> None:
    net = build("mlp", classes, (1, 4, 4), Simplex())
    corners = net.state_dict()["head.classifier.weight"]
    assert_close(corners @ corners.T, torch.eye(classes) * (1 + 1 / (classes - 1)) - 1 / (classes - 1))


def test_logits_are_cosines_of_what_the_projection_makes() -> None:
    """p = (3, 4) → (0.6, 0.8); corners (1, 0) and (−1, 0); β = 2. A stack beside it, with another β."""
    head = SimplexHead(2, 2, scale=2.0, projects=True)
    assert head.projection is not None
    weights = {
        "projection.weight": torch.eye(2),
        "projection.bias": torch.tensor([2.0, 4.0]),
        "classifier.weight": torch.tensor([[1.0, 0.0], [-1.0, 0.0]]),
        "scale": torch.tensor([2.0]),
    }
    x = torch.tensor([[1.0, 0.0]])
    assert_close(torch.func.functional_call(head, weights, (x,)), torch.tensor([[1.2, -1.2]]))
    both = {name: torch.stack([t, t]) for name, t in weights.items()}
    both["scale"] = torch.tensor([[2.0], [5.0]])
    said = torch.func.functional_call(head, both, (torch.stack([x, x]),))
    assert_close(said, torch.tensor([[[1.2, -1.2]], [[3.0, -3.0]]]))


def test_parts_of_the_head_can_be_named() -> None:
    net = build("mlp", 3, (1, 4, 4), Simplex())
    assert part_names(net, "head.classifier") == ("head.classifier.weight",)
    assert set(part_names(net, "head.projection")) == {"head.scale", "head.projection.weight", "head.projection.bias"}
    assert set(part_names(net, "all-head.classifier")) == set(net.state_dict()) - {"head.classifier.weight"}
    with pytest.raises(RequestError, match=r"part = 'head.projection' is unknown"):
        part_names(build("mlp", 3, (1, 4, 4), Simplex(project=False)), "head.projection")


def test_more_classes_than_features_are_refused() -> None:
    with pytest.raises(RequestError, match=r"method\.head = 'simplex' needs .* 200 features and 201 classes"):
        build("mlp", 201, (1, 4, 4), Simplex())


def test_shares_of_classes_by_hand() -> None:
    """16, 81 and 0 samples: 97 / 3 on average. The logits (1, 2, 0) become (48/97, 486/97, 0)."""
    counts = torch.tensor([[16, 81, 0]])
    assert_close(class_shares(counts), torch.tensor([[48 / 97, 243 / 97, 0.0]]))
    logits, label = torch.tensor([[[1.0, 2.0, 5.0]]]), torch.tensor([[0]])
    found = ClassShares().per_sample(logits, logits, label, counts)
    scaled = torch.tensor([[[48 / 97, 486 / 97, 0.0]]])
    assert_close(found, CrossEntropy().per_sample(logits, scaled, label, counts))


def never() -> LocalResult:
    raise AssertionError("nobody visits")


def test_a_scaled_head_by_hand() -> None:
    """One client with 3 and 1 samples of two classes: shares 1.5 and 0.5, of the weight's rows and of the bias."""
    held = {
        "body.weight": torch.ones(1, 2, 2),
        "head.weight": torch.tensor([[[2.0, 4.0], [6.0, 8.0]]]),
        "head.bias": torch.ones(1, 2),
    }
    own = ScaledHead().begin(OwnModelStart(held, held, frozenset(), never, lambda: torch.tensor([[3, 1]])))
    assert own["head.weight"].tolist() == [[[3.0, 6.0], [3.0, 4.0]]]
    assert own["head.bias"].tolist() == [[1.5, 0.5]]
    assert own["body.weight"] is held["body.weight"]


@pytest.mark.parametrize(
    ("head", "scaled"),
    [
        (LinearHead(), {"head.weight", "head.bias"}),
        (MlpHead(), {"head.2.weight", "head.2.bias"}),
        (Dual(), {"head.generic.weight", "head.generic.bias"}),
        (Dual("hyper"), {"head.generic.weight", "head.generic.bias"}),
        (Simplex(), {"head.classifier.weight"}),
    ],
)
def test_the_last_layer_of_the_generic_head_is_scaled(head: Head, scaled: set[str]) -> None:
    held = {name: t[None] for name, t in build("mlp", 3, (1, 4, 4), head).state_dict().items()}
    own = ScaledHead().begin(OwnModelStart(held, held, frozenset(), never, lambda: torch.tensor([[2, 2, 0]])))
    assert {name for name, tensor in own.items() if not torch.equal(tensor, held[name])} == scaled


def go(method: object, **train: object) -> Result:
    settings = {"rounds": 2, "local_epochs": 1, "fraction": 0.5, "batch_size": 10, "lr": 0.05, **train}
    return run(Config(method=method, data=EVEN, train=settings, personalize={"epochs": 1}, run={"workers": 1}))


def test_fedetf_moves_all_but_the_corners() -> None:
    result = go("fedetf", weight_decay=0.1)
    assert result.ok
    assert result.state is not None
    assert result.initial is not None
    start = result.initial.state_dict()
    still = {name for name, tensor in result.state.model.items() if torch.equal(tensor, start[name])}
    assert still == {"head.classifier.weight"}
    own = result.network(0).state_dict()  # fine-tuning moves the corners too
    assert not torch.equal(own["head.classifier.weight"], start["head.classifier.weight"])


def test_fedgela_scales_the_corners_of_each_client() -> None:
    result = go("fedgela")
    assert result.state is not None
    corners = result.state.model["head.classifier.weight"]
    own = result.network(1).state_dict()["head.classifier.weight"]
    lengths = own.norm(dim=1)
    assert_close(own, corners * lengths.unsqueeze(1))
    assert lengths.mean().item() == pytest.approx(1.0)


def test_fedgela_without_shares_is_fedbabu_with_that_head() -> None:
    """γ = 0 makes every share 1."""
    plain = {"name": "fedbabu", "head": {"name": "simplex", "scale": 5.0, "project": False}}
    results = [go({"name": "fedgela", "objective": {"gamma": 0.0}}), go(plain)]
    one, other = (result.state.model for result in results if result.state is not None)
    assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())


def test_other_heads_have_no_such_parts() -> None:
    assert "head.classifier" not in build("mlp", 3, (1, 4, 4), LinearHead()).parts
