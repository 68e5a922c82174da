"""What happens before the first round: a head from the class means of everybody's features (FedNCM, spec 7.1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from torso.data import Federation
from torso.data.batches import Shuffle
from torso.engine import Desk, Engine
from torso.errors import RequestError
from torso.measure.accuracy import class_sums
from torso.methods import ClassMeans
from torso.nets import Network, Tensors
from torso.nets.dual import DualHead
from torso.nets.flops import step_flops
from torso.nets.layers import Linear
from torso.runs.state import Cost, State
from torso.server.sums import add

_NEVER = -1e4  # the bias of a class that nobody has: finite, so that training can go on from it


@dataclass(frozen=True)
class ClassSums:
    """Work: features of a group of clients, summed by class, and how many there are."""

    model: Tensors
    batch_size: int
    order: Shuffle

    def __call__(self, desk: Desk, clients: Sequence[int]) -> Tensors:
        tensors = desk.models(self.model, {}, clients)
        total, count = class_sums(desk, clients, tensors, self.batch_size, self.order)
        return {"total": total.sum(dim=0), "count": count.sum(dim=0)}


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
    start: ClassMeans, state: State, net: Network, federation: Federation, engine: Engine, work: ClassSums
) -> State:
    """One exchange with all training clients; the result does not depend on who has what."""
    clients = sorted(set(range(federation.clients)) - set(federation.newcomers.tolist()))
    sums: Tensors = {}
    for part in engine.map(work, clients):
        add(sums, part)
    means = sums["total"] / sums["count"].clamp(min=1).unsqueeze(-1)
    head = _head(start, means, sums["count"])
    where = linear_of(net)
    model = {**state.model, **{f"{where}{n}": t for n, t in head.items() if f"{where}{n}" in state.model}}
    sent = 4 * (means.numel() + len(means)) * len(clients)
    samples = int(federation.train.sizes_of(clients).sum())
    spent = Cost(sent, 0, samples, samples * step_flops(net, federation.input, 2) // 2)
    return replace(state, model=model, cost=state.cost + spent)


def _head(start: ClassMeans, means: Tensor, count: Tensor) -> Tensors:
    """Rows of length one, so that the largest product is the nearest direction; or the nearest mean itself."""
    if start.metric == "euclidean":  # argmin ‖f − m‖² = argmax f·m − ‖m‖²/2
        weight, bias = means, -means.square().sum(dim=1) / 2
    else:
        weight, bias = F.normalize(means, dim=1), torch.zeros_like(means[:, 0])
    return {"weight": weight, "bias": torch.where(count > 0, bias, _NEVER)}
