"""conv4 and mobilenet in plain PyTorch: the networks of the bare loop."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


def norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, track_running_stats=False)


class Separable(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, inputs, 3, stride, 1, groups=inputs, bias=False)
        self.bn1 = norm(inputs)
        self.conv2 = nn.Conv2d(inputs, outputs, 1, bias=False)
        self.bn2 = norm(outputs)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))


def conv4(classes: int = 10) -> nn.Module:
    layers: list[nn.Module] = []
    for inputs in (3, 64, 64, 64):
        layers += [nn.Conv2d(inputs, 64, 3, padding=1), norm(64), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(256, classes))


def mobilenet(classes: int = 10) -> nn.Module:
    shapes = [(64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5, (1024, 2), (1024, 1)]
    layers: list[nn.Module] = [nn.Conv2d(3, 32, 3, 1, 1, bias=False), norm(32), nn.ReLU()]
    inputs = 32
    for outputs, stride in shapes:
        layers.append(Separable(inputs, outputs, stride))
        inputs = outputs
    return nn.Sequential(*layers, nn.AvgPool2d(2), nn.Flatten(), nn.Linear(1024, classes))


NETWORKS = {"conv4": conv4, "mobilenet": mobilenet}
