"""Common corruptions of images, with the severities of CIFAR-10-C, in plain tensor operations (spec 9.12).

n images, C channels, H × W pixels. Images are float32 [n, C, H, W] from 0 to 1. Random numbers come from one key for
each image, so they are the same on every device and engine.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from torso.data.batches import Deck
from torso.randomness import key, random_bits
from torso.registry import Registry

Corruption = Callable[[Tensor, int, Tensor], Tensor]
"""(images, severity 1 to 5, keys [n]) → corrupted images, not yet clamped to 0..1."""
corruptions: Registry[Corruption] = Registry("measure.corruptions")
SEVERITIES = (1, 2, 3, 4, 5)
_MOST_VALUES = 2**22  # most values of images that are corrupted together: random bits take eight bytes for each value


def corrupted(deck: Deck, name: str, severity: int, seed: int) -> Deck:
    """A deck of the same clients with corrupted copies of their images, rounded to 8 bits."""
    corrupt = corruptions[name]
    device = deck.index.device
    each = np.array([key(seed, "corruption", name, severity, client) for client in deck.clients], dtype=np.int64)
    keys = random_bits(torch.from_numpy(each).to(device), deck.index.shape[1])  # [G, n]
    rows = torch.cat([row[:size] for row, size in zip(deck.index, deck.sizes, strict=True)])
    seeds = torch.cat([row[:size] for row, size in zip(keys, deck.sizes, strict=True)])
    made = torch.empty(len(rows), *deck.samples.shape[1:], dtype=torch.uint8, device=device)  # [N, H, W, C]
    block = max(1, _MOST_VALUES // math.prod(deck.samples.shape[1:]))
    for start in range(0, len(rows), block):
        some = slice(start, start + block)
        images = deck.samples[rows[some]].movedim(-1, 1).float() / 255
        changed = corrupt(images, severity, seeds[some]).clamp(0, 1)
        made[some] = (255 * changed).round().to(torch.uint8).movedim(1, -1)
    places = torch.split(torch.arange(len(rows), device=device), list(deck.sizes))
    return Deck.of(made, deck.labels[rows], places, deck.clients)


def _uniform(bits: Tensor, shift: int) -> Tensor:
    """Numbers in [0, 1) from 24 of the bits."""
    return ((bits >> shift) & 0xFFFFFF).float() / 2**24


def uniform(like: Tensor, keys: Tensor) -> Tensor:
    """A uniform random number in [0, 1) for each value of the images."""
    return _uniform(random_bits(keys, like[0].numel()), 39).view_as(like)


def normal(like: Tensor, keys: Tensor) -> Tensor:
    """A standard normal random number for each value of the images (Box and Muller)."""
    bits = random_bits(keys, like[0].numel())
    radius = (-2 * (1 - _uniform(bits, 39)).log()).sqrt()
    return (radius * (2 * math.pi * _uniform(bits, 15)).cos()).view_as(like)


@corruptions.register("gaussian-noise")
def gaussian_noise(images: Tensor, severity: int, keys: Tensor) -> Tensor:
    """Normal noise of standard deviation 0.04 to 0.10."""
    return images + (0.04, 0.06, 0.08, 0.09, 0.10)[severity - 1] * normal(images, keys)


@corruptions.register("shot-noise")
def shot_noise(images: Tensor, severity: int, keys: Tensor) -> Tensor:
    """Normal noise of variance x/c, with c from 500 to 50: the limit of Poisson noise for large c."""
    return images + (images / (500, 250, 100, 75, 50)[severity - 1]).sqrt() * normal(images, keys)


@corruptions.register("impulse-noise")
def impulse_noise(images: Tensor, severity: int, keys: Tensor) -> Tensor:
    """A share of the values, 1 % to 7 %, becomes 0 or 1."""
    drawn, share = uniform(images, keys), (0.01, 0.02, 0.03, 0.05, 0.07)[severity - 1]
    return torch.where(drawn < share / 2, 0.0, torch.where(drawn < share, 1.0, images))


@corruptions.register("blur")
def blur(images: Tensor, severity: int, keys: Tensor) -> Tensor:
    """Gaussian blur of standard deviation 0.4 to 1 pixels; pixels outside repeat the border."""
    sigma = (0.4, 0.6, 0.7, 0.8, 1.0)[severity - 1]
    reach = math.ceil(4 * sigma)
    steps = torch.arange(-reach, reach + 1, device=images.device, dtype=images.dtype)
    weights = (-0.5 * (steps / sigma).square()).softmax(dim=0)
    wide = F.pad(images, (reach, reach, reach, reach), mode="replicate")
    wide = torch.stack([w * wide[..., i : i + images.shape[-1]] for i, w in enumerate(weights)]).sum(dim=0)
    return torch.stack([w * wide[..., i : i + images.shape[-2], :] for i, w in enumerate(weights)]).sum(dim=0)


@corruptions.register("brightness")
def brightness(images: Tensor, severity: int, keys: Tensor) -> Tensor:
    """Brighter pixels: 0.05 to 0.3 is added to a pixel's value, its largest channel; hue and saturation do not
    change."""
    value = images.amax(dim=1, keepdim=True)
    lighter = (value + (0.05, 0.1, 0.15, 0.2, 0.3)[severity - 1]).clamp(max=1)
    return torch.where(value > 0, images * (lighter / value.clamp(min=1e-6)), lighter)


@corruptions.register("contrast")
def contrast(images: Tensor, severity: int, keys: Tensor) -> Tensor:
    """Less contrast: 0.75 to 0.15 of the difference to the image's mean remains, per channel."""
    mean = images.mean(dim=(2, 3), keepdim=True)
    return mean + (0.75, 0.5, 0.4, 0.3, 0.15)[severity - 1] * (images - mean)


@corruptions.register("pixelate")
def pixelate(images: Tensor, severity: int, keys: Tensor) -> Tensor:
    """Coarser pixels: the image is scaled to 0.95 to 0.65 of its height and width by means over areas, and back by the
    nearest of them."""
    share = (0.95, 0.9, 0.85, 0.75, 0.65)[severity - 1]
    down, across = (_areas(side, max(int(side * share), 1), images) for side in images.shape[2:])
    return F.interpolate(down @ images @ across.T, size=images.shape[2:], mode="nearest-exact")


def _areas(size: int, fewer: int, like: Tensor) -> Tensor:
    """A matrix [fewer, size] that takes the means over `fewer` equal parts of a line of `size` pixels."""
    cuts = torch.arange(fewer + 1, device=like.device, dtype=like.dtype).unsqueeze(1) * (size / fewer)
    pixel = torch.arange(size, device=like.device, dtype=like.dtype)
    shared = torch.minimum(cuts[1:], pixel + 1) - torch.maximum(cuts[:-1], pixel)
    return shared.clamp(min=0) * (fewer / size)
