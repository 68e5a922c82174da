"""`build`: a network from the names of its body and head, and a seed."""

from __future__ import annotations

import copy
from contextlib import AbstractContextManager, nullcontext
from typing import Literal

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from torso import randomness
from torso.data.inputs import Input, Pixels, as_input
from torso.errors import RequestError, running_user_code
from torso.nets.adapters import adapt, try_once
from torso.nets.bodies import GIVEN, bodies, is_of_input, kinds_of
from torso.nets.body import Body
from torso.nets.draws import DrawDetector
from torso.nets.heads import Head, head_inits
from torso.nets.layers import track
from torso.nets.lora import Lora
from torso.nets.network import Network
from torso.nets.split import ForeignBody, check_evaluation
from torso.registry import is_foreign


def build(
    body: str,
    classes: int,
    input: Input | tuple[int, int, int],
    head: Head,
    *,
    head_init: str = "default",
    head_bias: bool = True,
    norm: Literal["default", "batch", "running"] = "default",
    seed: int = 0,
    source: str = "",
    lora: Lora | None = None,
) -> Network:
    """A network on the CPU for a kind of input, or for images (C, H, W). Its bits depend on the arguments alone.

    Body and head are drawn from different keys, so networks that differ in the head have the same bits in the body. The
    global random state is left as it was. `source`: the name of the data, for error messages. `lora`: the body is
    frozen and gets adapters.
    """
    input = as_input(input)
    _check_given(body, head_init)
    init = head_inits[head_init]
    with torch.random.fork_rng(devices=[]), _on_cpu():
        torch.default_generator.manual_seed(randomness.key(seed, "weights", "body"))
        made = make_body(body, input, source)
        torch.default_generator.manual_seed(randomness.key(seed, "weights", "head"))
        top = head.build(made.features, classes, head_bias)
        with torch.no_grad():
            head.start(top, init, randomness.torch_generator(seed, "weights", "head", head_init))
        if is_foreign(bodies[body]) or not made.native:
            try_out(made, f"model.body = {body!r}", input, getattr(bodies[body], "instead", ""))
    for module in made.modules():
        if norm != "default" and isinstance(module, _BatchNorm):
            track(module, norm == "running")
    if lora is not None:
        adapt(made, lora, seed, f"model.body = {body!r}")
        try_once(made, input)
    return Network(made, top, input)


def _on_cpu() -> AbstractContextManager[object]:
    """A context in which new tensors are on the CPU.

    If they are by default, the context does nothing: one that sets a device makes every call of torch slower."""
    cpu = torch.device("cpu")
    return nullcontext() if torch.get_default_device() == cpu else cpu


def _check_given(*names: str) -> None:
    """Refuse the name of a module that a program has handed over (given.py) and that is no longer registered."""
    for name in names:
        if name.startswith(GIVEN) and name not in bodies:
            raise RequestError(
                f"model.body = {name!r}: the network of this run was a module of a program, and is not here. Hand it "
                "over again: torso.run(config, model=…), torso.load(folder, model=…), torso.load_model(path, model=…)"
            )


def make_body(name: str, input: Input | tuple[int, int, int], source: str = "") -> Body:
    """The body that is registered under a name, for a kind of input, or for images (C, H, W)."""
    input = as_input(input)
    make = bodies[name]
    if not isinstance(input, kinds_of(make)):
        others = [other for other in sorted(bodies) if isinstance(input, kinds_of(bodies[other]))]
        taken = " or ".join(kind.many for kind in kinds_of(make))
        data = f"data.source = {source!r} gives" if source else "the data are"
        raise RequestError(
            f"model.body = {name!r} takes {taken}, and {data} {input.words}. Accepted: {', '.join(others)}"
        )
    wanted = _OF_IMAGES
    if is_of_input(make):
        wanted = f"an Input ({', '.join(kind.__name__ for kind in kinds_of(make))})"
    with running_user_code(f"model.body = {name!r} for {input.words}", f"a function of {wanted} that returns a Body"):
        made = make(input) if is_of_input(make) else make(*input.shape)
    if not isinstance(made, Body):
        raise RequestError(
            f"model.body = {name!r} gave {type(made).__name__}. Expected: a torso.nets.Body; "
            "torso.nets.body_of(module) makes one of an nn.Module"
        )
    return made


_OF_IMAGES = "(channels, height, width)"  # the arguments of a body of images, for a message


def try_out(body: Body, where: str, input: Input, instead: str = "") -> None:
    """Compute a body that is not Torso's on two samples, and refuse one that does not give the features it declares.

    `where`: how messages name the body. `instead`: what to advise if the body cannot take such samples."""
    example = input.example(2)
    shape = "channels, height, width" if isinstance(input, Pixels) else ", ".join(map(str, input.shape))
    expected = f"not {input.words}; {instead}" if instead else f"a body of {input.noun} [G, B, {shape}]"
    with running_user_code(where, expected), torch.no_grad():
        if isinstance(body, ForeignBody):
            body.check_split(where, example)
        with DrawDetector() as seen:
            found = copy.deepcopy(body).eval()(example[None])
        check_evaluation(seen, where)
        if isinstance(body, ForeignBody):
            body.look_for_state(where, example)
    if found.shape != (1, len(example), body.features):
        raise RequestError(
            f"{where} gives {list(found.shape)} for {len(example)} {input.noun} of one client. "
            f"Expected: [1, {len(example)}, {body.features}], since it says features = {body.features}"
        )
