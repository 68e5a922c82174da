"""`Pixels`: images of one size, uint8 [n, H, W, C] with H × W pixels and C channels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from torso.data.augment import PixelLens
from torso.data.input_base import (
    CPU,
    Array,
    Input,
    as_array,
    axes,
    check_constants,
    plural,
    refuse_none,
    seeded_generator,
)
from torso.errors import RequestError
from torso.kinds import Count, FailFastTuple

_CHANNELS = 4  # most channels of usual images: red, green, blue, alpha


@dataclass(frozen=True)
class Pixels(Input):
    """Images of one size. `mean` and `std` are per channel, on the 0..1 scale (spec 10.6); empty: 0 and 1."""

    channels: Count
    height: Count
    width: Count
    mean: FailFastTuple[float] = ()
    std: FailFastTuple[float] = ()
    kind: Literal["pixels"] = "pixels"

    many: ClassVar[str] = "images"
    noun: ClassVar[str] = "images"
    stored: ClassVar[torch.dtype] = torch.uint8
    given: ClassVar[torch.dtype] = torch.float32

    @staticmethod
    def array(where: str, images: Any) -> Array:
        """Images of unknown origin and any size, checked, as uint8 [n, H, W, C]."""
        images = as_array(images)
        if images.dtype != np.uint8 or images.ndim not in {3, 4} or 0 in images.shape[1:]:
            raise RequestError(
                f"{where}: images are {images.dtype} {list(images.shape)}. "
                "Expected: uint8 (0 to 255), shape [n, height, width] or [n, height, width, channels]"
            )
        refuse_none(where, "images", images)
        if images.ndim == 4 and images.shape[1] in (1, 3) and min(images.shape[2:]) > _CHANNELS:
            raise RequestError(
                f"{where}: images are {list(images.shape)}, with {images.shape[1]} as their height: channels seem to "
                "come first. Expected: [n, height, width, channels], such as images.transpose(0, 2, 3, 1)"
            )
        return np.ascontiguousarray(images if images.ndim == 4 else images[..., None])

    @classmethod
    def of(cls, images: Array) -> Pixels:
        """The kind of stored images, without mean and std."""
        _, height, width, channels = images.shape
        return cls(channels, height, width)

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.channels, self.height, self.width

    @property
    def size(self) -> str:
        return f"{self.height}×{self.width} with {plural(self.channels, 'channel')}"

    @property
    def words(self) -> str:
        return f"images of {self.size}"

    @property
    def argument(self) -> str:
        return f"uint8 {axes((self.height, self.width, self.channels))}"

    @property
    def preparation(self) -> str:
        return (
            f"float32 {axes(self.shape)}, made from bytes as\n(x / 255 - mean) / std, per channel, "
            f"with mean {list(self.mean)} and std {list(self.std)}"
        )

    def lens(self, device: torch.device) -> PixelLens:
        return PixelLens.of(self.mean or (0.0,) * self.channels, self.std or (1.0,) * self.channels, device)

    def example(self, samples: int, device: torch.device = CPU) -> Tensor:
        if device.type == "meta":
            return torch.empty(samples, *self.shape, device=device)
        return torch.rand(samples, *self.shape, generator=seeded_generator()).to(device)

    def accept(self, where: str, samples: Any) -> Array:
        found = self.array(where, samples)
        wanted = (self.height, self.width, self.channels)
        if found.shape[1:] != wanted:
            raise RequestError(
                f"{where}: images are {list(found.shape)}. Expected: {axes(wanted)}, "
                "as those that the model was trained on"
            )
        return found

    def check_constants(self) -> None:
        check_constants(self.mean, self.std, self.channels, f"images of {self.channels} channels", "channel")
