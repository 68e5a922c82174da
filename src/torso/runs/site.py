"""One client at a place of its own: messages are all that comes in and goes out; samples and store stay."""

from __future__ import annotations

from torso.data import Federation
from torso.engine import Desk
from torso.nets import Tensors
from torso.personal.store import Store
from torso.runs.job import Job
from torso.runs.messages import Message, Told
from torso.runs.rounds import visit_of


class Site:
    """`federation` has the samples of this client alone; `known` is what everybody can draw from the run's seed."""

    def __init__(self, job: Job, federation: Federation, client: int, store: Store | None = None) -> None:
        self.job, self.client, self.store = job, client, store or Store()
        self.known: Tensors = job.model
        self.desk = Desk.at(job.net, federation, job.config.run.precision)

    def answer(self, data: bytes) -> bytes:
        """Take part in a round: the bytes of what is told become the bytes of what is sent."""
        message = Message.decode(data)
        stage = self.job.stage(message.numbers.round)
        told = Told.heard(message, self.known, stage.method.personal.from_start)
        visit = visit_of(stage, told, self.job.config.run.seed)
        sent = visit(self.desk.holding(self.store), [self.client])
        answer = sent.message().encode()
        self.store = self.store.updated(sent.left)
        return answer
