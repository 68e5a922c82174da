"""Networks in float64 with a different set of weights for each of G clients."""

from __future__ import annotations

import torch

from torso.data.inputs import Pixels
from torso.nets import LinearHead, Network, Tensors, bodies, build
from torso.nets.bodies import kinds_of

OF_IMAGES = [name for name in sorted(bodies) if Pixels in kinds_of(bodies[name])]
DROPS = ["pfl-cnn", "rod-mnist-dropout"]  # Torso's own dropout, which needs keys: see test_dropout.py
LEAST = {
    "conv3": 8,
    "conv4": 16,
    "vgg11": 32,
    "rod-mnist": 16,
    "rod-mnist-dropout": 16,
    "rod-cifar": 18,
    "rod-cifar-wide": 18,
    "squeezenet": 17,
    "pfl-cnn": 6,
}
# BatchNorm over a handful of values magnifies rounding beyond any tight tolerance, so a 2 × 2 map is left at the end
SIZES = LEAST | {"efficientnet-lite0": 40, "mobilenet": 32, "resnet10": 16, "resnet18": 16, "resnet50": 16}


def small(body: str, classes: int = 3) -> tuple[Network, tuple[int, int, int]]:
    size = SIZES.get(body, 8)
    image = (2, size, size)
    return build(body, classes, image, LinearHead(), seed=1).double(), image


def spread(net: Network, clients: int, seed: int = 0) -> Tensors:
    """Stacked tensors [G, …] near the network's own. Nothing is symmetric, so that a mix-up of clients shows."""
    generator = torch.Generator().manual_seed(seed)

    def around(t: torch.Tensor) -> torch.Tensor:
        if not t.is_floating_point():
            return t.repeat(clients)
        noise = torch.randn(clients, *t.shape, generator=generator, dtype=torch.float32).to(t.dtype)
        return (t * (1 + 0.2 * noise) + (0.05 * noise.abs() if t.ndim == 1 else 0)).detach()

    return {name: around(t) for name, t in net.state_dict().items()}


def images(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
