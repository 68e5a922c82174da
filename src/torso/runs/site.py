"""A client on its own machine: its answers to what the server asks. Its samples and its state stay here."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torso.data import Federation
from torso.engine import Workspace
from torso.measure.accuracy import own_prediction, percent_correct
from torso.measure.evaluate import MeasureWork, PooledMeasureWork, Values
from torso.measure.head_ensemble import mixed_answer
from torso.nets import Network, Tensors
from torso.nets.network import CENTRES
from torso.personal.state import State
from torso.personal.store import EMPTY_STATE, ClientState, Store
from torso.runs.evaluation import evaluation_of
from torso.runs.exchange import class_sums_of
from torso.runs.job import Job
from torso.runs.messages import Message, Told
from torso.runs.models import MakeModels, ModelKind, network_of
from torso.runs.telling import visit_of
from torso.server.state import ServerState


@dataclass(frozen=True)
class ServerSnapshot:
    """The server's state as a client is told of it when it is asked to evaluate or export models."""

    round: int
    told: Told  # what the server would tell in one more round
    shown: Tensors  # [*], the tensors on which accuracy is reported, if they differ from what is broadcast

    @property
    def server(self) -> ServerState:
        return ServerState(self.told.model, self.round, shown=self.shown, origin=self.told.origin)


class Site:
    """One client's side of a run. The client's state is passed in and returned, so the caller can store it.

    `federation` contains the samples of this client only."""

    def __init__(self, job: Job, federation: Federation, client: int) -> None:
        self.job = job
        self.client = client
        self.federation = federation
        self.workspace = Workspace.at(job.net, federation, job.config.run.precision)

    def hear(self, message: Message, known: Tensors | None = None, origin: Tensors | None = None) -> Told:
        """Read the server's message. Tensors that do not travel are taken from `known`, or from the initial model."""
        stage = self.job.stage(message.numbers.round)
        if origin is None and stage.method.personal.from_start:
            origin = {name: self.job.model[name] for name in stage.moving}
        return Told.heard(message, {**self.job.model, **(known or {})}, origin)

    def visit(self, told: Told, held: ClientState = EMPTY_STATE) -> tuple[Message, ClientState]:
        """Take part in a round. Returns the message to send, and the client's new state."""
        stage = self.job.stage(told.round)
        visit = visit_of(stage, told, self.job.config.run.seed)
        store = Store({self.client: held})
        sent = visit(self.workspace.holding(store), [self.client])
        return sent.message(), store.updated(sent.left)[self.client]

    def class_sums(self, model: Tensors) -> Tensors:
        """The features summed by class [C, d], and the number of samples by class [C], for a start that needs them."""
        config = self.job.config
        work = class_sums_of(model, config.measure.batch_size, config.run.seed)
        return {name: tensor[0].cpu() for name, tensor in work(self.workspace, [self.client]).items()}

    def exam(self, names: Sequence[str], standing: ServerSnapshot, held: ClientState) -> Values:
        """The values of measures for this client."""
        state, store = self._state(standing, held)
        how = evaluation_of(self.job, self.job.stage(state.round), state, standing.told)
        return MeasureWork(tuple(names), state.reported.model, how)(self.workspace.holding(store), [self.client])

    def pooled_exam(self, model: Tensors) -> Values:
        """The number of the client's test samples, and of those that the generic model classifies correctly."""
        return PooledMeasureWork(model, self.job.config.measure.batch_size)(self.workspace, [self.client])

    @property
    def kind(self) -> ModelKind:
        """The kind of the client's own model."""
        return "newcomer" if self.client in self.job.roster.newcomers else "personal"

    def make(self, standing: ServerSnapshot, held: ClientState) -> tuple[float | None, float | None, Network]:
        """The client's own model for export, and two accuracies on the client's test data.

        Returns the accuracy of the model that the client holds, the accuracy of its own model, and its own model."""
        state, store = self._state(standing, held)
        how = evaluation_of(self.job, self.job.stage(state.round), state, standing.told)
        workspace = self.workspace.holding(store)
        (held_model,) = MakeModels("held", state.reported.model, how)(workspace, [self.client])
        (own_model,) = MakeModels(self.kind, state.reported.model, how)(workspace, [self.client])
        before = self._accuracy(held_model)
        after = self._accuracy(own_model)
        return before, after, network_of(self.job, own_model, self.kind, self.client)

    def _accuracy(self, tensors: Tensors) -> float | None:
        """The accuracy in percent on the client's test data; None if it has none."""
        deck = self.workspace.test_deck([self.client])
        batch = self.job.config.measure.batch_size
        stacked = {name: tensor[None].to(self.federation.device) for name, tensor in tensors.items()}
        answer = mixed_answer(stacked[CENTRES]) if CENTRES in stacked else own_prediction
        found = float(percent_correct(self.workspace.context, deck, stacked, batch, answer))
        return None if math.isnan(found) else found

    def _state(self, standing: ServerSnapshot, held: ClientState) -> tuple[State, Store]:
        store = Store({self.client: held})
        return State(standing.server, store), store
