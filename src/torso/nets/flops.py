"""Floating-point operations, by torch's formulas: those of matrix products and convolutions (a multiplication
and an addition are two), counted once on a sample of zeros and multiplied.

The counter is our own: torch's loads the compiler when it is first used, which takes more than a second.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.utils.flop_counter import flop_registry

from torso.data.inputs import Input, as_input
from torso.nets.compute import apply
from torso.nets.draws import EagerMode
from torso.nets.network import Network, hollow

Counts = dict[tuple[tuple[int, ...], frozenset[str]], int]  # by the shape of a sample and the parameters that learn
_counted: WeakKeyDictionary[Network, Counts] = WeakKeyDictionary()
_alike: dict[object, Counts] = {}  # of networks that are built in the same way: one of them is counted


def step_flops(net: Network, input: Input | tuple[int, int, int], batch: int, learning: Iterable[str] = ()) -> int:
    """Of one client's step on so many samples, forward and back to the parameters that learn; none: forward alone."""
    if net not in _counted:
        _counted[net] = _alike.setdefault(_construction(net), {}) if _says_all(net) else {}
    known, input = _counted[net], as_input(input)
    asked = (input.shape, frozenset(learning))
    if asked not in known:
        samples = 1 if net.body.native else 2  # BatchNorm of others may refuse one
        with _Counter() as counter:
            _there_and_back(net, input, samples, asked[1])
        known[asked] = counter.total // samples
    return batch * known[asked]


def _says_all(net: Network) -> bool:
    """Whether it is made of Torso's and torch's own layers: printed, these say all that they compute."""
    layers = list(net.modules())
    own = all(type(layer).__module__.partition(".")[0] in ("torch", "torso") for layer in layers)
    return own and net.body.native and not any("forward" in vars(layer) for layer in layers)


def _construction(net: Network) -> object:
    return repr(net), tuple((name, tensor.shape) for name, tensor in net.state_dict(keep_vars=True).items())


class _Counter(EagerMode):
    """Adds up the operations of what is computed below it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result, kind = func(*args, **(kwargs or {})), func._overloadpacket
        if kind is torch.ops.aten.convolution_backward:
            self.total += _backward(*args)
        elif kind in flop_registry:
            self.total += int(flop_registry[kind](*args, **(kwargs or {}), out_val=result))
        return result


def _backward(grad: Tensor, x: Tensor, weight: Tensor, *rest: Any) -> int:
    """A convolution's way back, to its input, its weight or both: the forward pass again for each.

    torch's own count takes every group for a whole convolution, which makes a depthwise one C times too dear."""
    ways = sum(bool(wanted) for wanted in rest[-1][:2])
    return 2 * grad.numel() * prod(weight.shape[1:]) * ways


def unreached(net: Network, input: Input, learning: Iterable[str]) -> tuple[str, ...]:
    """Those of the parameters that no logit depends on, so that no loss does."""
    found = _there_and_back(net, input, 2, learning)
    return tuple(name for name, grad in found.items() if grad is None)


def _there_and_back(net: Network, input: Input, batch: int, learning: Iterable[str]) -> dict[str, Tensor | None]:
    """One client's forward pass, all weights zero, and back to the parameters that learn."""
    bare, tensors = hollow(net)
    leaves = {name: tensors[name].requires_grad_() for name in sorted(learning)}
    said = apply(bare, tensors, input.example(batch)[None])
    spoken = (logits for logits in (said.logits, said.personal, said.beside) if logits is not None)
    total = torch.stack([logits.sum() for logits in spoken]).sum()
    if not leaves or not total.requires_grad:
        return dict.fromkeys(leaves)
    grads = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
    return dict(zip(leaves, grads, strict=True))
