"""Which model does a client hold, and what is the generic model where clients keep parts of their own?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from torso.data import Federation
from torso.nets import Tensors


def models_of(model: Tensors, private: Mapping[int, Tensors], clients: Sequence[int]) -> Tensors:
    """The models that G clients hold, stacked [G, *]: the server's tensors, with a client's own where it has them."""
    own = [private.get(client, {}) for client in clients]
    return {
        name: torch.stack([mine.get(name, tensor) for mine in own])
        if any(name in mine for mine in own)
        else tensor.expand(len(clients), *tensor.shape)
        for name, tensor in model.items()
    }


def generic_model(
    model: Tensors, private: Mapping[int, Tensors], federation: Federation, weighting: str = "samples"
) -> Tensors:
    """The server's model; parts that clients keep are averaged over all training clients, by samples or all alike
    (spec 4.2, 9.4).

    A client that has not trained counts with the value it would start from.
    """
    names = {name for mine in private.values() for name in mine}
    clients = sorted(private)
    own = federation.train.sizes_of(clients)
    total = len(federation.train.order) - int(federation.train.sizes_of(federation.newcomers).sum())
    if weighting == "uniform":
        own, total = np.ones_like(own), federation.clients - len(federation.newcomers)
    mean = dict(model)
    for name in names:
        start = model[name]
        if not start.is_floating_point():
            mean[name] = torch.stack([mine[name] for mine in private.values()]).amax(dim=0)
            continue
        shift = torch.zeros_like(start)
        for client, size in zip(clients, own.tolist(), strict=True):
            shift += (private[client][name] - start) * (size / total)
        mean[name] = start + shift
    return mean
