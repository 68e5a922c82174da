"""How does a client take a step? Most take plain SGD steps; some look ahead first, or step on an envelope of the loss.

A step sees one epoch of batches at a time and moves the tensors of G clients in place. It is one axis of a method: it
says nothing of which parts learn, what holds them back (drift) or whose model comes out (personal).
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
from torso.learn.drift import Drift, Local, NoDrift, drifts
from torso.learn.gradients import Gradients, check_gradients, leading_gradients
from torso.learn.objectives import CrossEntropy, Objective, Stacks
from torso.learn.sgd import Sgd
from torso.learn.stacked import Rate, padded, rows_of, scaled
from torso.learn.taught import TOLD, Taught, answers, hears, models_of, teacher
from torso.learn.widths import joined, of_run, runs_of
from torso.nets import Network, Tensors, set_modes
from torso.registry import Registry, is_foreign


@dataclass
class Learner:
    """Where G clients stand in a phase: what a step reads, and the tensors that it moves in place."""

    net: Network
    settings: LocalSettings
    counts: Tensor  # [G, C]: training samples of each class
    tensors: Tensors  # [G, *]
    names: tuple[str, ...]  # whose gradients are taken
    rates: Mapping[str, Rate]  # of those that move
    sgd: Sgd
    anchor: Local | None  # what drift corrections hold on to
    start: Tensors = field(default_factory=dict)  # [G, *]: as the visit began
    moving: frozenset[str] = frozenset()  # everything that may move in the phase
    own_model: Tensors = field(default_factory=dict)  # parameters of a client's own model, where a step makes one
    notes: Tensors = field(default_factory=dict)  # [G, *]: what a step remembers of a client from visit to visit
    meta: Iterator[Batch] | None = None  # batches of the data that everybody got from the server (spec 5.7)
    take: Gradients = leading_gradients  # how gradients are computed: at once, or replayed
    exact: bool = False  # whether a client's bits are to be those that it has alone, beside clients of other sizes too
    loss: Tensor = field(default_factory=lambda: torch.zeros(()))  # [G]: sum over the samples met
    met: Tensor = field(default_factory=lambda: torch.zeros(()))  # [G]: how many they were …
    all_met: int = 0  # … beside those of batches that were full for everybody, which need no device to be counted

    def gradients(self, tensors: Tensors, batch: Batch) -> Tensors:
        """Gradients [G, *] of the method's loss at any tensors; counts the samples as met."""
        return {n: padded(g, len(self.loss)) for n, g in self.leading(tensors, batch).items()}

    def leading(self, tensors: Tensors, batch: Batch) -> Tensors:
        """The same, of the first clients alone where the others have no samples: enough for `move`."""
        grads, total = self.at(tensors, batch)
        self.count(total, batch)
        return grads

    def at(self, tensors: Tensors, batch: Batch) -> tuple[Tensors, Tensor]:
        """Those gradients and the summed losses [G], of samples that are not counted."""
        if self.exact and (runs := runs_of(batch)):
            return joined([self._of(rows).at(rows_of(tensors, rows), of_run(batch, rows, n)) for rows, n in runs])
        objective = self.settings.objective
        if objective.teachers:
            batch = replace(batch, taught=self._taught(batch))
        return self.take(self.net, tensors, self.names, batch, objective, self.counts)

    def _of(self, rows: slice) -> Learner:
        """The same for some of the clients, as far as gradients need it."""
        start, notes = rows_of(self.start, rows), rows_of(self.notes, rows)
        return replace(self, counts=self.counts[rows], start=start, notes=notes, exact=False)

    def _taught(self, batch: Batch) -> Tensors:
        """What the teachers of the loss say of a batch [G, B, …]; zeros for clients that have no samples in it."""
        objective, some = self.settings.objective, batch if batch.lead is None else batch.first(batch.lead)
        models = {
            name: {n: t[: batch.lead] for n, t in teacher(name, self.start, self.notes).items() if n in self.tensors}
            for name in models_of(objective)
        }
        said: Tensors = {}
        if models:
            said = answers(self.net, objective, models, some.inputs, some.real)
            set_modes(self.net, self.moving)
        if heard := hears(objective):
            assert isinstance(objective, Taught)
            told = {f"{TOLD}{name}": self.notes[f"{TOLD}{name}"][: batch.lead] for name in heard}
            said |= objective.of_told(told, some.labels)
        return {what: padded(each, len(batch.labels)) for what, each in said.items()}

    def count(self, total: Tensor, batch: Batch) -> None:
        self.loss = self.loss + padded(total, len(self.loss))
        if batch.real is None:
            self.all_met += batch.labels.shape[1]
        else:
            self.met = self.met + batch.real.sum(dim=1)

    def move(self, grads: Tensors, batch: Batch, rates: Mapping[str, Rate] | None = None) -> None:
        """One step of SGD after the drift correction, which sees what travels and learns, for the clients that have
        samples in the batch."""
        if batch.lead is not None:
            grads = {n: g[: batch.lead] for n, g in grads.items()}
        if self.settings.own_step:
            check_gradients(steps, self.settings.step, grads, {n: self.tensors[n][: batch.lead] for n in self.names})
        if self.anchor is not None:
            held = {n: g for n, g in grads.items() if n in self.anchor.start}
            at = replace(self.anchor, params={n: self.tensors[n] for n in held})
            at = at if batch.lead is None else at.of_places(slice(batch.lead), self.tensors)
            changed = self.settings.drift.gradient(held, at)
            if self.settings.own_drift:
                check_gradients(drifts, self.settings.drift, changed, held)
            grads = {**grads, **changed}
        self.sgd.step(self.tensors, grads, self.rates if rates is None else rates, batch.active, batch.lead)


