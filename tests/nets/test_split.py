"""A user's module as body and head."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torso.errors import RequestError
from torso.nets import (
    Body,
    LinearHead,
    Network,
    apply,
    bodies,
    body_of,
    build,
    heads,
    learnable,
    part_names,
    set_modes,
    skeleton,
    split,
)

from .samples import images, spread


class Small(nn.Module):
    """A residual network as users write it."""

    def __init__(self, finish: bool = False) -> None:
        super().__init__()
        self.finish = finish
        self.stem = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU())
        self.conv = nn.Conv2d(4, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.drop = nn.Dropout(0.0)
        self.register_buffer("shift", torch.full((1,), 0.5), persistent=False)
        self.fc = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = F.relu(x + self.norm(self.conv(x))) + self.get_buffer("shift")
        x = self.fc(self.drop(x.mean((2, 3))))
        return F.softmax(x, 1) if self.finish else x


def plain() -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(32, 8), nn.ReLU(), nn.Dropout(0.0), nn.Linear(8, 3, bias=False))


@pytest.mark.parametrize("make", [plain, Small])
def test_split_gives_what_the_module_gives(make: type[nn.Module]) -> None:
    module = make().double().eval()
    before = copy.deepcopy(module.state_dict())
    x = images(5, 2, 4, 4)
    net = split(module, example=x).eval()
    torch.testing.assert_close(net(x), module(x))
    with torch.no_grad():
        for tensor in net.state_dict().values():
            tensor.zero_()
    assert module.state_dict().keys() == before.keys()
    assert all(torch.equal(t, before[n]) for n, t in module.state_dict().items())


def test_parts() -> None:
    net = split(Small())
    assert net.body.features == 4
    assert part_names(net, "head") == ("head.weight", "head.bias")
    assert part_names(net, "all") == tuple(net.state_dict())
    assert part_names(net, "blocks:2")[-2:] == ("body.module.conv.weight", "body.module.conv.bias")
    assert part_names(net, "blocks:3") == part_names(net, "body")
    assert split(plain()).head.state_dict().keys() == {"weight"}


@pytest.mark.parametrize("clients", [1, 3])
def test_clients_of_a_foreign_network_are_separate(clients: int) -> None:
    net = split(Small().double())
    tensors, x, wanted = spread(net, clients), images(clients, 4, 2, 5, 5), images(clients, 4, 3, seed=1)
    names = learnable(net, tensors)
    leaves = {n: t.clone().requires_grad_(n in names) for n, t in tensors.items()}
    logits = apply(skeleton(net).train(), leaves, x).logits
    torch.autograd.backward((logits * wanted).sum())
    for g in range(clients):
        net.load_state_dict({n: t[g] for n, t in tensors.items()})
        net.zero_grad()
        one = net.train()(x[g])
        (one * wanted[g]).sum().backward()
        torch.testing.assert_close(logits[g], one)
        for name, p in net.named_parameters():
            grad = leaves[name].grad
            assert grad is not None
            torch.testing.assert_close(grad[g], p.grad, rtol=1e-7, atol=1e-10)
        for name, b in net.named_buffers():
            if name in leaves:
                torch.testing.assert_close(leaves[name][g], b)


def test_padding_and_foreign_batchnorm() -> None:
    net = split(Small().double())
    tensors, x, real = spread(net, 2), images(2, 4, 2, 5, 5), torch.ones(2, 4)
    with pytest.raises(RequestError, match=r"body.module.stem.1 \(BatchNorm2d\) .* would count padded samples"):
        apply(net.train(), tensors, x, real)
    apply(net.eval(), tensors, x, real)  # in eval mode no sample is counted
    flat = split(plain().double())
    apply(flat.train(), spread(flat, 2), images(2, 4, 2, 4, 4), real)


def test_a_network_on_vectors() -> None:
    """`apply` takes any samples [G, B, …], not only images."""
    net = split(nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 2)).double(), example=images(3, 6))
    tensors, x = spread(net, 2), images(2, 3, 6)
    logits = apply(net, tensors, x)[1]
    net.load_state_dict({n: t[1] for n, t in tensors.items()})
    torch.testing.assert_close(logits[1], net(x[1]))


def test_what_cannot_be_split() -> None:
    with pytest.raises(
        RequestError, match=r"cannot split Sequential: its last layer, 1, is Softmax\. Make an nn\.Linear"
    ):
        split(nn.Sequential(nn.Linear(4, 3), nn.Softmax(1)))
    with pytest.raises(RequestError, match="there is no body"):
        split(nn.Linear(4, 3))
    tied = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    tied[1].weight = tied[0].weight
    with pytest.raises(RequestError, match="share a parameter"):
        split(tied)
    with pytest.raises(
        RequestError, match=r"Sequential: 0\.weight and 1\.weight are one parameter, and would learn as"
    ):
        body_of(tied, features=4)
    body_of(tied.requires_grad_(False), features=4)  # frozen, they cannot learn different values
    split(Small(finish=True))  # the structure is fine; only an example shows what forward does
    with pytest.raises(RequestError, match=r"body and head \(fc\) do not give what the module gives"):
        split(Small(finish=True), example=torch.randn(2, 2, 5, 5))


def test_what_is_frozen_later_no_longer_learns() -> None:
    net = split(Small())
    everything = tuple(net.state_dict())
    assert "body.module.conv.weight" in learnable(net, everything)
    net.body.requires_grad_(False)
    assert learnable(net, everything) == ("head.weight", "head.bias")


class Renewed(Small):
    """A module that reads states of its first version in another way, as torchvision's MNASNet does."""

    _version = 2

    def _load_from_state_dict(
        self, state: dict[str, Tensor], prefix: str, about: dict[str, int], *rest: object
    ) -> None:
        assert about.get("version") == 2, "taken for a state of the first version"
        super()._load_from_state_dict(state, prefix, about, *rest)


