"""Floating-point operations, as torch counts them: those of matrix products and convolutions (a multiplication
and an addition are two), counted once on tensors without content and multiplied: no arithmetic, no look at data.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any
from weakref import WeakKeyDictionary

import torch
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
    bare = skeleton(net).to("meta").eval()
    tensors = {name: tensor.detach().unsqueeze(0) for name, tensor in bare.state_dict().items()}
    leaves = [tensors[name].requires_grad_() for name in sorted(learning)]
    with FlopCounterMode(display=False, custom_mapping={torch.ops.aten.convolution_backward: _backward}) as counter:
        said = apply(bare, tensors, input.example(batch, torch.device("meta"))[None])
        if leaves:
            total = said.logits.sum() if said.personal is None else said.logits.sum() + said.personal.sum()
            torch.autograd.grad(total, leaves, allow_unused=True)
    return int(counter.get_total_flops())
