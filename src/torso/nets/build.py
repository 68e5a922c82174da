"""A network from its names and a seed."""

from __future__ import annotations

from typing import Literal

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from torso import randomness
from torso.nets.bodies import bodies
from torso.nets.heads import Head, head_inits
from torso.nets.layers import track
from torso.nets.network import Network


def build(
    body: str,
    classes: int,
    image: tuple[int, int, int],
    head: Head,
    *,
    head_init: str = "default",
    head_bias: bool = True,
    norm: Literal["default", "batch", "running"] = "default",
    seed: int = 0,
) -> Network:
    """A network on the CPU for images (C, H, W); its bits depend on the arguments alone.

    Body and head are drawn from keys of their own, so networks that differ in the head share the body's bits. The
    global random state is left as it was.
    """
    make, init = bodies[body], head_inits[head_init]
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(randomness.key(seed, "weights", "body"))
        made = make(*image)
        torch.default_generator.manual_seed(randomness.key(seed, "weights", "head"))
        top = head.build(made.features, classes, head_bias)
        with torch.no_grad():
            head.start(top, init, randomness.torch_generator(seed, "weights", "head", head_init))
    for module in made.modules():
        if norm != "default" and isinstance(module, _BatchNorm):
            track(module, norm == "running")
    return Network(made, top)
