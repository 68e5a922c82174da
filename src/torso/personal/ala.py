"""Visits that begin at a learned mix of the received model and the client's own (FedALA, spec 19.8).

G clients, * a parameter's shape. θ is the received model, θ_k the client's model after its last visit, W [G, *] in
[0, 1] the weights of the mix. W is first trained at a client's second visit: at the first visit θ_k is θ.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from torso.data.sending import on_device
from torso.errors import RequestError
from torso.kinds import Count, Fraction, NotNegative
from torso.learn.gradients import gradients
from torso.learn.phases import moved_by
from torso.learn.stacked import per_client
from torso.learn.task import LocalResult, LocalTask
from torso.nets import Network, Tensors, learnable, part_names, set_modes
from torso.personal.base import OwnModelStart, Personal, VisitStart, personals
from torso.randomness import key

VISITS = "visits"  # name of a note: the number of the client's visits so far, at most 2
WINDOW = 10  # training of W has settled when the losses of this many passes are close together


def mix(at: VisitStart, weights: Tensors) -> Tensors:
    """The mix θ_k + W ⊙ (θ − θ_k) for tensors with weights, θ for the others; exact for W = 0 and W = 1."""
    return {**at.received, **{n: torch.lerp(at.own[n], at.received[n], w) for n, w in weights.items()}}


@personals.register("ala")
@dataclass(frozen=True)
class LocalAggregation(Personal):
    """Adaptive local aggregation: a visit begins at θ_k + W ⊙ (θ − θ_k) in the layers above the part `lower`, and at θ
    in that part (FedALA, spec 19.8).

    W begins at 1 and stays on its client. At each visit it takes SGD steps of rate `lr` on a share `sample` of the
    client's samples, clipped to [0, 1], for `epochs` passes. When it is trained for the first time, passes go on until
    the losses of the last ten have a standard deviation below `settled`, at most `first_epochs` (`settled` 0: `epochs`
    passes here too)."""

    lower: str = "body"
    lr: NotNegative = 1.0
    sample: Fraction = 0.8
    epochs: Count = 1
    settled: NotNegative = 0.1
    first_epochs: Count = 100

    @property
    def keeps(self) -> bool:
        return True

    @property
    def parts(self) -> Mapping[str, str]:
        return {"lower": self.lower}

    def check(self, net: Network) -> None:
        if not self.mixed(net):
            raise RequestError(
                f"method.personal.lower = {self.lower!r} leaves nothing to mix. Accepted: body, none, blocks:J"
            )

    def opening_passes(self, offered: int) -> float:
        """A gradient of the head alone needs no backward pass through the body (spec 14.2)."""
        return self.sample * self.epochs * (1.0 if self.lower == "body" else 3.0)

    def notes(self, client: int, clients: int, net: Network) -> Tensors:
        weights = {f"W.{n}": torch.ones(net.get_parameter(n).shape) for n in self.mixed(net)}
        return {**weights, VISITS: torch.zeros(())}

    def before(self, at: VisitStart) -> tuple[Tensors, Tensors]:
        weights = self.learned(at, {n: at.notes[f"W.{n}"] for n in self.mixed(at.task.context.net)})
        visits = (at.notes[VISITS] + 1).clamp(max=2)
        return mix(at, weights), {**at.notes, **{f"W.{n}": w for n, w in weights.items()}, VISITS: visits}

    def after(self, at: VisitStart, learned: LocalResult) -> Tensors:
        return {n: learned.tensors[n] for n in moved_by(at.task.plan)}  # θ_k of the next visit

    def begin(self, at: OwnModelStart) -> Tensors:
        return at.visit().own  # mix and train once more

    def mixed(self, net: Network) -> tuple[str, ...]:
        """The parameters that are mixed: those above the lower part."""
        lower = part_names(net, self.lower)
        return learnable(net, (n for n in part_names(net, "all") if n not in lower))

    def learned(self, at: VisitStart, weights: Tensors) -> Tensors:
        """The trained weights W [G, *]; the clients may take different numbers of passes."""
        shuffle = replace(at.task.shuffle, purpose=f"{at.task.shuffle.purpose} ala")
        some, _ = at.task.deck.split_off(1 - self.sample, key(shuffle.seed, shuffle.purpose, shuffle.round))
        task = replace(at.task, deck=some, shuffle=shuffle)
        is_first = at.notes[VISITS] == 1  # [G]: W has not been trained before
        set_modes(task.context.net, frozenset())  # the network does not change, running statistics included
        most = self.first_epochs if self.settled and bool(is_first.any()) else 0
        losses: list[Tensor] = []
        while len(losses) < max(self.epochs, most):
            goes_on = torch.ones_like(is_first) if len(losses) < self.epochs else is_first & ~self._settled(losses)
            if not bool(goes_on.any()):
                break
            moved, loss = self._passed(at, task, weights, len(losses))
            weights = {n: torch.where(per_client(goes_on, w), w, weights[n]) for n, w in moved.items()}
            losses.append(loss)
        return weights

    def _settled(self, losses: list[Tensor]) -> Tensor:
        """For which clients the last losses are close together [G]."""
        if len(losses) <= WINDOW:
            return torch.zeros_like(losses[0], dtype=torch.bool)
        return torch.stack(losses[-WINDOW:]).std(dim=0, correction=0) < self.settled

    def _passed(self, at: VisitStart, task: LocalTask, weights: Tensors, epoch: int) -> tuple[Tensors, Tensor]:
        """The weights after a pass over the samples, and the mean loss in this pass [G]. By the chain rule ∂ℓ/∂W =
        ∂ℓ/∂θ̂ ⊙ (θ − θ_k), with θ̂ the mix."""
        counts = at.task.deck.class_counts(task.context.classes)
        objective = task.settings.objective.without_teachers()
        total = torch.zeros(len(task.deck.clients), device=task.deck.index.device)
        for batch in task.epoch(epoch):
            grads, losses = gradients(task.context.net, mix(at, weights), tuple(weights), batch, objective, counts)
            steps = {n: self.lr * g * (at.received[n] - at.own[n]) for n, g in grads.items()}
            weights = {n: (w - steps[n]).clamp(0, 1) for n, w in weights.items()}
            total = total + losses
        return weights, total / on_device(total.device, task.deck.sizes).clamp(min=1)
