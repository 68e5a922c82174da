"""Spec 11: every network's counts; its stacked and padded computation equals the ordinary one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from torso.errors import RequestError
from torso.nets import LinearHead, Network, Tensors, apply, bodies, learnable, skeleton
from torso.nets.build import make_body
from torso.registry import summary

from .samples import DROPS, LEAST, OF_IMAGES, images, small, spread

CIFAR, MNIST = (3, 32, 32), (1, 28, 28)
# body, image, classes, d, head bias, total, head, BatchNorm buffers: spec 11 (rod, mlp: by its arithmetic)
COUNTS = [
    ("conv3", MNIST, 62, 576, True, 110_654, 35_774, 0),
    ("conv4", CIFAR, 10, 256, True, 115_658, 2_570, 0),
    ("conv4", CIFAR, 100, 256, True, 138_788, 25_700, 0),
    ("mobilenet", CIFAR, 100, 1024, True, 3_309_476, 102_500, 0),
    ("mobilenet", CIFAR, 10, 1024, True, 3_217_226, 10_250, 0),
    ("resnet10", CIFAR, 100, 512, True, 4_949_412, 51_300, 5_772),
    ("resnet18", CIFAR, 100, 512, True, 11_220_132, 51_300, 9_620),
    ("resnet50", CIFAR, 100, 2048, True, 23_705_252, 204_900, 53_173),
    ("resnet10", CIFAR, 10, 512, True, 4_903_242, 5_130, 5_772),
    ("resnet18", CIFAR, 10, 512, True, 11_173_962, 5_130, 9_620),
    ("resnet50", CIFAR, 10, 2048, True, 23_520_842, 20_490, 53_173),
    ("vgg11", CIFAR, 10, 512, True, 9_750_922, 5_130, 0),
    ("resnet8", CIFAR, 10, 64, True, 75_290, 650, 2 * 240 + 7),  # 7 norms over 240 channels, each with a counter
    ("resnet20", CIFAR, 10, 64, True, 269_722, 650, 2 * 688 + 19),
    ("resnet8-conv", CIFAR, 10, 64, True, 78_042, 650, 2 * 336 + 9),
    ("resnet20-conv", CIFAR, 10, 64, True, 272_474, 650, 2 * 784 + 21),
    ("rod-mnist", MNIST, 10, 50, False, 103_346 + 500, 500, 0),
    ("rod-mnist-dropout", MNIST, 10, 50, False, 103_346 + 500, 500, 0),
    ("rod-cifar", CIFAR, 10, 64, False, 121_920 + 640, 640, 0),
    ("rod-cifar", CIFAR, 100, 64, False, 121_920 + 6_400, 6_400, 0),
    # 3,584 + 295,168 + 516,320 of convolutions, 3,584 · 64 + 64 of the hidden layer
    ("rod-cifar-wide", CIFAR, 10, 64, False, 815_072 + 229_440 + 640, 640, 0),
    # 896 + 18,496 of convolutions, 64 · 14² · 128 + 128 of the hidden layer
    ("pfl-cnn", CIFAR, 10, 128, True, 896 + 18_496 + 1_605_760 + 1_290, 1_290, 0),
    ("squeezenet", (3, 224, 224), 10, 512, True, 727_626, 5_130, 0),
    ("squeezenet", (3, 224, 224), 102, 512, True, 774_822, 52_326, 0),
    ("squeezenet", (3, 224, 224), 196, 512, True, 823_044, 100_548, 0),
    ("squeezenet", (3, 224, 224), 200, 512, True, 825_096, 102_600, 0),
    # 4,652,008 of its authors less their head of 1,281,000; 49 norms over 21,008 channels, each with a counter
    ("efficientnet-lite0", CIFAR, 10, 1280, True, 3_371_008 + 12_810, 12_810, 2 * 21_008 + 49),
    ("mlp", MNIST, 10, 200, True, 784 * 200 + 200 + 200 * 200 + 200 + 2_010, 2_010, 0),
]


@pytest.mark.parametrize("row", COUNTS, ids=lambda row: f"{row[0]}-{row[2]}")
def test_counts(row: tuple[str, tuple[int, int, int], int, int, bool, int, int, int]) -> None:
    body, image, classes, features, bias, total, head, buffers = row
    with torch.device("meta"):
        made = make_body(body, image)
        net = Network(made, LinearHead().build(made.features, classes, bias))
        logits = net(torch.empty(2, *image))
    assert made.features == features
    assert logits.shape == (2, classes)
    assert sum(p.numel() for p in net.head.parameters()) == head
    assert sum(p.numel() for p in net.parameters()) == total
    assert sum(b.numel() for b in net.buffers()) == buffers


def test_every_body_is_counted() -> None:
    assert {row[0] for row in COUNTS} == set(OF_IMAGES)


def test_mobilenet_entries() -> None:
    """Spec 11: 83 state entries, 21,888 of BatchNorm's affine parameters."""
    with torch.device("meta"):
        made = bodies["mobilenet"](*CIFAR)
    assert len(made.state_dict()) + 2 == 83
    assert sum(p.numel() for n, p in made.named_parameters() if p.ndim == 1) == 21_888


Result = tuple[Tensor, Tensors, Tensors]  # logits [B, classes], gradients, the other tensors (buffers)


def ordinary(net: Network, tensors: Tensors, client: int, x: Tensor, wanted: Tensor) -> Result:
    """One client in ordinary PyTorch; the loss is the sum of logits × wanted."""
    net.load_state_dict({name: t[client] for name, t in tensors.items()})
    net.zero_grad()
    logits = net.train()(x)
    (logits * wanted).sum().backward()
    grads = {name: p.grad for name, p in net.named_parameters() if p.grad is not None}
    return logits.detach(), grads, {name: b.clone() for name, b in net.named_buffers()}


