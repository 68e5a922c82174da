"""A visit: the work of G clients in one round, between broadcast and upload (spec 1.2, steps 2 to 4)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
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
from torso.learn.drift import DriftState
from torso.learn.local import learn, learn_by_epoch, paces
from torso.learn.phases import LocalPhase, moved_by
from torso.learn.stacked import finite_rows, row_copies
from torso.learn.steps import LocalSettings
from torso.learn.tamper import Tamper
from torso.learn.task import LocalResult, LocalTask, stacks_alike
from torso.learn.teachers import PREVIOUS_PREFIX, TOLD_PREFIX, hears, remembers
from torso.measure.accuracy import mean_loss
from torso.nets import Tensors
from torso.personal import Personal, VisitStart
from torso.personal.checks import check_start
from torso.personal.models import models_of, own_models_of, with_own
from torso.personal.store import KINDS, ClientState
from torso.registry import is_foreign
from torso.runs.messages import Sent, Told
from torso.server.statistics import NoStatistics, Statistics, VisitEnd


@dataclass(frozen=True)
class Visit:
    """The work of clients in one round: the server's message, and what the config says about the round.

    Samples and states of the clients are not part of it. The visit finds them in its workspace."""

    leaves: ClassVar[bool] = True  # results have a field `left`: each client's new state (engine/state_handles.py)

    told: Told
    plan: tuple[LocalPhase, ...]
    settings: LocalSettings
    personal: Personal
    shuffle: Shuffle
    travels: frozenset[str]  # tensors that are uploaded
    corrected: tuple[str, ...]  # the parameters among them, on which drift corrections and server rules act
    keeps: frozenset[str]  # tensors that stay with the client
    batch_size: int  # of evaluation
    statistics: Statistics = field(default_factory=NoStatistics)  # what is sent in addition to the model
    meta_data: bool = False  # whether clients also train on the server's balanced samples
    tamper: Tamper | None = None  # how malicious clients replace what they send

    def __call__(self, workspace: Workspace, clients: Sequence[int]) -> Sent:
        at = self._open(workspace, clients)
        start, notes, said = self._before(at)
        anchor = self._anchor(workspace, at)
        learned = _as_kept(learn(at.task, start, anchor, notes))
        memory = self._remember(anchor, learned, at.task)
        sent = learned.tensors
        if self.tamper is not None:
            sent = self.tamper(at.received, sent, clients, workspace.federation.malicious)
        # taken from `sent`, as attackers have changed it: the server may send kept parts to other clients (spec 5.6)
        kept = {name: sent[name] for name in sorted(self.keeps)}
        visit_end = VisitEnd(at.task, start, learned, at.told, self.batch_size)
        of_clients = self.statistics.of_clients(visit_end)
        own = self.personal.after(replace(at, said={**said, **of_clients}), learned)
        said |= self._falsified(at, of_clients, clients, workspace)
        changes = self.settings.drift.sends
        notes = learned.notes
        if remembers(self.settings.objective):
            notes = {**notes, **{f"{PREVIOUS_PREFIX}{n}": learned.tensors[n] for n in sorted(moved_by(self.plan))}}
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
        """The visit without what the server tells other clients."""
        told = self.told.for_clients(clients)
        return self if told is self.told else replace(self, told=told)

    @property
    def batch_samples(self) -> int:
        """The number of samples in a full batch."""
        return self.settings.batch_size

    def keeps_bits(self, sizes: Sequence[int]) -> bool:
        """Whether clients of these sizes get the same bits in a stack as alone, if the network keeps bits.

        False for methods that compute something before the first step, since that may be any computation. Statistics
        are computed over all samples of a client, with padding if the clients have different sizes: then False too."""
        if is_foreign(self.personal) or is_foreign(self.statistics):
            return False
        if type(self.personal).before is not Personal.before or self.personal.holds_out:
            return False
        alike = type(self.statistics) is NoStatistics or min(sizes) == max(sizes)
        return alike and stacks_alike(self.settings, self.plan, sizes)

    def costs(self, roster: Roster, clients: Sequence[int]) -> Sequence[float]:
        """The number of steps of each client in an epoch. All clients have the same number of epochs."""
        if list(clients) == [SERVER]:
            return [1.0]
        steps: list[float] = np.ceil(roster.sizes_of(clients) / self.settings.batch_size).tolist()
        return steps

    def alone(self, workspace: Workspace, clients: Sequence[int]) -> LocalResult:
        """The local training of the visit only: nothing is uploaded, and no state changes (spec 9.4)."""
        return learn(*self._begin(workspace, clients))

    def statistics_of(self, workspace: Workspace, clients: Sequence[int], tensors: Tensors) -> Tensors:
        """The statistics that these clients would send for given models [G, *]."""
        at = self._open(workspace, clients)
        learned = LocalResult(tensors, torch.zeros(len(clients), device=at.task.deck.index.device), 0, tensors)
        return self.statistics.of_clients(VisitEnd(at.task, tensors, learned, at.told, self.batch_size))

    def by_epoch(self, workspace: Workspace, clients: Sequence[int]) -> Iterator[LocalResult]:
        """The results of `alone` before the first epoch and after each. A result is valid until the next one."""
        return learn_by_epoch(*self._begin(workspace, clients))

    def _begin(self, workspace: Workspace, clients: Sequence[int]) -> tuple[LocalTask, Tensors, DriftState, Tensors]:
        at = self._open(workspace, clients)
        start, notes, _ = self._before(at)
        return at.task, start, self._anchor(workspace, at), notes

    def _before(self, at: VisitStart) -> tuple[Tensors, Tensors, Tensors]:
        """The models with which the visit begins, the clients' notes, and the notes that are sent to the server."""
        made = self.personal.before(at)
        if is_foreign(self.personal):
            check_start(self.personal, made, at.received)
        start, found = made
        declared = self.personal.declares(len(at.offered))
        heard = {f"{TOLD_PREFIX}{name}": at.told[name] for name in hears(self.settings.objective)}
        notes = {name: note for name, note in found.items() if name not in declared}
        return start, {**notes, **heard}, {name: found[name] for name in declared}

    def _falsified(self, at: VisitStart, said: Tensors, clients: Sequence[int], workspace: Workspace) -> Tensors:
        """The statistics as they are sent: those of malicious clients are replaced."""
        if self.tamper is None or not said:
            return said
        declared = self.statistics.declares(workspace.context.net, workspace.context.classes)
        numbers = {name: each.numbers for name, each in declared.items()}
        return self.tamper.said(at.received, said, numbers, clients, workspace.federation.malicious)

    def _open(self, workspace: Workspace, clients: Sequence[int]) -> VisitStart:
        """What the clients have at the beginning of the visit."""
        told = self.told
        deck = workspace.visit_deck(clients, self.meta_data)
        held_out = None
        if self.personal.holds_out:
            deck, held_out = deck.split_off(self.personal.holds_out, self.shuffle.seed)
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
        """The clients' notes, stacked [G, *]: those of the last visit, or the initial ones at the first visit."""
        common = self.settings.step.notes(self.shuffle.seed)
        count = workspace.federation.clients
        held = [state.notes for state in workspace.held(clients)]
        begins_with = common or type(self.personal).notes is not Personal.notes or remembers(self.settings.objective)
        if not begins_with and not any(held):
            return {}
        first = {k: {**common, **self.personal.notes(k, count, workspace.context.net)} for k in clients}
        if remembers(self.settings.objective):
            for place, k in enumerate(clients):
                first[k] |= {f"{PREVIOUS_PREFIX}{n}": received[n][place] for n in sorted(moved_by(self.plan))}
        notes = [{**first[k], **mine} for k, mine in zip(clients, held, strict=True)]
        device = workspace.federation.device
        return {name: torch.stack([own[name].to(device) for own in notes]) for name in notes[0]}

    def _anchor(self, workspace: Workspace, at: VisitStart) -> DriftState:
        """What the drift correction refers to: the model of the start, memories, and what the server has sent."""
        told = self.told
        clients = at.task.deck.clients
        start = {name: at.told.get(name, told.model[name]) for name in self.corrected}
        if self.settings.drift.gathers:  # the mean without the client's share, which moves in training (spec 5.5)
            others = {n: mean - at.received[n] / told.participants for n, mean in told.mean.items()}
            return DriftState(start, {}, shared=others, participants=told.participants)
        if not self.settings.drift.remembers and not self.settings.drift.follows:
            return DriftState(start, {})
        zeros = {name: torch.zeros_like(tensor) for name, tensor in start.items()}
        if not self.settings.drift.remembers:
            return DriftState(start, {}, shared={**zeros, **told.drift})
        memory = with_own(zeros, [state.memory for state in workspace.held(clients)])
        return DriftState(start, {}, memory, {**zeros, **told.drift})

    def _remember(self, anchor: DriftState, learned: LocalResult, task: LocalTask) -> Tensors:
        """The drift correction's new memories [G, *]."""
        if not self.settings.drift.remembers:
            return {}
        batches = task.deck.steps(self.settings.batch_size, task.context.skip_single)
        at = replace(anchor, params={name: learned.tensors[name] for name in self.corrected})
        return self.settings.drift.finish(at, paces(self.plan, batches, self.settings, learned.loss.device))


