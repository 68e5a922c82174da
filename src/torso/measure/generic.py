"""The generic model if clients keep parts of the model: the clients are asked for the mean of these (spec 4.2, 9.4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torso.data import Roster
from torso.engine import Engine, Workspace
from torso.nets import Tensors
from torso.personal.models import shares_of, shifted, shifts_of
from torso.personal.store import Store
from torso.server.sums import add


@dataclass(frozen=True)
class KeptShifts:
    """Work: what the kept parts of each client add to the mean."""

    model: Tensors  # [*]: the server's
    shares: Mapping[int, float]  # weight of each client

    def __call__(self, workspace: Workspace, clients: Sequence[int]) -> list[Tensors]:
        return [shifts_of(self.model, workspace.store[k].kept, self.shares[k]) for k in clients]


def generic_of(engine: Engine, model: Tensors, clients: Store, roster: Roster, weighting: str, keeps: bool) -> Tensors:
    """As `personal.models.generic_model`, for clients whose states may be in other processes. `keeps`: whether clients
    keep parts of the model."""
    asked = sorted(clients) if keeps else []
    shares = dict(zip(asked, shares_of(roster, asked, weighting), strict=True))
    shifts: Tensors = {}
    for group in engine.map(KeptShifts(model, shares), asked, clients) if asked else ():
        for one in group:
            add(shifts, one)
    return shifted(model, shifts)
