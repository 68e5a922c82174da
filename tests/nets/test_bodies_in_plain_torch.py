"""Bodies against plain PyTorch, written from the tables of spec 11: strides, pools, order of layers, shortcuts.

Counts of parameters do not test strides. The plain network takes its tensors in the order in which Torso's has them.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from torso.nets.bodies import bodies


def conv(inputs: int, outputs: int, kernel: int = 3, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    """A convolution without a bias, then BatchNorm."""
    return [
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
    ]


def conv_net(channels: int, depth: int) -> nn.Module:
    layers: list[nn.Module] = []
    for inputs in (channels, *[64] * (depth - 1)):
        layers += [nn.Conv2d(inputs, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten())


def mobilenet() -> nn.Module:
    layers, inputs = [*conv(3, 32), nn.ReLU()], 32
    plan = [(64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5, (1024, 2), (1024, 1)]
    for outputs, stride in plan:
        layers += [*conv(inputs, inputs, 3, stride, inputs), nn.ReLU(), *conv(inputs, outputs, 1), nn.ReLU()]
        inputs = outputs
    return nn.Sequential(*layers, nn.AvgPool2d(2), nn.Flatten())


class Block(nn.Module):
    """A basic or bottleneck block."""

    def __init__(self, inputs: int, width: int, stride: int, bottleneck: bool, free: bool) -> None:
        super().__init__()
        outputs = width * (4 if bottleneck else 1)
        if bottleneck:
            wide = [*conv(width, width, 3, stride), nn.ReLU()]
            path = [*conv(inputs, width, 1), nn.ReLU(), *wide, *conv(width, outputs, 1)]
        else:
            path = [*conv(inputs, width, 3, stride), nn.ReLU(), *conv(width, width)]
        self.path = nn.Sequential(*path)
        self.same = stride == 1 and inputs == outputs
        self.stride, self.missing = stride, outputs - inputs
        self.shortcut = None if self.same or free else nn.Sequential(*conv(inputs, outputs, 1, stride))

    def forward(self, x: Tensor) -> Tensor:
        if self.shortcut is not None:
            return torch.relu(self.path(x) + self.shortcut(x))
        if self.same:
            return torch.relu(self.path(x) + x)
        thin = x[:, :, :: self.stride, :: self.stride]
        more = thin.new_zeros(len(thin), self.missing, *thin.shape[2:])
        return torch.relu(self.path(x) + torch.cat([thin, more], dim=1))


def resnet(widths: Sequence[int], depths: Sequence[int], bottleneck: bool = False, free: bool = False) -> nn.Module:
    layers, inputs = [*conv(3, widths[0]), nn.ReLU()], widths[0]
    for stage, (width, depth) in enumerate(zip(widths, depths, strict=True)):
        for place in range(depth):
            layers.append(Block(inputs, width, 2 if stage and not place else 1, bottleneck, free))
            inputs = width * (4 if bottleneck else 1)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())


def vgg11() -> nn.Module:
    layers, inputs = list[nn.Module](), 3
    for outputs in (64, "M", 128, "M", 256, 256, "M", 512, 512, "M", 512, 512, "M"):
        if isinstance(outputs, str):
            layers.append(nn.MaxPool2d(2))
        else:
            layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU()]
            inputs = outputs
    dense = (nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU())
    return nn.Sequential(*layers, nn.Flatten(), *dense)


def rod_mnist() -> nn.Module:
    first = (nn.Conv2d(1, 32, 5), nn.ReLU(), nn.MaxPool2d(2))
    return nn.Sequential(
        *first, nn.Conv2d(32, 64, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(1024, 50), nn.ReLU()
    )


def rod_cifar() -> nn.Module:
    first = (nn.Conv2d(3, 32, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2))
    return nn.Sequential(*first, nn.Conv2d(64, 64, 3), nn.ReLU(), nn.Flatten(), nn.Linear(1024, 64), nn.ReLU())


class Fire(nn.Module):
    def __init__(self, inputs: int, squeeze: int, expand: int) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(inputs, squeeze, 1)
        self.small = nn.Conv2d(squeeze, expand, 1)
        self.large = nn.Conv2d(squeeze, expand, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.squeeze(x))
        return torch.cat([torch.relu(self.small(x)), torch.relu(self.large(x))], dim=1)


def squeezenet() -> nn.Module:
    def pool() -> nn.Module:
        return nn.MaxPool2d(3, 2, ceil_mode=True)

    start = (nn.Conv2d(3, 64, 3, 2), nn.ReLU(), pool(), Fire(64, 16, 64), Fire(128, 16, 64), pool())
    middle = (Fire(128, 32, 128), Fire(256, 32, 128), pool())
    end = (Fire(256, 48, 192), Fire(384, 48, 192), Fire(384, 64, 256), Fire(512, 64, 256))
    return nn.Sequential(*start, *middle, *end, nn.AdaptiveAvgPool2d(1), nn.Flatten())


WIDE, NARROW = (64, 128, 256, 512), (16, 32, 64)
PLAIN = {
    "conv3": (lambda: conv_net(1, 3), (1, 28, 28)),
    "conv4": (lambda: conv_net(3, 4), (3, 32, 32)),
    "mobilenet": (mobilenet, (3, 32, 32)),
    "resnet8": (lambda: resnet(NARROW, (1, 1, 1), free=True), (3, 32, 32)),
    "resnet8-conv": (lambda: resnet(NARROW, (1, 1, 1)), (3, 32, 32)),
    "resnet20": (lambda: resnet(NARROW, (3, 3, 3), free=True), (3, 32, 32)),
    "resnet20-conv": (lambda: resnet(NARROW, (3, 3, 3)), (3, 32, 32)),
    "resnet10": (lambda: resnet(WIDE, (1, 1, 1, 1)), (3, 32, 32)),
    "resnet18": (lambda: resnet(WIDE, (2, 2, 2, 2)), (3, 32, 32)),
    "resnet50": (lambda: resnet(WIDE, (3, 4, 6, 3), bottleneck=True), (3, 32, 32)),
    "vgg11": (vgg11, (3, 32, 32)),
    "rod-mnist": (rod_mnist, (1, 28, 28)),
    "rod-cifar": (rod_cifar, (3, 32, 32)),
    "squeezenet": (squeezenet, (3, 90, 90)),
}


@pytest.mark.parametrize("name", PLAIN)
def test_features_are_those_of_plain_layers(name: str) -> None:
    """In training mode, where every BatchNorm uses the batch's statistics. Offsets that are not 0 would show an order
    of layers that differs from Torso's."""
    make, shape = PLAIN[name]
    torch.manual_seed(0)
    ours, plain = bodies[name](*shape), make()
    with torch.no_grad():
        for tensor in ours.parameters():
            if tensor.ndim == 1:
                tensor.add_(0.2 * torch.randn(len(tensor)))
        for theirs, tensor in zip(plain.parameters(), ours.parameters(), strict=True):
            theirs.copy_(tensor)
        x = torch.rand(3, *shape)
        found, expected = ours.train()(x[None])[0], plain.train()(x)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)
