"""FedALA as a plugin: a client begins at a learned mix of the received model and its own. See docs/extending.md.

G clients, * a parameter's shape. θ: the received model. θ_k: the client's model of its last visit. W [G, *] in [0, 1].
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from torso.errors import RequestError
from torso.kinds import Count, Fraction, NotNegative
from torso.learn.gradients import gradients
from torso.learn.phases import moved_by
from torso.learn.task import LocalResult
from torso.methods import Method, methods
from torso.nets import Network, Tensors, learnable, part_names, set_modes
from torso.personal import OwnModelStart, Personal, VisitStart, personals
from torso.randomness import key


def mix(at: VisitStart, weights: Tensors) -> Tensors:
    """θ_k + W ⊙ (θ − θ_k) where there are weights, θ elsewhere; exact at both ends."""
    return {**at.received, **{n: torch.lerp(at.own[n], at.received[n], w) for n, w in weights.items()}}


@personals.register("own-ala")
@dataclass(frozen=True)
class FedALA(Personal):
    """The way to personal models of FedALA: a visit begins at θ_k + W ⊙ (θ − θ_k), and at θ in the part `lower`.

    W begins at 1, is kept by its client, and takes SGD steps of rate `lr` on a share `sample` of the client's samples
    at each visit, clipped to [0, 1]."""

    lower: str = "body"
    lr: NotNegative = 1.0
    sample: Fraction = 0.8
    epochs: Count = 1

    @property
    def keeps(self) -> bool:
        return True

    def notes(self, client: int, clients: int, net: Network) -> Tensors:
        return {f"W.{n}": torch.ones(net.get_parameter(n).shape) for n in self.mixed(net)}

    def before(self, at: VisitStart) -> tuple[Tensors, Tensors]:
        weights = self.learned(at, {n: at.notes[f"W.{n}"] for n in self.mixed(at.task.context.net)})
        return mix(at, weights), {**at.notes, **{f"W.{n}": w for n, w in weights.items()}}

    def after(self, at: VisitStart, learned: LocalResult) -> Tensors:
        return {n: learned.tensors[n] for n in moved_by(at.task.plan)}  # θ_k of the next visit

    def begin(self, at: OwnModelStart) -> Tensors:
        return at.visit().own  # mix and train once more

    def mixed(self, net: Network) -> tuple[str, ...]:
        """The parameters above the lower part."""
        lower = part_names(net, self.lower)
        names = learnable(net, (n for n in part_names(net, "all") if n not in lower))
        if not names:
            raise RequestError(f"method.personal.lower = {self.lower!r} leaves nothing to mix. Example: none")
        return names

    def learned(self, at: VisitStart, weights: Tensors) -> Tensors:
        """The weights [G, *] after their own steps. By the chain rule ∂ℓ/∂W = ∂ℓ/∂θ̂ ⊙ (θ − θ_k), θ̂ the mix."""
        task, context = at.task, at.task.context
        how = replace(task.shuffle, purpose=f"{task.shuffle.purpose} ala")
        some, _ = task.deck.split_off(1 - self.sample, key(how.seed, how.purpose, how.round))
        counts = task.deck.class_counts(context.classes)
        set_modes(context.net, frozenset())  # nothing of the network learns, running statistics neither
        for epoch in range(self.epochs):
            for batch in replace(task, deck=some, shuffle=how).epoch(epoch):
                start = mix(at, weights)
                grads, _ = gradients(context.net, start, tuple(weights), batch, task.settings.objective, counts)
                steps = {n: self.lr * g * (at.received[n] - at.own[n]) for n, g in grads.items()}
                weights = {n: (w - steps[n]).clamp(0, 1) for n, w in weights.items()}
        return weights


@methods.register("own-fedala")
def own_fedala() -> Method:
    """FedAvg whose clients begin at a learned mix of the received head and their own."""
    return Method(personal=FedALA(), paper="FedALA (Zhang 2023)")
