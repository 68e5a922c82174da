"""`Network`: a body and a head that compute for one client or for G clients at once (shapes: see layers.py)."""

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
from torso.nets.shifted import ShiftedHead
from torso.nets.simplex import SimplexHead
from torso.nets.sparse_simplex import SparseSimplexHead
from torso.nets.tensor_slots import TensorSlots, has_plain_modes, skeleton

Tensors = dict[str, Tensor]
CENTRES = "head.centres"  # name of the mean features [2, d] by which a client's two heads are mixed (dual.py)
_IMAGE = 3  # dimensions of an image: channels, height, width


class Output(NamedTuple):
    """The output of a network for samples [G, B, …]."""

    features: Tensor  # [G, B, d]
    logits: Tensor  # [G, B, C], of the generic head if there are two
    personal: Tensor | None = None  # [G, B, C], of a dual head's personal head
    auxiliary_logits: Tensor | None = None  # [G, B, C], of an auxiliary head (SparseSimplexHead)
    gaps: Tensor | None = None  # [G, B, C], squared distances to the embeddings of classes (GpflHead)

    @property
    def own(self) -> Tensor:
        """The logits by which the client itself predicts: the personal ones if there are any."""
        return self.logits if self.personal is None else self.personal


class Network(nn.Module):
    """A body, which maps samples to features [G, B, d], and a head, which maps these to logits [G, B, classes].

    `input`: the kind of sample that the network takes. If it is None, the network is taken for one of images."""

    def __init__(self, body: Body, head: nn.Module, input: Input | None = None) -> None:
        super().__init__()
        self.body = body
        self.head = head
        self.input = input
        self.card: Card | None = None  # how it was trained and what it takes; only a network from a run has one
        self.personal = False  # whether a call returns the personal logits of a dual head
        self.encoder: Callable[[Tensor], Tensor] | None = None  # stored samples → features [n, d] (`model.encoder`)
        self.slots: TensorSlots[Network] = TensorSlots()

    def forward(self, x: Tensor, real: Tensor | None = None, *, stacked: bool = False) -> Tensor | Output:
        """Logits of samples [B, *] or [G, B, *]. `stacked`: the whole `Output`, for samples [G, B, *] only."""
        if not stacked:
            features = self.features(x, real)
            logits = self.classify(features)
            if self.personal and isinstance(self.head, DualHead):
                return self.head.answer(features, logits)
            return logits
        features = self.body(x, real)
        logits = self.classify(features)
        personal = self.head.own(features, logits) if isinstance(self.head, DualHead) else None
        auxiliary = self.head.auxiliary_logits(features) if isinstance(self.head, SparseSimplexHead) else None
        distances = self.head.gaps(features) if isinstance(self.head, GpflHead) else None
        return Output(features, logits, personal, auxiliary, distances)

    def features(self, x: Tensor, real: Tensor | None = None) -> Tensor:
        """Features [B, d] of samples [B, *], such as images [B, C, H, W], or [G, B, d] of samples [G, B, *].

        `real` [B] or [G, B]: 1 for a sample and 0 for padding."""
        rank = _IMAGE if self.input is None else len(self.input.shape)
        is_stacked = x.ndim == 2 + rank
        if is_stacked:
            return self.body(x, real)  # type: ignore[no-any-return]
        return self.body(x[None], None if real is None else real[None])[0]  # type: ignore[no-any-return]

    def classify(self, features: Tensor) -> Tensor:
        return self.head(features)  # type: ignore[no-any-return]

    @cached_property
    def classes(self) -> int:
        """The number of classes that the head has."""
        any_parameter = next(self.head.parameters())
        with torch.no_grad():
            return self.classify(any_parameter.new_zeros(1, 1, self.body.features)).shape[-1]

    @cached_property
    def stacks(self) -> bool:
        """Whether clients of different sizes can be stacked. They cannot if a BatchNorm layer that is not Torso's own
        would count padding in its statistics."""
        return self.body.native or not self.batch_norms

    @cached_property
    def keeps_bits(self) -> bool:
        """Whether a client's results on CPU have the same bits alone and in a stack with other clients of its size.

        They have if all weights of the body are those of linear layers, which take one matrix product per client, and
        no tensor is stored once for all clients."""
        with_weights = [module for module in self.body.modules() if {*module._parameters, *module._buffers}]
        return self.body.native and not self.frozen and all(type(module) is Linear for module in with_weights)

    @cached_property
    def batch_norms(self) -> tuple[str, ...]:
        """The names of the BatchNorm layers that use the statistics of a batch in training.

        A layer with frozen running statistics is not among them."""
        norms = {name: module for name, module in self.named_modules() if isinstance(module, _BatchNorm)}
        return tuple(
            name
            for name, norm in norms.items()
            if norm.running_mean is None or any(f"{name}.{tensor}" not in self.frozen for tensor in norm.state_dict())
        )

    @cached_property
    def parts(self) -> Mapping[str, tuple[str, ...]]:
        """The names of the tensors of each part: parameters and buffers, in state_dict order."""
        body = tuple(f"body.{name}" for name in self.body.state_dict())
        both_heads = tuple(f"head.{name}" for name in self.head.state_dict())
        personal: tuple[str, ...] = ()
        if isinstance(self.head, DualHead):
            personal = tuple(f"head.personal.{name}" for name in self.head.personal.state_dict())
        head = tuple(name for name in both_heads if name not in personal)
        full = body + both_heads
        further = {part: tuple(f"body.{name}" for name in held) for part, held in self.body.own_parts().items()}
        further |= {part: tuple(f"body.{name}" for name in held) for part, held in adapter_parts(self.body).items()}
        if isinstance(self.head, SimplexHead | SparseSimplexHead | ShiftedHead | GpflHead):
            further |= self.head.parts
        return {"all": full, "full": full, "body": body, "head": head, "personal": personal, "none": (), **further}

    @cached_property
    def frozen(self) -> frozenset[str]:
        """The names of the frozen tensors: never trained, never sent, and stored once for all clients.

        A tensor is frozen if the user has set `requires_grad=False`, or if it is part of a body with adapters and not
        of an adapter."""
        return frozen_names(self) | self.base

    @cached_property
    def base(self) -> frozenset[str]:
        """The names of the body's tensors that are not of its adapters. Empty if the body has no adapters."""
        adapters = self.parts.get("lora", ())
        return frozenset(self.parts["body"]).difference(adapters) if adapters else frozenset()

    @cached_property
    def client_facts(self) -> Mapping[str, tuple[int, ...]]:
        """Facts about a client that the head takes in addition to weights: tensors that are in no state_dict, with
        their shapes."""
        if not isinstance(self.head, DualHead):
            return {}
        return {f"head.{name}": shape for name, shape in self.head.client_facts.items()}

    @property
    def optional_facts(self) -> frozenset[str]:
        """The names in `client_facts` that a client's model may lack.

        These are the tensor added to a generated head, if that head was not trained, and the mean features, if the two
        heads are not mixed."""
        return frozenset({self.generated_head, CENTRES})

    def fill(self, tensors: Tensors, personal: bool) -> None:
        """Load all weights. If `personal`, load the facts about the client too (`client_facts`).

        From then on the network is that client's model."""
        state = OrderedDict((name, tensor) for name, tensor in tensors.items() if name not in self.client_facts)
        # some layers look up the version of their state in the metadata
        state._metadata = self.state_dict()._metadata  # type: ignore[attr-defined]
        self.load_state_dict(state)
        self.personal = personal
        if not personal:
            return
        for name in self.client_facts.keys() & tensors.keys():
            module, _, leaf = name.rpartition(".")
            setattr(self.get_submodule(module), leaf, tensors[name])

    def contents(self) -> Tensors:
        """All tensors that `fill` needs to make the same network."""
        buffers = dict(self.named_buffers()) if self.personal else {}
        return {**self.state_dict(), **{name: buffers[name] for name in self.client_facts if name in buffers}}

    def prepare(self, samples: Any) -> Tensor:
        """The network's input [n, *] from raw samples, a NumPy array or a tensor.

        uint8 images [n, H, W, C] or [n, H, W] become [n, C, H, W]. Numbers [n, *] are standardised. Token ids [n, L]
        are padded. A list of texts becomes token ids if the model knows its tokenizer. If the network takes the
        features of an encoder, the samples become these features.

        The network must come out of a run: its card says how it was trained."""
        return card_of(self).prepare(samples, next(self.parameters()).device, self.encoder)

    @property
    def generated_head(self) -> str:
        """The name of the tensor [G, C, d] that is added to a generated personal head (`HyperLinear`); "" if the
        network has no such head."""
        is_generated = isinstance(self.head, DualHead) and isinstance(self.head.personal, HyperLinear)
        return "head.personal.own" if is_generated else ""

    def facts(self, counts: Tensor, held: Tensors) -> Tensors:
        """Facts about G clients that the head takes in addition to their weights.

        `counts` [G, C]: their samples per class. `held`: the tensors [G, *] of the models that they hold."""
        facts = self.head.facts(counts, held) if isinstance(self.head, DualHead) else {}
        return {f"head.{name}": tensor for name, tensor in facts.items()}


