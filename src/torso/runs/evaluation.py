"""What measures need of a run: how clients are fine-tuned, visited once more, or trained without a server."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from torso.data.batches import Shuffle
from torso.engine import Workspace
from torso.learn.drift import NoDrift
from torso.learn.local import learn, learn_by_epoch
from torso.learn.phases import Phase, local_phases, with_trained_head
from torso.learn.steps import LocalSettings, Plain
from torso.learn.task import LocalResult, LocalTask
from torso.learn.teachers import hears
from torso.measure import Evaluation
from torso.measure.base import OneMoreVisit
from torso.nets import Tensors
from torso.personal import OwnModelStart, Personal
from torso.personal.checks import check_models
from torso.personal.models import own_models_of
from torso.personal.state import State
from torso.registry import is_foreign
from torso.runs.job import Job
from torso.runs.messages import Told
from torso.runs.stage import Stage
from torso.runs.telling import tell, visit_of
from torso.runs.visit import Visit
from torso.server.state import ServerState


def evaluation_of(job: Job, stage: Stage, state: State, told: Told | None = None) -> Evaluation:
    """How the models of a run's state are evaluated.

    Fine-tuning uses the run's momentum, the run's batch size unless the config sets another, no weight decay, and a
    new optimiser (spec 9.2). `told`: the message for one more visit, if the server's state is not in this process."""
    config = job.config
    personal = stage.method.personal
    part = config.personalize.part
    phases = personal.phases if part == "method" else (Phase(part),)
    rates = {"personalize": config.personalize.lr, "first": stage.lr, "last": stage.rate(stage.last)}
    rate = personal.factor * rates[personal.rate]
    # a visit begins with what is broadcast, whatever accuracy is reported on (spec 3.8)
    visit = LastVisit(job, stage, state, told)
    batch = config.personalize.batch_size or config.train.batch_size
    settings = replace(stage.settings(), batch_size=batch, weight_decay=0.0, drift=NoDrift(), step=Plain())
    objective = stage.method.objective
    for_fine_tuning = replace(settings, objective=objective.for_fine_tuning())
    return Evaluation(
        batch_size=config.measure.batch_size,
        templates=config.measure.templates,
        template_order=config.measure.template_order,
        visit=visit,
        alone=lambda workspace, clients: _trained_alone(job, workspace, clients),
        alone_by_epoch=lambda workspace, clients: _alone_by_epoch(job, workspace, clients),
        own=FineTuningStart(personal, stage.travels, state.server.reported.light, visit),
        finetune=lambda epochs: local_phases(job.net, phases, epochs, rate) if epochs else (),
        epochs=config.personalize.epochs,
        sweep=config.personalize.sweep,
        settings=for_fine_tuning,
        shuffle=Shuffle(config.run.seed, "personalize", state.round),
        weighting=config.train.weighting,
        keeps=bool(stage.keeps),
        arrival=with_trained_head(
            local_phases(job.net, (Phase("all"),), config.personalize.epochs, stage.rate(stage.last)), job.net
        ),
        # a newcomer trains as other clients do for their own model: by fine-tuning (spec 6.6) or by a visit (spec 9.7)
        arrival_settings=for_fine_tuning if phases or hears(objective) else replace(settings, objective=objective),
        bins=config.measure.bins,
        shift=config.measure.shift,
        corruptions=config.measure.corruptions,
        severities=config.measure.severities,
    )


@dataclass(frozen=True)
class RepeatedVisit:
    """A round's local training once more, without an upload."""

    visit: Visit

    def __call__(self, workspace: Workspace, clients: Sequence[int]) -> LocalResult:
        return self.visit.alone(workspace, clients)

    def told_to(self, workspace: Workspace, clients: Sequence[int]) -> Tensors:
        return self.visit.told.statistics(clients, workspace.federation.device)

    def said_by(self, workspace: Workspace, clients: Sequence[int], tensors: Tensors) -> Tensors:
        return self.visit.statistics_of(workspace, clients, tensors)

    def for_clients(self, clients: Sequence[int]) -> RepeatedVisit:
        return RepeatedVisit(self.visit.for_clients(clients))

    def keeps_bits(self, sizes: Sequence[int]) -> bool:
        return self.visit.keeps_bits(sizes)


