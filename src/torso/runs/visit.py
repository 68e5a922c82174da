"""A visit: what G clients do with what they are told, between broadcast and upload (spec 1.2, steps 2 to 4)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from torso.data import Roster
from torso.data.batches import Shuffle
from torso.data.sending import on_device
from torso.engine import SERVER, Workspace
from torso.learn.drift import Local
from torso.learn.local import learn, learn_by_epoch, paces
from torso.learn.phases import LocalPhase, moved_by
from torso.learn.stacked import finite_rows, rows_apart
from torso.learn.steps import LocalSettings
from torso.learn.tamper import Tamper
from torso.learn.task import LocalResult, LocalTask, stacks_alike
from torso.learn.taught import PREVIOUS, TOLD, hears, remembers
from torso.measure.accuracy import mean_loss
from torso.nets import Tensors
from torso.personal import Personal, VisitStart
from torso.personal.guests import check_start
from torso.personal.models import models_of, own_models_of, with_own
from torso.personal.store import KINDS, ClientState
from torso.registry import is_foreign
from torso.runs.messages import Sent, Told
from torso.server.statistics import NoStatistics, Statistics, VisitEnd


@dataclass(frozen=True)
class Visit:
    """The work of one round: what is told, and what the run's config says of the round. The rest is the client's own:
    its samples, and its store."""

    leaves: ClassVar[bool] = True  # what it sends has a field `left`: what each client goes on with

    told: Told
    plan: tuple[LocalPhase, ...]
    settings: LocalSettings
    personal: Personal
    shuffle: Shuffle
    travels: frozenset[str]  # what is uploaded
    corrected: tuple[str, ...]  # parameters that travel: what drift corrections and server rules see
    keeps: frozenset[str]
    batch_size: int  # of evaluation
    statistics: Statistics = field(default_factory=NoStatistics)  # what else is sent
    meta_data: bool = False  # whether clients train on the server's balanced images too
    tamper: Tamper | None = None  # what malicious clients do to what they send

    def __call__(self, workspace: Workspace, clients: Sequence[int]) -> Sent:
        at = self._open(workspace, clients)
        start, notes, said = self._before(at)
        anchor = self._anchor(workspace, at)
        learned = _as_kept(learn(at.task, start, anchor, notes))
        memory = self._remember(anchor, learned, at.task)
        sent = learned.tensors
        if self.tamper is not None:
            sent = self.tamper(at.received, sent, clients, workspace.federation.malicious)
        kept = {name: sent[name] for name in sorted(self.keeps)}  # others may be sent it (spec 5.6)
        visit_end = VisitEnd(at.task, start, learned, at.told, self.batch_size)
        of_clients = self.statistics.of_clients(visit_end)
        own = self.personal.after(replace(at, said={**said, **of_clients}), learned)
        said |= self._falsified(at, of_clients, clients, workspace)
        changes = self.settings.drift.sends
        notes = learned.notes
        if remembers(self.settings.objective):
            notes = {**notes, **{f"{PREVIOUS}{n}": learned.tensors[n] for n in sorted(moved_by(self.plan))}}
        left = _left(clients, workspace.held(clients), ClientState(kept, memory, own, notes))
        return Sent(
            round=self.told.round,
            clients=tuple(clients),
            samples=workspace.samples(clients),
            model={name: sent[name] for name in sorted(self.travels)},
            loss=learned.loss,
            finite=finite_rows([*kept.values(), *own.values(), *notes.values()], learned.loss),
            drift={n: t - anchor.own[n] for n, t in memory.items()} if changes else {},
            said=said,
            left=left,
        )

    def for_clients(self, clients: Sequence[int]) -> Visit:
        """The visit of these clients, who are told nothing that is meant for others."""
        told = self.told.for_clients(clients)
        return self if told is self.told else replace(self, told=told)

    @property
    def batch_samples(self) -> int:
        """How many samples a full batch has."""
        return self.settings.batch_size

    def keeps_bits(self, sizes: Sequence[int]) -> bool:
        """Whether clients of these sizes have the bits in a stack that each has alone, with a network that keeps them.

        What comes before the first step may be anything, and statistics are computed of a whole client: with padding,
        beside clients of other sizes."""
        if is_foreign(self.personal) or is_foreign(self.statistics):
            return False
        if type(self.personal).before is not Personal.before or self.personal.holds_out:
            return False
        alike = type(self.statistics) is NoStatistics or min(sizes) == max(sizes)
        return alike and stacks_alike(self.settings, self.plan, sizes)

    def costs(self, roster: Roster, clients: Sequence[int]) -> Sequence[float]:
        """Steps of an epoch; the plan is everybody's."""
        if list(clients) == [SERVER]:
            return [1.0]
        steps: list[float] = np.ceil(roster.sizes_of(clients) / self.settings.batch_size).tolist()
        return steps

    def alone(self, workspace: Workspace, clients: Sequence[int]) -> LocalResult:
        """The visit once more; nothing of it is uploaded, and nothing kept (spec 9.4)."""
        return learn(*self._begin(workspace, clients))

    def statistics_of(self, workspace: Workspace, clients: Sequence[int], tensors: Tensors) -> Tensors:
        """The statistics that these clients would send of some models [G, *]."""
        at = self._open(workspace, clients)
        learned = LocalResult(tensors, torch.zeros(len(clients), device=at.task.deck.index.device), 0, tensors)
        return self.statistics.of_clients(VisitEnd(at.task, tensors, learned, at.told, self.batch_size))

    def by_epoch(self, workspace: Workspace, clients: Sequence[int]) -> Iterator[LocalResult]:
        """As `alone`, before the first epoch and after each; each is gone with the next."""
        return learn_by_epoch(*self._begin(workspace, clients))

    def _begin(self, workspace: Workspace, clients: Sequence[int]) -> tuple[LocalTask, Tensors, Local, Tensors]:
        at = self._open(workspace, clients)
        start, notes, _ = self._before(at)
        return at.task, start, self._anchor(workspace, at), notes

    def _before(self, at: VisitStart) -> tuple[Tensors, Tensors, Tensors]:
        """The models that the visit begins with, the clients' notes, and those of these that the server is told."""
        made = self.personal.before(at)
        if is_foreign(self.personal):
            check_start(self.personal, made, at.received)
        start, found = made
        declared = self.personal.declares(len(at.offered))
        heard = {f"{TOLD}{name}": at.told[name] for name in hears(self.settings.objective)}
        notes = {name: note for name, note in found.items() if name not in declared}
        return start, {**notes, **heard}, {name: found[name] for name in declared}

    def _falsified(self, at: VisitStart, said: Tensors, clients: Sequence[int], workspace: Workspace) -> Tensors:
        """Statistics as they arrive at the server."""
        if self.tamper is None or not said:
            return said
        declared = self.statistics.declares(workspace.context.net, workspace.context.classes)
        numbers = {name: each.numbers for name, each in declared.items()}
        return self.tamper.said(at.received, said, numbers, clients, workspace.federation.malicious)

    def _open(self, workspace: Workspace, clients: Sequence[int]) -> VisitStart:
        told = self.told
        deck, held_out = workspace.visit_deck(clients, self.meta_data), None
        if self.personal.holds_out:
            deck, held_out = deck.parted(self.personal.holds_out, self.shuffle.seed)
        meta = workspace.meta_deck(clients) if self.settings.step.uses_meta else None
        stated = told.statistics(clients, workspace.federation.device)
        received = workspace.models(told.model, clients)
        received |= {name: stated[name] for name in received if name in stated}
        sent = {name: told.model[name] for name in sorted(self.travels)}
        senders = _senders(told, clients, deck.index.device)

        def fetch(slot: int) -> Callable[[], Tensors]:
            return lambda: models_of(sent, told.uploads, [told.offers[k][slot] for k in clients])

        return VisitStart(
            task=LocalTask(workspace.context, deck, self.plan, self.settings, self.shuffle, meta),
            received=received,
            own={**received, **own_models_of(workspace.held(clients), {**told.model, **told.origin}, told.origin)},
            notes=self._notes(workspace, clients, received),
            offered=[fetch(slot) for slot in range(senders.shape[1])],
            senders=senders,
            loss=lambda tensors: mean_loss(workspace.context, held_out or deck, tensors, self.batch_size),
            parameters=self.corrected,
            told=stated,
            batch_size=self.batch_size,
        )

    def _notes(self, workspace: Workspace, clients: Sequence[int], received: Tensors) -> Tensors:
        """What the clients remember, stacked: what they did at their last visit, or what everybody begins with."""
        common, count = self.settings.step.notes(self.shuffle.seed), workspace.federation.clients
        held = [state.notes for state in workspace.held(clients)]
        begins_with = common or type(self.personal).notes is not Personal.notes or remembers(self.settings.objective)
        if not begins_with and not any(held):
            return {}
        first = {k: {**common, **self.personal.notes(k, count, workspace.context.net)} for k in clients}
        if remembers(self.settings.objective):
            for place, k in enumerate(clients):
                first[k] |= {f"{PREVIOUS}{n}": received[n][place] for n in sorted(moved_by(self.plan))}
        notes = [{**first[k], **mine} for k, mine in zip(clients, held, strict=True)]
        device = workspace.federation.device
        return {name: torch.stack([own[name].to(device) for own in notes]) for name in notes[0]}

    def _anchor(self, workspace: Workspace, at: VisitStart) -> Local:
        """What the drift correction holds on to."""
        told, clients = self.told, at.task.deck.clients
        start = {name: at.told.get(name, told.model[name]) for name in self.corrected}
        if self.settings.drift.gathers:  # the mean moves with the client's own model, a share of it (spec 5.5)
            others = {n: mean - at.received[n] / told.participants for n, mean in told.mean.items()}
            return Local(start, {}, shared=others, participants=told.participants)
        if not self.settings.drift.remembers and not self.settings.drift.follows:
            return Local(start, {})
        zeros = {name: torch.zeros_like(tensor) for name, tensor in start.items()}
        if not self.settings.drift.remembers:
            return Local(start, {}, shared={**zeros, **told.drift})
        memory = with_own(zeros, [state.memory for state in workspace.held(clients)])
        return Local(start, {}, memory, {**zeros, **told.drift})

    def _remember(self, anchor: Local, learned: LocalResult, task: LocalTask) -> Tensors:
        if not self.settings.drift.remembers:
            return {}
        batches = task.deck.steps(self.settings.batch_size, task.context.skip_single)
        at = replace(anchor, params={name: learned.tensors[name] for name in self.corrected})
        return self.settings.drift.finish(at, paces(self.plan, batches, self.settings, learned.loss.device))


