"""A network is a body and a head, and computes for one client or for G at once (shapes: see layers.py)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from torso.data.inputs import Input
from torso.errors import RequestError
from torso.nets.body import Body
from torso.nets.card import Card
from torso.nets.dual import DualHead, HyperLinear
from torso.nets.gpfl import GpflHead
from torso.nets.layers import Linear
from torso.nets.lora import Adapted, adapter_parts
from torso.nets.parts import (
    frozen_names,
    names_adapters,
    parameter_names,
    pieces,
    without,
)
from torso.nets.seat import Seat, has_plain_modes, skeleton
from torso.nets.shifted import ShiftedHead
from torso.nets.simplex import SimplexHead
from torso.nets.sparse_simplex import SparseSimplexHead

Tensors = dict[str, Tensor]
CENTRES = "head.centres"  # what mixes a client's two heads (dual.py), under the name that its model has it
_IMAGE = 3  # dimensions of an image: channels, height, width


class Output(NamedTuple):
    """What a network says of [G, B, …]: features [G, B, d], logits [G, B, C], personal logits of a dual head, those of
    a head that learns beside, and squared distances to the embeddings of classes [G, B, C]."""

    features: Tensor
    logits: Tensor
    personal: Tensor | None = None
    beside: Tensor | None = None
    gaps: Tensor | None = None

    @property
    def own(self) -> Tensor:
        """The logits that the client itself goes by."""
        return self.logits if self.personal is None else self.personal


class Network(nn.Module):
    """A body and a head, which maps features [G, B, d] to logits [G, B, classes].

    `input`: the kind of sample that it takes; None: nobody has said, and it is taken for images."""

    def __init__(self, body: Body, head: nn.Module, input: Input | None = None) -> None:
        super().__init__()
        self.body = body
        self.head = head
        self.input = input
        self.card: Card | None = None  # of networks that came out of a run
        self.personal = False  # whether a call answers with the personal logits of a dual head
        self.encoder: Callable[[Tensor], Tensor] | None = None  # makes features of stored samples, if there is one
        self.seat: Seat[Network] = Seat()

    def forward(self, x: Tensor, real: Tensor | None = None, *, stacked: bool = False) -> Tensor | Output:
        """Logits of samples [B, *] or [G, B, *]; `stacked`: the whole output for any [G, B, …]."""
        features = self.body(x, real) if stacked else self.features(x, real)
        logits = self.classify(features)
        if not stacked:
            dual = self.head if self.personal and isinstance(self.head, DualHead) else None
            return logits if dual is None else dual.answer(features, logits)
        own = self.head.own(features, logits) if isinstance(self.head, DualHead) else None
        beside = self.head.beside(features) if isinstance(self.head, SparseSimplexHead) else None
        gaps = self.head.gaps(features) if isinstance(self.head, GpflHead) else None
        return Output(features, logits, own, beside, gaps)

    def features(self, x: Tensor, real: Tensor | None = None) -> Tensor:
        """[B, d] of samples [B, *], such as images [B, C, H, W] (`real` [B]), or [G, B, d] of [G, B, *]."""
        rank = _IMAGE if self.input is None else len(self.input.shape)
        if x.ndim == 2 + rank:
            return self.body(x, real)  # type: ignore[no-any-return]
        return self.body(x[None], None if real is None else real[None])[0]  # type: ignore[no-any-return]

    def classify(self, features: Tensor) -> Tensor:
        return self.head(features)  # type: ignore[no-any-return]

    @cached_property
    def classes(self) -> int:
        """How many classes the head tells apart."""
        like = next(self.head.parameters())
        with torch.no_grad():
            return self.classify(like.new_zeros(1, 1, self.body.features)).shape[-1]

    @cached_property
    def stacks(self) -> bool:
        """Whether clients of different sizes can be stacked: not where a foreign BatchNorm would count padding."""
        return self.body.native or not self.counting

    @cached_property
    def keeps_bits(self) -> bool:
        """Whether a client has the same bits on CPU alone and beside others of its size: all weights of the body are
        those of linear layers, a product for each client, and none is held once for all."""
        with_weights = [module for module in self.body.modules() if {*module._parameters, *module._buffers}]
        return self.body.native and not self.frozen and all(type(module) is Linear for module in with_weights)

    @cached_property
    def counting(self) -> tuple[str, ...]:
        """The BatchNorm layers that go by the samples of a batch; frozen running statistics do not."""
        norms = {name: module for name, module in self.named_modules() if isinstance(module, _BatchNorm)}
        return tuple(
            name
            for name, norm in norms.items()
            if norm.running_mean is None or any(f"{name}.{tensor}" not in self.frozen for tensor in norm.state_dict())
        )

    @cached_property
    def parts(self) -> Mapping[str, tuple[str, ...]]:
        """Which tensors (parameters and buffers, in state_dict order) each part holds."""
        body = tuple(f"body.{name}" for name in self.body.state_dict())
        both = tuple(f"head.{name}" for name in self.head.state_dict())
        own = self.head.personal.state_dict() if isinstance(self.head, DualHead) else {}
        personal = tuple(f"head.personal.{name}" for name in own)
        head = tuple(name for name in both if name not in personal)
        every = body + both
        named = {part: tuple(f"body.{name}" for name in held) for part, held in self.body.own_parts().items()}
        named |= {part: tuple(f"body.{name}" for name in held) for part, held in adapter_parts(self.body).items()}
        parted = SimplexHead | SparseSimplexHead | ShiftedHead | GpflHead
        named |= self.head.parts if isinstance(self.head, parted) else {}
        return {"all": every, "full": every, "body": body, "head": head, "personal": personal, "none": (), **named}

    @cached_property
    def frozen(self) -> frozenset[str]:
        """What its owner froze (`requires_grad=False`): never trained, never sent, and held once for all clients.
        Where the body has adapters, that is everything else in it."""
        return frozen_names(self) | self.base

    @cached_property
    def base(self) -> frozenset[str]:
        """The body without its adapters, where it has any."""
        adapters = self.parts.get("lora", ())
        return frozenset(self.parts["body"]).difference(adapters) if adapters else frozenset()

    @cached_property
    def told(self) -> Mapping[str, tuple[int, ...]]:
        """What a head may be told of a client beside weights: tensors that no state_dict holds, with their shapes."""
        return {f"head.{n}": shape for n, shape in self.head.told.items()} if isinstance(self.head, DualHead) else {}

    @property
    def may_lack(self) -> frozenset[str]:
        """What of it a client's model need not have: a made head that was not trained, heads that are not mixed."""
        return frozenset({self.made_head, CENTRES})

    def fill(self, tensors: Tensors, personal: bool) -> None:
        """Take all weights, and what the head is told of the client that the network speaks for from now on."""
        state = OrderedDict((name, tensor) for name, tensor in tensors.items() if name not in self.told)
        state._metadata = self.state_dict()._metadata  # type: ignore[attr-defined]  # versions, which some layers ask for
        self.load_state_dict(state)
        self.personal = personal
        for name in self.told.keys() & tensors.keys() if personal else ():
            where, _, leaf = name.rpartition(".")
            setattr(self.get_submodule(where), leaf, tensors[name])

    def contents(self) -> Tensors:
        """All tensors that `fill` needs to make the same network."""
        told = dict(self.named_buffers()) if self.personal else {}
        return {**self.state_dict(), **{name: told[name] for name in self.told if name in told}}

    def prepare(self, samples: Any) -> Tensor:
        """Samples as a source has them (NumPy, or a tensor) as what the network takes: uint8 images [n, H, W, C] or
        [n, H, W] become [n, C, H, W], numbers [n, *] are standardised, token ids [n, L] are padded; a list
        of texts becomes token ids, where the model knows its tokenizer. Where the network stands on an encoder, they
        become its features.

        For networks that came out of a run, which know how they were trained."""
        return card_of(self).prepare(samples, next(self.parameters()).device, self.encoder)

    @property
    def made_head(self) -> str:
        """The tensor [G, C, d] that is added to a personal head which a network makes, or nothing."""
        made = isinstance(self.head, DualHead) and isinstance(self.head.personal, HyperLinear)
        return "head.personal.own" if made else ""

    def facts(self, counts: Tensor, held: Tensors) -> Tensors:
        """What the head must know of G clients beside their weights: from their samples per class [G, C], and from the
        models that they hold [G, *]."""
        found = self.head.facts(counts, held) if isinstance(self.head, DualHead) else {}
        return {f"head.{name}": tensor for name, tensor in found.items()}


