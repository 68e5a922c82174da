"""One client at a place of its own: what it answers to what a server asks. Samples and what it holds stay here."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torso.data import Federation
from torso.engine import Workspace
from torso.measure.accuracy import own_answer, percent_correct
from torso.measure.evaluate import Exam, PooledExam, Values
from torso.measure.head_ensemble import mixed_answer
from torso.nets import Network, Tensors
from torso.nets.network import CENTRES
from torso.personal.state import State
from torso.personal.store import NOTHING, ClientState, Store
from torso.runs.evaluation import evaluation_of
from torso.runs.exchange import class_sums_of
from torso.runs.job import Job
from torso.runs.messages import Message, Told
from torso.runs.models import Made, MakeModels, network_of
from torso.runs.telling import visit_of
from torso.server.state import ServerState


@dataclass(frozen=True)
class Standing:
    """How a run stands when a client is asked about models: what the server would tell it in one more round, and the
    tensors that accuracy is reported on where those are others."""

    round: int
    told: Told
    shown: Tensors

    @property
    def server(self) -> ServerState:
        return ServerState(self.told.model, self.round, shown=self.shown, origin=self.told.origin)


class Site:
    """`federation` has the samples of this client alone. What the client holds is handed in and given back."""

    def __init__(self, job: Job, federation: Federation, client: int) -> None:
        self.job, self.client, self.federation = job, client, federation
        self.workspace = Workspace.at(job.net, federation, job.config.run.precision)

    def hear(self, message: Message, known: Tensors | None = None, origin: Tensors | None = None) -> Told:
        """What the client makes of what it is told: the tensors that do not travel are `known`, or the run's first."""
        stage = self.job.stage(message.numbers.round)
        if origin is None and stage.method.personal.from_start:
            origin = {name: self.job.model[name] for name in stage.moving}
        return Told.heard(message, {**self.job.model, **(known or {})}, origin)

    def visit(self, told: Told, held: ClientState = NOTHING) -> tuple[Message, ClientState]:
        """Take part in a round: what is sent, and what the client goes on with."""
        stage = self.job.stage(told.round)
        visit = visit_of(stage, told, self.job.config.run.seed)
        store = Store({self.client: held})
        sent = visit(self.workspace.holding(store), [self.client])
        return sent.message(), store.updated(sent.left)[self.client]

    def class_sums(self, model: Tensors) -> Tensors:
        """Features summed by class, and how many there are, for a start that asks for them."""
        config = self.job.config
        work = class_sums_of(model, config.measure.batch_size, config.run.seed)
        return {name: tensor[0].cpu() for name, tensor in work(self.workspace, [self.client]).items()}

    def exam(self, names: Sequence[str], standing: Standing, held: ClientState) -> Values:
        """The measures that are taken of this client."""
        state, store = self._state(standing, held)
        how = evaluation_of(self.job, self.job.stage(state.round), state, standing.told)
        return Exam(tuple(names), state.reported.model, how)(self.workspace.holding(store), [self.client])

    def pooled_exam(self, model: Tensors) -> Values:
        """How many of the client's test samples the generic model has right."""
        return PooledExam(model, self.job.config.measure.batch_size)(self.workspace, [self.client])

    @property
    def kind(self) -> Made:
        """The kind of the client's own model."""
        return "newcomer" if self.client in self.job.roster.newcomers else "personal"

    def make(self, standing: Standing, held: ClientState) -> tuple[float | None, float | None, Network]:
        """The client's own model as it is exported, and its accuracy on the client's test data: of the model that it
        holds, and of its own."""
        state, store = self._state(standing, held)
        how = evaluation_of(self.job, self.job.stage(state.round), state, standing.told)
        workspace = self.workspace.holding(store)
        made = {
            kind: MakeModels(kind, state.reported.model, how)(workspace, [self.client])[0]
            for kind in ("held", self.kind)
        }
        before, after = (self._accuracy(tensors) for tensors in made.values())
        return before, after, network_of(self.job, made[self.kind], self.kind, self.client)

    def _accuracy(self, tensors: Tensors) -> float | None:
        deck, batch = self.workspace.test_deck([self.client]), self.job.config.measure.batch_size
        stacked = {name: tensor[None].to(self.federation.device) for name, tensor in tensors.items()}
        answer = mixed_answer(stacked[CENTRES]) if CENTRES in stacked else own_answer
        found = float(percent_correct(self.workspace.context, deck, stacked, batch, answer))
        return None if math.isnan(found) else found

    def _state(self, standing: Standing, held: ClientState) -> tuple[State, Store]:
        store = Store({self.client: held})
        return State(standing.server, store), store
