"""All that a run is at the end of a round: what the server holds, what the clients hold, and what is under way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from torso.nets import Tensors
from torso.personal.store import ClientState, Elsewhere, Store
from torso.server.state import Cost, ServerState


@dataclass(frozen=True)
class Pending:
    """A visit whose upload is still to come, where rounds are asynchronous."""

    client: int
    began: int  # rounds that were over when it began
    arrives: float  # in simulated hours
    samples: int
    loss: Tensor  # [1]
    finite: Tensor
    sent: Tensors  # [*]: parameters as changes of the model that it began at; what else travels as it is
    left: ClientState | Elsewhere | None = None  # what the client goes on with once its upload counts


@dataclass(frozen=True)
class State:
    """All that a round changes; it makes a new state."""

    server: ServerState
    clients: Store = field(default_factory=Store)
    pending: tuple[Pending, ...] = ()

    @classmethod
    def begin(
        cls, model: Tensors, clients: Mapping[int, ClientState | Elsewhere] | None = None, **server: Any
    ) -> State:
        """Before the first round, or with whatever else the server and clients hold."""
        return cls(ServerState(model, **server), Store(clients))

    @property
    def model(self) -> Tensors:
        return self.server.model

    @property
    def round(self) -> int:
        return self.server.round

    @property
    def cost(self) -> Cost:
        return self.server.cost

    @property
    def reported(self) -> State:
        """The state that accuracy is measured on."""
        return replace(self, server=self.server.reported)

    def at_new_stage(self) -> State:
        """Another method goes on from the model alone: what clients kept for the one before is gone, and so are visits
        under way."""
        return State(self.server.at_new_stage())
