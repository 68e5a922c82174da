"""Calibration: gives BatchNorm layers without running statistics the statistics of a set of samples.

Without running statistics a BatchNorm layer uses those of the batch. After calibration the answer for a sample no
longer depends on the other samples of its batch. n samples, C channels.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from torso.errors import RequestError
from torso.fast import plain_path
from torso.nets.layers import track
from torso.nets.network import Network

MAX_BATCH = 512  # samples in one forward pass, at most
MIN_SAMPLES = 2  # samples to calibrate on, at least


def goes_by_batch(net: nn.Module) -> bool:
    """Whether the answer for a sample depends on the other samples of its batch, in eval mode."""
    return bool(_by_batch(net))


def calibrated(net: Network, samples: Any) -> Network:
    """A copy of a trained network whose BatchNorm layers have the statistics of these samples. It answers a single
    sample as it would in a batch with all of them.

    `samples`: as `net.prepare` takes them. A network without BatchNorm layers of this kind (`card.batch_statistics` is
    false) is copied unchanged."""
    return calibrated_on(net, net.prepare(samples))


def calibrated_on(net: Network, x: Tensor) -> Network:
    """What `calibrated` returns, from the network's input [n, *] instead of raw samples."""
    made = calibrate(net, x)
    if made.card is not None and goes_by_batch(net):
        made.card = replace(made.card, norm="running", batch_statistics=False, calibrated=len(x))
    return made


@torch.no_grad()
def calibrate(net: Network, x: Tensor, at_once: int = MAX_BATCH) -> Network:
    """A copy of a network, in eval mode, whose BatchNorm layers have the statistics of an input [n, *].

    The statistics are exact: mean and (biased) variance of all values that a layer gets while the layers before it use
    their new statistics. Up to `at_once` samples fit into one batch, so one forward pass is enough. More samples take
    one forward pass per layer, in the order of the layers."""
    made = copy.deepcopy(net).eval()
    if not goes_by_batch(made):
        return made
    if len(x) < MIN_SAMPLES:
        raise RequestError(f"BatchNorm cannot be calibrated on {len(x)} samples. Expected: at least {MIN_SAMPLES}")
    norms = _in_order(made, x[:MIN_SAMPLES])
    batches = x.tensor_split(math.ceil(len(x) / at_once))  # of nearly equal size, so that none has a single sample
    groups = [norms] if len(batches) == 1 else [[norm] for norm in norms]
    for group in groups:
        with plain_path(), _watched(group) as seen:
            for batch in batches:
                made(batch)
        for norm in group:
            first, *others = seen[norm]
            _settle(norm, sum(others, first), next(made.parameters()).dtype)
    for norm in _by_batch(made):  # those that the network never calls
        track(norm, True)
    return made


def _by_batch(net: nn.Module) -> list[_BatchNorm]:
    """The BatchNorm layers that always use the statistics of the batch."""
    return [layer for layer in net.modules() if isinstance(layer, _BatchNorm) and layer.running_mean is None]


def _in_order(net: Network, x: Tensor) -> list[_BatchNorm]:
    """The layers of `_by_batch`, in the order in which the network calls them."""
    with plain_path(), _watched(_by_batch(net)) as seen:
        net(x)
    return list(seen)


@dataclass(frozen=True)
class _Moments:
    """Moments of the values of every channel, in float64."""

    count: int  # values per channel
    mean: Tensor  # [C]
    spread: Tensor  # [C], sum of squared distances from the mean

    @classmethod
    def of(cls, maps: Tensor) -> _Moments:
        """The moments of maps [n, C, …]."""
        values = maps.transpose(0, 1).flatten(1).double()  # [C, values]
        mean = values.mean(dim=1)
        return cls(values.shape[1], mean, (values - mean[:, None]).square().sum(dim=1))

    def __add__(self, other: _Moments) -> _Moments:
        """The moments of both sets of values together."""
        count = self.count + other.count
        difference = other.mean - self.mean
        mean = self.mean + difference * (other.count / count)
        between = difference.square() * (self.count * other.count / count)
        return _Moments(count, mean, self.spread + other.spread + between)


Seen = dict[_BatchNorm, list[_Moments]]


@contextmanager
def _watched(norms: Sequence[_BatchNorm]) -> Iterator[Seen]:
    """A context that records the moments of what each of these layers gets, one entry per call.

    The layers are in the order of their first call; layers that are not called are left out."""
    seen: Seen = {}

    def look(module: nn.Module, given: tuple[Any, ...]) -> None:
        assert isinstance(module, _BatchNorm)
        seen.setdefault(module, []).append(_Moments.of(given[0]))

    handles = [norm.register_forward_pre_hook(look) for norm in norms]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def _settle(norm: _BatchNorm, found: _Moments, dtype: torch.dtype) -> None:
    """Make a layer use these statistics as its running statistics."""
    track(norm, True)
    norm.to(dtype).eval()
    assert norm.running_mean is not None
    assert norm.running_var is not None
    norm.running_mean.copy_(found.mean)
    norm.running_var.copy_(found.spread / found.count)
