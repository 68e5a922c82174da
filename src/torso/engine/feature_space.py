"""Work on precomputed features: an engine whose workspaces hold each sample's features in place of the sample.

A frozen body gives the same features for a sample every time. So the features of all samples are computed in one pass.
Every piece of work (rounds, measures, analyses) then starts from them, with a body that returns its input unchanged.
The body's tensors are left out of the clients' models there, because they are not used.

n samples, d features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, Literal, Self, TypeVar

import torch
from torch import Tensor

from torso.data import Roster
from torso.engine.base import Engine, Features, HasCosts, S, SupportsForClients, Work, Workspace, add_up
from torso.learn.features import features_of
from torso.nets import Tensors
from torso.personal.store import Store

T = TypeVar("T")
SplitName = Literal["train", "test"]
_BLOCK = {"cuda": 2048, "cpu": 256}  # samples in one block of the pass, by device
_BATCH = {"cuda": 512, "cpu": 64}  # samples in one batch, by device


@dataclass(frozen=True)
class OnFeatures(Generic[T]):
    """Work that does other work on features."""

    work: Work[T]
    features: Features

    def __call__(self, workspace: Workspace, clients: Sequence[int]) -> T:
        return self.work(workspace.on_features(self.features), clients)

    def for_clients(self, clients: Sequence[int]) -> Self:
        return replace(self, work=self.work.for_clients(clients)) if isinstance(self.work, SupportsForClients) else self

    def costs(self, roster: Roster, clients: Sequence[int]) -> Sequence[float]:
        return self.work.costs(roster, clients) if isinstance(self.work, HasCosts) else [1.0] * len(clients)


@dataclass(frozen=True)
class LeavesOnFeatures(OnFeatures[T]):
    """Like `OnFeatures`, for work that leaves its clients a state (`LeavesStates`)."""

    leaves: ClassVar[bool] = True


@dataclass(frozen=True)
class FeatureEngine:
    """An engine that has its work done on features by another engine.

    `find` gives the features, and computes them if necessary. If it gives None, the work is done on samples."""

    engine: Engine
    find: Callable[[], Features | None]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        """Does nothing: the inner engine is closed by the code that opened it."""

    def map(self, work: Work[T], clients: Sequence[int], store: Store | None = None) -> Iterator[T]:
        return self.engine.map(self._wrapped(work), clients, store)

    def add_up(self, work: Work[Any], clients: Sequence[int], store: Store | None, total: S) -> S:
        return add_up(self.engine, self._wrapped(work), clients, store, total)

    def _wrapped(self, work: Work[T]) -> Work[T]:
        features = self.find()
        if features is None:
            return work
        if hasattr(work, "leaves"):
            return LeavesOnFeatures(work, features)
        return OnFeatures(work, features)


@dataclass(frozen=True)
class FeaturePass:
    """Work that computes features of blocks of a split. Its "clients" are the numbers of the blocks."""

    body: Tensors
    split: SplitName
    block: int  # samples in a block
    away: bool  # copy the features to the host's memory

    def __call__(self, workspace: Workspace, clients: Sequence[int]) -> list[Tensor]:
        samples = getattr(workspace.federation, self.split).samples
        batch = _BATCH.get(samples.device.type, _BATCH["cpu"])
        made = []
        for block in clients:
            some = samples[block * self.block : (block + 1) * self.block]
            found = features_of(workspace.context.net, self.body, some, workspace.context.lens, batch)
            made.append(found.cpu() if self.away else found)
        return made


@dataclass(frozen=True)
class Probe:
    """Work that computes the features of a few samples, and tests whether a feature depends on its sample alone."""

    body: Tensors
    split: SplitName
    rows: tuple[int, ...]

    def __call__(self, workspace: Workspace, clients: Sequence[int]) -> list[ProbeResult]:
        samples = getattr(workspace.federation, self.split).samples
        some = samples[torch.tensor(self.rows, device=samples.device)]
        together = features_of(workspace.context.net, self.body, some, workspace.context.lens, len(some))
        fewer = -(-len(some) // 3)
        apart = features_of(workspace.context.net, self.body, some[:fewer], workspace.context.lens, fewer)
        return [ProbeResult(together.cpu(), same(together[:fewer], apart))] * len(clients)


@dataclass(frozen=True)
class ProbeResult:
    """The result of a `Probe`."""

    features: Tensor
    # other samples in the batch made no difference (networks that are random in evaluation are refused before)
    fixed: bool


def same(one: Tensor, other: Tensor) -> bool:
    """Whether features differ at most by rounding."""
    if one.shape != other.shape:
        return False
    largest = other.nan_to_num().abs().amax().item() if other.numel() else 0.0  # a model that diverged has NaN
    return torch.allclose(one, other, rtol=1e-2, atol=1e-3 * largest, equal_nan=True)


def probe(engine: Engine, body: Tensors, split: SplitName, rows: Sequence[int]) -> ProbeResult:
    """Run a `Probe` on one of the engine's workers. `rows`: the samples, by their index in the split."""
    ((found,),) = engine.map(Probe(body, split, tuple(rows)), [0])
    return found


def compute(engine: Engine, body: Tensors, split: SplitName, into: Tensor) -> None:
    """Fill `into` [n, d] with the features of a split, in one pass whose blocks are divided over the workers."""
    device = next(iter(body.values())).device.type if body else "cpu"
    block = _BLOCK.get(device, _BLOCK["cpu"])
    blocks = -(-len(into) // block)
    work = FeaturePass(body, split, block, away=into.device.type == "cpu")
    start = 0
    for part in engine.map(work, range(blocks)):
        for found in part:
            into[start : start + len(found)].copy_(found)
            start += len(found)