@dataclass(frozen=True)
class LastVisit:
    """The last round's local training once more, of all measured clients (spec 9.4). It is built on first use."""

    job: Job
    stage: Stage
    state: State
    heard: Told | None = None

    def __call__(self, workspace: Workspace, clients: Sequence[int]) -> LocalResult:
        return self.again(workspace, clients)

    def told_to(self, workspace: Workspace, clients: Sequence[int]) -> Tensors:
        return self.again.told_to(workspace, clients)

    def said_by(self, workspace: Workspace, clients: Sequence[int], tensors: Tensors) -> Tensors:
        return self.again.said_by(workspace, clients, tensors)

    def for_clients(self, clients: Sequence[int]) -> RepeatedVisit:
        return self.again.for_clients(clients)

    def keeps_bits(self, sizes: Sequence[int]) -> bool:
        return self.again.keeps_bits(sizes)

    @cached_property
    def told(self) -> Told:
        if self.heard is not None:
            return self.heard
        job = self.job
        server = self.state.server
        number = max(server.round, 1)
        return tell(self.stage, server, job.roster, job.measured_clients, number, job.config.run.seed)

    @cached_property
    def again(self) -> RepeatedVisit:
        last = visit_of(self.stage, self.told, self.job.config.run.seed)
        return RepeatedVisit(replace(last, shuffle=replace(last.shuffle, purpose="refresh")))


@dataclass(frozen=True)
class FineTuningStart:
    """A function that gives the models [G, *] with which the fine-tuning of G clients begins."""

    personal: Personal
    travels: frozenset[str]
    server: ServerState
    usual: OneMoreVisit  # used if a call gives no other visit

    def __call__(
        self,
        workspace: Workspace,
        clients: Sequence[int],
        held: Tensors,
        visit: Callable[[], LocalResult] | None = None,
    ) -> Tensors:
        at = OwnModelStart(
            held=held,
            own={**held, **own_models_of(workspace.held(clients), self.server.model, self.server.origin)},
            travels=self.travels,
            visit=visit or (lambda: self.usual(workspace, clients)),
            counts=lambda: workspace.train_deck(clients).class_counts(workspace.context.classes),
            told=lambda: self.usual.told_to(workspace, clients),
            says=lambda: self.usual.said_by(workspace, clients, held),
            head=frozenset(workspace.context.net.parts["head"]),
        )
        made = self.personal.begin(at)
        if is_foreign(self.personal):
            check_models(self.personal, "begin()", made, held)
        return made

    def for_clients(self, clients: Sequence[int]) -> FineTuningStart:
        return replace(self, usual=self.usual.for_clients(clients))

    def keeps_bits(self, sizes: Sequence[int]) -> bool:
        """Whether a client gets the same bits in a stack as alone. `begin` of a method may need one more visit."""
        if type(self.personal).begin is Personal.begin:
            return True
        return not is_foreign(self.personal) and self.usual.keeps_bits(sizes)


def _trained_alone(job: Job, workspace: Workspace, clients: Sequence[int]) -> Tensors:
    """The models [G, *] that clients train without a server, as the method `local-only` does (spec 5.1)."""
    tensors = workspace.models(job.model, clients, kept=False)
    for task in _tasks_alone(job, workspace, clients):
        tensors = learn(task, tensors).tensors
    return tensors


def _alone_by_epoch(job: Job, workspace: Workspace, clients: Sequence[int]) -> Iterator[Tensors]:
    """The models [G, *] trained without a server, after each epoch of each round."""
    tensors = workspace.models(job.model, clients, kept=False)
    for task in _tasks_alone(job, workspace, clients):
        for learned in learn_by_epoch(task, tensors):
            tensors = learned.tensors
            if learned.epochs:
                yield tensors


def _tasks_alone(job: Job, workspace: Workspace, clients: Sequence[int]) -> Iterator[LocalTask]:
    """One task per round, with the run's learning rates and batches. The optimiser is new in each (spec 1.2)."""
    train = job.config.train
    deck = workspace.train_deck(clients)
    settings = LocalSettings(train.batch_size, train.momentum, train.weight_decay)
    for stage in job.plan:
        for number in range(stage.first, stage.last + 1):
            plan = stage.local_phases((Phase("all"),), number, train.local_epochs)
            yield LocalTask(workspace.context, deck, plan, settings, Shuffle(job.config.run.seed, "train", number))
