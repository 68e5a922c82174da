"""The forms of analyses (of the trained federation, or of the participants' models in a round) and their registry."""

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
class Snapshot:
    """The federation at the end of a run or after a round: the input of an analysis."""

    engine: Engine
    roster: Roster
    net: Network
    state: State  # the one that accuracy is measured on
    how: Evaluation
    clients: tuple[int, ...]  # clients that are measured
    parameters: tuple[str, ...]  # names of the parameters that clients train
    seed: int

    @cached_property
    def generic(self) -> Tensors:
        """The generic model [*]."""
        how, state = self.how, self.state
        return generic_of(self.engine, state.model, state.clients, self.roster, how.weighting, how.keeps)

    def map(self, work: Work[R], clients: Sequence[int], store: Store | None = None) -> Iterator[R]:
        """Do a piece of work for clients, with their present states or with another store."""
        _ = self.generic  # computed now: a worker that asked its own engine for it would wait for itself
        return self.engine.map(work, clients, self.state.clients if store is None else store)

    def own_models(self, workspace: Workspace, clients: Sequence[int]) -> Tensors:
        """The own tensors of G clients after their last visit [G, *]. Call it in work, with the worker's workspace."""
        server = self.state.server
        store = workspace.store if workspace.store.later is None else workspace.store.later
        return own_models_of(store.states(clients), server.model, server.origin)

    def for_clients(self, clients: Sequence[int]) -> Snapshot:
        """A copy with what these clients need, for work that is sent to them. It contains the generic model."""
        narrow = replace(self, state=State(self.state.server.light), how=self.how.for_clients(clients))
        vars(narrow)["generic"] = self.generic
        return narrow

    @property
    def rows(self) -> str:
        """The name of the weight whose rows W_c belong to classes: that of the last linear layer of the (generic)
        head."""
        return [name for name in self.net.parts["head"] if name.endswith("weight")][-1]

    @property
    def test_batches(self) -> range:
        """The numbers of the batches of the server's test set."""
        return range(-(-self.roster.test_samples // self.how.batch_size))

    def as_heads_see(self, features: Tensor) -> Tensor:
        """The features as the head uses them: scaled to length one if the head does that (FedFN, spec 13)."""
        normalises = isinstance(self.net.head, NormalizedLinear | CosineLinear)
        return torch.nn.functional.normalize(features, dim=-1) if normalises else features


@dataclass(frozen=True)
class GroupResult:
    """The result of a round analysis for a group of G clients."""

    values: Tensors  # [G, …]: of each client
    sums: Tensors = field(default_factory=dict)  # over the clients of the group


class RoundAnalysis(ABC):
    """The base class of analyses of the participants' models after local training."""

    every_epoch: ClassVar[bool] = False  # whether models are analysed before local training and after each epoch

    @abstractmethod
    def look(self, workspace: Workspace, clients: Sequence[int], local: Tensors, snapshot: Snapshot) -> GroupResult:
        """Analyse the models [G, *] of a group of participants."""

    def sum_up(self, values: Tensors, sums: Tensors, snapshot: Snapshot) -> dict[str, Any]:
        """The round's entry, from the values of all m participants [m, …] and the sums over them. By default: the mean
        of each value over the participants that have it."""
        return {name: plain(value.nanmean(dim=0)) for name, value in values.items()}


EndAnalysis = Callable[[Snapshot], dict[str, Any]]
"""The federation at the end of a run → the entry of analyses.json: numbers and lists."""


@dataclass(frozen=True)
class Analysis:
    """A registered analysis."""

    when: Literal["round", "end"]
    take: EndAnalysis | type[RoundAnalysis]
    about: str
    of_tuning: bool = False  # whether it analyses fine-tuning, which not every method has
    whole_test: bool = True  # whether it needs the server's test set, which a real federation may not have


analyses: Registry[Analysis] = Registry("measure.analyses")
T = TypeVar("T", bound=EndAnalysis | type[RoundAnalysis])


def analysis(
    name: str, when: Literal["round", "end"], of_tuning: bool = False, whole_test: bool = True
) -> Callable[[T], T]:
    """Decorator: register an analysis under the name that `measure.analyses` and `analyses.json` use.

    `when = "end"`: a function of the `Snapshot`; `"round"`: a subclass of RoundAnalysis."""

    def keep(take: T) -> T:
        about = " ".join((take.__doc__ or "").split())
        analyses.register(name)(Analysis(when, take, about, of_tuning, whole_test))
        return take

    return keep


def plain(value: Any) -> Any:
    """A value for JSON: tensors as (lists of) numbers with six digits, and null for NaN and infinity."""
    if isinstance(value, Tensor):
        return plain(value.tolist())
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value
