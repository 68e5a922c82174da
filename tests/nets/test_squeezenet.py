"""SqueezeNet with torchvision's weights: a file with torchvision's names, and the layers written in plain PyTorch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from torso import Config
from torso.errors import RequestError
from torso.nets import bodies, build
from torso.nets.heads import LinearHead
from torso.results.body_weights import load_body
from torso.runs.job import simulate

FIRES = {3: (64, 16, 64), 4: (128, 16, 64), 6: (128, 32, 128), 7: (256, 32, 128)}
FIRES |= {9: (256, 48, 192), 10: (384, 48, 192), 11: (384, 64, 256), 12: (512, 64, 256)}  # torchvision's numbers


def theirs() -> dict[str, Tensor]:
    """Tensors with the names and shapes of torchvision's squeezenet1_1, including its head."""
    generator = torch.Generator().manual_seed(0)
    shapes: dict[str, tuple[int, ...]] = {"features.0": (64, 3, 3, 3)}
    for number, (inputs, few, many) in FIRES.items():
        shapes[f"features.{number}.squeeze"] = (few, inputs, 1, 1)
        shapes[f"features.{number}.expand1x1"] = (many, few, 1, 1)
        shapes[f"features.{number}.expand3x3"] = (many, few, 3, 3)
    shapes["classifier.1"] = (1000, 512, 1, 1)
    found = {}
    for name, shape in shapes.items():
        fan = shape[1] * shape[2] * shape[3]
        found[f"{name}.weight"] = torch.randn(shape, generator=generator) * (2 / fan) ** 0.5
        found[f"{name}.bias"] = 0.1 * torch.randn(shape[0], generator=generator)
    return found


def forward(t: dict[str, Tensor], x: Tensor) -> Tensor:
    """torchvision's features, and the mean over the map."""

    def conv(name: str, x: Tensor, **how: int) -> Tensor:
        return F.relu(F.conv2d(x, t[f"features.{name}.weight"], t[f"features.{name}.bias"], **how))

    x = F.max_pool2d(conv("0", x, stride=2), 3, 2, ceil_mode=True)
    for number in FIRES:
        few = conv(f"{number}.squeeze", x)
        x = torch.cat([conv(f"{number}.expand1x1", few), conv(f"{number}.expand3x3", few, padding=1)], 1)
        x = F.max_pool2d(x, 3, 2, ceil_mode=True) if number in (4, 7) else x
    return x.mean((2, 3))


def test_torchvisions_file_gives_torchvisions_features(tmp_path: Path) -> None:
    path = tmp_path / "squeezenet1_1-b8a52dc0.pth"
    torch.save(theirs(), path)
    net = build("squeezenet", 10, (3, 40, 40), LinearHead())
    model = {name: tensor.detach() for name, tensor in net.state_dict().items()}
    found = load_body(str(path), model, "squeezenet")
    assert sum(t.numel() for t in found.values()) == 722_496
    net.load_state_dict({**model, **found})
    x = torch.randn(2, 3, 40, 40, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(net.eval().features(x), forward(theirs(), x), rtol=1e-4, atol=1e-4)


def test_a_file_that_lacks_a_layer_is_refused_and_another_file_is_left_to_its_own_names(tmp_path: Path) -> None:
    few = {name: tensor for name, tensor in theirs().items() if not name.startswith("features.12")}
    torch.save(few, tmp_path / "few.pth")
    config = Config.load(
        None, ["data.source=synthetic", "data.synthetic.size=20", "data.synthetic.channels=3", "model.body=squeezenet"]
    )
    with pytest.raises(RequestError, match=r"it lacks body\.blocks\.8\.squeeze\.conv\.weight \[64, 512, 1, 1\]"):
        simulate(config.but(f"model.weights={tmp_path / 'few.pth'}"))
    torch.save({"body.blocks.0.conv.weight": torch.zeros(1)}, tmp_path / "own.pth")
    assert bodies["squeezenet"].weights(str(tmp_path / "own.pth")) is None  # type: ignore[attr-defined]
    assert bodies["squeezenet"].weights("/nowhere.pth") is None  # type: ignore[attr-defined]
