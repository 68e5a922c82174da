"""Stored samples become network input, G × B of them in one batched tensor operation.

G clients, B samples, H × W pixels, C channels. Images are stored once as uint8 [n, H, W, C]; what comes out is float32
(or the lens's dtype) [G, B, C, H, W] whose memory is channels-last, which is the fast layout of the convolutions. Only
images are cropped and mirrored. Which lens a kind of input has: inputs.py.
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
    """Zero-pad by `pad` and crop back at a random place; mirror half of the images when `flip`."""

    pad: int = 0
    flip: bool = False
    about: str = ""

    @property
    def random(self) -> bool:
        return self.pad > 0 or self.flip


augmentations: Registry[Augmentation] = Registry("data.augment")
augmentations["auto"] = Augmentation(
    about="What the source is usually trained with: crop-flip for CIFAR, none elsewhere."
)
augmentations["none"] = Augmentation(about="Images as they are.")
augmentations["flip"] = Augmentation(flip=True, about="Mirror half of the images.")
augmentations["crop-flip"] = Augmentation(4, True, about="Pad by 4, crop, mirror (FedBABU, spec 10.6).")
augmentations["crop-flip-2"] = Augmentation(2, True, about="Pad by 2, crop, mirror (Fed-RoD, spec 10.6).")


@dataclass(frozen=True)
class Lens:
    """How stored samples [n, *] become input [G, B, *]: gathered as they are. Integers become int64.

    `dtype`: of floating-point input, and so of the activations: layers compute in the dtype of their input."""

    dtype: torch.dtype = field(default=torch.float32, kw_only=True)

    def look(
        self, samples: Tensor, index: Tensor, change: Augmentation | None = None, bits: Tensor | None = None
    ) -> Tensor:
        """The samples at index [G, B]. `bits` [G, B] decide how an augmentation changes each of them."""
        picked = samples[index]
        return picked.to(self.dtype if picked.is_floating_point() else torch.int64)

    def for_body(self, trims: bool) -> Lens:
        """The same for a body to which padding at the end of a sequence makes no difference (`trims`), or does."""
        return self

    def widths(self, samples: Tensor, order: Tensor, batch_size: int) -> list[int] | None:
        """How many columns of the samples each batch of an order [G, n] needs; None: all of them."""
        return None

    def by_length(self, samples: Tensor) -> Tensor | None:
        """The order [n] in which batches of the samples need the fewest columns; None: any."""
        return None


@dataclass(frozen=True)
class FeatureLens(Lens):
    """Features [n, d] are gathered as they are, in float32, from the device or from a file on the host."""

    def look(
        self, samples: Tensor, index: Tensor, change: Augmentation | None = None, bits: Tensor | None = None
    ) -> Tensor:
        return samples[index.to(samples.device)].to(index.device)


@dataclass(frozen=True)
class FloatLens(Lens):
    """(x − mean) / std, with `mean` and `std` in a shape that broadcasts to a sample's.

    `constants` are the same on the host: what a lens is compared by."""

    mean: Tensor = field(compare=False)
    std: Tensor = field(compare=False)
    constants: tuple[tuple[float, ...], ...]

    @classmethod
    def of(cls, mean: tuple[float, ...], std: tuple[float, ...], rank: int, device: torch.device) -> FloatLens:
        """Of samples of so many dimensions, with a mean and std for each entry of the first."""
        wide = (-1, *[1] * (rank - 1))
        first, second = (torch.tensor(each, device=device).view(wide) for each in (mean, std))
        return cls(first, second, (mean, std))

    def look(
        self, samples: Tensor, index: Tensor, change: Augmentation | None = None, bits: Tensor | None = None
    ) -> Tensor:
        return samples[index].sub_(self.mean).div_(self.std).to(self.dtype)


@dataclass(frozen=True)
class PixelLens(Lens):
    """(x / 255 − mean) / std, per channel, after the augmentation."""

    mean: Tensor = field(compare=False)  # those of the same stored images are the same
    std: Tensor = field(compare=False)

    @classmethod
    def of(cls, mean: Sequence[float], std: Sequence[float], device: torch.device) -> PixelLens:
        return cls(torch.tensor(mean, device=device) * 255, torch.tensor(std, device=device) * 255)

    def look(
        self, samples: Tensor, index: Tensor, change: Augmentation | None = None, bits: Tensor | None = None
    ) -> Tensor:
        """Images [n, H, W, C] at index [G, B] as input [G, B, C, H, W]; `bits` [G, B] decide crop and mirror."""
        change = Augmentation() if change is None or bits is None else change
        if is_fast(self.mean):
            from torso.data.look import look

            return look(samples, index, bits, change.pad, change.flip, self.mean, self.std, self.dtype)
        picked = samples[index] if bits is None or not change.random else _crop_and_flip(samples, index, change, bits)
        return picked.float().sub_(self.mean).div_(self.std).movedim(-1, 2).to(self.dtype)


def _crop_and_flip(images: Tensor, index: Tensor, change: Augmentation, bits: Tensor) -> Tensor:
    """One gather over pixels. Padding is black before normalisation, as torchvision's RandomCrop pads (spec 10.6)."""
    _, height, width, channels = images.shape
    places = 2 * change.pad + 1
    down = (bits & 0xFFFFF) % places - change.pad  # [G, B]; 20 bits for each offset, one further bit for the mirror
    right = ((bits >> 20) & 0xFFFFF) % places - change.pad
    rows = torch.arange(height, device=images.device) + down.unsqueeze(-1)  # [G, B, H]
    columns = torch.arange(width, device=images.device).expand(*bits.shape, width)
    if change.flip:
        mirror = ((bits >> 40) & 1).bool().unsqueeze(-1)
        columns = torch.where(mirror, width - 1 - columns, columns)
    columns = columns + right.unsqueeze(-1)  # [G, B, W]
    seen = _inside(rows, height).unsqueeze(-1) & _inside(columns, width).unsqueeze(-2)  # [G, B, H, W]
    row = index.unsqueeze(-1) * height + rows.clamp(0, height - 1)
    pixel = row.unsqueeze(-1) * width + columns.clamp(0, width - 1).unsqueeze(-2)
    picked = images.view(-1, channels).index_select(0, pixel.flatten()).view(*pixel.shape, channels)
    return picked * seen.unsqueeze(-1)


def _inside(place: Tensor, size: int) -> Tensor:
    return (place >= 0) & (place < size)
