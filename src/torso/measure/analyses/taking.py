"""Taking analyses: one more training of a round's participants for all analyses of rounds, and those at the end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, cast

import torch

from torso.data import Roster
from torso.engine import Engine, Workspace
from torso.learn.task import LocalResult
from torso.measure.analyses.base import EndAnalysis, GroupResult, RoundAnalysis, Snapshot, analyses
from torso.measure.counts import class_counts_of
from torso.nets import Tensors
from torso.personal.store import Store
from torso.server.sums import add

MOST_CLIENTS = 2000  # in class_counts; a page cannot show more
Entry = dict[str, Any]


class VisitsByEpoch(Protocol):
    """Makes the visits of a round's participants, without upload."""

    def by_epoch(self, workspace: Workspace, clients: Sequence[int]) -> Iterator[LocalResult]: ...

    def for_clients(self, clients: Sequence[int]) -> VisitsByEpoch: ...


@dataclass(frozen=True)
class RoundAnalysisWork:
    """Work: repeat the participants' visits with the same batches, and analyse their models.

    So a run with an analysis of rounds trains its participants twice; other runs pay nothing."""

    looks: Mapping[str, RoundAnalysis]
    visit: VisitsByEpoch
    snapshot: Snapshot

    def __call__(self, workspace: Workspace, clients: Sequence[int]) -> dict[str, GroupResult]:
        by_epoch: dict[str, list[Tensors]] = {name: [] for name, look in self.looks.items() if look.every_epoch}
        last: Tensors = {}
        for learned in self.visit.by_epoch(workspace, clients):
            last = learned.tensors
            for name, values in by_epoch.items():
                values.append(self.looks[name].look(workspace, clients, last, self.snapshot).values)
        found = {
            name: GroupResult({key: torch.stack([at[key] for at in values], dim=1) for key in values[0]})
            for name, values in by_epoch.items()
        }
        for name in self.looks.keys() - by_epoch.keys():
            found[name] = self.looks[name].look(workspace, clients, last, self.snapshot)
        return found

    def for_clients(self, clients: Sequence[int]) -> RoundAnalysisWork:
        return replace(self, visit=self.visit.for_clients(clients), snapshot=self.snapshot.for_clients(clients))


def round_analyses(names: Iterable[str]) -> list[str]:
    """The names of analyses of rounds."""
    return [name for name in names if analyses[name].when == "round"]


def analyse_round(
    names: Sequence[str],
    snapshot: Snapshot,
    participants: Sequence[int],
    visit: VisitsByEpoch,
    before: Store,
) -> dict[str, Entry]:
    """One round's entry of each named analysis. `before`: the clients' states before the round."""
    both = Store(before.entries, later=snapshot.state.clients)
    looks = {name: cast("type[RoundAnalysis]", analyses[name].take)() for name in names}
    if not looks or not participants:
        return {}
    values: dict[str, dict[str, list[torch.Tensor]]] = {name: {} for name in looks}
    sums: dict[str, Tensors] = {name: {} for name in looks}
    for found in snapshot.map(RoundAnalysisWork(looks, visit, snapshot), participants, both):
        for name, part in found.items():
            add(sums[name], part.sums)
            for key, value in part.values.items():
                values[name].setdefault(key, []).append(value)
    return {
        name: look.sum_up({key: torch.cat(parts) for key, parts in values[name].items()}, sums[name], snapshot)
        for name, look in looks.items()
    }


def joined_entries(entries: Mapping[int, Mapping[str, Entry]]) -> dict[str, Entry]:
    """The entries of all rounds in the form of analyses.json: the list `rounds`, and a list of the same length for
    every key."""
    joined: dict[str, Entry] = {}
    for number, found in sorted(entries.items()):
        for name, entry in found.items():
            lists = joined.setdefault(name, {"rounds": [], **{key: [] for key in entry}})
            lists["rounds"].append(number)
            for key, value in entry.items():
                lists[key].append(value)
    for name, lists in joined.items():
        if cast("type[RoundAnalysis]", analyses[name].take).every_epoch:
            rows = next(value for key, value in lists.items() if key != "rounds")
            lists["epochs"] = list(range(max(len(row) for row in rows)))
    return joined


def analyse_end(names: Sequence[str], snapshot: Snapshot) -> dict[str, Entry]:
    """The entries of the named analyses of the trained federation."""
    return {name: cast("EndAnalysis", analyses[name].take)(snapshot) for name in names if analyses[name].when == "end"}


def class_counts(engine: Engine, roster: Roster) -> dict[str, Any]:
    """Training samples by client and class; nothing if clients do not reveal their class counts, or are too many to
    show."""
    if roster.clients > MOST_CLIENTS or not roster.counts_are_known:
        return {}
    return {"class_counts": class_counts_of(engine, range(roster.clients)).tolist()}