def _senders(told: Told, clients: Sequence[int], device: torch.device) -> Tensor:
    """Whose models each of G clients is offered [G, M]."""
    if not told.offers:
        return torch.zeros(len(clients), 0, dtype=torch.int64, device=device)
    return on_device(device, [told.offers.get(k, ()) for k in clients]).long()


def _as_kept(learned: LocalResult) -> LocalResult:
    """Without what the server has told for the loss: it is told anew at the next visit."""
    return replace(learned, notes={n: t for n, t in learned.notes.items() if not n.startswith(TOLD)})


def _left(clients: Sequence[int], held: Sequence[ClientState], stacked: ClientState) -> dict[int, ClientState]:
    """What each client goes on with: stacked tensors [G, *] as its own, none of which holds on to others' memory; of a
    kind that the visit left nothing of, what it held."""
    if not stacked:
        return {}
    kinds = [
        _each(new, len(clients)) if (new := getattr(stacked, kind)) else map(attrgetter(kind), held) for kind in KINDS
    ]
    return dict(zip(clients, map(ClientState, *kinds), strict=True))


def _each(stacked: Tensors, clients: int) -> list[Tensors]:
    """Stacked tensors [G, *] by client, in as few calls as there are tensors."""
    if clients == 1 and not any(t._is_view() for t in stacked.values()):  # as one of a larger stack may be
        return [{n: t[0] for n, t in stacked.items()}]
    rows = (rows_apart(tensor) for tensor in stacked.values())
    return [dict(zip(stacked, mine, strict=True)) for mine in zip(*rows, strict=True)]