class Step(ABC):
    """The base of steps."""

    uses_meta: ClassVar[bool] = False  # data that the server gives to everybody
    stacks: ClassVar[Stacks] = "any"
    any_rates: ClassVar[bool] = False  # whether clients of a stack may have rates of their own: `rates` of tensors [G]

    @abstractmethod
    def epoch(self, learner: Learner, batches: Iterator[Batch]) -> None:
        """Meet an epoch of batches."""

    @property
    def passes(self) -> int:
        """Passes over each batch, for the cost (spec 14.2)."""
        return 1

    def momentum(self, usual: float) -> float:
        """The momentum of `learner.sgd`, where the run's is `usual`."""
        return usual

    def weight_decay(self, usual: float) -> float:
        """The weight decay of `learner.sgd`, where the run's is `usual`."""
        return usual

    def steps(self, batches: int) -> int:
        """How many steps an epoch of so many batches makes."""
        return batches

    def rates(self, usual: Mapping[str, Rate]) -> Mapping[str, Rate]:
        """The rates of those steps, where the round's are `usual`."""
        return usual

    def notes(self, seed: int) -> Tensors:
        """What a client remembers at first."""
        return {}


steps: Registry[type[Step]] = Registry("method.step")


@steps.register("plain")
@dataclass(frozen=True)
class Plain(Step):
    """SGD: the gradient of each batch, once."""

    any_rates: ClassVar[bool] = True

    def epoch(self, learner: Learner, batches: Iterator[Batch]) -> None:
        for batch in batches:
            learner.move(learner.leading(learner.tensors, batch), batch)


@dataclass(frozen=True)
class LocalSettings:
    """How a client learns, the same for all clients of a run."""

    batch_size: int
    momentum: float = 0.0
    weight_decay: float = 0.0
    objective: Objective = field(default_factory=CrossEntropy)
    drift: Drift = field(default_factory=NoDrift)
    step: Step = field(default_factory=Plain)
    shared_momentum: bool = False  # one optimiser over all phases, as FedBABU's FedRep code has it (spec 4.4)

    @cached_property
    def own_step(self) -> bool:
        """Whether the step is the user's own, of a plugin: what it gives is checked."""
        return is_foreign(self.step)

    @cached_property
    def own_drift(self) -> bool:
        """Whether the drift correction is."""
        return is_foreign(self.drift)

    def optimiser(self) -> Sgd:
        return Sgd(self.step.momentum(self.momentum), self.step.weight_decay(self.weight_decay))


@steps.register("look-ahead")
@dataclass(frozen=True)
class LookAhead(Step):
    """w̃ = w − α∇ℓ(w; B₁), then w ← w − β∇ℓ(w̃; B₂) (Per-FedAvg, first-order, spec 5.2).

    An epoch uses the data once, so it makes ⌊batches / 2⌋ steps, at least one. α is the round's rate, and so is β where
    `beta` is 0; `momentum` lets the outer step have the run's."""

    beta: NotNegative = 0.0
    with_momentum: bool = False
    stacks: ClassVar[Stacks] = "equal"  # two batches of one step may have different numbers of samples
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
    """Batches two by two, an odd one left over; a client with a single batch uses it twice (spec 5.2)."""
    first = next(batches, None)
    if first is None:
        return
    second = next(batches, None)
    yield first, first.again(1) if second is None else second.filled_from(first)
    while (first := next(batches, None)) is not None and (second := next(batches, None)) is not None:
        yield first.only(second), second  # nobody meets an odd one because others have two


@steps.register("envelope")
@dataclass(frozen=True)
class Envelope(Step):
    """A step on the Moreau envelope min_θ ℓ(θ) + (λ/2)‖θ − w‖² (pFedMe, spec 5.4).

    `inner_steps` steps of θ at `inner_lr` on each batch, then w ← w − η·λ(w − θ) with η = `lr`; θ goes on from batch to
    batch and is the client's own model. Both rates are constants, as the original's, and there is no momentum. Weight
    decay belongs to the loss ℓ, so it acts on θ in the inner steps, as in the original, and not on w once more."""

    lam: Positive = 15.0
    inner_steps: Count = 5
    inner_lr: Positive = 0.09
    lr: Positive = 0.005
    any_rates: ClassVar[bool] = True  # it has its own

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
        inner, rates = Sgd(0.0, learner.settings.weight_decay), dict.fromkeys(learner.rates, self.inner_lr)
        for batch in batches:
            for time in range(self.inner_steps):
                grads = learner.gradients({**learner.tensors, **learner.own_model}, batch.again(time))
                pulled = {n: grads[n] + self.pull(learner, n) for n in rates}
                inner.step(learner.own_model, pulled, rates, batch.active, batch.lead)
            learner.move({n: -self.pull(learner, n) for n in rates}, batch, self.rates(learner.rates))

    def pull(self, learner: Learner, name: str) -> Tensor:
        return self.lam * (learner.own_model[name] - learner.tensors[name])

    def momentum(self, usual: float) -> float:
        return 0.0

    def weight_decay(self, usual: float) -> float:
        return 0.0

    def rates(self, usual: Mapping[str, Rate]) -> Mapping[str, Rate]:
        return dict.fromkeys(usual, self.lr)