def test_tensors_of_a_layer_have_its_version() -> None:
    net = split(Renewed())
    weights = {name: torch.full_like(tensor, 2) for name, tensor in net.state_dict().items()}
    net.fill(weights, personal=False)
    assert all(torch.equal(tensor, weights[name]) for name, tensor in net.state_dict().items())


def test_a_plugin_registers_a_body() -> None:
    @bodies.register("mine")
    def mine(channels: int, height: int, width: int) -> Body:
        return body_of(Small())

    try:
        net = build("mine", 7, (2, 8, 8), LinearHead(), norm="batch")
    finally:
        del bodies["mine"]
    assert net(torch.randn(2, 2, 8, 8)).shape == (2, 7)
    assert not [name for name in net.state_dict() if "running" in name]
    assert body_of(nn.Flatten(), features=9)(torch.randn(1, 2, 9)).shape == (1, 2, 9)


def test_a_foreign_body_takes_a_dual_head() -> None:
    body = body_of(nn.Sequential(nn.Flatten(), nn.Linear(4, 4), nn.Linear(4, 2)))
    net = Network(body, heads["dual"]("hyper").build(body.features, 3, True))
    for clients in (1, 3):
        tensors = {n: t.expand(clients, *t.shape) for n, t in net.state_dict().items()}
        tensors |= net.facts(torch.ones(clients, 3), tensors)
        said = apply(net, tensors, torch.randn(clients, 5, 1, 2, 2))
        assert said.personal is not None
        assert said.personal.shape == (clients, 5, 3)


def test_statistics_of_a_frozen_norm_without_weights_stay() -> None:
    net = split(nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2, affine=False), nn.Flatten(), nn.Linear(8, 2)))
    set_modes(net, part_names(net, "blocks:1"))
    assert not net.body.get_submodule("module.1").training
    set_modes(net, part_names(net, "body"))
    assert net.body.get_submodule("module.1").training


def lazy() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(4), nn.Linear(4, 3))


def cannot_be_copied() -> nn.Module:
    module = nn.Sequential(nn.Flatten(), nn.utils.weight_norm(nn.Linear(4, 4)), nn.Linear(4, 3))
    module(torch.ones(1, 4))
    return module


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lazy, "Sequential has lazy layers that have no sizes yet. Call it once"),
        (cannot_be_copied, "Sequential cannot be copied: .* torch.nn.utils.parametrizations.weight_norm"),
    ],
)
def test_modules_that_cannot_be_given_tensors(make: Callable[[], nn.Module], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        split(make())
