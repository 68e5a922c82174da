"""The evaluator: one walk over the clients takes every measure asked for."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import torch

from torso.data import Roster
from torso.engine import SERVER, Engine, Work, Workspace
from torso.learn.local import learn, learn_by_epoch
from torso.learn.stacked import each_alone
from torso.learn.task import LocalTask
from torso.measure import accuracy as _accuracy  # noqa: F401  registers the measures
from torso.measure import calibration as _calibration  # noqa: F401
from torso.measure import head_ensemble as _head_ensemble  # noqa: F401
from torso.measure import mixes as _mixes  # noqa: F401
from torso.measure import neighbours as _neighbours  # noqa: F401
from torso.measure import newcomers as _newcomers  # noqa: F401
from torso.measure import shifts as _shifts  # noqa: F401
from torso.measure.accuracy import generic_answer, percent_correct
from torso.measure.base import Accuracy, Evaluation, Measure, Taken, measures
from torso.measure.counts import class_counts_of, test_counts_of
from torso.measure.generic import generic_of
from torso.measure.mixes import weigh
from torso.nets import Tensors
from torso.personal.state import State
from torso.personal.store import Store

Values = dict[str, list[float]]
_PLACES: dict[Taken, int] = {"clients": 0, "local": 1, "own": 2, "newcomers": 3, "mixes": 4, "server": 4}  # in a result


@dataclass(frozen=True)
class Exam:
    """Work: take the measures of a group of clients. Each model is made once, whoever looks at it."""

    names: tuple[str, ...]
    model: Tensors
    how: Evaluation

    def __call__(self, workspace: Workspace, clients: Sequence[int]) -> Values:
        held = workspace.models(self.model, clients)
        visit = cache(lambda: self.how.visit(workspace, clients))
        found: Values = {}
        for of in dict.fromkeys(measures[name].of for name in self.names):
            if of == "own":
                found |= self._swept(workspace, clients, self.how.own(workspace, clients, held, visit))
            else:
                models = visit().tensors if of == "local" else held
                found |= self._take(workspace, clients, of, models, self.names)
        return found

    def for_clients(self, clients: Sequence[int]) -> Exam:
        return replace(self, how=self.how.for_clients(clients))

    @property
    def batch_samples(self) -> int:
        """How many samples a full batch has of what is trained on the way."""
        return self.how.settings.batch_size

    def keeps_bits(self, sizes: Sequence[int]) -> bool:
        """Whether models that are trained on the way have the same bits in a stack. Without any, nothing is gained."""
        kinds = {measures[name].of for name in self.names}
        keeps = {"own": self.how.keeps_bits, "local": self.how.visit.keeps_bits}
        return any(kind in kinds for kind in keeps) and all(keeps[kind](sizes) for kind in keeps if kind in kinds)

    def _take(
        self, workspace: Workspace, clients: Sequence[int], of: Taken, models: Tensors, names: Sequence[str]
    ) -> Values:
        if workspace.context.exact and len(clients) > 1:  # padding changes how the sums of a measure are rounded
            parts = [self._take(workspace, [k], of, mine, names) for k, mine in each_alone(clients, models)]
            return {name: [value for part in parts for value in part[name]] for name in parts[0]}
        takes: dict[Measure, None] = {measures[name].take: None for name in names if measures[name].of == of}
        values = {n: v for take in takes for n, v in take(workspace, clients, models, self.how).items()}
        return {name: value.tolist() for name, value in values.items() if name in names}

    def _swept(self, workspace: Workspace, clients: Sequence[int], start: Tensors) -> Values:
        """The measures of own models; those that are swept after every number of epochs, in one pass."""
        how, found = self.how, Values()
        swept = [name for name in self.names if measures[name].swept]
        wanted = {how.epochs, *(how.sweep if swept else ())}
        for epochs, models in own_models(workspace, clients, start, how, sorted(wanted)):
            now = epochs == how.epochs
            values = self._take(workspace, clients, "own", models, self.names if now else swept)
            found |= values if now else {}
            found |= {f"{name}@{epochs}": values[name] for name in swept if epochs in how.sweep}
        return found


@dataclass(frozen=True)
class ServerExam:
    """Work: what the generic model has right, in a group of batches of the test set."""

    takes: tuple[Measure, ...]
    model: Tensors
    how: Evaluation

    def __call__(self, workspace: Workspace, clients: Sequence[int]) -> Values:
        tensors = workspace.models(self.model, [SERVER] * len(clients), kept=False)
        return {
            name: v.tolist() for take in self.takes for name, v in take(workspace, clients, tensors, self.how).items()
        }

    def for_clients(self, clients: Sequence[int]) -> ServerExam:
        return replace(self, how=self.how.for_clients(()))  # "clients" are batches


@dataclass(frozen=True)
class PooledExam:
    """Work: how many test samples of each client the generic model has right, and how many there are; where the server
    has no test set, the clients' test data stand for it, and only these two numbers leave them."""

    model: Tensors
    batch_size: int

    def __call__(self, workspace: Workspace, clients: Sequence[int]) -> Values:
        deck, tensors = workspace.test_deck(clients), workspace.models(self.model, clients, kept=False)
        shares = percent_correct(workspace.context, deck, tensors, self.batch_size, generic_answer).nan_to_num(0.0)
        sizes = [float(size) for size in deck.sizes]
        right = [round(share * size / 100) for share, size in zip(shares.tolist(), sizes, strict=True)]
        return {"right": [float(count) for count in right], "of": sizes}


