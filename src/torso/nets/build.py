"""A network from its names and a seed."""

from __future__ import annotations

import copy
from typing import Literal

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from torso import randomness
from torso.errors import RequestError, from_outside
from torso.nets.bodies import bodies
from torso.nets.draws import Watching
from torso.nets.heads import Head, head_inits
from torso.nets.layers import track
from torso.nets.network import Body, Network
from torso.nets.split import ForeignBody, check_evaluation
from torso.registry import is_foreign


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
    init = head_inits[head_init]
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(randomness.key(seed, "weights", "body"))
        made = make_body(body, image)
        torch.default_generator.manual_seed(randomness.key(seed, "weights", "head"))
        top = head.build(made.features, classes, head_bias)
        with torch.no_grad():
            head.start(top, init, randomness.torch_generator(seed, "weights", "head", head_init))
        if is_foreign(bodies[body]):
            try_out(made, f"model.body = {body!r}", torch.rand(2, *image))
    for module in made.modules():
        if norm != "default" and isinstance(module, _BatchNorm):
            track(module, norm == "running")
    return Network(made, top)


def make_body(name: str, image: tuple[int, int, int]) -> Body:
    """The body of a name for images (C, H, W)."""
    channels, height, width = image
    what = f"model.body = {name!r} for images of {height}×{width} with {channels} channel{'s' if channels > 1 else ''}"
    with from_outside(what, "a function of (channels, height, width) that returns a Body"):
        made = bodies[name](*image)
    if not isinstance(made, Body):
        raise RequestError(
            f"model.body = {name!r} gave {type(made).__name__}. Expected: a torso.nets.Body; "
            "torso.nets.body_of(module) makes one of an nn.Module"
        )
    return made


def try_out(body: Body, where: str, example: Tensor) -> None:
    """Let somebody's own body look at images [B, C, H, W]: it must give as many features as it says."""
    with from_outside(where, "a body that takes images [G, B, channels, height, width]"), torch.no_grad():
        if isinstance(body, ForeignBody):
            body.check_split(where, example)
        with Watching() as seen:
            found = copy.deepcopy(body).eval()(example[None])
        check_evaluation(seen, where)
    if found.shape != (1, len(example), body.features):
        raise RequestError(
            f"{where} gives {list(found.shape)} for {len(example)} images of one client. "
            f"Expected: [1, {len(example)}, {body.features}], since it says features = {body.features}"
        )
