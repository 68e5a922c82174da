"""SqueezeNet 1.1, the body of FedNCM (spec 11), and torchvision's weights for it."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor, nn

from torso.nets.blocks import Fire, Unit
from torso.nets.bodies import body
from torso.nets.body import Body
from torso.nets.weight_files import read_weights

_NAME = "squeezenet"
_STEM = "features.0"
_FIRES = (3, 4, 6, 7, 9, 10, 11, 12)  # indices of the fire modules among torchvision's features
_LAYERS = {"squeeze": "squeeze", "small": "expand1x1", "large": "expand3x3"}  # the name in `Fire` → torchvision's


@body(_NAME, least=17)
def squeezenet(channels: int, height: int, width: int) -> Body:
    """SqueezeNet 1.1: a strided stem and eight fire modules. It reads torchvision's weight file."""

    def pool() -> nn.Module:
        return nn.MaxPool2d(3, 2, ceil_mode=True)

    fires = [
        *(Fire(64, 16, 64), Fire(128, 16, 64, pool())),
        *(Fire(128, 32, 128), Fire(256, 32, 128, pool())),
        *(Fire(256, 48, 192), Fire(384, 48, 192), Fire(384, 64, 256), Fire(512, 64, 256)),
    ]
    return Body([Unit(channels, 64, 3, stride=2, padding=0, pool=pool()), *fires], 512, pool=True)


def _weights(path: str) -> dict[str, Tensor] | None:
    """The body's tensors from torchvision's weight file, by their names in this body; the head's are left out.

    None: the path is not that of torchvision's file."""
    if not Path(path).is_file():
        return None
    theirs = read_weights(Path(path), f"model.weights = {path!r}")
    if f"{_STEM}.weight" not in theirs:
        return None
    names = {_STEM: "blocks.0.conv"}
    for block, number in enumerate(_FIRES, start=1):
        for ours, layer in _LAYERS.items():
            names[f"features.{number}.{layer}"] = f"blocks.{block}.{ours}.conv"
    ours_of = {}
    for layer, ours in names.items():
        for leaf in ("weight", "bias"):
            ours_of[f"{layer}.{leaf}"] = f"{ours}.{leaf}"
    return {ours_of.get(name, name): tensor for name, tensor in theirs.items() if not name.startswith("classifier.")}


squeezenet.weights = _weights  # type: ignore[attr-defined]
