"""What somebody must know of a trained model who has nothing else of its run.

n images, H × W pixels, C channels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from torso.data.augment import Lens
from torso.data.images import Images, as_images
from torso.errors import RequestError
from torso.kinds import Count, CountOrZero


@dataclass(frozen=True)
class Card:
    """`kind`: the generic model, a client's personal one, the one it holds before that, or one of a client that came
    later; `client`: whose, where it has a number."""

    method: str
    dataset: str
    body: str
    head: Mapping[str, Any]  # the axis `method.head`: its name and options
    head_bias: bool
    norm: Literal["default", "batch", "running"]
    classes: Count
    image: tuple[Count, Count, Count]  # channels, height, width
    mean: tuple[float, ...]  # per channel, on the 0..1 scale
    std: tuple[float, ...]
    batch_statistics: bool  # whether BatchNorm goes by the batch: then an answer depends on the company
    kind: Literal["generic", "personal", "held", "newcomer"]
    torso: str  # version
    client: CountOrZero | None = None

    def __post_init__(self) -> None:
        channels = self.image[0]
        whole = all(math.isfinite(value) for value in (*self.mean, *self.std))
        if len(self.mean) != channels or len(self.std) != channels or not whole or min(self.std) <= 0:
            raise RequestError(
                f"mean = {list(self.mean)}, std = {list(self.std)} for images of {channels} channels. "
                "Expected: one of each per channel, std above 0"
            )

    def samples(self, where: str, images: Any, labels: Any) -> Images:
        """Labelled images of unknown origin, which must fit the model; `where` is how a message calls them."""
        found = as_images(where, images, labels)
        channels, height, width = self.image
        if found.images.shape[1:] != (height, width, channels):
            raise RequestError(
                f"{where}: images are {list(found.images.shape)}. Expected: [n, {height}, {width}, {channels}], "
                "as those that the model was trained on"
            )
        strange = [label for label in found.labels.tolist() if not 0 <= label < self.classes]
        if strange:
            raise RequestError(f"{where}: label {strange[0]} is not a class. Expected: 0 to {self.classes - 1}")
        return found

    def prepare(self, images: Any, device: torch.device) -> Tensor:
        """uint8 images as the network's input [n, C, H, W]: as in evaluation, never augmented."""
        pixels = torch.from_numpy(self.samples("images", images, [0] * len(images)).images).to(device)
        every = torch.arange(len(pixels), device=device).unsqueeze(0)
        return Lens.of(self.mean, self.std, device).look(pixels, every)[0]
