"""A client begins at a learned mix of the received model and its own (FedALA, spec 19.8).

G clients, * a parameter's shape. θ is the model received, θ_k the client's model of its last visit, W [G, *] in [0, 1].
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from torso.errors import RequestError
from torso.kinds import Count, Fraction, NotNegative
from torso.learn.course import Learned
from torso.learn.gradients import gradients
from torso.learn.phases import moved_by
from torso.nets import Network, Tensors, learnable, part_names, set_modes
from torso.personal.base import OwnModelStart, Personal, VisitStart, personals
from torso.randomness import key


def mix(at: VisitStart, weights: Tensors) -> Tensors:
    """θ_k + W ⊙ (θ − θ_k) where there are weights, θ elsewhere; exact at both ends."""
    return {**at.received, **{n: torch.lerp(at.own[n], at.received[n], w) for n, w in weights.items()}}


@personals.register("ala")
@dataclass(frozen=True)
class LocalAggregation(Personal):
    """A visit begins at θ_k + W ⊙ (θ − θ_k) above the part `lower`, and at θ in it (FedALA, spec 19.8).

    W begins at 1, is kept by its client, and takes SGD steps of rate `lr` on a share `sample` of the client's samples
    at each visit, clipped to [0, 1]."""

    lower: str = "body"
    lr: NotNegative = 1.0
    sample: Fraction = 0.8
    epochs: Count = 1

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
        return {f"W.{n}": torch.ones(net.get_parameter(n).shape) for n in self.mixed(net)}

    def before(self, at: VisitStart) -> tuple[Tensors, Tensors]:
        weights = self.learned(at, {n: at.notes[f"W.{n}"] for n in self.mixed(at.course.room.net)})
        return mix(at, weights), {**at.notes, **{f"W.{n}": w for n, w in weights.items()}}

    def after(self, at: VisitStart, learned: Learned) -> Tensors:
        return {n: learned.tensors[n] for n in moved_by(at.course.plan)}  # θ_k of the next visit

    def begin(self, at: OwnModelStart) -> Tensors:
        return at.visit().own  # mix and train once more

    def mixed(self, net: Network) -> tuple[str, ...]:
        """The parameters above the lower part."""
        lower = part_names(net, self.lower)
        return learnable(net, (n for n in part_names(net, "all") if n not in lower))

    def learned(self, at: VisitStart, weights: Tensors) -> Tensors:
        """The weights [G, *] after their own steps. By the chain rule ∂ℓ/∂W = ∂ℓ/∂θ̂ ⊙ (θ − θ_k), θ̂ the mix."""
        course, room = at.course, at.course.room
        how = replace(course.shuffle, purpose=f"{course.shuffle.purpose} ala")
        some, _ = course.deck.parted(1 - self.sample, key(how.seed, how.purpose, how.round))
        counts, objective = course.deck.class_counts(room.classes), course.habits.objective.untaught()
        set_modes(room.net, frozenset())  # nothing of the network learns, running statistics neither
        for epoch in range(self.epochs):
            for batch in replace(course, deck=some, shuffle=how).epoch(epoch):
                start = mix(at, weights)
                grads, _ = gradients(room.net, start, tuple(weights), batch, objective, counts)
                steps = {n: self.lr * g * (at.received[n] - at.own[n]) for n, g in grads.items()}
                weights = {n: (w - steps[n]).clamp(0, 1) for n, w in weights.items()}
        return weights
