"""Which clients share a stack on CPU where nobody has said how many: as many as keep the bits that each has alone.

A small network is bound by Python, and a stack of ten takes hardly longer than one client. A large one is bound by its
products, which are no faster in a stack. Whether a stack keeps the bits depends on the method (work says so), on the
network (`keeps_bits`) and on the machine's matrix products, which may round by where a matrix lies in memory. So a step
of random numbers is tried once, for each number of samples that a batch has.
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

MOST = 32  # clients of a stack
_FLOPS = 20_000_000  # of a client's step, forward and back; above, Python is not what takes the time
_TRIED = 5  # clients of the stack that is tried: their matrices lie at different places
_alike: dict[object, dict[int, bool]] = {}  # by network and number of samples: whether a stack kept the bits


@runtime_checkable
class Stacks(Protocol):
    """Work that may be done for several clients in a stack and leaves each of them the bits that it has alone."""

    @property
    def batch_samples(self) -> int:
        """How many samples a full batch has."""
        ...

    def keeps_bits(self, sizes: Sequence[int]) -> bool:
        """Whether clients of these sizes do, as far as the method goes."""
        ...


class Stacker:
    """Says how many clients of an engine share a stack."""

    def __init__(self, net: Network, federation: Federation) -> None:
        self.net, self.federation = net, federation
        self._known = _alike.setdefault((repr(net), federation.input), {}) if net.keeps_bits else {}

    def __call__(self, work: Any, clients: Sequence[int]) -> int:
        """How many of these clients do; 1: none."""
        if not self.net.keeps_bits or len(clients) < 2 or not isinstance(work, Stacks) or min(clients) < 0:
            return 1
        sizes, batch = self.federation.train.sizes_of(clients), work.batch_samples
        if not self._is_small(batch) or not work.keeps_bits(sizes.tolist()):
            return 1
        widths = set(sizes % batch if sizes.min() > batch else [*(sizes % batch), *np.minimum(sizes, batch)])
        return MOST if all(self._same(int(width)) for width in widths | {batch} if width) else 1

    @cached_property
    def _learning(self) -> tuple[str, ...]:
        return learnable(self.net, self.net.parts["all"])

    def _is_small(self, batch: int) -> bool:
        return step_flops(self.net, self.federation.input, batch, self._learning) <= _FLOPS

    def _same(self, samples: int) -> bool:
        """Whether a step of a stack with so many samples a client has the bits of steps of single clients, here."""
        if samples not in self._known:
            self._known[samples] = self._tried(samples)
        return self._known[samples]

    def _tried(self, samples: int) -> bool:
        draw = torch.Generator().manual_seed(samples)
        labels = torch.randint(self.net.classes, (_TRIED, samples), generator=draw)
        batch = Batch(torch.randn(_TRIED, samples, *self.federation.input.shape, generator=draw), labels)
        net, models, speeds = self._drawn
        stacked = _stepped(net, models, speeds, batch)
        for place in range(_TRIED):
            mine = slice(place, place + 1)
            alone = Batch(batch.inputs[mine].clone(), labels[mine].clone())
            single = _stepped(net, rows_of(models, mine), rows_of(speeds, mine), alone)
            if not all(torch.equal(stacked[name][mine], tensor) for name, tensor in single.items()):
                return False
        return True

    @cached_property
    def _drawn(self) -> tuple[Network, Tensors, Tensors]:
        """A network without weights, random models and their velocities in the midst of training."""
        draw, net = torch.Generator().manual_seed(0), skeleton(self.net, self.federation.device)
        models = {n: 0.1 * torch.randn(_TRIED, *t.shape, generator=draw) for n, t in self.net.state_dict().items()}
        models |= self.net.facts(torch.ones(_TRIED, self.net.classes, dtype=torch.int64), models)
        set_modes(net, self._learning)
        return net, models, {n: 0.1 * torch.randn(models[n].shape, generator=draw) for n in self._learning}


def _stepped(net: Network, models: Tensors, speeds: Tensors, batch: Batch) -> Tensors:
    """After a step with momentum; of what comes out, the gradients and losses too."""
    moved, sgd = {name: tensor.clone() for name, tensor in models.items()}, Sgd(0.9, 1e-3)
    sgd.velocity = {name: tensor.clone() for name, tensor in speeds.items()}
    counts = torch.ones(len(batch.labels), net.classes, dtype=torch.int64)
    grads, losses = leading_gradients(net, moved, tuple(speeds), batch, CrossEntropy(), counts)
    sgd.step(moved, grads, dict.fromkeys(speeds, 0.0731))
    return {**moved, **{f"grad {name}": grad for name, grad in grads.items()}, "loss": losses}
