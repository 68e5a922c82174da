"""The generic model where clients keep parts of their own: their mean, which they are asked for (spec 4.2, 9.4)."""

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
    """Work: what each client's kept parts add to the mean, client by client."""

    model: Tensors
    shares: Mapping[int, float]

    def __call__(self, workspace: Workspace, clients: Sequence[int]) -> list[Tensors]:
        return [shifts_of(self.model, workspace.store[k].kept, self.shares[k]) for k in clients]


def generic_of(engine: Engine, model: Tensors, clients: Store, roster: Roster, weighting: str, keeps: bool) -> Tensors:
    """As `personal.models.generic_model`, of clients whose states are elsewhere; `keeps`: whether they have any."""
    asked = sorted(clients) if keeps else []
    shares = dict(zip(asked, shares_of(roster, asked, weighting), strict=True))
    shifts: Tensors = {}
    for group in engine.map(KeptShifts(model, shares), asked, clients) if asked else ():
        for one in group:
            add(shifts, one)
    return shifted(model, shifts)