def own_models(
    workspace: Workspace, clients: Sequence[int], start: Tensors, how: Evaluation, wanted: Sequence[int]
) -> Iterator[tuple[int, Tensors]]:
    """The clients' own models [G, *] after each wanted number of epochs, ascending; each is gone with the next."""
    task = LocalTask(workspace.context, workspace.train_deck(clients), (), how.settings, how.shuffle)
    plans = {epochs: how.finetune(epochs) for epochs in wanted}
    if all(
        sum(phase.epochs for phase in plan) in (0, epochs) and len(plan) <= 1 for epochs, plan in plans.items()
    ):  # fewer epochs are a stop on the way to more: one pass
        walk = learn_by_epoch(replace(task, plan=plans[wanted[-1]]), start)
        now = next(walk)
        for epochs in wanted:
            while now.epochs < epochs and (later := next(walk, None)):
                now = later
            yield epochs, now.tensors
    else:
        for epochs, plan in plans.items():
            yield epochs, learn(replace(task, plan=plan), start).tensors


def evaluate(
    engine: Engine,
    roster: Roster,
    names: Sequence[str],
    state: State,
    how: Evaluation,
    clients: Sequence[int],
) -> dict[str, Accuracy]:
    """Take the named measures: those of clients over `clients`, of newcomers over all of them, of the server over the
    whole test set."""
    found: dict[str, Accuracy] = {}
    newcomers = roster.newcomers.tolist()
    groups: tuple[tuple[tuple[Taken, ...], Sequence[int]], ...] = (
        (("clients", "local", "own"), clients),
        (("newcomers",), newcomers),
    )
    for kinds, who in groups:
        asked = tuple(name for name in names if measures[name].of in kinds)
        values = _collect(engine, Exam(asked, state.model, how), who, state.clients) if asked else {}
        found |= {name: Accuracy.over(per_client) for name, per_client in values.items()}
    return found | _of_server(engine, roster, names, state, how, clients)


def evaluate_in_parts(
    parts: Sequence[tuple[Engine, Sequence[str]]], roster: Roster, state: State, how: Evaluation, clients: Sequence[int]
) -> dict[str, Accuracy]:
    """Take measures in parts, each on the engine that is cheapest for it. How they are parted does not show in the
    order of what is found."""
    found: dict[str, Accuracy] = {}
    for engine, names in parts:
        found |= evaluate(engine, roster, names, state, how, clients)
    return dict(sorted(found.items(), key=lambda it: _PLACES[measures[it[0].partition("@")[0]].of]))


def _of_server(
    engine: Engine,
    roster: Roster,
    names: Sequence[str],
    state: State,
    how: Evaluation,
    clients: Sequence[int],
) -> dict[str, Accuracy]:
    """The measures of the generic model: plain ones, and those that are weighed by each client's mix of classes."""
    asked = [name for name in names if measures[name].of in ("server", "mixes")]
    if not asked:
        return {}
    if not roster.test_samples:  # all but `generic` are refused there (runs/checks.py)
        return {"generic": _pooled(engine, roster, state, how, clients)}
    exam = ServerExam(
        tuple(dict.fromkeys(measures[name].take for name in asked)),
        generic_of(engine, state.model, state.clients, roster, how.weighting, how.keeps),
        how,
    )
    rights = _collect(engine, exam, range(-(-roster.test_samples // how.batch_size)))
    found: dict[str, Accuracy] = {}
    mixes = cache(lambda: (test_counts_of(engine), class_counts_of(engine, clients).double()))
    for name in asked:
        right = torch.tensor(rights[name], dtype=torch.float64).sum(dim=0)
        if measures[name].of == "mixes":
            found[name] = Accuracy.over(weigh(right, *mixes()).tolist())
        else:
            found[name] = Accuracy.over([100 * float(right.abs().sum()) / roster.test_samples], per_client=False)
    return found


def _pooled(engine: Engine, roster: Roster, state: State, how: Evaluation, clients: Sequence[int]) -> Accuracy:
    """The generic model on the clients' test data, pooled."""
    model = generic_of(engine, state.model, state.clients, roster, how.weighting, how.keeps)
    found = _collect(engine, PooledExam(model, how.batch_size), clients)
    right, of = (float(np.nansum(found.get(name, [0.0]))) for name in ("right", "of"))
    return Accuracy.over([100 * right / of if of else math.nan], per_client=False)


def _collect(engine: Engine, exam: Work[Values], clients: Sequence[int], store: Store | None = None) -> Values:
    """The values of all clients, in their order; NaN for one who has not answered, of whom a part says nothing."""
    parts = list(engine.map(exam, clients, store))
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: [value for part in parts for value in part.get(name, [math.nan])] for name in names}
