"""The networks of bench/foreign.py: of other libraries if they are installed, else similar ones in plain PyTorch."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn


class Basic(nn.Module):
    """ResNet's basic block, as torchvision has it."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        short = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
        self.downsample = short if stride > 1 else None

    def forward(self, x: Tensor) -> Tensor:
        kept = x if self.downsample is None else self.downsample(x)
        x = self.relu(self.bn1(self.conv1(x)))
        return self.relu(self.bn2(self.conv2(x)) + kept)  # type: ignore[no-any-return]


def resnet18(size: int) -> nn.Module:
    """torchvision's ResNet18."""
    try:
        from torchvision.models import resnet18 as theirs
    except (ImportError, RuntimeError):
        widths = [(64, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1)]
        widths += [(128, 256, 2), (256, 256, 1), (256, 512, 2), (512, 512, 1)]
        stem = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
        blocks = [Basic(*width) for width in widths]
        return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))
    return theirs(num_classes=10)  # type: ignore[no-any-return]


class Vit(nn.Module):
    """A vision transformer like torchvision's, without dropout."""

    def __init__(self, size: int, patch: int, width: int, heads: int, depth: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.cls = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(torch.randn(1, (size // patch) ** 2 + 1, width) * 0.02)
        layer = {"dropout": 0.0, "activation": "gelu", "batch_first": True, "norm_first": True}
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, heads, 4 * width, **layer)  # type: ignore[arg-type]
            for _ in range(depth)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], dim=1) + self.places
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x)[:, 0])  # type: ignore[no-any-return]


def vit(size: int) -> nn.Module:
    """A small ViT (ViT-S/16: width 384, 6 heads, 12 layers)."""
    return Vit(size, 16, 384, 6, 12)


class LinearLast(nn.Module):
    """EfficientNet-lite0 as its authors have it, with its linear layer as the last that is registered. `drops`: blocks
    and features are dropped at random in training, as theirs are; what draws random numbers is not compiled."""

    def __init__(self, size: int, drops: bool = True) -> None:
        super().__init__()
        from efficientnet_lite_pytorch import EfficientNet

        without = {"drop_connect_rate": 0.0, "dropout_rate": 0.0}
        self.body = EfficientNet.from_name("efficientnet-lite0", **({} if drops else without))
        self.body._fc = nn.Identity()
        self.fc = nn.Linear(1280, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.body(x))  # type: ignore[no-any-return]


NETS: dict[str, tuple[Callable[[int], nn.Module], int]] = {
    "efficientnet-lite0": (LinearLast, 128),
    "efficientnet-lite0-still": (lambda size: LinearLast(size, drops=False), 128),
    "resnet18": (resnet18, 128),
    "vit-s": (vit, 224),
}
"""Name → how it is made for images of a size, and the size."""
