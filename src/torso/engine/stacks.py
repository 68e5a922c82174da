"""Decide how many clients share a stack on CPU if the user has not set it: as many as keep their bits.

A stack keeps the bits if each client gets exactly the result that it gets alone. With a small network Python takes most
of the time, and a stack of ten clients takes hardly longer than one client. With a large network matrix products take
most of the time, and they are no faster in a stack. Whether a stack keeps the bits depends on the method (the work
says so), on the network (`keeps_bits`) and on the machine's matrix products, whose rounding may depend on where a
matrix lies in memory. So one step on random numbers is tried, once for each number of samples that a batch has.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch

from torso.data import Federation
from torso.data.batches import Batch
from torso.learn.gradients import leading_gradients
from torso.learn.objectives import CrossEntropy
from torso.learn.sgd import Sgd
from torso.learn.stacked import rows_of
from torso.nets import Network, Tensors, learnable, set_modes, skeleton
from torso.nets.flops import step_flops

MOST = 32  # clients in a stack, at most
_FLOPS = 20_000_000  # of one client's step, forward and backward; above it, stacks are not faster
_TRIED = 5  # clients in the stack that is tried, so that their matrices lie at different addresses
_alike: dict[object, dict[int, bool]] = {}  # (network, input) -> samples in a batch -> whether a stack kept the bits


@runtime_checkable
class SupportsStacks(Protocol):
    """Work that can be done for several clients in a stack and may give each of them the bits that it has alone."""

    @property
    def batch_samples(self) -> int:
        """The number of samples in a full batch."""
        ...

    def keeps_bits(self, sizes: Sequence[int]) -> bool:
        """Whether clients with these numbers of samples keep their bits, as far as the method is concerned."""
        ...


class Stacker:
    """Decides how many clients of an engine share a stack."""

    def __init__(self, net: Network, federation: Federation) -> None:
        self.net, self.federation = net, federation
        self._known = _alike.setdefault((repr(net), federation.input), {}) if net.keeps_bits else {}

    def __call__(self, work: Any, clients: Sequence[int]) -> int:
        """The number of clients in a stack for this work; 1: no stacks."""
        if not self.net.keeps_bits or len(clients) < 2 or not isinstance(work, SupportsStacks) or min(clients) < 0:
            return 1
        sizes = self.federation.train.sizes_of(clients)
        batch = work.batch_samples
        if not self._is_small(batch) or not work.keeps_bits(sizes.tolist()):
            return 1
        # every number of samples that a batch of these clients can have
        widths = {batch, *(sizes % batch)}
        if sizes.min() <= batch:
            widths |= set(np.minimum(sizes, batch))
        return MOST if all(self._same(int(width)) for width in widths if width) else 1

    @cached_property
    def _learning(self) -> tuple[str, ...]:
        return learnable(self.net, self.net.parts["all"])

    def _is_small(self, batch: int) -> bool:
        return step_flops(self.net, self.federation.input, batch, self._learning) <= _FLOPS

    def _same(self, samples: int) -> bool:
        """Whether a step of a stack, with this many samples per client, has the bits of single clients' steps."""
        if samples not in self._known:
            self._known[samples] = self._tried(samples)
        return self._known[samples]

    def _tried(self, samples: int) -> bool:
        """Try it with random models and a random batch."""
        draw = torch.Generator().manual_seed(samples)
        labels = torch.randint(self.net.classes, (_TRIED, samples), generator=draw)
        batch = Batch(torch.randn(_TRIED, samples, *self.federation.input.shape, generator=draw), labels)
        net, models, velocities = self._drawn
        stacked = _stepped(net, models, velocities, batch)
        for client in range(_TRIED):
            row = slice(client, client + 1)
            alone = Batch(batch.inputs[row].clone(), labels[row].clone())
            single = _stepped(net, rows_of(models, row), rows_of(velocities, row), alone)
            if not all(torch.equal(stacked[name][row], tensor) for name, tensor in single.items()):
                return False
        return True

    @cached_property
    def _drawn(self) -> tuple[Network, Tensors, Tensors]:
        """A network without weights, random models [_TRIED, *], and random velocities as in the middle of training."""
        draw = torch.Generator().manual_seed(0)
        net = skeleton(self.net, self.federation.device)
        models = {n: 0.1 * torch.randn(_TRIED, *t.shape, generator=draw) for n, t in self.net.state_dict().items()}
        models |= self.net.facts(torch.ones(_TRIED, self.net.classes, dtype=torch.int64), models)
        set_modes(net, self._learning)
        velocities = {n: 0.1 * torch.randn(models[n].shape, generator=draw) for n in self._learning}
        return net, models, velocities


def _stepped(net: Network, models: Tensors, velocities: Tensors, batch: Batch) -> Tensors:
    """The models after one step with momentum, with the gradients and losses of that step."""
    moved = {name: tensor.clone() for name, tensor in models.items()}
    sgd = Sgd(0.9, 1e-3)
    sgd.velocity = {name: tensor.clone() for name, tensor in velocities.items()}
    counts = torch.ones(len(batch.labels), net.classes, dtype=torch.int64)
    grads, losses = leading_gradients(net, moved, tuple(velocities), batch, CrossEntropy(), counts)
    sgd.step(moved, grads, dict.fromkeys(velocities, 0.0731))
    return {**moved, **{f"grad {name}": grad for name, grad in grads.items()}, "loss": losses}
