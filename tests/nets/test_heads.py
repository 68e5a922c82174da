"""Spec 12.1: what each head initialisation draws, and that a network's bits depend on its seed alone."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from torso.errors import RequestError
from torso.nets import LinearHead, apply, build, head_inits, heads
from torso.nets.heads import CosineLinear
from torso.nets.layers import BatchNorm2d
from torso.registry import summary

from .samples import OF_IMAGES

C, D = 100, 1024


def draw(name: str, classes: int = C, features: int = D) -> tuple[Tensor, Tensor]:
    weight, bias = torch.empty(classes, features), torch.full((classes,), 9.0)
    head_inits[name](weight, bias, torch.Generator().manual_seed(0))
    return weight, bias


def cosines(weight: Tensor) -> Tensor:
    rows = nn.functional.normalize(weight, dim=1)
    return (rows @ rows.T)[~torch.eye(len(rows), dtype=torch.bool)]


@pytest.mark.parametrize(
    ("name", "bound"),
    [
        ("default", 1 / math.sqrt(D)),
        ("kaiming_uniform", math.sqrt(6 / D)),
        ("xavier_uniform", math.sqrt(2) * math.sqrt(6 / (D + C))),
    ],
)
def test_uniform(name: str, bound: float) -> None:
    weight, _ = draw(name)
    assert weight.abs().max().item() == pytest.approx(bound, rel=1e-3)
    assert weight.abs().max().item() <= bound
    assert weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.01)


@pytest.mark.parametrize(("name", "variance"), [("kaiming_normal", 2 / D), ("xavier_normal", 4 / (D + C))])
def test_normal(name: str, variance: float) -> None:
    weight, _ = draw(name)
    assert weight.var().item() == pytest.approx(variance, rel=0.02)
    assert (weight**4).mean().item() / variance**2 == pytest.approx(3, rel=0.05)  # a Gaussian's kurtosis


def test_default_geometry() -> None:
    """Spec 12.1: row norm ≈ 0.577, mean |cos| between rows ≈ 0.025 at d = 1024."""
    weight, _ = draw("default")
    assert weight.norm(dim=1).mean().item() == pytest.approx(0.577, abs=0.003)
    assert cosines(weight).abs().mean().item() == pytest.approx(0.025, abs=0.001)


def test_similar() -> None:
    weight, _ = draw("similar")
    torch.testing.assert_close(weight.norm(dim=1), torch.ones(C))
    assert cosines(weight).mean().item() == pytest.approx(0.997, abs=0.0005)


@pytest.mark.parametrize(("name", "square"), [("orthogonal", 2.0), ("orthonormal", 1.0)])
def test_orthogonal(name: str, square: float) -> None:
    weight, _ = draw(name)
    torch.testing.assert_close(weight @ weight.T, square * torch.eye(C), rtol=0, atol=1e-5)
    with pytest.raises(RequestError, match=rf"head_init = '{name}' needs .* found 8 features and 10 classes"):
        draw(name, classes=10, features=8)


@pytest.mark.parametrize("name", sorted(head_inits))
def test_bias(name: str) -> None:
    """PyTorch's default U(±1/√d); the orthonormal head has no bias."""
    _, bias = draw(name)
    assert bias.abs().max() <= 1 / math.sqrt(D)
    assert (bias.std() > 0) == (name != "orthonormal")
    weight = torch.empty(C, D)
    head_inits[name](weight, None, torch.Generator().manual_seed(0))
    assert torch.equal(weight, draw(name)[0])
    assert summary(head_inits[name]).endswith(".")


def test_build_is_a_function_of_its_arguments() -> None:
    def bits(**change: object) -> dict[str, Tensor]:
        keys = {"body": "conv3", "classes": 5, "input": (1, 8, 8), "head": LinearHead(), "seed": 3} | change
        return build(**keys).state_dict()  # type: ignore[arg-type]

    torch.manual_seed(1)
    first, state = bits(), torch.get_rng_state()
    torch.manual_seed(2)
    again = bits()
    torch.manual_seed(1)
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(t, again[n]) for n, t in first.items())
    other, classes, init = bits(seed=4), bits(classes=7), bits(head_init="xavier_normal")
    assert not torch.equal(first["body.blocks.0.conv.weight"], other["body.blocks.0.conv.weight"])
    assert not torch.equal(first["head.weight"], init["head.weight"])
    for name in first:
        if name.startswith("body."):
            assert torch.equal(first[name], classes[name])
            assert torch.equal(first[name], init[name])
    assert "head.bias" not in bits(head_bias=False)


