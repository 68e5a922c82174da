"""One client's tensors stay in a network from step to step.

`functional_call` puts every tensor into the network and takes it out again at every call. For a network of some hundred
layers that alone takes a tenth of a step. A seat keeps a copy of the network and puts in only what has changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

if TYPE_CHECKING:
    from torso.nets.network import Network

Tensors = dict[str, Tensor]


class Seat:
    """Of a network that computes for one client at a time. It is its thread's alone, like the network."""

    def __init__(self) -> None:
        self.modes: dict[frozenset[str], list[tuple[nn.Module, bool]]] = {}  # by what learns: who is in train mode
        self._net: Network | None = None  # the copy that holds the tensors; None: there is none of these names
        self._places: dict[str, tuple[dict[str, Any], str]] = {}  # by name: parameters or buffers of a layer, and which
        self._layers: list[tuple[nn.Module, nn.Module]] = []  # the copy's, and the network's own
        self._given: Tensors = {}  # [1, *], as they came
        self._held: Tensors = {}  # [*], as the copy has them
        self._names: tuple[str, ...] = ()

    def __deepcopy__(self, memo: object) -> Seat:
        return Seat()

    def __reduce__(self) -> tuple[type[Seat], tuple[()]]:
        return Seat, ()

    def take(self, net: Network, tensors: Tensors, names: Sequence[str] = ()) -> tuple[Network, Tensors] | None:
        """The network with one client's tensors [1, *] in place, in the modes of `net`, and the named ones [*] as
        leaves of a graph; None where a tensor belongs to no layer, or a layer does more in `train()` than to note it.
        """
        names = tuple(names)
        if tensors.keys() != self._given.keys():
            self._arrange(net, tensors)
        if self._net is None:
            return None
        if names != self._names:  # other leaves
            self._given, self._names = dict.fromkeys(tensors, _NOTHING), names
        for name, tensor in tensors.items():
            layer, leaf = self._places[name]
            if self._given[name] is not tensor or layer[leaf] is not self._held[name]:
                self._given[name] = tensor
                self._held[name] = layer[leaf] = tensor.detach()[0]
        for name in names:
            self._held[name].requires_grad_()
        for mine, its in self._layers:
            if mine.training is not its.training:
                mine.training = its.training
        return self._net, {name: self._held[name] for name in names}

    def _arrange(self, net: Network, tensors: Tensors) -> None:
        """Make the copy for tensors of these names."""
        from torso.nets.network import skeleton

        made = skeleton(net)
        self._given, self._held = dict.fromkeys(tensors, _NOTHING), dict.fromkeys(tensors, _NOTHING)
        self._net, self._names = made if has_plain_modes(net) else None, ()
        self._layers = list(zip(made.modules(), net.modules(), strict=True))
        for name in tensors:
            where, _, leaf = name.rpartition(".")
            layer = made.get_submodule(where)
            kind = layer._parameters if leaf in layer._parameters else layer._buffers
            if leaf not in kind:
                self._net = None
            self._places[name] = kind, leaf


def has_plain_modes(net: nn.Module) -> bool:
    """Whether `train()` only notes the mode in all layers."""
    return all(type(module).train is nn.Module.train for module in net.modules())


_NOTHING = Tensor()
