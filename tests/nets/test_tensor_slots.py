"""`TensorSlots`: a copy of a network that holds one client's tensors computes the same as a functional call."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from torso.data.batches import Batch
from torso.data.inputs import Floats
from torso.learn.gradients import gradients
from torso.learn.objectives import CrossEntropy
from torso.nets import Network, Tensors, apply, learnable, set_modes, skeleton, split
from torso.nets.given import forget_model, register_model


class Small(nn.Module):
    """A network with a convolution, BatchNorm with running statistics, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.fc = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.norm(self.conv(x)).relu().mean((2, 3)))  # type: ignore[no-any-return]


class Counting(Small):
    """A module that replaces a buffer by another tensor, as old code does."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.seen = self.seen + 1
        return super().forward(x) * self.seen


class Merging(Small):
    """A module that does more than to note its mode in `train()`."""

    scale = 1.0

    def train(self, mode: bool = True) -> Merging:
        self.scale = 1.0 if mode else 2.0
        super().train(mode)
        return self

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x * self.scale)


def begun(module: nn.Module, dtype: torch.dtype = torch.float64) -> tuple[Network, Tensors, Batch]:
    torch.manual_seed(0)
    whole = split(module.to(dtype))
    tensors = {n: t.clone()[None] for n, t in whole.state_dict().items()}
    net = skeleton(whole)
    set_modes(net, tuple(tensors))
    return net, tensors, Batch(torch.randn(1, 5, 3, 6, 6).to(dtype), torch.tensor([[0, 1, 2, 0, 1]]))


def by_hand(net: Network, tensors: Tensors, names: tuple[str, ...], batch: Batch) -> tuple[Tensors, Tensors]:
    """The gradients of a functional call, and the tensors after it."""
    mine = {n: t[0].clone() for n, t in tensors.items()}
    leaves = {n: mine[n].requires_grad_() for n in names}
    said = functional_call(net, dict(mine), (batch.inputs,), {"stacked": True})
    grads = torch.autograd.grad(F.cross_entropy(said.logits[0], batch.labels[0]), list(leaves.values()))
    return dict(zip(names, grads, strict=True)), mine


@pytest.mark.parametrize("module", [Small, Counting, Merging])
def test_steps_are_those_of_a_functional_call(module: type[nn.Module]) -> None:
    """Three steps that update the tensors in place, then another client, then fewer tensors that learn."""
    net, tensors, batch = begun(module())
    names = learnable(net, tensors)
    other = {n: t * 0.5 if t.is_floating_point() else t.clone() for n, t in tensors.items()}
    head = tuple(n for n in names if n.startswith("head."))
    for given, asked in ((tensors, names), (tensors, names), (other, names), (tensors, head), (tensors, names)):
        wanted, moved = by_hand(net, given, asked, batch)
        found, _ = gradients(net, given, asked, batch, CrossEntropy(), torch.ones(1, 3))
        assert found.keys() == wanted.keys()
        for name, grad in wanted.items():
            torch.testing.assert_close(found[name][0], grad, msg=name)
        for name, tensor in moved.items():
            torch.testing.assert_close(given[name][0], tensor.detach(), msg=name)
        with torch.no_grad():
            for name in asked:
                given[name] -= 0.1 * found[name]


def test_tensors_that_all_clients_share_stay_in_place() -> None:
    """They come as new views of the same memory. A tensor in other memory is put in again, even with equal values."""
    net, tensors, batch = begun(Small())
    set_modes(net, frozenset())
    said = apply(net, tensors, batch.inputs).logits
    held = dict(net.slots._held)
    views = {n: t[0].expand(1, *t[0].shape) for n, t in tensors.items()}
    assert torch.equal(apply(net, views, batch.inputs).logits, said)
    assert all(net.slots._held[n] is t for n, t in held.items())
    copies = {n: t.clone() for n, t in tensors.items()}
    apply(net, copies, batch.inputs)
    assert not any(net.slots._held[n] is t for n, t in held.items())
    copies["head.weight"].zero_()
    assert not torch.equal(apply(net, copies, batch.inputs).logits, said)


def test_running_statistics_of_the_given_tensors_move() -> None:
    net, tensors, batch = begun(Small())
    gradients(net, tensors, learnable(net, tensors), batch, CrossEntropy(), torch.ones(1, 3))
    assert tensors["body.module.norm.num_batches_tracked"].tolist() == [1]
    assert tensors["body.module.norm.running_mean"].any()
    set_modes(net, frozenset())
    before = tensors["body.module.norm.running_mean"].clone()
    apply(net, tensors, batch.inputs)
    assert torch.equal(tensors["body.module.norm.running_mean"], before)


def test_modes_that_were_set_before_are_set_again() -> None:
    net, tensors, _ = begun(Small())
    body = tuple(n for n in tensors if n.startswith("body."))
    asked = [tuple(tensors), (), body, tuple(tensors), body, ()]
    fresh = [modes_of(copy.deepcopy(net), learning) for learning in asked]
    assert [modes_of(net, learning) for learning in asked] == fresh
    assert len({tuple(modes) for modes in fresh}) == 3


def modes_of(net: Network, learning: tuple[str, ...]) -> list[bool]:
    set_modes(net, learning)
    return [module.training for module in net.modules()]


def test_a_gradient_goes_through_tensors_that_have_a_history() -> None:
    """As in methods that differentiate a step."""
    net, tensors, batch = begun(Small())
    weight = tensors["body.module.conv.weight"].requires_grad_()
    apply(net, {**tensors, "body.module.conv.weight": weight * 2}, batch.inputs).logits.sum().backward()
    assert weight.grad is not None
    assert weight.grad.any()


def test_a_copy_of_a_network_has_its_own_slots() -> None:
    net, tensors, batch = begun(Small())
    apply(net, tensors, batch.inputs)
    other = copy.deepcopy(net)
    assert other.slots is not net.slots
    assert not other.slots.modes
    assert torch.equal(apply(other, tensors, batch.inputs).logits, apply(net, tensors, batch.inputs).logits)


def test_bfloat16_input_gives_float32_features() -> None:
    """Products of a module that is not Torso's are in bfloat16, its weights and its features in float32."""
    net, tensors, batch = begun(Small(), torch.float32)
    said = apply(net, tensors, batch.inputs.bfloat16())
    wanted = apply(net, tensors, batch.inputs)
    assert said.features.dtype == said.logits.dtype == torch.float32
    torch.testing.assert_close(said.features, wanted.features, rtol=0.05, atol=0.05)
    assert not torch.equal(said.features, wanted.features)


