"""Local steps: how clients move their weights on each batch (plain SGD, look-ahead, a Moreau envelope).

A `Step` gets one epoch of batches at a time and moves the stacked tensors [G, *] of G clients in place. It is one axis
of a method. Other axes decide which parts learn (phases), which correction is added to the gradient (drift) and how a
client gets its personal model (personal).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from torso.data.batches import Batch
from torso.errors import RequestError
from torso.kinds import Count, NotNegative, Positive
from torso.learn.drift import Drift, DriftState, NoDrift, drifts
from torso.learn.gradients import Gradients, check_gradients, leading_gradients
from torso.learn.objectives import CrossEntropy, Objective, Stacks
from torso.learn.sgd import Sgd
from torso.learn.stacked import Rate, padded, rows_of, scaled
from torso.learn.teachers import TOLD_PREFIX, TeacherObjective, answers, hears, teacher_tensors, teachers_of
from torso.learn.unpadded import equal_widths, joined_gradients, narrowed
from torso.nets import Network, Tensors, set_modes
from torso.registry import Registry, is_foreign


@dataclass
class Learner:
    """The training state of G clients in a phase: what a `Step` reads, and the tensors that it moves in place.

    A batch may have samples for the first `batch.lead` clients only, because the clients with the most batches stand
    first in the stack. Gradients of a batch then have one row for each of these clients."""

    net: Network
    settings: LocalSettings
    counts: Tensor  # [G, C]: training samples of each class
    tensors: Tensors  # [G, *]: all tensors of the clients' models
    names: tuple[str, ...]  # the tensors whose gradients are computed
    rates: Mapping[str, Rate]  # learning rates of the tensors that move
    sgd: Sgd
    anchor: DriftState | None  # what drift corrections compare with; None: there is no correction
    start: Tensors = field(default_factory=dict)  # [G, *]: the tensors at the start of the visit
    moving: frozenset[str] = frozenset()  # tensors that may change in this phase, running statistics included
    own_model: Tensors = field(default_factory=dict)  # [G, *]: parameters of a second model, if the step trains one
    notes: Tensors = field(default_factory=dict)  # [G, *]: what a step remembers of a client from visit to visit
    meta: Iterator[Batch] | None = None  # batches of the data that the server gave to all clients (spec 5.7)
    take: Gradients = leading_gradients  # computes gradients: kernel by kernel, or by replaying a recording
    exact: bool = False  # whether a client in a stack gets the same bits as alone, also next to clients of other sizes
    loss: Tensor = field(default_factory=lambda: torch.zeros(()))  # [G]: sum of the losses of all counted samples
    met: Tensor = field(default_factory=lambda: torch.zeros(()))  # [G]: counted samples of batches with padding
    met_on_host: int = 0  # counted samples per client of batches without padding: no kernel is needed to add them up

    def gradients(self, tensors: Tensors, batch: Batch) -> Tensors:
        """Gradients [G, *] of the method's loss at the given tensors [G, *]. Counts the samples and their losses."""
        return {n: padded(g, len(self.loss)) for n, g in self.leading(tensors, batch).items()}

    def leading(self, tensors: Tensors, batch: Batch) -> Tensors:
        """As `gradients`, but with rows only for the first clients if the others have no samples: enough for `move`."""
        grads, total = self.at(tensors, batch)
        self.count(total, batch)
        return grads

    def at(self, tensors: Tensors, batch: Batch) -> tuple[Tensors, Tensor]:
        """As `leading`, with the summed losses [G]. Does not count the samples."""
        if self.exact and (runs := equal_widths(batch)):
            parts = []
            for rows, samples in runs:
                unpadded = narrowed(batch, rows, samples)
                parts.append(self._of(rows).at(rows_of(tensors, rows), unpadded))
            return joined_gradients(parts)
        objective = self.settings.objective
        if objective.teachers:
            batch = replace(batch, taught=self._taught(batch))
        return self.take(self.net, tensors, self.names, batch, objective, self.counts)

    def _of(self, rows: slice) -> Learner:
        """A learner for some of the clients, with the fields that gradients need."""
        start, notes = rows_of(self.start, rows), rows_of(self.notes, rows)
        return replace(self, counts=self.counts[rows], start=start, notes=notes, exact=False)

    def _taught(self, batch: Batch) -> Tensors:
        """The outputs of the loss's teachers for a batch [G, B, …], and the server's statistics that the loss needs.
        They are zero for clients without samples in the batch."""
        objective = self.settings.objective
        some = batch if batch.lead is None else batch.first(batch.lead)
        models: dict[str, Tensors] = {}
        for name in teachers_of(objective):
            tensors = teacher_tensors(name, self.start, self.notes)
            models[name] = {n: t[: batch.lead] for n, t in tensors.items() if n in self.tensors}
        said: Tensors = {}
        if models:
            said = answers(self.net, objective, models, some.inputs, some.real)
            set_modes(self.net, self.moving)
        if heard := hears(objective):
            assert isinstance(objective, TeacherObjective)
            told = {f"{TOLD_PREFIX}{name}": self.notes[f"{TOLD_PREFIX}{name}"][: batch.lead] for name in heard}
            said |= objective.of_statistics(told, some.labels)
        return {what: padded(each, len(batch.labels)) for what, each in said.items()}

    def count(self, total: Tensor, batch: Batch) -> None:
        """Count the samples of a batch, with their summed losses `total` [G], for the mean loss of the visit."""
        self.loss = self.loss + padded(total, len(self.loss))
        if batch.real is None:
            self.met_on_host += batch.labels.shape[1]
        else:
            self.met = self.met + batch.real.sum(dim=1)

    def move(self, grads: Tensors, batch: Batch, rates: Mapping[str, Rate] | None = None) -> None:
        """Apply the drift correction and take one step of SGD, for the clients that have samples in the batch. The
        correction sees only parameters that travel and learn. `rates`: other learning rates than those of the phase."""
        if batch.lead is not None:
            grads = {n: g[: batch.lead] for n, g in grads.items()}
        if self.settings.has_foreign_step:
            check_gradients(steps, self.settings.step, grads, {n: self.tensors[n][: batch.lead] for n in self.names})
        if self.anchor is not None:
            held = {n: g for n, g in grads.items() if n in self.anchor.start}
            at = replace(self.anchor, params={n: self.tensors[n] for n in held})
            at = at if batch.lead is None else at.of_places(slice(batch.lead), self.tensors)
            changed = self.settings.drift.gradient(held, at)
            if self.settings.has_foreign_drift:
                check_gradients(drifts, self.settings.drift, changed, held)
            grads = {**grads, **changed}
        self.sgd.step(self.tensors, grads, self.rates if rates is None else rates, batch.active, batch.lead)


