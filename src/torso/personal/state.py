"""The state of a run at the end of a round: the server's, the clients', and visits that have not ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from torso.nets import Tensors
from torso.personal.store import ClientState, StateHandle, Store
from torso.server.state import Cost, ServerState


@dataclass(frozen=True)
class PendingVisit:
    """A visit in asynchronous rounds whose upload has not arrived yet."""

    client: int
    began: int  # number of the last round before it began
    arrives: float  # in simulated hours
    samples: int
    loss: Tensor  # [1]
    finite: Tensor  # whether all numbers of the upload are finite
    sent: Tensors  # [*]: the changes of parameters since the visit began; other tensors as they are
    left: ClientState | StateHandle | None = None  # the client's state once the upload has arrived


@dataclass(frozen=True)
class State:
    """All that a round changes. A round makes a new state from it."""

    server: ServerState
    clients: Store = field(default_factory=Store)
    pending: tuple[PendingVisit, ...] = ()

    @classmethod
    def begin(
        cls, model: Tensors, clients: Mapping[int, ClientState | StateHandle] | None = None, **server: Any
    ) -> State:
        """A state before the first round; further arguments are fields of `ServerState`."""
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
        """The first state of another method, which continues from the model alone: the clients' states and visits that
        have not ended are dropped."""
        return State(self.server.at_new_stage())