@pytest.mark.parametrize("body", OF_IMAGES)
@pytest.mark.parametrize("norm", ["batch", "running"])
def test_norm_overrides_the_bodys_own_statistics(body: str, norm: str) -> None:
    if body == "resnet50":
        pytest.skip("large, and built as resnet18 is")
    net = build(body, 3, (3, 32, 32), LinearHead(), norm=norm)  # type: ignore[arg-type]
    found = {m.tracks for m in net.modules() if isinstance(m, BatchNorm2d)}
    assert found <= {norm == "running"}


def test_unknown_names() -> None:
    assert heads["linear"]() == LinearHead()
    with pytest.raises(RequestError, match=r"model.head_init = 'zeros' is unknown"):
        build("mlp", 3, (1, 4, 4), LinearHead(), head_init="zeros")


def test_normalised_head_by_hand_and_blind_to_the_length_of_features() -> None:
    """Features (3, 4) have length 5: logits W·(0.6, 0.8); no bias unless asked for; f = 0 gives 0, not NaN."""
    head = heads["normalized"]().build(2, 2, True)
    assert [name for name, _ in head.named_parameters()] == ["weight"]
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 10.0]]))
    features = torch.tensor([[3.0, 4.0]])
    assert head(features).tolist() == [[pytest.approx(0.6), pytest.approx(8.0)]]
    torch.testing.assert_close(head(7 * features), head(features))
    assert head(torch.zeros(1, 2)).tolist() == [[0.0, 0.0]]


def test_sphere_head_gives_cosines_times_tau_to_orthonormal_rows() -> None:
    net = build("mlp", 10, (1, 8, 8), heads["sphere"](tau=15.0), head_init="default")
    weight = net.head.get_parameter("weight")
    torch.testing.assert_close(weight @ weight.T, torch.eye(10), atol=1e-5, rtol=0)
    logits = net.classify(100 * torch.randn(50, net.body.features))
    assert logits.abs().max() <= 15.0
    torch.testing.assert_close(net.classify(3 * weight[:1].detach()), 15.0 * torch.eye(10)[:1], atol=1e-4, rtol=0)


def test_sphere_head_gives_cosines_to_rows_that_fine_tuning_has_moved() -> None:
    """Rows (3, 4) and (0, 2), features (2, 0): 15 · 0.6 and 0, whatever the rows' lengths (spec 8.3)."""
    head = CosineLinear(2, 2, 15.0)
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[3.0, 4.0], [0.0, 2.0]]))
    torch.testing.assert_close(head(torch.tensor([[2.0, 0.0]])), torch.tensor([[9.0, 0.0]]))


def test_sphere_head_needs_as_many_features_as_classes() -> None:
    with pytest.raises(RequestError, match="300"):
        build("mlp", 300, (1, 8, 8), heads["sphere"]())


def test_mlp_head_has_three_layers_and_starts_the_last_by_the_init() -> None:
    net = build("mlp", 10, (1, 8, 8), heads["mlp"](), head_init="similar")
    shapes = [tuple(p.shape) for name, p in net.head.named_parameters() if name.endswith("weight")]
    assert shapes == [(200, 200), (200, 200), (10, 200)]
    rows = net.head.get_parameter("2.weight")
    assert cosines(rows.detach()).mean() > 0.99


@pytest.mark.parametrize("name", sorted(heads))
def test_stacked_heads_are_separate_heads(name: str) -> None:
    net = build("mlp", 5, (1, 8, 8), heads[name]()).double()
    stacked = {n: torch.stack([t, 2 * t + 0.1, t - 0.3]) for n, t in net.state_dict().items()}
    images = torch.randn(3, 4, 1, 8, 8, dtype=torch.float64)
    logits = apply(net, stacked, images).logits
    for g in range(3):
        net.load_state_dict({n: t[g] for n, t in stacked.items()})
        torch.testing.assert_close(logits[g], net(images[g]))
