"""Floating-point operations of a training step, and the parameters that no logit depends on.

Operations are those of matrix products and convolutions, by torch's formulas (a multiplication and an addition are
two). They are counted once on a sample of zeros and multiplied by the number of samples. The counter is Torso's own,
because the first use of torch's counter loads the compiler, which takes more than a second.
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
from torso.nets.network import Network, zeroed_copy

# operations per sample, by the shape of a sample and the names of the parameters that learn
Counts = dict[tuple[tuple[int, ...], frozenset[str]], int]
_counted: WeakKeyDictionary[Network, Counts] = WeakKeyDictionary()
_alike: dict[object, Counts] = {}  # by construction: networks that are built in the same way share their counts


def step_flops(net: Network, input: Input | tuple[int, int, int], batch: int, learning: Iterable[str] = ()) -> int:
    """Floating-point operations of one client's step on `batch` samples: forward, and backward to the parameters that
    learn. If no parameter learns, only the forward pass is counted."""
    if net not in _counted:
        _counted[net] = _alike.setdefault(_construction(net), {}) if _prints_all(net) else {}
    counts = _counted[net]
    input = as_input(input)
    names = frozenset(learning)
    if (input.shape, names) not in counts:
        samples = 1 if net.body.native else 2  # PyTorch's BatchNorm may refuse a single sample
        with _Counter() as counter:
            _there_and_back(net, input, samples, names)
        counts[input.shape, names] = counter.total // samples
    return batch * counts[input.shape, names]


def _prints_all(net: Network) -> bool:
    """Whether a network has only layers of Torso and torch, which print all that they compute."""
    layers = list(net.modules())
    own = all(type(layer).__module__.partition(".")[0] in ("torch", "torso") for layer in layers)
    return own and net.body.native and not any("forward" in vars(layer) for layer in layers)


def _construction(net: Network) -> object:
    """A key that is equal for networks that are built in the same way."""
    return repr(net), tuple((name, tensor.shape) for name, tensor in net.state_dict(keep_vars=True).items())


class _Counter(EagerMode):
    """A mode that adds up the floating-point operations of everything that is computed in it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        kind = func._overloadpacket
        if kind is torch.ops.aten.convolution_backward:
            self.total += _backward(*args)
        elif kind in flop_registry:
            self.total += int(flop_registry[kind](*args, **(kwargs or {}), out_val=result))
        return result


def _backward(grad: Tensor, x: Tensor, weight: Tensor, *rest: Any) -> int:
    """The operations of a convolution's backward pass: as many as forward, for each of the gradients that is wanted,
    of its input and of its weight.

    torch's own formula counts every group as a whole convolution, which is C times too many for a depthwise one."""
    gradients = sum(bool(wanted) for wanted in rest[-1][:2])
    return 2 * grad.numel() * prod(weight.shape[1:]) * gradients


def unused_parameters(net: Network, input: Input, learning: Iterable[str]) -> tuple[str, ...]:
    """Those of the parameters that no logit depends on, so that no loss depends on them."""
    found = _there_and_back(net, input, 2, learning)
    return tuple(name for name, grad in found.items() if grad is None)


def _there_and_back(net: Network, input: Input, batch: int, learning: Iterable[str]) -> dict[str, Tensor | None]:
    """The gradients of the parameters that learn, from one client's forward and backward pass with all weights zero.

    None: no logit depends on the parameter."""
    bare, tensors = zeroed_copy(net)
    leaves = {name: tensors[name].requires_grad_() for name in sorted(learning)}
    output = apply(bare, tensors, input.example(batch)[None])
    all_logits = (logits for logits in (output.logits, output.personal, output.auxiliary_logits) if logits is not None)
    total = torch.stack([logits.sum() for logits in all_logits]).sum()
    if not leaves or not total.requires_grad:
        return dict.fromkeys(leaves)
    grads = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
    return dict(zip(leaves, grads, strict=True))
