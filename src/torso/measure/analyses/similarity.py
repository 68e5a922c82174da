"""The similarity of clients' layers while each fine-tunes the same model (FedBABU's appendix K, spec 13)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from torso.engine import Workspace
from torso.learn.local import learn_by_epoch
from torso.learn.task import LocalTask
from torso.measure.analyses.base import Snapshot, analysis, plain
from torso.measure.analyses.models import drawn_clients
from torso.nets import Tensors, learnable
from torso.server.sums import add

_EPOCHS = 20
_MOST_CLIENTS = 45  # they have 990 pairs; spec 13 asks for at most 1000


@dataclass(frozen=True)
class UnitSums:
    """Work: fine-tune the generic model for a group of clients, and sum w_k/‖w_k‖ of each layer over them after each
    epoch."""

    snapshot: Snapshot
    layers: tuple[str, ...]

    def __call__(self, workspace: Workspace, clients: Sequence[int]) -> Tensors:
        how = self.snapshot.how
        task = LocalTask(
            workspace.context, workspace.train_deck(clients), how.finetune(_EPOCHS), how.settings, how.shuffle
        )
        sums: Tensors = {}
        for learned in learn_by_epoch(task, workspace.models(self.snapshot.generic, clients, kept=False)):
            for name in self.layers if learned.epochs else ():
                sums[f"{learned.epochs} {name}"] = F.normalize(learned.tensors[name].flatten(1), dim=1).sum(dim=0)
        return sums

    def for_clients(self, clients: Sequence[int]) -> UnitSums:
        return UnitSums(self.snapshot.for_clients(clients), self.layers)


@analysis("layer_similarity", when="end", of_tuning=True, whole_test=False)
def layer_similarity(snapshot: Snapshot) -> dict[str, Any]:
    """Cosine between the clients' weights of each layer after each of 20 epochs of fine-tuning from the same generic
    model, mean over all pairs of at most 45 clients (spec 13)."""
    clients = drawn_clients(snapshot, _MOST_CLIENTS)
    weights = learnable(snapshot.net, snapshot.generic)
    layers = tuple(n for n in weights if n.endswith("weight") and snapshot.generic[n].ndim > 1)
    sums: Tensors = {}
    for part in snapshot.map(UnitSums(snapshot, layers), clients):
        add(sums, part)
    epochs = sorted({int(name.partition(" ")[0]) for name in sums})
    cosines = [[mean_cosine(sums[f"{epoch} {name}"], len(clients)) for name in layers] for epoch in epochs]
    return {"layers": list(layers), "epochs": epochs, "cosine": plain(cosines)}


def mean_cosine(total: Tensor, count: int) -> float:
    """The mean cosine over all pairs of n unit vectors, from their sum: (‖Σ u_k‖² − n) / (n(n − 1)); NaN for one
    vector."""
    return (float(total.double().square().sum()) - count) / (count * (count - 1)) if count > 1 else torch.nan