def part_names(net: Network, part: str) -> tuple[str, ...]:
    """The tensors of a part: all (or full), body, head, personal, none, blocks:J, the body's first J blocks (spec 3.4),
    or one that the network names (norm, say); of several parts, from left to right: joined by +, taken away by -."""
    names: tuple[str, ...] = ()
    for sign, piece in pieces(part):
        held = _piece_names(net, piece)
        if sign == "+":
            names = tuple(dict.fromkeys((*names, *held)))
        else:
            names = without(names, frozenset(held), parameter_names(net))
    return names


def _piece_names(net: Network, part: str) -> tuple[str, ...]:
    depth = len(net.body.blocks)
    if part in net.parts:
        return net.parts[part]
    kind, _, number = part.partition(":")
    if kind == "blocks" and number.isdecimal() and 1 <= int(number) <= depth:
        where = {module: name for name, module in net.named_modules()}
        first = list(net.body.blocks)[: int(number)]
        return tuple(f"{where[block]}.{name}" for block in first for name in block.state_dict())
    known = ", ".join(name for name, held in net.parts.items() if held or name == "none")
    if part == "norm":
        raise RequestError(
            "part = 'norm' holds nothing: this body has no normalisation layers. Accepted: a body that has some, such "
            f"as model.body = conv4, or another part: {known}"
        )
    raise RequestError(
        f"part = {part!r} is unknown. Accepted: {known}, or blocks:J with J from 1 to {depth}, "
        "as many blocks as this body has; a+b for both, a-b for the one without the other"
        f"{'; lora, lora.a, lora.b with adapters (model.lora.rank = 8)' if names_adapters(part) else ''}"
    )


