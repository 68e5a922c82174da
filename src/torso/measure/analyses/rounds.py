"""Analyses of rounds (spec 13): how local training changes the participants' models, before the server averages them.

G clients, B samples, C classes, d features; m participants in all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from torso.engine import SERVER, Workspace
from torso.measure.accuracy import generic_prediction, mean_loss
from torso.measure.analyses.base import GroupResult, RoundAnalysis, Snapshot, analysis, plain
from torso.measure.mixes import look_at_test, right_by_class
from torso.nets import Tensors


def known_classes(workspace: Workspace, clients: Sequence[int]) -> Tensor:
    """Which classes each client trains on [G, C]."""
    return workspace.train_deck(clients).class_counts(workspace.context.classes) > 0


def mean_where(values: Tensor, where: Tensor) -> Tensor:
    """The mean of the chosen values of each row [G]; NaN if none is chosen."""
    return (values * where).sum(dim=1) / where.sum(dim=1)


def feature_norms(
    workspace: Workspace, count: int, models: Tensors, batch_size: int, numbers: Sequence[int] | None = None
) -> tuple[Tensor, Tensor]:
    """The sums of ‖f(x)‖ by class [G, C] over the test set, and the numbers of samples [C]. `numbers`: only over the
    batches with these numbers."""
    total = torch.zeros(count, workspace.context.classes, device=workspace.federation.test.labels.device)
    there = torch.zeros(workspace.context.classes, device=total.device)
    for batch, said in look_at_test(workspace, count, models, batch_size, numbers):
        total.scatter_add_(1, batch.labels, said.features.norm(dim=-1))
        there += torch.bincount(batch.labels[0], minlength=len(there))
    return total, there


@dataclass(frozen=True)
class GenericNorms:
    """Work: the sum of ‖f(x)‖ for the generic model, over a group of batches of the test set."""

    snapshot: Snapshot

    def __call__(self, workspace: Workspace, clients: Sequence[int]) -> float:
        model = workspace.models(self.snapshot.generic, [SERVER], kept=False)
        total, _ = feature_norms(workspace, 1, model, self.snapshot.how.batch_size, clients)
        return float(total.sum())

    def for_clients(self, clients: Sequence[int]) -> GenericNorms:
        return GenericNorms(self.snapshot.for_clients(()))  # "clients" are numbers of batches


@analysis("norms", when="round")
class Norms(RoundAnalysis):
    """Norms of head rows and of test features: of local models for classes that the client trains on (seen) and for
    others (unseen), mean over participants; and of the generic model after aggregation (spec 13)."""

    def look(self, workspace: Workspace, clients: Sequence[int], local: Tensors, snapshot: Snapshot) -> GroupResult:
        known = known_classes(workspace, clients)
        rows = local[snapshot.rows].norm(dim=-1)  # [G, C]
        total, there = feature_norms(workspace, len(clients), local, snapshot.how.batch_size)
        found = {}
        for name, where in (("seen", known), ("unseen", ~known)):
            found[f"local_{name}_weight"] = mean_where(rows, where)
            found[f"local_{name}_feature"] = (total * where).sum(dim=1) / (there * where).sum(dim=1)
        return GroupResult(found)

    def sum_up(self, values: Tensors, sums: Tensors, snapshot: Snapshot) -> dict[str, Any]:
        features = sum(snapshot.map(GenericNorms(snapshot), snapshot.test_batches))
        return {
            **super().sum_up(values, sums, snapshot),
            "global_weight": plain(snapshot.generic[snapshot.rows].norm(dim=-1).mean()),
            "global_feature": plain(features / snapshot.roster.test_samples),
        }


@analysis("class_curves", when="round")
class ClassCurves(RoundAnalysis):
    """Accuracy of the participants' models on the whole test set, right after broadcast and after each local epoch: on
    the classes that the participant trains on (seen) and on the others (unseen), mean over participants (spec 13)."""

    every_epoch: ClassVar[bool] = True

    def look(self, workspace: Workspace, clients: Sequence[int], local: Tensors, snapshot: Snapshot) -> GroupResult:
        known = known_classes(workspace, clients)
        right, there = right_by_class(workspace, clients, local, snapshot.how.batch_size)
        sides = {"seen": known, "unseen": ~known}
        return GroupResult({name: 100 * (right * w).sum(dim=1) / (there * w).sum(dim=1) for name, w in sides.items()})


@analysis("drift_variance", when="round")
class DriftVariance(RoundAnalysis):
    """The spread of the participants' models: the variance over participants of each trained parameter, mean over
    parameters; and the mean accuracy of local models on the whole test set (spec 13)."""

    def look(self, workspace: Workspace, clients: Sequence[int], local: Tensors, snapshot: Snapshot) -> GroupResult:
        # a variance does not depend on the point from which it is measured; near the models, the sums lose no digits
        moves = {name: (local[name] - snapshot.state.model[name]).double() for name in snapshot.parameters}
        right, there = right_by_class(workspace, clients, local, snapshot.how.batch_size, generic_prediction)
        return GroupResult(
            {"local_generic": 100 * right.sum(dim=1) / there.sum()},
            {
                **{f"sum {name}": move.sum(dim=0) for name, move in moves.items()},
                **{f"squares {name}": move.square().sum(dim=0) for name, move in moves.items()},
            },
        )

    def sum_up(self, values: Tensors, sums: Tensors, snapshot: Snapshot) -> dict[str, Any]:
        count = len(values["local_generic"])
        means = {name: sums[f"sum {name}"] / count for name in snapshot.parameters}
        variances = [(sums[f"squares {n}"] / count - mean.square()).sum() for n, mean in means.items()]
        size = sum(mean.numel() for mean in means.values())
        return {"variance": plain(torch.stack(variances).sum() / size), **super().sum_up(values, sums, snapshot)}


@analysis("regularization", when="round", whole_test=False)
class Regularization(RoundAnalysis):
    """The training loss Σ (n_k/n)·L_k(w_k) and the distance Σ (n_k/n)·‖w_k − w̄‖² over the participants after local
    training. w̄ is the generic model after aggregation; w_k is the client's own model if the method keeps one (Ditto's
    PM), else its local model (spec 13)."""

    def look(self, workspace: Workspace, clients: Sequence[int], local: Tensors, snapshot: Snapshot) -> GroupResult:
        model = {**local, **snapshot.own_models(workspace, clients)}
        deck = workspace.train_deck(clients)
        squares = [(model[n] - snapshot.generic[n]).flatten(1).square().sum(dim=1) for n in snapshot.parameters]
        return GroupResult(
            {
                "loss": mean_loss(workspace.context, deck, model, snapshot.how.batch_size),
                "distance": torch.stack(squares).sum(dim=0),
                "samples": torch.tensor(deck.sizes, dtype=torch.float64, device=deck.index.device),
            }
        )

    def sum_up(self, values: Tensors, sums: Tensors, snapshot: Snapshot) -> dict[str, Any]:
        shares = values["samples"] / values["samples"].sum()
        return {name: plain((shares * values[name]).sum()) for name in ("loss", "distance")}
