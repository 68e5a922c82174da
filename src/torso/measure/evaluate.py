"""The evaluator: one walk over the clients takes every measure asked for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torso.data import Federation
from torso.engine import SERVER, Desk, Engine
from torso.measure import accuracy as _accuracy  # noqa: F401  registers the measures
from torso.measure import newcomers as _newcomers  # noqa: F401
from torso.measure.base import Accuracy, Evaluation, Measure, Taken, measures
from torso.nets import Tensors
from torso.personal.models import generic_model
from torso.runs.state import State


@dataclass(frozen=True)
class Exam:
    """Work: take the measures of a group of clients, each with the model it holds."""

    takes: tuple[Measure, ...]
    of: Taken
    model: Tensors
    private: Mapping[int, Tensors]
    how: Evaluation

    def __call__(self, desk: Desk, clients: Sequence[int]) -> dict[str, list[float]]:
        holders = clients if self.of != "server" else [SERVER] * len(clients)
        tensors = desk.models(self.model, self.private, holders)
        return {name: v.tolist() for take in self.takes for name, v in take(desk, clients, tensors, self.how).items()}


def evaluate(
    engine: Engine,
    federation: Federation,
    names: Sequence[str],
    state: State,
    how: Evaluation,
    clients: Sequence[int],
) -> dict[str, Accuracy]:
    """Take the named measures: those of clients over `clients`, of newcomers over all of them, of the server over the
    whole test set."""
    found: dict[str, Accuracy] = {}
    model, private = state.model, state.private
    newcomers = federation.newcomers.tolist()
    groups: tuple[tuple[Taken, Sequence[int]], ...] = (("clients", clients), ("newcomers", newcomers))
    for of, who in groups:
        takes = tuple(measures[name].take for name in names if measures[name].of == of)
        values = _collect(engine, Exam(takes, of, model, private, how), who) if takes else {}
        found |= {name: Accuracy.over(per_client) for name, per_client in values.items()}
    of_server = tuple(measures[name].take for name in names if measures[name].of == "server")
    if of_server:
        samples = len(federation.test.labels)
        batches = range(-(-samples // how.batch_size))
        exam = Exam(of_server, "server", generic_model(model, private, federation, how.weighting), {}, how)
        rights = _collect(engine, exam, batches)
        found |= {name: Accuracy.over([100 * sum(right) / samples], per_client=False) for name, right in rights.items()}
    return found


def _collect(engine: Engine, exam: Exam, clients: Sequence[int]) -> dict[str, list[float]]:
    values: dict[str, list[float]] = defaultdict(list)
    for part in engine.map(exam, clients):
        for name, found in part.items():
            values[name] += found
    return dict(values)
