"""Learned sample weights, from a few balanced images that the server gives to all clients (Meta-BSM, spec 6.5).

Each client has a Meta-Weight-Net ζ (loss of a sample → its weight in (0, 1)) and an exponent γ of its balanced
soft-max. Both are trained on the loss that the network would have on the balanced images after one look-ahead step; the
gradient goes through that step, so it is of second order. G clients, B samples, C classes, H hidden units.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from torso.data.batches import Batch
from torso.fast import plain_path
from torso.kinds import Count
from torso.learn.gradients import gradients_at, leaves_of, means, with_further_heads
from torso.learn.objectives import BalancedSoftmax, Stacks, balanced_softmax, cross_entropy
from torso.learn.stacked import Rate, scaled
from torso.learn.steps import Learner, Step, steps
from torso.nets import Output, Tensors, apply
from torso.randomness import torch_generator

GAMMA = "gamma"
_NET = ("first.weight", "first.bias", "second.weight", "second.bias")


def sample_weights(net: Tensors, losses: Tensor) -> Tensor:
    """Weights [G, B] in (0, 1) for samples with these losses [G, B], by the nets of G clients: 1 → H, ReLU → 1."""
    hidden = F.relu(losses.detach().unsqueeze(-1) * net["first.weight"].unsqueeze(1) + net["first.bias"].unsqueeze(1))
    return torch.sigmoid((hidden * net["second.weight"].unsqueeze(1)).sum(dim=-1) + net["second.bias"])


@steps.register("meta-weighted")
@dataclass(frozen=True)
class MetaWeighted(Step):
    """SGD on weighted samples: a small net gives the weights, and learns, with the exponent γ, from balanced images of
    the server.

    `meta_loss = "weighted"` is the paper's formula taken literally, which the net can minimise by sending every weight
    to 0. With `learn_gamma` false, γ stays that of the balanced soft-max (Meta-BSM, spec 6.5)."""

    learn_gamma: bool = True
    meta_loss: Literal["cross-entropy", "weighted"] = "cross-entropy"
    hidden: Count = 100
    uses_meta: ClassVar[bool] = True
    stacks: ClassVar[Stacks] = "none"  # sums of second derivatives are rounded by the size of the stack

    @property
    def passes(self) -> int:
        return 3  # the look-ahead step, the balanced images, the step itself

    def notes(self, seed: int) -> Tensors:
        """The net's first weights, drawn as torch does for two linear layers, and the factor 1 on the objective's γ."""
        draw = torch_generator(seed, "meta-weight-net")

        def uniform(count: int, inputs: int) -> Tensor:
            return torch.empty(count).uniform_(-(inputs**-0.5), inputs**-0.5, generator=draw)

        return {
            "first.weight": uniform(self.hidden, 1),
            "first.bias": uniform(self.hidden, 1),
            "second.weight": uniform(self.hidden, self.hidden),
            "second.bias": uniform(1, self.hidden),
            GAMMA: torch.ones(1),
        }

    def epoch(self, learner: Learner, batches: Iterator[Batch]) -> None:
        assert learner.meta is not None
        for batch in batches:
            self._learn_to_weigh(learner, batch, next(learner.meta))
            leaves = leaves_of(learner.tensors, learner.names)
            said = apply(learner.net, {**learner.tensors, **leaves}, batch.inputs, batch.real, batch.keys)
            losses = self._losses(said, batch, learner, learner.notes)
            every = with_further_heads(sample_weights(learner.notes, losses) * losses, said, batch)
            mean, total = means(every, batch)
            grads = gradients_at(leaves, mean.sum())
            learner.count(total, batch)
            learner.move(grads, batch)

    def _learn_to_weigh(self, learner: Learner, batch: Batch, meta: Batch) -> None:
        """One SGD step of ζ and γ at the round's rate, except for clients without samples in this batch."""
        learned = (*_NET, GAMMA) if self.learn_gamma else _NET
        leaves = leaves_of(learner.notes, learned)
        with plain_path():  # fused kernels have no second derivative
            loss = self.meta_objective(learner, {**learner.notes, **leaves}, batch, meta)
            moves = torch.autograd.grad(loss.sum(), list(leaves.values()))
        rate = max(float(rate) for rate in learner.rates.values())
        for name, move in zip(learned, moves, strict=True):
            step = move if batch.active is None else move * batch.active.unsqueeze(-1)
            learner.notes[name] = learner.notes[name] - rate * step

    def meta_objective(self, learner: Learner, notes: Tensors, batch: Batch, meta: Batch) -> Tensor:
        """The loss on the balanced images [G] after a look-ahead step, as a function of ζ and γ."""
        ahead = look_ahead(learner, lambda said: self._weighted(said, batch, learner, notes), batch, learner.rates)
        said = apply(learner.net, ahead, meta.inputs, meta.real, meta.keys)
        if self.meta_loss == "cross-entropy":
            losses = cross_entropy(said.logits, meta.labels)
        else:
            gamma = _gamma(learner, notes)
            losses = balanced_softmax(said.logits, meta.labels, learner.counts, gamma, absent_as_one=True)
            losses = sample_weights(notes, losses) * losses
        return means(losses, meta)[0]

    def _weighted(self, said: Output, batch: Batch, learner: Learner, notes: Tensors) -> Tensor:
        losses = self._losses(said, batch, learner, notes)
        return means(sample_weights(notes, losses) * losses, batch)[0]

    def _losses(self, said: Output, batch: Batch, learner: Learner, notes: Tensors) -> Tensor:
        losses = balanced_softmax(said.logits, batch.labels, learner.counts, _gamma(learner, notes))
        # padding may have a label that the client lacks: its loss is infinite, and the net would turn it into NaN
        return losses if batch.real is None else torch.where(batch.real > 0, losses, 0.0)


def _gamma(learner: Learner, notes: Tensors) -> Tensor:
    """γ of each client [G, 1]: that of the objective times the learned factor."""
    objective = learner.settings.objective
    assert isinstance(objective, BalancedSoftmax)  # runs/method_checks.py refuses other objectives
    return objective.gamma * notes[GAMMA]


def look_ahead(learner: Learner, loss: Callable[[Output], Tensor], batch: Batch, rates: Mapping[str, Rate]) -> Tensors:
    """The tensors after one step w − η∇loss, with the graph of the gradient. `loss` makes [G] of the network's output.
    Running statistics do not change."""
    still = {n: t if n in rates else t.clone() for n, t in learner.tensors.items()}
    leaves = leaves_of(still, tuple(rates))
    said = apply(learner.net, {**still, **leaves}, batch.inputs, batch.real, batch.keys)
    wanted = list(leaves.values())
    grads = torch.autograd.grad(loss(said).sum(), wanted, create_graph=True, allow_unused=True)
    moved = {n: t if g is None else t - scaled(g, rates[n]) for (n, t), g in zip(leaves.items(), grads, strict=True)}
    return {**still, **moved}