def part_names(net: Network, part: str) -> tuple[str, ...]:
    """The names of the tensors of a part.

    A part is all (or full), body, head, personal, none, blocks:J (the body's first J blocks, spec 3.4), or one that the
    network names, such as norm. `a+b` joins parts and `a-b` takes one away, from left to right."""
    names: tuple[str, ...] = ()
    for sign, piece in pieces(part):
        held = _piece_names(net, piece)
        if sign == "+":
            names = tuple(dict.fromkeys((*names, *held)))
        else:
            names = without(names, frozenset(held), parameter_names(net))
    return names


def _piece_names(net: Network, part: str) -> tuple[str, ...]:
    """The names of the tensors of one part without + and -."""
    depth = len(net.body.blocks)
    if part in net.parts:
        return net.parts[part]
    kind, _, number = part.partition(":")
    if kind == "blocks" and number.isdecimal() and 1 <= int(number) <= depth:
        name_of = {module: name for name, module in net.named_modules()}
        first = list(net.body.blocks)[: int(number)]
        return tuple(f"{name_of[block]}.{name}" for block in first for name in block.state_dict())
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
    """Those of the names that are parameters with `requires_grad=True`; the others are buffers or frozen."""
    parameters = {name for name, parameter in net.named_parameters() if parameter.requires_grad}
    return tuple(name for name in names if name in parameters)