def learnable(net: Network, names: Iterable[str]) -> tuple[str, ...]:
    """Those of the names that are parameters and not frozen; the others are buffers, or their owner froze them."""
    parameters = {name for name, parameter in net.named_parameters() if parameter.requires_grad}
    return tuple(name for name in names if name in parameters)


def set_modes(net: Network, learning: Collection[str]) -> None:
    """Train mode where something learns, eval mode elsewhere, so that frozen statistics stay (spec 7.2, 12.2).

    A layer with running statistics goes by its own tensors; anything else by its half of the network.
    """
    learning = frozenset(learning)
    if learning in net.seat.modes:  # to ask every layer for its tensors takes milliseconds
        for module, training in net.seat.modes[learning]:
            if module.training is not training:
                module.training = training
        return
    names = {f"{half}.{n}": half for half in ("body", "head") for n, _ in net.get_submodule(half).named_parameters()}
    halves = {half for name, half in names.items() if name in learning}
    net.train(bool(halves))
    net.body.train("body" in halves)
    if net.body.training and net.body.lora is not None and net.body.lora.base == "eval":
        _keep_base_still(net.body)
    net.head.train("head" in halves)
    for name, module in net.named_modules():
        if isinstance(module, _NormBase) and (own := module.state_dict()):
            module.train(any(f"{name}.{tensor}" in learning for tensor in own))
    if has_plain_modes(net):
        net.seat.modes[learning] = [(module, module.training) for module in net.modules()]


def _keep_base_still(body: Body) -> None:
    """The layers of a body in eval mode, but for its adapters: what is frozen computes without dropout."""
    adapters = [module for module in body.modules() if isinstance(module, Adapted)]
    for module in list(body.modules())[1:]:
        module.training = False
    for adapter in adapters:
        adapter.train()


def hollow(net: Network) -> tuple[Network, Tensors]:
    """A copy for evaluation and tensors of one client [1, *], all zero, on the CPU: for a look at shapes. (The device
    `meta` has no content either, but its first use loads torch's compiler, which takes a second.)"""
    bare = skeleton(net, torch.device("cpu")).eval()
    return bare, {name: torch.zeros(1, *t.shape, dtype=t.dtype) for name, t in bare.state_dict().items()}


def card_of(net: Network) -> Card:
    if net.card is None:
        raise RequestError(
            f"{type(net).__name__} has no card that says how it was trained and what it takes. Take a network from a "
            "Result (result.network()) or from a model file."
        )
    return net.card
