"""`TensorSlots`: keeps one client's tensors in a copy of a network from step to step. `skeleton`: a bare copy.

`functional_call` puts every tensor into the network and takes it out again at every call. For a network of some hundred
layers that alone takes a tenth of a step. `TensorSlots` keeps a copy of the network and replaces only the tensors that
have changed.
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
Slot = tuple[dict[str, Any], str]
"""Where a layer holds a tensor: its dictionary of parameters or of buffers, and the key."""


class TensorSlots(Generic[N]):
    """Calls a network with tensors in place of its own, and keeps one client's tensors in a copy of it.

    It belongs to one network and, like the network, to one thread. A copy of it starts empty."""

    def __init__(self) -> None:
        # by the names of the tensors that learn: every module, and whether it is in train mode (network.set_modes)
        self.modes: dict[frozenset[str], list[tuple[nn.Module, bool]]] = {}
        self._own: dict[tuple[str, ...], list[Slot]] = {}  # by names of tensors: their slots in the network itself
        self._net: N | None = None  # the copy that holds the client's tensors; None: no copy is possible
        self._slots: dict[str, Slot] = {}  # slots in the copy, by name
        self._layers: list[tuple[nn.Module, nn.Module]] = []  # a layer of the copy, and that of the network
        self._given: Tensors = {}  # [1, *], the client's tensors as the caller gave them
        self._held: Tensors = {}  # [*], the client's tensors as the copy holds them
        self._leaves: Tensors = {}  # those of `_held` that have a gradient
        self._names: tuple[str, ...] = ()  # names of the leaves

    def __deepcopy__(self, memo: object) -> TensorSlots[N]:
        return TensorSlots()

    def __reduce__(self) -> tuple[type[TensorSlots[N]], tuple[()]]:
        return TensorSlots, ()

    def called(self, net: N, tensors: Tensors, *given: Any, **more: Any) -> Any:
        """The network's output with these tensors in place of its own.

        `functional_call` gives the same, but it looks up the layer of every tensor at every call. For small networks
        that takes a tenth of a step."""
        names = tuple(tensors)
        slots = self._own.get(names)
        if slots is None:
            found = [_slot(net, name) for name in names]
            slots = self._own[names] = [slot for slot in found if slot is not None]
        if len(slots) < len(names):  # a tensor belongs to no layer
            return functional_call(net, tensors, given, more, tie_weights=False)
        before = [holder[leaf] for holder, leaf in slots]
        try:
            for (holder, leaf), tensor in zip(slots, tensors.values(), strict=True):
                holder[leaf] = tensor
            return net(*given, **more)
        finally:
            for (holder, leaf), tensor in zip(slots, before, strict=True):
                holder[leaf] = tensor

    def take(self, net: N, tensors: Tensors, names: Sequence[str] = ()) -> tuple[N, Tensors] | None:
        """The copy of the network with one client's tensors [1, *] in place, in the modes of `net`, and its tensors
        [*] with the given names as leaves of a graph.

        None: a tensor belongs to no layer, or a layer cannot be copied, because its forward was patched or its
        `train()` does more than to note the mode."""
        names = tuple(names)
        if not self._is_current(tensors, names):
            if tensors.keys() != self._given.keys():
                self._make_copy(net, tensors)
            if self._net is None:
                return None
            self._put(tensors, names)
        assert self._net is not None
        for mine, original in self._layers:
            if mine.training is not original.training:
                mine.training = original.training
        return self._net, self._leaves

    def _is_current(self, tensors: Tensors, names: tuple[str, ...]) -> bool:
        """Whether the copy holds exactly these tensors, with these leaves. It is called at every step."""
        if self._net is None or names != self._names or len(tensors) != len(self._given):
            return False
        if not all(map(is_, self._given.values(), tensors.values())):
            return False
        return all(map(is_, self._held.values(), [holder[leaf] for holder, leaf in self._slots.values()]))

    def _put(self, tensors: Tensors, names: tuple[str, ...]) -> None:
        """Put the tensors that have changed into the copy, and make those with the given names leaves."""
        if names != self._names:  # other leaves: replace all tensors
            self._given, self._held = dict.fromkeys(tensors, _NOTHING), dict.fromkeys(tensors, _NOTHING)
            self._names = names
        for name, tensor in tensors.items():
            holder, leaf = self._slots[name]
            if self._given[name] is not tensor or holder[leaf] is not self._held[name]:
                self._given[name] = tensor
                if not _is_the_same(self._held[name], tensor):
                    self._held[name] = tensor.detach()[0]
                holder[leaf] = self._held[name]
        self._leaves = {name: self._held[name].requires_grad_() for name in names}

    def _make_copy(self, net: N, tensors: Tensors) -> None:
        """Make the copy for tensors of these names, if the network can be copied."""
        made = skeleton(net)
        count_together(made)
        self._slots = {}
        self._given, self._held = dict.fromkeys(tensors, _NOTHING), dict.fromkeys(tensors, _NOTHING)
        self._names = ()
        patched = any("forward" in vars(module) for module in net.modules())  # such a function may use the original
        self._net = made if has_plain_modes(net) and not patched else None
        self._layers = list(zip(made.modules(), net.modules(), strict=True))
        for name in tensors:
            slot = _slot(made, name)
            if slot is None:
                self._net = None
            else:
                self._slots[name] = slot


def _slot(net: nn.Module, name: str) -> Slot | None:
    """Where a network holds the tensor of a name; None: the tensor belongs to no layer."""
    module, _, leaf = name.rpartition(".")
    layer = net.get_submodule(module)
    holder: dict[str, Any] = layer._parameters if leaf in layer._parameters else layer._buffers
    return (holder, leaf) if leaf in holder else None


def _is_the_same(held: Tensor, given: Tensor) -> bool:
    """Whether a held tensor [*] is the given one [1, *] in the same memory.

    Tensors that all clients share come as a new view for each client, so identity would not find them."""
    if held.data_ptr() != given.data_ptr() or held.dtype != given.dtype:
        return False
    return held.shape == given.shape[1:] and held.stride() == given.stride()[1:]


def skeleton(net: N, device: torch.device | None = None) -> N:
    """A copy of the network's structure without weights (on the device `meta`), for `apply` to fill. It is cheap.

    `device`: where to put buffers that are in no state_dict, such as the position ids of a text model. These keep
    their values."""
    memo: dict[int, object] = {id(p): nn.Parameter(p.to("meta"), p.requires_grad) for p in net.parameters()}
    in_state_dict = net.state_dict(keep_vars=True).values()
    memo |= {id(b): b.to("meta") for b in in_state_dict if not isinstance(b, nn.Parameter)}
    if device is not None:
        memo |= {id(b): b.to(device) for b in net.buffers() if id(b) not in memo}
    # every module has many empty dictionaries of hooks, which take most of the time of a `deepcopy`
    for module in net.modules():
        empty = [held for held in vars(module).values() if type(held) in _DICTIONARIES and not held]
        memo |= {id(held): type(held)() for held in empty}
    return copy.deepcopy(net, memo)


def has_plain_modes(net: nn.Module) -> bool:
    """Whether no module has a `train()` other than PyTorch's or Torso's, so that `train()` only notes the mode."""
    return all(type(module).train.__module__.partition(".")[0] in ("torch", "torso") for module in net.modules())


_NOTHING = Tensor()  # stands for a tensor that is not set yet
_DICTIONARIES = (dict, OrderedDict)