def set_modes(net: Network, learning: Collection[str]) -> None:
    """Set train mode if something learns and eval mode otherwise, so that frozen statistics stay (spec 7.2, 12.2).

    A normalisation layer with tensors is in train mode if one of these learns. Any other layer is in train mode if
    anything in its half of the network, body or head, learns. `learning`: the names of the tensors that learn.
    """
    learning = frozenset(learning)
    if learning in net.slots.modes:  # remembered, since asking every layer for its tensors takes milliseconds
        for module, training in net.slots.modes[learning]:
            if module.training is not training:
                module.training = training
        return
    halves = set()
    for half in ("body", "head"):
        if any(f"{half}.{name}" in learning for name, _ in net.get_submodule(half).named_parameters()):
            halves.add(half)
    net.train(bool(halves))
    net.body.train("body" in halves)
    if net.body.training and net.body.lora is not None and net.body.lora.base == "eval":
        _keep_base_still(net.body)
    net.head.train("head" in halves)
    for name, module in net.named_modules():
        if isinstance(module, _NormBase) and (tensors := module.state_dict()):
            module.train(any(f"{name}.{tensor}" in learning for tensor in tensors))
    if has_plain_modes(net):
        net.slots.modes[learning] = [(module, module.training) for module in net.modules()]


def _keep_base_still(body: Body) -> None:
    """Set the layers of a body to eval mode and its adapters to train mode: what is frozen computes without dropout."""
    adapters = [module for module in body.modules() if isinstance(module, Adapted)]
    for module in list(body.modules())[1:]:  # all but the body itself
        module.training = False
    for adapter in adapters:
        adapter.train()


def zeroed_copy(net: Network) -> tuple[Network, Tensors]:
    """A copy of the network in eval mode, without weights, and zeros [1, *] for its tensors, on the CPU.

    It serves to find out shapes. The device `meta` would do too, but its first use loads torch's compiler, which takes
    a second."""
    bare = skeleton(net, torch.device("cpu")).eval()
    return bare, {name: torch.zeros(1, *t.shape, dtype=t.dtype) for name, t in bare.state_dict().items()}


def card_of(net: Network) -> Card:
    """The card of a network; a network without one is refused."""
    if net.card is None:
        raise RequestError(
            f"{type(net).__name__} has no card that says how it was trained and what it takes. Take a network from a "
            "Result (result.network()) or from a model file."
        )
    return net.card
