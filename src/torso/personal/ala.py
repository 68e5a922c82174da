"""A client begins at a learned mix of the received model and its own (FedALA, spec 19.8).

G clients, * a parameter's shape. θ is the model received, θ_k the client's model of its last visit, W [G, *] in [0, 1].
W learns for the first time at a client's second visit: at the first θ_k is θ.
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

VISITS = "visits"  # how many visits a client has behind it, up to 2
WINDOW = 10  # passes whose losses have to lie close together


def mix(at: VisitStart, weights: Tensors) -> Tensors:
    """θ_k + W ⊙ (θ − θ_k) where there are weights, θ elsewhere; exact at both ends."""
    return {**at.received, **{n: torch.lerp(at.own[n], at.received[n], w) for n, w in weights.items()}}


@personals.register("ala")
@dataclass(frozen=True)
class LocalAggregation(Personal):
    """A visit begins at θ_k + W ⊙ (θ − θ_k) above the part `lower`, and at θ in it (FedALA, spec 19.8).

    W begins at 1, is kept by its client, and takes SGD steps of rate `lr` on a share `sample` of the client's samples
    at each visit, clipped to [0, 1]. It takes `epochs` passes; when it learns for the first time, passes until the
    losses of the last ten have a standard deviation below `settled`, at most `first_epochs` (`settled` 0: `epochs`)."""

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
        """Of the head alone a gradient costs no pass backwards through the body (spec 14.2)."""
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
        """The parameters above the lower part."""
        lower = part_names(net, self.lower)
        return learnable(net, (n for n in part_names(net, "all") if n not in lower))

    def learned(self, at: VisitStart, weights: Tensors) -> Tensors:
        """The weights [G, *] after their own passes; a client whose passes are over keeps its weights."""
        how = replace(at.task.shuffle, purpose=f"{at.task.shuffle.purpose} ala")
        some, _ = at.task.deck.parted(1 - self.sample, key(how.seed, how.purpose, how.round))
        task, first = replace(at.task, deck=some, shuffle=how), at.notes[VISITS] == 1
        set_modes(task.context.net, frozenset())  # nothing of the network learns, running statistics neither
        most = self.first_epochs if self.settled and bool(first.any()) else 0
        losses: list[Tensor] = []
        while len(losses) < max(self.epochs, most):
            goes_on = torch.ones_like(first) if len(losses) < self.epochs else first & ~self._settled(losses)
            if not bool(goes_on.any()):
                break
            moved, loss = self._passed(at, task, weights, len(losses))
            weights = {n: torch.where(per_client(goes_on, w), w, weights[n]) for n, w in moved.items()}
            losses.append(loss)
        return weights

    def _settled(self, losses: list[Tensor]) -> Tensor:
        """Whose losses lie close together [G]."""
        if len(losses) <= WINDOW:
            return torch.zeros_like(losses[0], dtype=torch.bool)
        return torch.stack(losses[-WINDOW:]).std(dim=0, correction=0) < self.settled

    def _passed(self, at: VisitStart, task: LocalTask, weights: Tensors, epoch: int) -> tuple[Tensors, Tensor]:
        """The weights after a pass, and the mean loss that it met [G]. By the chain rule ∂ℓ/∂W = ∂ℓ/∂θ̂ ⊙ (θ − θ_k), θ̂
        the mix."""
        counts, objective = at.task.deck.class_counts(task.context.classes), task.settings.objective.untaught()
        total = torch.zeros(len(task.deck.clients), device=task.deck.index.device)
        for batch in task.epoch(epoch):
            grads, met = gradients(task.context.net, mix(at, weights), tuple(weights), batch, objective, counts)
            steps = {n: self.lr * g * (at.received[n] - at.own[n]) for n, g in grads.items()}
            weights = {n: (w - steps[n]).clamp(0, 1) for n, w in weights.items()}
            total = total + met
        return weights, total / on_device(total.device, task.deck.sizes).clamp(min=1)
