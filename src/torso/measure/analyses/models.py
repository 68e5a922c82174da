"""Analyses of the trained federation (spec 13): the geometry of the generic model, and accuracy across clients.

C classes, d features.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from torso.engine import SERVER, Workspace
from torso.measure.analyses.base import Snapshot, analysis, plain
from torso.measure.counts import class_counts_of, test_counts_of
from torso.measure.evaluate import own_models
from torso.measure.mixes import look_at_test, right_by_class, weighted_accuracy
from torso.nets import Tensors
from torso.randomness import key, numpy_generator
from torso.server.sums import add

_MOST_MODELS = 100  # in the cross-client matrix
_MOST_POINTS = 1000  # in t-SNE, whose time grows with the square of the number


@dataclass(frozen=True)
class TestFeatures:
    """Work: the generic model's features and the labels, for a group of batches of the test set."""

    snapshot: Snapshot

    def __call__(self, workspace: Workspace, clients: Sequence[int]) -> tuple[Tensor, Tensor]:
        model = workspace.models(self.snapshot.generic, [SERVER], kept=False)
        found = look_at_test(workspace, 1, model, self.snapshot.how.batch_size, clients)
        features, labels = zip(*((said.features[0], batch.labels[0]) for batch, said in found), strict=True)
        return self.snapshot.as_heads_see(torch.cat(features)), torch.cat(labels)

    def for_clients(self, clients: Sequence[int]) -> TestFeatures:
        return TestFeatures(self.snapshot.for_clients(()))  # "clients" are numbers of batches


def class_sums(features: Tensor, labels: Tensor, classes: int) -> Tensors:
    """The sums by class [C, d] of features [n, d], and of the features scaled to length one; the numbers of samples
    [C]."""
    member = F.one_hot(labels, classes).to(features.dtype).T
    return {"plain": member @ features, "unit": member @ F.normalize(features, dim=-1), "count": member.sum(dim=1)}


@analysis("four_factors", when="end")
def four_factors(snapshot: Snapshot) -> dict[str, Any]:
    """Cosines of the generic model on the test set: between head rows, between class prototypes, between features and
    their prototype, and between prototypes and their head row (spec 13)."""
    sums: Tensors = {}
    for features, labels in snapshot.map(TestFeatures(snapshot), snapshot.test_batches):
        add(sums, class_sums(features, labels, snapshot.roster.classes))
    return factors(snapshot.generic[snapshot.rows], sums)


def factors(rows: Tensor, sums: Tensors) -> dict[str, Any]:
    """The four factors, from head rows [C, d] and sums by class; NaN for a class without samples."""
    count = sums["count"].unsqueeze(-1)
    centre = F.normalize(sums["plain"] / count, dim=-1)  # 0 / 0 is NaN
    rows = F.normalize(rows, dim=-1)
    found = {
        "weight_similarity": rows @ rows.T,
        "inter_class": centre @ centre.T,
        "intra_class": (sums["unit"] / count * centre).sum(dim=-1),  # the mean of cosines is that of unit vectors
        "alignment": (rows * centre).sum(dim=-1),
    }
    off = ~torch.eye(len(rows), dtype=torch.bool, device=rows.device)
    summary = {name: (value[off] if value.ndim == 2 else value).nanmean() for name, value in found.items()}
    return {**{n: plain(v) for n, v in found.items()}, "summary": {n: plain(v) for n, v in summary.items()}}


@dataclass(frozen=True)
class OwnRights:
    """Work: the correct predictions by class [G, C] of the own models of a group of clients, on the whole test set."""

    snapshot: Snapshot

    def __call__(self, workspace: Workspace, clients: Sequence[int]) -> Tensor:
        how = self.snapshot.how
        start = how.own(workspace, clients, workspace.models(self.snapshot.state.model, clients))
        ((_, models),) = own_models(workspace, clients, start, how, [how.epochs])
        return right_by_class(workspace, clients, models, how.batch_size)[0]

    def for_clients(self, clients: Sequence[int]) -> OwnRights:
        return OwnRights(self.snapshot.for_clients(clients))


@analysis("cross_client", when="end")
def cross_client(snapshot: Snapshot) -> dict[str, Any]:
    """P-FL of every client's own model (row) for the mix of classes of every client (column), for at most 100 clients,
    drawn once (spec 13)."""
    clients = drawn_clients(snapshot, _MOST_MODELS)
    rights = torch.cat([rights.cpu() for rights in snapshot.map(OwnRights(snapshot), clients)])
    there, counts = test_counts_of(snapshot.engine), class_counts_of(snapshot.engine, clients)
    return {"clients": list(clients), "accuracy": [plain(weighted_accuracy(right, there, counts)) for right in rights]}


def drawn_clients(snapshot: Snapshot, most: int) -> tuple[int, ...]:
    """At most this many of the clients that are measured, drawn at random."""
    if len(snapshot.clients) <= most:
        return snapshot.clients
    rng = numpy_generator(snapshot.seed, "analysis", "clients")
    return tuple(sorted(rng.choice(snapshot.clients, most, replace=False).tolist()))


@analysis("tsne", when="end")
def tsne(snapshot: Snapshot) -> dict[str, Any]:
    """Test features of the generic model in two dimensions, by scikit-learn's t-SNE, for at most 1000 samples; with the
    superclasses if the data have some (CIFAR-100) (spec 13)."""
    from sklearn.manifold import TSNE

    batches = snapshot.test_batches[: -(-_MOST_POINTS // snapshot.how.batch_size)]
    features, labels = zip(*snapshot.map(TestFeatures(snapshot), batches), strict=True)
    points = torch.cat(features)[:_MOST_POINTS].cpu().numpy()
    fine = torch.cat(labels)[:_MOST_POINTS].tolist()
    perplexity = max(min(30.0, (len(points) - 1) / 3), 1.0)  # the usual 30, less if there are few points
    model = TSNE(perplexity=perplexity, init="pca", random_state=key(snapshot.seed, "tsne") % 2**32)
    placed = torch.from_numpy(model.fit_transform(points))
    found = {"x": plain(placed[:, 0]), "y": plain(placed[:, 1]), "label": fine}
    coarse = snapshot.roster.superclasses
    return {**found, "coarse": [coarse[label] for label in fine]} if coarse else found