class Step(ABC):
    """The base class of local steps. A subclass implements `epoch`."""

    uses_meta: ClassVar[bool] = False  # whether it needs the data that the server gives to all clients (spec 5.7)
    stacks: ClassVar[Stacks] = "any"
    any_rates: ClassVar[bool] = False  # whether each client of a stack may have another learning rate (a tensor [G])

    @abstractmethod
    def epoch(self, learner: Learner, batches: Iterator[Batch]) -> None:
        """Train on one epoch of batches, in place: `learner.gradients` or `learner.leading`, then `learner.move`."""

    @property
    def passes(self) -> int:
        """Forward passes over each batch, for the cost (spec 14.2)."""
        return 1

    def momentum(self, usual: float) -> float:
        """The momentum of `learner.sgd`; `usual` is the run's."""
        return usual

    def weight_decay(self, usual: float) -> float:
        """The weight decay of `learner.sgd`; `usual` is the run's."""
        return usual

    def steps(self, batches: int) -> int:
        """The number of steps in an epoch of `batches` batches."""
        return batches

    def rates(self, usual: Mapping[str, Rate]) -> Mapping[str, Rate]:
        """The learning rates of the steps; `usual` are the round's."""
        return usual

    def notes(self, seed: int) -> Tensors:
        """The first notes of a client [*]: what `learner.notes` has at the client's first visit."""
        return {}


steps: Registry[type[Step]] = Registry("method.step")


@steps.register("plain")
@dataclass(frozen=True)
class Plain(Step):
    """Plain SGD: one step for each batch."""

    any_rates: ClassVar[bool] = True

    def epoch(self, learner: Learner, batches: Iterator[Batch]) -> None:
        for batch in batches:
            learner.move(learner.leading(learner.tensors, batch), batch)


@dataclass(frozen=True)
class LocalSettings:
    """The settings of local training, which are the same for all clients of a run."""

    batch_size: int
    momentum: float = 0.0
    weight_decay: float = 0.0
    objective: Objective = field(default_factory=CrossEntropy)
    drift: Drift = field(default_factory=NoDrift)
    step: Step = field(default_factory=Plain)
    shared_momentum: bool = False  # one optimiser for all phases of a visit, as in FedBABU's FedRep code (spec 4.4)

    @cached_property
    def has_foreign_step(self) -> bool:
        """Whether the step is the user's (from a plugin, not from Torso), so that its gradients are checked."""
        return is_foreign(self.step)

    @cached_property
    def has_foreign_drift(self) -> bool:
        """Whether the drift correction is the user's, so that its gradients are checked."""
        return is_foreign(self.drift)

    def optimiser(self) -> Sgd:
        """A new optimiser, with velocities of zero."""
        return Sgd(self.step.momentum(self.momentum), self.step.weight_decay(self.weight_decay))


