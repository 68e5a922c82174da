"""One client's tensors stay in a network from step to step.

`functional_call` puts every tensor into the network and takes it out again at every call. For a network of some hundred
layers that alone takes a tenth of a step. A seat keeps a copy of the network and puts in only what has changed.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Sequence
from operator import is_
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

from torso.nets.counted import count_together

Tensors = dict[str, Tensor]
N = TypeVar("N", bound=nn.Module)


class Seat(Generic[N]):
    """Of a network that computes for one client at a time. It is its thread's alone, like the network."""

    def __init__(self) -> None:
        self.modes: dict[frozenset[str], list[tuple[nn.Module, bool]]] = {}  # by what learns: who is in train mode
        self._own: dict[tuple[str, ...], list[tuple[dict[str, Any], str]]] = {}  # by names: where they are
        self._net: N | None = None  # the copy that holds the tensors; None: there is none of these names
        self._places: dict[str, tuple[dict[str, Any], str]] = {}  # by name: parameters or buffers of a layer, and which
        self._layers: list[tuple[nn.Module, nn.Module]] = []  # the copy's, and the network's own
        self._given: Tensors = {}  # [1, *], as they came
        self._held: Tensors = {}  # [*], as the copy has them
        self._leaves: Tensors = {}  # those of `_held` that have a gradient
        self._names: tuple[str, ...] = ()

    def __deepcopy__(self, memo: object) -> Seat[N]:
        return Seat()

    def __reduce__(self) -> tuple[type[Seat[N]], tuple[()]]:
        return Seat, ()

    def called(self, net: N, tensors: Tensors, *given: Any, **more: Any) -> Any:
        """What the network says with these tensors in place of its own: `functional_call`, which looks every tensor's
        layer up at every call. For small networks that takes a tenth of a step."""
        names = tuple(tensors)
        places = self._own.get(names)
        if places is None:
            found = [_place(net, name) for name in names]
            places = self._own[names] = [place for place in found if place is not None]
        if len(places) < len(names):  # one belongs to no layer
            return functional_call(net, tensors, given, more, tie_weights=False)
        before = [layer[leaf] for layer, leaf in places]
        try:
            for (layer, leaf), tensor in zip(places, tensors.values(), strict=True):
                layer[leaf] = tensor
            return net(*given, **more)
        finally:
            for (layer, leaf), tensor in zip(places, before, strict=True):
                layer[leaf] = tensor

    def take(self, net: N, tensors: Tensors, names: Sequence[str] = ()) -> tuple[N, Tensors] | None:
        """The network with one client's tensors [1, *] in place, in the modes of `net`, and the named ones [*] as
        leaves of a graph; None where a tensor belongs to no layer, or a layer is not to be copied: it was
        patched, or does more in `train()` than to note the mode."""
        names = tuple(names)
        if not self._is_seated(tensors, names):
            if tensors.keys() != self._given.keys():
                self._arrange(net, tensors)
            if self._net is None:
                return None
            self._seat(tensors, names)
        assert self._net is not None
        for mine, its in self._layers:
            if mine.training is not its.training:
                mine.training = its.training
        return self._net, self._leaves

    def _is_seated(self, tensors: Tensors, names: tuple[str, ...]) -> bool:
        """Whether the copy holds these very tensors, with these leaves; asked at every step."""
        if self._net is None or names != self._names or len(tensors) != len(self._given):
            return False
        if not all(map(is_, self._given.values(), tensors.values())):
            return False
        return all(map(is_, self._held.values(), [layer[leaf] for layer, leaf in self._places.values()]))

    def _seat(self, tensors: Tensors, names: tuple[str, ...]) -> None:
        if names != self._names:  # other leaves
            self._given, self._held = dict.fromkeys(tensors, _NOTHING), dict.fromkeys(tensors, _NOTHING)
            self._names = names
        for name, tensor in tensors.items():
            layer, leaf = self._places[name]
            if self._given[name] is not tensor or layer[leaf] is not self._held[name]:
                self._given[name] = tensor
                if not _is_the_same(self._held[name], tensor):
                    self._held[name] = tensor.detach()[0]
                layer[leaf] = self._held[name]
        self._leaves = {name: self._held[name].requires_grad_() for name in names}

    def _arrange(self, net: N, tensors: Tensors) -> None:
        """Make the copy for tensors of these names."""
        made = skeleton(net)
        count_together(made)
        self._places = {}
        self._given, self._held = dict.fromkeys(tensors, _NOTHING), dict.fromkeys(tensors, _NOTHING)
        patched = any("forward" in vars(module) for module in net.modules())  # a function that may know the original
        self._net, self._names = made if has_plain_modes(net) and not patched else None, ()
        self._layers = list(zip(made.modules(), net.modules(), strict=True))
        for name in tensors:
            place = _place(made, name)
            if place is None:
                self._net = None
            else:
                self._places[name] = place


def _place(net: nn.Module, name: str) -> tuple[dict[str, Any], str] | None:
    """Which of a layer's tensors a name means: its parameters or buffers, and the name among them; None: no layer's."""
    where, _, leaf = name.rpartition(".")
    layer = net.get_submodule(where)
    kind: dict[str, Any] = layer._parameters if leaf in layer._parameters else layer._buffers
    return (kind, leaf) if leaf in kind else None


def _is_the_same(held: Tensor, given: Tensor) -> bool:
    """Whether they are one memory. What all clients hold comes as a new view for each client."""
    if held.data_ptr() != given.data_ptr() or held.dtype != given.dtype:
        return False
    return held.shape == given.shape[1:] and held.stride() == given.stride()[1:]


def skeleton(net: N, device: torch.device | None = None) -> N:
    """A structurally identical copy without weights (meta device), for `apply` to fill; cheap.

    `device`: where buffers are to be that no state_dict holds, such as the numbers of a text's places."""
    memo: dict[int, object] = {id(p): nn.Parameter(p.to("meta"), p.requires_grad) for p in net.parameters()}
    kept = net.state_dict(keep_vars=True).values()  # buffers outside the state_dict keep their values
    memo |= {id(b): b.to("meta") for b in kept if not isinstance(b, nn.Parameter)}
    if device is not None:
        memo |= {id(b): b.to(device) for b in net.buffers() if id(b) not in memo}
    for module in net.modules():  # its many dictionaries of hooks: `deepcopy` would take longest for these
        memo |= {id(held): type(held)() for held in vars(module).values() if type(held) in _DICTIONARIES and not held}
    return copy.deepcopy(net, memo)


def has_plain_modes(net: nn.Module) -> bool:
    """Whether `train()` only notes modes, in PyTorch's way or in Torso's."""
    return all(type(module).train.__module__.partition(".")[0] in ("torch", "torso") for module in net.modules())


_NOTHING = Tensor()
_DICTIONARIES = (dict, OrderedDict)
