"""What happens before the first round: a head from the class means of everybody's features (FedNCM, spec 7.1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from torso.data import Roster
from torso.data.batches import Shuffle
from torso.engine import Desk, Engine
from torso.errors import RequestError
from torso.measure.accuracy import class_sums
from torso.methods import ClassMeans
from torso.nets import Network, Tensors
from torso.nets.dual import DualHead
from torso.nets.flops import step_flops
from torso.nets.layers import Linear
from torso.server.state import Cost, ServerState
from torso.server.sums import add_stacked

_NEVER = -1e4  # the bias of a class that nobody has: finite, so that training can go on from it


@dataclass(frozen=True)
class ClassSums:
    """Work: features of each client, summed by class, and how many there are."""

    model: Tensors
    batch_size: int
    order: Shuffle

    def __call__(self, desk: Desk, clients: Sequence[int]) -> Tensors:
        tensors = desk.models(self.model, clients, kept=False)
        total, count = class_sums(desk, clients, tensors, self.batch_size, self.order)
        return {"total": total, "count": count}


def linear_of(net: Network) -> str:
    """Where the one linear layer of the head is; a head of several layers has no place for class means."""
    if isinstance(net.head, Linear):
        return "head."
    if isinstance(net.head, DualHead):
        return "head.generic."
    raise RequestError(
        f"method.start = 'class-means' needs a head of one linear layer, found {type(net.head).__name__}. "
        "Accepted heads: linear, normalized, sphere, dual"
    )


def open_with_class_means(
    start: ClassMeans, server: ServerState, net: Network, roster: Roster, engine: Engine, work: ClassSums
) -> ServerState:
    """One exchange with all training clients; the result does not depend on who has what."""
    clients = roster.training.tolist()
    sums: Tensors = {}
    for part in engine.map(work, clients):
        add_stacked(sums, part)
    means = sums["total"] / sums["count"].clamp(min=1).unsqueeze(-1)
    head = _head(start, means, sums["count"])
    where = linear_of(net)
    model = {**server.model, **{f"{where}{n}": t for n, t in head.items() if f"{where}{n}" in server.model}}
    sent = 4 * (means.numel() + len(means)) * len(clients)
    samples = roster.samples
    spent = Cost(sent, 0, samples, samples * step_flops(net, roster.image, 2) // 2)
    return replace(server, model=model, cost=server.cost + spent)


def _head(start: ClassMeans, means: Tensor, count: Tensor) -> Tensors:
    """Rows of length one, so that the largest product is the nearest direction; or the nearest mean itself."""
    if start.metric == "euclidean":  # argmin ‖f − m‖² = argmax f·m − ‖m‖²/2
        weight, bias = means, -means.square().sum(dim=1) / 2
    else:
        weight, bias = F.normalize(means, dim=1), torch.zeros_like(means[:, 0])
    return {"weight": weight, "bias": torch.where(count > 0, bias, _NEVER)}
