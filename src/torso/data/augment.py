"""Lenses turn stored samples into network input, G × B samples in one batched tensor operation; augmentations.

G clients, B samples, H × W pixels, C channels. Images are stored once as uint8 [n, H, W, C]. The input is float32 (or
the lens's dtype) [G, B, C, H, W] in channels-last memory, the fast layout of convolutions. Only images are cropped and
mirrored. Each kind of input has its own lens (`Input.lens`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from torso.fast import is_fast
from torso.registry import Registry


@dataclass(frozen=True)
class Augmentation:
    """A random change of images: pad with zeros by `pad` pixels and crop back at a random place; mirror half of the
    images if `flip`."""

    pad: int = 0
    flip: bool = False
    about: str = ""  # for lists

    @property
    def random(self) -> bool:
        """Whether it changes images at all, and so needs random bits."""
        return self.pad > 0 or self.flip


augmentations: Registry[Augmentation] = Registry("data.augment")
augmentations["auto"] = Augmentation(
    about="The usual augmentation of the source: crop-flip for CIFAR, none for others."
)
augmentations["none"] = Augmentation(about="Leave the images unchanged.")
augmentations["flip"] = Augmentation(flip=True, about="Mirror half of the images.")
augmentations["crop-flip"] = Augmentation(4, True, about="Pad by 4, crop, mirror (FedBABU, spec 10.6).")
augmentations["crop-flip-2"] = Augmentation(2, True, about="Pad by 2, crop, mirror (Fed-RoD, spec 10.6).")


@dataclass(frozen=True)
class Lens:
    """Turns stored samples [n, *] into input [G, B, *]. This base class only gathers them; integers become int64.

    `dtype`: of floating-point input, and so of the activations, because layers compute in the dtype of their input."""

    dtype: torch.dtype = field(default=torch.float32, kw_only=True)

    def look(
        self, samples: Tensor, index: Tensor, change: Augmentation | None = None, bits: Tensor | None = None
    ) -> Tensor:
        """The network input of the samples at index [G, B]. `bits` [G, B] decide how the augmentation `change` alters
        each of them."""
        picked = samples[index]
        return picked.to(self.dtype if picked.is_floating_point() else torch.int64)

    def for_body(self, trims: bool) -> Lens:
        """The lens for a body. `trims`: padding at the end of a sequence does not change the body's output, so the lens
        may leave it out."""
        return self

    def widths(self, samples: Tensor, order: Tensor, batch_size: int) -> list[int] | None:
        """The number of columns (tokens) that each batch of an order [G, n] needs; None: all columns."""
        return None

    def by_length(self, samples: Tensor) -> Tensor | None:
        """The order [n] of the samples in which batches need the fewest columns; None: any order."""
        return None


@dataclass(frozen=True)
class FeatureLens(Lens):
    """The lens of precomputed features [n, d]: gathers them in float32, from the device or from a file on the host."""

    def look(
        self, samples: Tensor, index: Tensor, change: Augmentation | None = None, bits: Tensor | None = None
    ) -> Tensor:
        return samples[index.to(samples.device)].to(index.device)


@dataclass(frozen=True)
class FloatLens(Lens):
    """The lens of arrays of numbers: (x − mean) / std, with `mean` and `std` in a shape that broadcasts to a sample.

    `constants` are mean and std on the host, by which lenses are compared."""

    mean: Tensor = field(compare=False)
    std: Tensor = field(compare=False)
    constants: tuple[tuple[float, ...], ...]

    @classmethod
    def of(cls, mean: tuple[float, ...], std: tuple[float, ...], rank: int, device: torch.device) -> FloatLens:
        """The lens of samples with `rank` dimensions, with a mean and std for each entry of the first dimension."""
        shape = (-1, *[1] * (rank - 1))
        mean_tensor = torch.tensor(mean, device=device).view(shape)
        std_tensor = torch.tensor(std, device=device).view(shape)
        return cls(mean_tensor, std_tensor, (mean, std))

    def look(
        self, samples: Tensor, index: Tensor, change: Augmentation | None = None, bits: Tensor | None = None
    ) -> Tensor:
        return samples[index].sub_(self.mean).div_(self.std).to(self.dtype)


@dataclass(frozen=True)
class PixelLens(Lens):
    """The lens of images: the augmentation, then (x / 255 − mean) / std per channel."""

    mean: Tensor = field(compare=False)  # [C], times 255; not compared: the same stored images have the same constants
    std: Tensor = field(compare=False)  # [C], times 255

    @classmethod
    def of(cls, mean: Sequence[float], std: Sequence[float], device: torch.device) -> PixelLens:
        return cls(torch.tensor(mean, device=device) * 255, torch.tensor(std, device=device) * 255)

    def look(
        self, samples: Tensor, index: Tensor, change: Augmentation | None = None, bits: Tensor | None = None
    ) -> Tensor:
        """The input [G, B, C, H, W] of images [n, H, W, C] at index [G, B]; `bits` [G, B] decide crop and mirror."""
        if change is None or bits is None:
            change = Augmentation()
        if is_fast(self.mean):
            from torso.data.look import look

            return look(samples, index, bits, change.pad, change.flip, self.mean, self.std, self.dtype)
        picked = samples[index] if bits is None or not change.random else _crop_and_flip(samples, index, change, bits)
        return picked.float().sub_(self.mean).div_(self.std).movedim(-1, 2).to(self.dtype)


def _crop_and_flip(images: Tensor, index: Tensor, change: Augmentation, bits: Tensor) -> Tensor:
    """The images at index [G, B], cropped and mirrored, in one gather of pixels. Padding is black before normalisation,
    as in torchvision's RandomCrop (spec 10.6)."""
    _, height, width, channels = images.shape
    places = 2 * change.pad + 1
    down = (bits & 0xFFFFF) % places - change.pad  # [G, B]; 20 bits for each offset, one more bit for mirroring
    right = ((bits >> 20) & 0xFFFFF) % places - change.pad
    rows = torch.arange(height, device=images.device) + down.unsqueeze(-1)  # [G, B, H]
    columns = torch.arange(width, device=images.device).expand(*bits.shape, width)
    if change.flip:
        mirror = ((bits >> 40) & 1).bool().unsqueeze(-1)
        columns = torch.where(mirror, width - 1 - columns, columns)
    columns = columns + right.unsqueeze(-1)  # [G, B, W]
    inside = _inside(rows, height).unsqueeze(-1) & _inside(columns, width).unsqueeze(-2)  # [G, B, H, W]; not padding
    row = index.unsqueeze(-1) * height + rows.clamp(0, height - 1)
    pixel = row.unsqueeze(-1) * width + columns.clamp(0, width - 1).unsqueeze(-2)
    picked = images.view(-1, channels).index_select(0, pixel.flatten()).view(*pixel.shape, channels)
    return picked * inside.unsqueeze(-1)


def _inside(place: Tensor, size: int) -> Tensor:
    return (place >= 0) & (place < size)
