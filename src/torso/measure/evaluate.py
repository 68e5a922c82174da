"""The evaluator: it takes all measures that a run asks for in one pass over the clients."""

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
from torso.learn.stacked import one_by_one
from torso.learn.task import LocalTask
from torso.measure import accuracy as _accuracy  # noqa: F401  registers the measures
from torso.measure import calibration as _calibration  # noqa: F401
from torso.measure import head_ensemble as _head_ensemble  # noqa: F401
from torso.measure import mixes as _mixes  # noqa: F401
from torso.measure import neighbours as _neighbours  # noqa: F401
from torso.measure import newcomers as _newcomers  # noqa: F401
from torso.measure import shifts as _shifts  # noqa: F401
from torso.measure.accuracy import generic_prediction, percent_correct
from torso.measure.base import Accuracy, Evaluation, Measure, MeasuredOn, measures
from torso.measure.counts import class_counts_of, test_counts_of
from torso.measure.generic import generic_of
from torso.measure.mixes import weighted_accuracy
from torso.nets import Tensors
from torso.personal.state import State
from torso.personal.store import Store

Values = dict[str, list[float]]
_PLACES: dict[MeasuredOn, int] = {"clients": 0, "local": 1, "own": 2, "newcomers": 3, "mixes": 4, "server": 4}
"""The order of measures in a result."""


@dataclass(frozen=True)
class MeasureWork:
    """Work: take measures of a group of clients. Each model is made only once for all measures."""

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

    def for_clients(self, clients: Sequence[int]) -> MeasureWork:
        return replace(self, how=self.how.for_clients(clients))

    @property
    def batch_samples(self) -> int:
        """The batch size of the training that the measures need."""
        return self.how.settings.batch_size

    def keeps_bits(self, sizes: Sequence[int]) -> bool:
        """Whether the models that measures train get the same bits in a stack as alone. False if no model is trained:
        then a stack gains nothing."""
        kinds = {measures[name].of for name in self.names}
        keeps = {"own": self.how.keeps_bits, "local": self.how.visit.keeps_bits}
        trained = [kind for kind in keeps if kind in kinds]
        return bool(trained) and all(keeps[kind](sizes) for kind in trained)

    def _take(
        self, workspace: Workspace, clients: Sequence[int], of: MeasuredOn, models: Tensors, names: Sequence[str]
    ) -> Values:
        """The values of the measures of one kind for models [G, *]."""
        if workspace.context.exact and len(clients) > 1:  # padding changes how the sums of a measure are rounded
            parts = [self._take(workspace, [k], of, mine, names) for k, mine in one_by_one(clients, models)]
            return {name: [value for part in parts for value in part[name]] for name in parts[0]}
        takes: dict[Measure, None] = {measures[name].take: None for name in names if measures[name].of == of}
        values = {n: v for take in takes for n, v in take(workspace, clients, models, self.how).items()}
        return {name: value.tolist() for name, value in values.items() if name in names}

    def _swept(self, workspace: Workspace, clients: Sequence[int], start: Tensors) -> Values:
        """The measures of own models; those that are `swept`, after each number of epochs of the sweep. The clients
        train only once."""
        how = self.how
        found = Values()
        swept = [name for name in self.names if measures[name].swept]
        wanted = {how.epochs, *(how.sweep if swept else ())}
        for epochs, models in own_models(workspace, clients, start, how, sorted(wanted)):
            is_final = epochs == how.epochs
            values = self._take(workspace, clients, "own", models, self.names if is_final else swept)
            if is_final:
                found |= values
            if epochs in how.sweep:
                found |= {f"{name}@{epochs}": values[name] for name in swept}
        return found


@dataclass(frozen=True)
class GenericMeasureWork:
    """Work: take measures of the generic model on a group of batches of the test set."""

    takes: tuple[Measure, ...]
    model: Tensors
    how: Evaluation

    def __call__(self, workspace: Workspace, clients: Sequence[int]) -> Values:
        tensors = workspace.models(self.model, [SERVER] * len(clients), kept=False)
        found: Values = {}
        for take in self.takes:
            for name, values in take(workspace, clients, tensors, self.how).items():
                found[name] = values.tolist()
        return found

    def for_clients(self, clients: Sequence[int]) -> GenericMeasureWork:
        return replace(self, how=self.how.for_clients(()))  # "clients" are numbers of batches


