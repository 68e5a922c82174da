"""Parts of a network: by structure, by predicate, joined and taken away; and frozen tensors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from torso.errors import RequestError
from torso.learn.phases import Phase, local_phases
from torso.nets import LinearHead, Network, body_of, build, learnable, part_names, set_modes, skeleton, split


class Adapted(nn.Module):
    """A network with a convolution, a norm and an adapter."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3)
        self.bn = nn.BatchNorm2d(2)
        self.plain = nn.BatchNorm2d(2, affine=False)
        self.adapter = nn.Linear(2, 2)
        self.fc = nn.Linear(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.plain(self.bn(self.conv(x))).mean((2, 3))
        return self.fc(x + self.adapter(x))  # type: ignore[no-any-return]


def is_adapter(name: str, layer: nn.Module) -> bool:
    return name.startswith("adapter.")


def is_bias(name: str, layer: nn.Module) -> bool:
    return name.endswith("bias")


def adapted(**parts: Any) -> Network:
    return split(Adapted(), example=torch.randn(2, 1, 5, 5), parts=parts)


BN = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")


def test_torsos_own_bodies_know_their_norm_layers() -> None:
    net = build("conv3", 3, (1, 8, 8), LinearHead())
    assert part_names(net, "norm") == tuple(f"body.blocks.{i}.norm.{n}" for i in range(3) for n in ("weight", "bias"))
    running = build("resnet8", 3, (1, 8, 8), LinearHead())
    assert [name for name in part_names(running, "norm") if name.startswith("body.blocks.0.")] == [
        f"body.blocks.0.norm.{n}" for n in BN
    ]
    assert part_names(running, "norm") == tuple(name for name in running.state_dict() if ".norm." in name)


def test_parts_are_joined_and_taken_away_from_left_to_right() -> None:
    net = build("conv3", 3, (1, 8, 8), LinearHead())
    convs = tuple(f"body.blocks.{i}.conv.{n}" for i in range(3) for n in ("weight", "bias"))
    assert part_names(net, "body-norm") == part_names(net, "all-norm-head") == part_names(net, "all - head - norm")
    assert part_names(net, "body-norm") == convs
    assert part_names(net, "blocks:1-norm+head") == (*convs[:2], "head.weight", "head.bias")
    assert part_names(net, "norm-body+norm") == part_names(net, "norm")
    assert part_names(net, "body-body") == ()


def test_predicates_choose_tensors_by_name_and_layer() -> None:
    net = adapted(adapter=is_adapter, linear=lambda name, layer: isinstance(layer, nn.Linear), bias=is_bias)
    assert part_names(net, "adapter") == ("body.module.adapter.weight", "body.module.adapter.bias")
    assert part_names(net, "linear") == part_names(net, "adapter")  # the predicate is not called with the head
    assert part_names(net, "norm") == tuple(
        [f"body.module.bn.{n}" for n in BN] + [f"body.module.plain.{n}" for n in BN[2:]]
    )
    own = body_of(Adapted(), parts={"norm": is_adapter}).own_parts()  # a network may define its own part norm
    assert own == {"norm": ("module.adapter.weight", "module.adapter.bias")}


def test_running_statistics_belong_to_their_layer() -> None:
    """A BatchNorm layer that learns updates its statistics, also if a part has only its bias or its weight."""
    net = adapted(bias=is_bias)
    statistics = [f"body.module.bn.{n}" for n in BN[2:]]
    for part, parameter in (("bias", "bias"), ("body-bias", "weight")):
        of_norm = [name for name in part_names(net, part) if name.startswith("body.module.bn.")]
        assert of_norm == [f"body.module.bn.{parameter}", *statistics]
        set_modes(net, part_names(net, part))
        assert net.body.get_submodule("module.bn").training
    assert not [name for name in part_names(net, "body-norm") if "bn" in name or "plain" in name]
    set_modes(net, part_names(net, "body-norm"))
    assert not net.body.get_submodule("module.bn").training


@pytest.mark.parametrize("name", ["body", "head", "all", "none", "blocks", "method", "lora", "a-b", "a+b", "b:1", ""])
def test_a_reserved_name_is_refused(name: str) -> None:
    with pytest.raises(
        RequestError, match=r"of Adapted: the name is reserved, or not an identifier\. Accepted: .* all, full"
    ):
        body_of(Adapted(), parts={name: is_adapter})


def test_a_part_without_tensors_is_refused() -> None:
    with pytest.raises(RequestError, match=r"parts = \{'prefix': …\} of Adapted is empty: .* conv\.weight, conv\.bias"):
        body_of(Adapted(), parts={"prefix": lambda name, layer: "prefix" in name})


@pytest.mark.parametrize("part", ["lora", "body-lora", "body+", "-norm", "body--norm", "body-blocks:9"])
def test_the_error_for_an_unknown_piece_lists_the_parts(part: str) -> None:
    with pytest.raises(RequestError, match=r"is unknown\. Accepted: all, full, body, head, none, norm, adapter, or b"):
        part_names(adapted(adapter=is_adapter), part)


def frozen_but_adapter() -> Network:
    module = Adapted()
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(name.startswith(("adapter.", "fc.")))
    return split(module, parts={"adapter": is_adapter})


def test_what_the_user_froze_is_frozen_everywhere() -> None:
    """Weights, and the running statistics of a layer whose weights are all frozen."""
    net = frozen_but_adapter()
    still = {name for name in net.state_dict() if ".conv." in name or ".bn." in name}
    assert net.frozen == still  # `plain` has no weights: it goes with the module, of which the adapter learns
    assert skeleton(net).frozen == net.frozen
    learns = ("body.module.adapter.weight", "body.module.adapter.bias", "head.weight", "head.bias")
    assert learnable(net, net.state_dict()) == learns
    (phase,) = local_phases(net, [Phase("all")], epochs=1, lr=0.1)
    assert tuple(phase.rates) == learns
    assert phase.moving == set(net.state_dict()) - still
    set_modes(net, phase.moving)
    assert not net.body.get_submodule("module.bn").training
    assert local_phases(net, [Phase("body-adapter")], epochs=1, lr=0.1) == ()


def test_statistics_of_a_layer_without_weights_go_with_what_is_around_it() -> None:
    module = nn.Sequential(
        nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2, affine=False)),
        nn.Flatten(),
        nn.Linear(8, 4),
        nn.Linear(4, 2),
    )
    module[0].requires_grad_(False)
    assert split(module).frozen == {f"body.module.0.{n}" for n in ("0.weight", "0.bias", *(f"1.{b}" for b in BN[2:]))}
    assert split(nn.Sequential(*module[1:])).frozen == frozenset()
    module[-1].requires_grad_(False)
    assert split(nn.Sequential(*module[1:])).frozen == {"head.weight", "head.bias"}
