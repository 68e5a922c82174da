"""Which model does a client hold, and what is the generic model where clients keep parts of their own?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from torso.data import Roster
from torso.nets import Tensors
from torso.personal.store import ClientState
from torso.server.sums import add


def models_of(model: Tensors, kept: Mapping[int, Tensors], clients: Sequence[int]) -> Tensors:
    """The models that G clients hold, stacked [G, *]: the server's tensors, with a client's own where it has them."""
    return with_own(model, [kept.get(client, {}) for client in clients])


def with_own(model: Tensors, own: Sequence[Tensors]) -> Tensors:
    """The models of G clients [G, *]: the shared one, with what each has of its own in place."""
    if not any(own):
        return {name: tensor.expand(len(own), *tensor.shape) for name, tensor in model.items()}
    return {
        name: torch.stack([mine.get(name, tensor) for mine in own])
        if any(name in mine for mine in own)
        else tensor.expand(len(own), *tensor.shape)
        for name, tensor in model.items()
    }


def own_models_of(held: Sequence[ClientState], model: Tensors, origin: Tensors) -> Tensors:
    """What the visits of G clients left them [G, *]: tensors of their own, the run's first (`origin`) or the server's
    elsewhere."""
    own, first = [state.own for state in held], {**model, **origin}
    names = origin.keys() | {name for mine in own for name in mine}
    return with_own({name: first[name] for name in sorted(names)}, own)


def shares_of(roster: Roster, clients: Sequence[int], weighting: str) -> list[float]:
    """The shares of clients in a mean over all that train, by samples or all alike (spec 4.2, 9.4)."""
    if weighting == "uniform":
        return [1 / len(roster.training)] * len(clients)
    sizes: list[int] = roster.sizes_of(clients).tolist()
    return [size / roster.samples for size in sizes]


def shifts_of(model: Tensors, kept: Tensors, share: float) -> Tensors:
    """What one client's kept parts add to a mean that starts at the model; of counters the largest stands."""
    return {n: (t - model[n]) * share if t.is_floating_point() else t for n, t in kept.items()}


def shifted(model: Tensors, shifts: Tensors) -> Tensors:
    """The model after all shifts have been added."""
    moved = {n: model[n] + shift if shift.is_floating_point() else shift for n, shift in shifts.items()}
    return {**model, **moved}


def generic_model(
    model: Tensors, store: Mapping[int, ClientState], roster: Roster, weighting: str = "samples"
) -> Tensors:
    """The server's model; parts that clients keep are averaged over all training clients (spec 4.2, 9.4).

    A client that has not trained counts with the value it would start from."""
    clients = sorted(store)
    shifts: Tensors = {}
    for client, share in zip(clients, shares_of(roster, clients, weighting), strict=True):
        add(shifts, shifts_of(model, store[client].kept, share))
    return shifted(model, shifts)
