"""BatchNorm without running statistics goes by the batch that it is given. Calibration gives it statistics of its own,
those of a set of samples, so that an answer no longer depends on the other samples of the batch.

n samples, C channels.
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

AT_ONCE = 512  # samples of one forward pass
LEAST = 2  # samples that have statistics


def goes_by_batch(net: nn.Module) -> bool:
    """Whether an answer of the network in evaluation mode depends on the other samples of its batch."""
    return bool(_by_batch(net))


def calibrated(net: Network, samples: Any) -> Network:
    """A copy of a trained network whose BatchNorm layers have the statistics of these samples (as `net.prepare` takes
    them), so that it answers a single sample as it would in a batch with all of them.

    A network without BatchNorm of this kind (`card.batch_statistics`) is copied unchanged."""
    return calibrated_on(net, net.prepare(samples))


def calibrated_on(net: Network, x: Tensor) -> Network:
    """The same for input that is prepared already."""
    made = calibrate(net, x)
    if made.card is not None and goes_by_batch(net):
        made.card = replace(made.card, norm="running", batch_statistics=False, calibrated=len(x))
    return made


@torch.no_grad()
def calibrate(net: Network, x: Tensor, at_once: int = AT_ONCE) -> Network:
    """The same for input [n, *] that is prepared already.

    The statistics are exact: mean and (biased) variance of all values that a layer meets when the layers before it
    have their own statistics already. Up to `at_once` samples take one forward pass, since one batch holds them all.
    More take one pass for each layer, in the order of the layers."""
    made = copy.deepcopy(net).eval()
    if not goes_by_batch(made):
        return made
    if len(x) < LEAST:
        raise RequestError(f"BatchNorm cannot be calibrated on {len(x)} samples. Expected: at least {LEAST}")
    waiting = _in_order(made, x[:LEAST])
    batches = x.tensor_split(math.ceil(len(x) / at_once))  # of nearly one size: none of a single sample
    groups = [waiting] if len(batches) == 1 else [[norm] for norm in waiting]
    for group in groups:
        with plain_path(), _watched(group) as seen:
            for batch in batches:
                made(batch)
        for norm in group:
            _settle(norm, sum(seen[norm][1:], seen[norm][0]), next(made.parameters()).dtype)
    for norm in _by_batch(made):  # nothing ever calls them
        track(norm, True)
    return made


def _by_batch(net: nn.Module) -> list[_BatchNorm]:
    return [layer for layer in net.modules() if isinstance(layer, _BatchNorm) and layer.running_mean is None]


def _in_order(net: Network, x: Tensor) -> list[_BatchNorm]:
    """The layers that go by the batch, in the order in which the network calls them."""
    with plain_path(), _watched(_by_batch(net)) as seen:
        net(x)
    return list(seen)


@dataclass(frozen=True)
class _Moments:
    """Count, mean and summed squared distance from the mean of every channel [C], in float64."""

    count: int
    mean: Tensor
    spread: Tensor

    @classmethod
    def of(cls, maps: Tensor) -> _Moments:
        """The moments of maps [n, C, …]."""
        wide = maps.transpose(0, 1).flatten(1).double()
        mean = wide.mean(dim=1)
        return cls(wide.shape[1], mean, (wide - mean[:, None]).square().sum(dim=1))

    def __add__(self, other: _Moments) -> _Moments:
        count, apart = self.count + other.count, other.mean - self.mean
        mean = self.mean + apart * (other.count / count)
        return _Moments(count, mean, self.spread + other.spread + apart.square() * (self.count * other.count / count))


Seen = dict[_BatchNorm, list[_Moments]]


@contextmanager
def _watched(norms: Sequence[_BatchNorm]) -> Iterator[Seen]:
    """What each of the layers meets inside; those that were called stand in the order of their first call."""
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
    """From now on the layer goes by these statistics."""
    track(norm, True)
    norm.to(dtype).eval()
    assert norm.running_mean is not None
    assert norm.running_var is not None
    norm.running_mean.copy_(found.mean)
    norm.running_var.copy_(found.spread / found.count)
