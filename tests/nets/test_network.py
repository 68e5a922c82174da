"""Parts by structure, modes, skeletons."""

from __future__ import annotations

import sys

import pytest
import torch

from torso.errors import RequestError
from torso.nets import (
    LinearHead,
    Network,
    apply,
    build,
    learnable,
    part_names,
    set_modes,
    skeleton,
    smallest_map,
)
from torso.nets.build import make_body
from torso.nets.layers import BatchNorm2d

from .samples import OF_IMAGES, images, small, spread


def bare(body: str) -> Network:
    with torch.device("meta"):
        made = make_body(body, (3, 32, 32))
        return Network(made, LinearHead().build(made.features, 3, True))


@pytest.mark.parametrize("body", OF_IMAGES)
def test_parts_are_disjoint_and_cover(body: str) -> None:
    net = bare(body)
    state = tuple(net.state_dict())
    inside, head = part_names(net, "body"), part_names(net, "head")
    assert inside + head == part_names(net, "all") == part_names(net, "full") == state
    assert not set(inside) & set(head)
    assert part_names(net, "none") == ()
    assert head == ("head.weight", "head.bias")
    assert part_names(net, f"blocks:{len(net.body.blocks)}") == inside
    assert learnable(net, state) == tuple(n for n in state if n in dict(net.named_parameters()))
    assert [name for name, _ in net.named_children()] == ["body", "head"]


def test_blocks_of_conv4() -> None:
    """Spec 3.4: a block is a convolution and its BatchNorm, four of them."""
    net = bare("conv4")
    tensors = ("conv.weight", "conv.bias", "norm.weight", "norm.bias")
    for j in range(1, 5):
        assert part_names(net, f"blocks:{j}") == tuple(f"body.blocks.{i}.{t}" for i in range(j) for t in tensors)


@pytest.mark.parametrize("part", ["blocks:0", "blocks:5", "blocks:-1", "blocks:x", "blocks", "feet"])
def test_unknown_parts(part: str) -> None:
    with pytest.raises(RequestError, match=rf"part = '{part}' is unknown. Accepted: all, .* J from 1 to 4,"):
        part_names(bare("conv4"), part)


def test_ordinary_and_stacked_use() -> None:
    net, image = small("resnet8")
    x = images(4, *image)
    features = net.eval().features(x)
    assert features.shape == (4, 64)
    torch.testing.assert_close(net.classify(features), net(x))
    torch.testing.assert_close(net(x[None])[0], net(x))
    both = apply(skeleton(net).eval(), {n: t[None] for n, t in net.state_dict().items()}, x[None])
    torch.testing.assert_close(both[0][0], features)
    torch.testing.assert_close(both[1][0], net(x))


def test_real_in_ordinary_use() -> None:
    net, image = small("conv3")
    x = images(3, *image)
    torch.testing.assert_close(net(x, torch.tensor([1.0, 1.0, 0.0]))[:2], net(x[:2]))


def test_skeleton_has_no_weights_and_leaves_the_network_alone() -> None:
    net, image = small("resnet8")
    copy = skeleton(net)
    assert all(t.is_meta for t in copy.state_dict().values())
    assert copy.state_dict().keys() == net.state_dict().keys()
    assert not any(t.is_meta for t in net.state_dict().values())
    before = {n: t.clone() for n, t in net.state_dict().items()}
    with torch.no_grad():
        apply(copy.train(), spread(net, 2), images(2, 2, *image))
    assert all(torch.equal(t, before[n]) for n, t in net.state_dict().items())
    assert all(t.is_meta for t in copy.state_dict().values())


def test_modes_follow_what_learns() -> None:
    net = build("resnet8", 3, (3, 8, 8), LinearHead())

    def training() -> list[bool]:
        return [m.training for m in net.modules() if isinstance(m, BatchNorm2d)]

    set_modes(net, part_names(net, "body"))
    assert training() == [True] * 7
    set_modes(net, part_names(net, "head"))
    assert training() == [False] * 7
    assert net.head.training
    assert not net.body.training
    set_modes(net, part_names(net, "blocks:2"))  # the stem and the first residual block
    assert training() == [True] * 3 + [False] * 4
    set_modes(net, ())
    assert not net.training


def test_a_frozen_bodys_statistics_stay() -> None:
    """Spec 7.2."""
    net, image = small("resnet8")
    copy, tensors = skeleton(net), spread(net, 2)
    before = {n: t.clone() for n, t in tensors.items()}
    set_modes(copy, part_names(net, "head"))
    apply(copy, tensors, images(2, 2, *image))
    assert all(torch.equal(t, before[n]) for n, t in tensors.items())
    set_modes(copy, part_names(net, "body"))
    apply(copy, tensors, images(2, 2, *image))
    assert not torch.equal(tensors["body.blocks.0.norm.running_mean"], before["body.blocks.0.norm.running_mean"])


@pytest.mark.parametrize(
    ("body", "size", "wanted"),
    [
        *(("conv4", 32, 16), ("conv4", 16, 4), ("conv3", 28, 49), ("mobilenet", 32, 4), ("mobilenet", 16, 1)),
        *(("resnet18", 32, 16), ("resnet18", 8, 1), ("mlp", 8, sys.maxsize), ("squeezenet", 64, sys.maxsize)),
    ],
)
def test_smallest_map(body: str, size: int, wanted: int) -> None:
    with torch.device("meta"):
        made = make_body(body, (3, size, size))
        net = Network(made, LinearHead().build(made.features, 3, True))
    assert smallest_map(net, (3, size, size)) == wanted
