"""A printed network says all that it computes: a network rebuilt from the text gives the same answers."""

from __future__ import annotations

import pytest
import torch
from tests.nets.samples import small
from torch import nn

from torso.data.inputs import Tokens
from torso.nets import build
from torso.nets.blocks import Unit
from torso.nets.heads import Dual, Head, LinearHead, MlpHead, Normalized, Sphere


@pytest.mark.parametrize("body", ["conv3", "mobilenet"])
def test_the_printed_modules_in_their_order_are_the_network(body: str) -> None:
    net, image = small(body)
    units = [module for module in net.body.modules() if isinstance(module, Unit)]
    layers = [layer for unit in units for layer in unit.children()]
    for layer in layers:
        assert str(layer) in str(net)
    pool = [nn.AdaptiveAvgPool2d(1)] if "mean over height and width" in str(net.body) else []
    plain = nn.Sequential(*layers, *pool, nn.Flatten(), net.head)
    x = torch.randn(4, *image, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.testing.assert_close(plain(x), net(x))


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("resnet8", ("relu(path(x) + x)", "relu(path(x) + shortcut(x))", "then as many zero channels")),
        ("resnet8-conv", ("relu(path(x) + shortcut(x))", "then the mean over height and width")),
        ("squeezenet", ("pool of cat(small(s), large(s))", "ReLU")),
        ("rod-mnist", ("(linear): Linear(in_features=64, out_features=50, bias=True)\n        (relu): ReLU",)),
        ("vgg11", ("ReLU", "blocks, then flatten")),
    ],
)
def test_what_no_module_does_is_printed_too(body: str, words: tuple[str, ...]) -> None:
    text = str(small(body)[0])
    for word in words:
        assert word in text


@pytest.mark.parametrize(
    ("head", "words"),
    [
        (Normalized(), "of x / max(‖x‖, 1e-12)"),
        (Sphere(tau=4), "4 · cos(weight, x)"),
        (MlpHead(), "ReLU after every layer but the last"),
        (Dual("hyper"), "weight = second(relu(first(class proportions)))"),
        (Dual(), "a client's: generic(x) + personal(x)"),
    ],
)
def test_heads_print_their_rule(head: Head, words: str) -> None:
    assert words in str(build("mlp", 3, (1, 8, 8), head).head)


def test_bodies_of_sequences_print_theirs() -> None:
    text = str(build("transformer", 3, Tokens(6, 20, pad=1), LinearHead()))
    for words in ("ids other than 1", "gelu(widens(before_mlp(x)))", "attention of 4 heads", "for each place"):
        assert words in text