@steps.register("look-ahead")
@dataclass(frozen=True)
class LookAhead(Step):
    """A step from a point one step ahead: w̃ = w − α∇ℓ(w; B₁), then w ← w − β∇ℓ(w̃; B₂) (Per-FedAvg, first-order,
    spec 5.2).

    An epoch uses each batch once, so it makes ⌊batches / 2⌋ steps, at least one. α is the round's learning rate; β is
    `beta`, or the round's rate if `beta` is 0. `with_momentum` gives the outer step the run's momentum."""

    beta: NotNegative = 0.0
    with_momentum: bool = False
    stacks: ClassVar[Stacks] = "equal"  # the two batches of a step may have different numbers of samples
    any_rates: ClassVar[bool] = True

    def epoch(self, learner: Learner, batches: Iterator[Batch]) -> None:
        for first, second in pairs(batches):
            grads = learner.gradients(learner.tensors, first)
            ahead = {n: learner.tensors[n] - scaled(grads[n], rate) for n, rate in learner.rates.items()}
            learner.move(learner.leading({**learner.tensors, **ahead}, second), second, self.rates(learner.rates))

    def momentum(self, usual: float) -> float:
        return usual if self.with_momentum else 0.0

    def steps(self, batches: int) -> int:
        return max(batches // 2, min(batches, 1))

    def rates(self, usual: Mapping[str, Rate]) -> Mapping[str, Rate]:
        return {n: self.beta or rate for n, rate in usual.items()}


def pairs(batches: Iterator[Batch]) -> Iterator[tuple[Batch, Batch]]:
    """Batches in pairs; an odd one at the end is dropped. A client with a single batch uses it twice (spec 5.2)."""
    first = next(batches, None)
    if first is None:
        return
    second = next(batches, None)
    yield first, first.again(1) if second is None else second.filled_from(first)
    while (first := next(batches, None)) is not None and (second := next(batches, None)) is not None:
        yield first.only(second), second  # drops the odd batch of a client also if other clients have a pair here


@steps.register("envelope")
@dataclass(frozen=True)
class Envelope(Step):
    """A step on the Moreau envelope min_θ ℓ(θ) + (λ/2)‖θ − w‖² (pFedMe, spec 5.4).

    On each batch, θ takes `inner_steps` steps with learning rate `inner_lr`; then w ← w − η·λ(w − θ) with η = `lr`. θ
    carries over from batch to batch and is the client's own model. Both rates are constant, as in the authors' code,
    and there is no momentum. Weight decay belongs to the loss ℓ: it acts on θ in the inner steps, as in the authors'
    code, and not a second time on w."""

    lam: Positive = 15.0
    inner_steps: Count = 5
    inner_lr: Positive = 0.09
    lr: Positive = 0.005
    any_rates: ClassVar[bool] = True  # it does not use the round's rates

    def __post_init__(self) -> None:
        if self.lr * self.lam >= 1:
            raise RequestError(
                f"method.step.lr = {self.lr} with method.step.lam = {self.lam}: their product must be below 1, "
                "or w overshoots θ in every step"
            )

    @property
    def passes(self) -> int:
        return self.inner_steps

    def epoch(self, learner: Learner, batches: Iterator[Batch]) -> None:
        for name in learner.names:
            learner.own_model.setdefault(name, learner.tensors[name].clone())
        inner = Sgd(0.0, learner.settings.weight_decay)
        rates = dict.fromkeys(learner.rates, self.inner_lr)
        for batch in batches:
            for time in range(self.inner_steps):
                grads = learner.gradients({**learner.tensors, **learner.own_model}, batch.again(time))
                pulled = {n: grads[n] + self.pull(learner, n) for n in rates}
                inner.step(learner.own_model, pulled, rates, batch.active, batch.lead)
            learner.move({n: -self.pull(learner, n) for n in rates}, batch, self.rates(learner.rates))

    def pull(self, learner: Learner, name: str) -> Tensor:
        """λ(θ − w) [G, *]: the gradient of the envelope's second term."""
        return self.lam * (learner.own_model[name] - learner.tensors[name])

    def momentum(self, usual: float) -> float:
        return 0.0

    def weight_decay(self, usual: float) -> float:
        return 0.0

    def rates(self, usual: Mapping[str, Rate]) -> Mapping[str, Rate]:
        return dict.fromkeys(usual, self.lr)