@dataclass(frozen=True)
class PooledMeasureWork:
    """Work: the number of each client's test samples that the generic model classifies correctly, and their number. It
    replaces `GenericMeasureWork` if the server has no test set; a client sends only these two numbers."""

    model: Tensors
    batch_size: int

    def __call__(self, workspace: Workspace, clients: Sequence[int]) -> Values:
        deck = workspace.test_deck(clients)
        tensors = workspace.models(self.model, clients, kept=False)
        shares = percent_correct(workspace.context, deck, tensors, self.batch_size, generic_prediction).nan_to_num(0.0)
        sizes = [float(size) for size in deck.sizes]
        right = [round(share * size / 100) for share, size in zip(shares.tolist(), sizes, strict=True)]
        return {"right": [float(count) for count in right], "of": sizes}


def own_models(
    workspace: Workspace, clients: Sequence[int], start: Tensors, how: Evaluation, wanted: Sequence[int]
) -> Iterator[tuple[int, Tensors]]:
    """The clients' own models [G, *] after each of the `wanted` numbers of epochs, which ascend. The models are valid
    until the next are asked for."""
    task = LocalTask(workspace.context, workspace.train_deck(clients), (), how.settings, how.shuffle)
    plans = {epochs: how.finetune(epochs) for epochs in wanted}
    one_training = all(
        sum(phase.epochs for phase in plan) in (0, epochs) and len(plan) <= 1 for epochs, plan in plans.items()
    )
    if one_training:  # with one phase, the training of the most epochs passes through all the others
        states = learn_by_epoch(replace(task, plan=plans[wanted[-1]]), start)
        state = next(states)
        for epochs in wanted:
            while state.epochs < epochs and (later := next(states, None)):
                state = later
            yield epochs, state.tensors
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
    """Take the named measures: those of clients over `clients`, those of newcomers over all newcomers, those of the
    server over the whole test set."""
    found: dict[str, Accuracy] = {}
    newcomers = roster.newcomers.tolist()
    groups: tuple[tuple[tuple[MeasuredOn, ...], Sequence[int]], ...] = (
        (("clients", "local", "own"), clients),
        (("newcomers",), newcomers),
    )
    for kinds, who in groups:
        asked = tuple(name for name in names if measures[name].of in kinds)
        values = _collect(engine, MeasureWork(asked, state.model, how), who, state.clients) if asked else {}
        found |= {name: Accuracy.over(per_client) for name, per_client in values.items()}
    return found | _of_server(engine, roster, names, state, how, clients)


def evaluate_in_parts(
    parts: Sequence[tuple[Engine, Sequence[str]]], roster: Roster, state: State, how: Evaluation, clients: Sequence[int]
) -> dict[str, Accuracy]:
    """Take measures on several engines, each measure on the one that is cheapest for it. The order of the result does
    not depend on the engines."""
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
    """The measures of the generic model: plain ones, and those that are weighted by each client's mix of classes."""
    asked = [name for name in names if measures[name].of in ("server", "mixes")]
    if not asked:
        return {}
    if not roster.test_samples:  # without a test set, runs/checks.py refuses all of them but `generic`
        return {"generic": _pooled(engine, roster, state, how, clients)}
    work = GenericMeasureWork(
        tuple(dict.fromkeys(measures[name].take for name in asked)),
        generic_of(engine, state.model, state.clients, roster, how.weighting, how.keeps),
        how,
    )
    rights = _collect(engine, work, range(-(-roster.test_samples // how.batch_size)))
    found: dict[str, Accuracy] = {}
    mixes = cache(lambda: (test_counts_of(engine), class_counts_of(engine, clients).double()))
    for name in asked:
        right = torch.tensor(rights[name], dtype=torch.float64).sum(dim=0)
        if measures[name].of == "mixes":
            found[name] = Accuracy.over(weighted_accuracy(right, *mixes()).tolist())
        else:
            found[name] = Accuracy.over([100 * float(right.abs().sum()) / roster.test_samples], per_client=False)
    return found


def _pooled(engine: Engine, roster: Roster, state: State, how: Evaluation, clients: Sequence[int]) -> Accuracy:
    """The accuracy of the generic model on the test data of all clients together."""
    model = generic_of(engine, state.model, state.clients, roster, how.weighting, how.keeps)
    found = _collect(engine, PooledMeasureWork(model, how.batch_size), clients)
    right, of = (float(np.nansum(found.get(name, [0.0]))) for name in ("right", "of"))
    return Accuracy.over([100 * right / of if of else math.nan], per_client=False)


def _collect(engine: Engine, work: Work[Values], clients: Sequence[int], store: Store | None = None) -> Values:
    """The values of all clients, in their order; NaN for a client that has not answered."""
    parts = list(engine.map(work, clients, store))
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: [value for part in parts for value in part.get(name, [math.nan])] for name in names}