def test_a_module_with_counters_can_be_handed_over() -> None:
    """BatchNorm's counter has no dimension."""
    name = register_model(Small())
    forget_model(name)
    assert name.startswith("given:Small:")


class Placed(nn.Module):
    """A module that adds position ids, a buffer that is in no state_dict, as text encoders do."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("places", torch.arange(3), persistent=False)
        self.table = nn.Embedding(3, 2)
        self.fc = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        said: Tensor = self.fc((x.unsqueeze(-1) + self.table(self.places)).mean(1))
        return said


def test_buffers_outside_the_state_dict_go_to_the_device() -> None:
    net = split(Placed())
    there = dict(skeleton(net, torch.device("meta")).named_buffers())
    here = dict(skeleton(net).named_buffers())
    assert there["body.module.places"].is_meta
    assert torch.equal(here["body.module.places"], torch.arange(3))
    assert not net.body.module.places.is_meta


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an accelerator")
def test_they_are_on_the_device_of_the_workspace() -> None:
    net = split(Placed())
    tensors = {name: tensor.cuda()[None] for name, tensor in net.state_dict().items()}
    net.input = Floats((3,))
    said = apply(skeleton(net, torch.device("cuda")), tensors, torch.ones(1, 4, 3, device="cuda"))
    assert said.logits.shape == (1, 4, 2)
