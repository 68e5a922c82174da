"""What an analysis is: a function of the trained federation, or a look at the participants' models of a round."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Literal, TypeVar

import torch
from torch import Tensor

from torso.data import Roster
from torso.engine import Engine, Work, Workspace
from torso.measure.base import Evaluation
from torso.measure.generic import generic_of
from torso.nets import Network, Tensors
from torso.nets.heads import CosineLinear, NormalizedLinear
from torso.personal.models import own_models_of
from torso.personal.state import State
from torso.personal.store import Store
from torso.registry import Registry

R = TypeVar("R")


@dataclass(frozen=True)
class Scene:
    """The federation as an analysis finds it: at the end of a run, or after a round."""

    engine: Engine
    roster: Roster
    net: Network
    state: State  # the one that accuracy is measured on
    how: Evaluation
    clients: tuple[int, ...]  # those who are measured
    parameters: tuple[str, ...]  # that clients train
    seed: int

    @cached_property
    def generic(self) -> Tensors:
        how, state = self.how, self.state
        return generic_of(self.engine, state.model, state.clients, self.roster, how.weighting, how.keeps)

    def map(self, work: Work[R], clients: Sequence[int], store: Store | None = None) -> Iterator[R]:
        """Do a piece of work for clients, with what they hold now, or with another store."""
        _ = self.generic  # made before: a worker that asked its own engine for it would wait for itself
        return self.engine.map(work, clients, self.state.clients if store is None else store)

    def own_models(self, workspace: Workspace, clients: Sequence[int]) -> Tensors:
        """The tensors of models of their own that visits have left G clients by now [G, *]; asked where they work."""
        server, now = self.state.server, workspace.store if workspace.store.later is None else workspace.store.later
        return own_models_of(now.states(clients), server.model, server.origin)

    def for_clients(self, clients: Sequence[int]) -> Scene:
        """What a look at these clients needs; the generic model is made here."""
        narrow = replace(self, state=State(self.state.server.light), how=self.how.for_clients(clients))
        vars(narrow)["generic"] = self.generic
        return narrow

    @property
    def rows(self) -> str:
        """The weight whose rows W_c stand for classes: that of the last linear layer of the (generic) head."""
        return [name for name in self.net.parts["head"] if name.endswith("weight")][-1]

    @property
    def test_batches(self) -> range:
        return range(-(-self.roster.test_samples // self.how.batch_size))

    def as_heads_see(self, features: Tensor) -> Tensor:
        """Features of length one where the head makes them so (FedFN, spec 13)."""
        normalises = isinstance(self.net.head, NormalizedLinear | CosineLinear)
        return torch.nn.functional.normalize(features, dim=-1) if normalises else features


@dataclass(frozen=True)
class Part:
    """What a look at G clients found: `values` [G, …] of each of them, and `sums` over them."""

    values: Tensors
    sums: Tensors = field(default_factory=dict)


class RoundAnalysis(ABC):
    """A look at the participants' models after their local training; `every_epoch`: before it and after each epoch."""

    every_epoch: ClassVar[bool] = False

    @abstractmethod
    def look(self, workspace: Workspace, clients: Sequence[int], local: Tensors, scene: Scene) -> Part:
        """Look at the models [G, *] of a group of participants."""

    def sum_up(self, values: Tensors, sums: Tensors, scene: Scene) -> dict[str, Any]:
        """All participants' values [m, …] and sums become one entry of the round: the mean over those that have any."""
        return {name: plain(value.nanmean(dim=0)) for name, value in values.items()}


EndAnalysis = Callable[[Scene], dict[str, Any]]
"""The federation at the end of a run → what stands in analyses.json: numbers and lists."""


@dataclass(frozen=True)
class Analysis:
    when: Literal["round", "end"]
    take: EndAnalysis | type[RoundAnalysis]
    about: str
    of_tuning: bool = False  # whether it looks at fine-tuning, which not every method has
    whole_test: bool = True  # whether it looks at the server's own test set, which a real federation may not have


analyses: Registry[Analysis] = Registry("measure.analyses")
T = TypeVar("T", bound=EndAnalysis | type[RoundAnalysis])


def analysis(
    name: str, when: Literal["round", "end"], of_tuning: bool = False, whole_test: bool = True
) -> Callable[[T], T]:
    """Decorator: register an analysis under the name that `measure.analyses` and `analyses.json` use.

    `when = "end"`: a function of the scene; `"round"`: a class of RoundAnalysis."""

    def keep(take: T) -> T:
        about = " ".join((take.__doc__ or "").split())
        analyses.register(name)(Analysis(when, take, about, of_tuning, whole_test))
        return take

    return keep


def plain(value: Any) -> Any:
    """Tensors as (lists of) numbers, as JSON has them: what cannot be measured is null."""
    if isinstance(value, Tensor):
        return plain(value.tolist())
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value
