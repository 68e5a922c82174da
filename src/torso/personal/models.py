"""The models that clients hold, and the generic model if clients keep parts of the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from torso.data import Roster
from torso.nets import Tensors
from torso.personal.store import ClientState
from torso.server.sums import add


def models_of(model: Tensors, kept: Mapping[int, Tensors], clients: Sequence[int]) -> Tensors:
    """The models that G clients hold, stacked [G, *]: the server's tensors [*], replaced by those that a client
    keeps."""
    return with_own(model, [kept.get(client, {}) for client in clients])


def with_own(model: Tensors, own: Sequence[Tensors]) -> Tensors:
    """The models of G clients [G, *]: the common tensors [*], replaced by each client's own. A tensor that no client
    replaces is expanded, not copied."""
    if not any(own):
        return {name: tensor.expand(len(own), *tensor.shape) for name, tensor in model.items()}
    stacked: Tensors = {}
    for name, tensor in model.items():
        if any(name in mine for mine in own):
            stacked[name] = torch.stack([mine.get(name, tensor) for mine in own])
        else:
            stacked[name] = tensor.expand(len(own), *tensor.shape)
    return stacked


def own_models_of(held: Sequence[ClientState], model: Tensors, origin: Tensors) -> Tensors:
    """The own tensors of G clients [G, *]. A client without them has the initial model's (`origin`), or the
    server's."""
    own = [state.own for state in held]
    default = {**model, **origin}
    names = origin.keys() | {name for mine in own for name in mine}
    return with_own({name: default[name] for name in sorted(names)}, own)


def shares_of(roster: Roster, clients: Sequence[int], weighting: str) -> list[float]:
    """The weights of clients in a mean over all clients that train: by samples, or equal (spec 4.2, 9.4)."""
    if weighting == "uniform":
        return [1 / len(roster.training)] * len(clients)
    sizes: list[int] = roster.sizes_of(clients).tolist()
    return [size / roster.samples for size in sizes]


def shifts_of(model: Tensors, kept: Tensors, share: float) -> Tensors:
    """What one client's kept tensors add to a mean that starts at the model. Counters have no mean: they are returned
    as they are."""
    return {n: (t - model[n]) * share if t.is_floating_point() else t for n, t in kept.items()}


def shifted(model: Tensors, shifts: Tensors) -> Tensors:
    """The model with all clients' shifts added; counters are replaced by the largest."""
    moved = {n: model[n] + shift if shift.is_floating_point() else shift for n, shift in shifts.items()}
    return {**model, **moved}


def generic_model(
    model: Tensors, store: Mapping[int, ClientState], roster: Roster, weighting: str = "samples"
) -> Tensors:
    """The generic model: the server's, with the parts that clients keep averaged over all clients that train (spec 4.2,
    9.4).

    A client without a visit counts with the value that it would start from."""
    clients = sorted(store)
    shifts: Tensors = {}
    for client, share in zip(clients, shares_of(roster, clients, weighting), strict=True):
        add(shifts, shifts_of(model, store[client].kept, share))
    return shifted(model, shifts)
