"""Floating-point operations, as torch counts them: those of matrix products and convolutions (a multiplication
and an addition are two), counted once on tensors without content and multiplied: no arithmetic, no look at data.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from torso.data.inputs import Input, as_input
from torso.nets.network import Network, apply, skeleton

_counted: WeakKeyDictionary[Network, dict[tuple[tuple[int, ...], int, frozenset[str]], int]] = WeakKeyDictionary()


def step_flops(net: Network, input: Input | tuple[int, int, int], batch: int, learning: Iterable[str] = ()) -> int:
    """Of one client's step on so many samples, forward and back to the parameters that learn; none: forward alone."""
    known, input = _counted.setdefault(net, {}), as_input(input)
    asked = (input.shape, batch, frozenset(learning))
    if asked not in known:
        known[asked] = _count(net, input, *asked[1:])
    return known[asked]


def _backward(grad: Sequence[int], x: Sequence[int], weight: Sequence[int], *rest: Any, **_: Any) -> int:
    """A convolution's way back, to its input, its weight or both: the forward pass again for each.

    torch's own count takes every group for a whole convolution, which makes a depthwise one C times too dear."""
    ways = sum(bool(wanted) for wanted in rest[-1][:2])
    return 2 * prod(grad) * prod(weight[1:]) * ways


def _count(net: Network, input: Input, batch: int, learning: frozenset[str]) -> int:
    with FlopCounterMode(display=False, custom_mapping={torch.ops.aten.convolution_backward: _backward}) as counter:
        _there_and_back(net, input, batch, learning)
    return int(counter.get_total_flops())


def unreached(net: Network, input: Input, learning: Iterable[str]) -> tuple[str, ...]:
    """Those of the parameters that no logit depends on, so that no loss does."""
    found = _there_and_back(net, input, 2, learning)
    return tuple(name for name, grad in found.items() if grad is None)


def _there_and_back(net: Network, input: Input, batch: int, learning: Iterable[str]) -> dict[str, Tensor | None]:
    """One client's forward pass on tensors without content, and back to the parameters that learn."""
    bare = skeleton(net).to("meta").eval()
    tensors = {name: tensor.detach().unsqueeze(0) for name, tensor in bare.state_dict().items()}
    leaves = {name: tensors[name].requires_grad_() for name in sorted(learning)}
    said = apply(bare, tensors, input.example(batch, torch.device("meta"))[None])
    total = said.logits.sum() if said.personal is None else said.logits.sum() + said.personal.sum()
    if not leaves or not total.requires_grad:
        return dict.fromkeys(leaves)
    grads = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
    return dict(zip(leaves, grads, strict=True))