def stacked(net: Network, tensors: Tensors, x: Tensor, wanted: Tensor, real: Tensor | None = None) -> Result:
    names = learnable(net, tensors)
    leaves = {name: t.clone().requires_grad_(name in names) for name, t in tensors.items()}
    logits = apply(skeleton(net).train(), leaves, x, real).logits
    loss = (logits * wanted * (1 if real is None else real[..., None])).sum()
    grads = dict(zip(names, torch.autograd.grad(loss, [leaves[n] for n in names]), strict=True))
    return logits.detach(), grads, {name: t for name, t in leaves.items() if name not in names}


def same(found: Tensors, client: int, wanted: Tensors) -> None:
    assert set(found) == set(wanted)
    for name, tensor in wanted.items():
        scale = tensor.abs().max().item() if tensor.numel() else 0.0
        torch.testing.assert_close(found[name][client], tensor, rtol=1e-7, atol=1e-9 * (1 + scale), msg=name)


LARGE = ("resnet18", "resnet50", "vgg11")  # ten million weights and more: a stack of two clients


@pytest.mark.parametrize("body", sorted(set(OF_IMAGES).difference(DROPS)))
def test_clients_at_once_are_these_clients(body: str) -> None:
    net, image = small(body)
    clients = 2 if body in LARGE else 3
    tensors, x, wanted = spread(net, clients), images(clients, 3, *image), images(clients, 3, 3, seed=1)
    logits, grads, buffers = stacked(net, tensors, x, wanted)
    for g in range(clients):
        one = ordinary(net, tensors, g, x[g], wanted[g])
        torch.testing.assert_close(logits[g], one[0], rtol=1e-8, atol=1e-9)
        same(grads, g, one[1])
        same(buffers, g, one[2])


@pytest.mark.parametrize("body", sorted(set(OF_IMAGES).difference(DROPS)))
def test_padding_changes_nothing(body: str) -> None:
    """The first client (left out for large bodies) has no padding, the next samples 0, 2 and 3, the last none."""
    net, image = small(body)
    rows_of_all = [[1, 1, 1, 1], [1, 0, 1, 1], [0, 0, 0, 0]]
    real = torch.tensor(rows_of_all[1:] if body in LARGE else rows_of_all, dtype=torch.float64)
    clients, last = len(real), len(real) - 1
    tensors, x, wanted = spread(net, clients), images(clients, 4, *image), images(clients, 4, 3, seed=1)
    logits, grads, buffers = stacked(net, tensors, x, wanted, real)
    for g in range(last):
        rows = real[g] > 0
        one = ordinary(net, tensors, g, x[g, rows], wanted[g, rows])
        torch.testing.assert_close(logits[g, rows], one[0], rtol=1e-8, atol=1e-9)
        same(grads, g, one[1])
        same(buffers, g, one[2])
    assert logits.isfinite().all()
    assert all((grad[last] == 0).all() for grad in grads.values())
    same(buffers, last, {name: tensors[name][last] for name in buffers})


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
@pytest.mark.parametrize("body", sorted(LEAST))
def test_too_small_an_image_is_refused(body: str) -> None:
    """The smallest accepted size works (see the tests above), and one pixel less is refused."""
    least = LEAST[body]
    with pytest.raises(RequestError) as refusal:
        make_body(body, (3, least - 1, least))
    assert str(refusal.value) == (
        f"model.body = {body!r} needs images of at least {least}×{least}, found {least - 1}×{least}"
    )
    unchecked = vars(bodies[body])["__wrapped__"]
    with torch.device("meta"), pytest.raises((RuntimeError, ValueError)):
        unchecked(3, least - 1, least)(torch.empty(1, 1, 3, least - 1, least))


@pytest.mark.parametrize("body", OF_IMAGES)
def test_oblong_images_and_docstrings(body: str) -> None:
    with torch.device("meta"):
        made = make_body(body, (3, 40, 36))
        assert made(torch.empty(1, 2, 3, 40, 36)).shape == (1, 2, made.features)
    assert summary(bodies[body]).endswith(".")
    assert {p for block in made.blocks for p in block.parameters()} == set(made.parameters())


def test_unknown_body() -> None:
    with pytest.raises(RequestError, match=r"model.body = 'conv5' is unknown; did you mean 'conv\d'\?"):
        bodies["conv5"]


def test_initial_weights_of_vgg_and_rod() -> None:
    """Spec 11: vgg11 convolutions N(0, 2/(9·out)), bias 0; rod He normal, 2/(fan in)."""
    torch.manual_seed(0)
    vgg, rod = bodies["vgg11"](3, 32, 32), bodies["rod-cifar"](3, 32, 32)
    conv = vgg.state_dict()["blocks.5.conv.weight"]
    assert conv.std().item() == pytest.approx((2 / (9 * 512)) ** 0.5, rel=0.01)
    assert (vgg.state_dict()["blocks.5.conv.bias"] == 0).all()
    dense = rod.state_dict()["blocks.3.linear.weight"]
    assert dense.std().item() == pytest.approx((2 / 1024) ** 0.5, rel=0.02)
    wider, deeper = vgg.state_dict()["blocks.1.conv.weight"], rod.state_dict()["blocks.1.conv.weight"]
    assert wider.std().item() == pytest.approx((2 / (9 * 128)) ** 0.5, rel=0.02)  # 64 → 128: by the fan out
    assert deeper.std().item() == pytest.approx((2 / (9 * 32)) ** 0.5, rel=0.03)  # 32 → 64: by the fan in