def _senders(told: Told, clients: Sequence[int], device: torch.device) -> Tensor:
    """The numbers of the M clients whose models each of G clients is offered [G, M]."""
    if not told.offers:
        return torch.zeros(len(clients), 0, dtype=torch.int64, device=device)
    return on_device(device, [told.offers.get(k, ()) for k in clients]).long()


def _as_kept(learned: LocalResult) -> LocalResult:
    """The result without the notes that the server has sent for the loss: it sends them again at the next visit."""
    return replace(learned, notes={n: t for n, t in learned.notes.items() if not n.startswith(TOLD_PREFIX)})


def _left(clients: Sequence[int], held: Sequence[ClientState], stacked: ClientState) -> dict[int, ClientState]:
    """Client -> its new state, from stacked tensors [G, *].

    The tensors are copied, so that none keeps the whole stack in memory. A kind of tensors that the visit has not made
    stays as the client held it."""
    if not stacked:
        return {}
    kinds: list[Iterable[Tensors]] = []  # for each kind of tensors, those of each client
    for kind in KINDS:
        new = getattr(stacked, kind)
        kinds.append(_each(new, len(clients)) if new else map(attrgetter(kind), held))
    return dict(zip(clients, map(ClientState, *kinds), strict=True))


def _each(stacked: Tensors, clients: int) -> list[Tensors]:
    """The tensors [*] of each client, from stacked tensors [G, *], with one call per tensor."""
    if clients == 1 and not any(t._is_view() for t in stacked.values()):  # a view would keep a larger stack in memory
        return [{n: t[0] for n, t in stacked.items()}]
    rows = (row_copies(tensor) for tensor in stacked.values())
    return [dict(zip(stacked, mine, strict=True)) for mine in zip(*rows, strict=True)]
