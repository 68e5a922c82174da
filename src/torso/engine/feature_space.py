"""Work on features: an engine whose desks hold each sample's feature in place of the sample.

A body that does not move says the same of a sample every time. So the features of all samples are computed in one pass,
and every piece of work (rounds, measures, questions) then goes on from them, under a body that passes them on. Tensors
of the body are left out of clients' models there: nobody needs them.

n samples, d features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, Literal, Self, TypeVar

import torch
from torch import Tensor

from torso.data import Roster
from torso.engine.base import Engine, Features, Narrows, S, Weighs, Work, Workspace, add_up
from torso.learn.features import features_of
from torso.nets import Tensors
from torso.personal.store import Store

T = TypeVar("T")
SplitName = Literal["train", "test"]
_BLOCK = {"cuda": 2048, "cpu": 256}  # samples of one piece of the pass
_BATCH = {"cuda": 512, "cpu": 64}


@dataclass(frozen=True)
class OnFeatures(Generic[T]):
    """Another piece of work, done on features."""

    work: Work[T]
    features: Features

    def __call__(self, workspace: Workspace, clients: Sequence[int]) -> T:
        return self.work(workspace.on_features(self.features), clients)

    def for_clients(self, clients: Sequence[int]) -> Self:
        return replace(self, work=self.work.for_clients(clients)) if isinstance(self.work, Narrows) else self

    def costs(self, roster: Roster, clients: Sequence[int]) -> Sequence[float]:
        return self.work.costs(roster, clients) if isinstance(self.work, Weighs) else [1.0] * len(clients)


@dataclass(frozen=True)
class LeavesOnFeatures(OnFeatures[T]):
    """The same of work that leaves its clients something."""

    leaves: ClassVar[bool] = True


@dataclass(frozen=True)
class FeatureEngine:
    """An engine that does its work on features, once somebody has some; `find` computes them, or gives None where the
    work is to be done on samples."""

    engine: Engine
    find: Callable[[], Features | None]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        """The engine's own end is that of whoever opened it."""

    def map(self, work: Work[T], clients: Sequence[int], store: Store | None = None) -> Iterator[T]:
        return self.engine.map(self._wrapped(work), clients, store)

    def add_up(self, work: Work[Any], clients: Sequence[int], store: Store | None, total: S) -> S:
        return add_up(self.engine, self._wrapped(work), clients, store, total)

    def _wrapped(self, work: Work[T]) -> Work[T]:
        features = self.find()
        if features is None:
            return work
        return (LeavesOnFeatures if hasattr(work, "leaves") else OnFeatures)(work, features)


@dataclass(frozen=True)
class FeaturePass:
    """Work: features of blocks of a split's samples; "clients" are the numbers of the blocks. `away`: to the host."""

    body: Tensors
    split: SplitName
    block: int
    away: bool

    def __call__(self, workspace: Workspace, clients: Sequence[int]) -> list[Tensor]:
        samples = getattr(workspace.federation, self.split).samples
        batch = _BATCH.get(samples.device.type, _BATCH["cpu"])
        made = []
        for number in clients:
            some = samples[number * self.block : (number + 1) * self.block]
            found = features_of(workspace.context.net, self.body, some, workspace.context.lens, batch)
            made.append(found.cpu() if self.away else found)
        return made


@dataclass(frozen=True)
class Probe:
    """Work: what a body says of a few samples, and whether a feature is a function of its sample alone."""

    body: Tensors
    split: SplitName
    rows: tuple[int, ...]

    def __call__(self, workspace: Workspace, clients: Sequence[int]) -> list[Probed]:
        samples = getattr(workspace.federation, self.split).samples
        some = samples[torch.tensor(self.rows, device=samples.device)]
        together = features_of(workspace.context.net, self.body, some, workspace.context.lens, len(some))
        fewer = -(-len(some) // 3)
        apart = features_of(workspace.context.net, self.body, some[:fewer], workspace.context.lens, fewer)
        return [Probed(together.cpu(), same(together[:fewer], apart))] * len(clients)


@dataclass(frozen=True)
class Probed:
    """`fixed`: other samples in the batch made no difference. (What draws random numbers in evaluation is refused when
    the network is built.)"""

    features: Tensor
    fixed: bool


def same(one: Tensor, other: Tensor) -> bool:
    """Whether features differ by rounding alone."""
    if one.shape != other.shape:
        return False
    largest = other.nan_to_num().abs().amax().item() if other.numel() else 0.0  # a model that diverged has NaN
    return torch.allclose(one, other, rtol=1e-2, atol=1e-3 * largest, equal_nan=True)


def probe(engine: Engine, body: Tensors, split: SplitName, rows: Sequence[int]) -> Probed:
    """Ask one worker."""
    ((found,),) = engine.map(Probe(body, split, tuple(rows)), [0])
    return found


def compute(engine: Engine, body: Tensors, split: SplitName, into: Tensor) -> None:
    """One pass over the samples of a split, its blocks dealt to the engine's workers; fills `into` [n, d]."""
    start, place = 0, next(iter(body.values())).device.type if body else "cpu"
    block = _BLOCK.get(place, _BLOCK["cpu"])
    work = FeaturePass(body, split, block, away=into.device.type == "cpu")
    for part in engine.map(work, range(-(-len(into) // block))):
        for found in part:
            into[start : start + len(found)].copy_(found)
            start += len(found)
