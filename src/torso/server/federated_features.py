"""Features learned on the server from gradients, on which it trains the classifier again (CReFF, spec 19.17).

C classes, m features of each class, d the size of a feature. A head is one matrix [C, d'], with d' = d + 1 if it has a
bias; then a 1 is appended to each feature.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from torso.errors import RequestError
from torso.kinds import Count, CountOrZero, Positive
from torso.learn.outputs import one_hot_labels
from torso.nets import Network, Tensors
from torso.nets.layers import Linear
from torso.randomness import torch_generator
from torso.server.statistics import Declared, RoundStatistics, ServerView, Statistic, Statistics, VisitEnd, statistics

FEATURES, HEAD, SEEN = "features", "retrained", "seen"
WEIGHT, BIAS = "head.weight", "head.bias"
_TINY = 1e-12  # the smallest length that a gradient is divided by


def as_matrix(tensors: Tensors) -> Tensor:
    """A head as one matrix [*, C, d'], from its weight [*, C, d] and its bias [*, C], if it has one."""
    bias = tensors.get(BIAS)
    return tensors[WEIGHT] if bias is None else torch.cat([tensors[WEIGHT], bias.unsqueeze(-1)], dim=-1)


def with_bias_input(features: Tensor, head: Tensor) -> Tensor:
    """Features [*, n, d] with a 1 appended if the head [*, C, d'] has a bias."""
    return features if head.shape[-1] == features.shape[-1] else F.pad(features, (0, 1), value=1.0)


def class_gradients(features: Tensor, head: Tensor) -> Tensor:
    """The gradients [C, C, d'] of a head [C, d']: for each class, that of the mean cross-entropy of its features
    [C, m, d]."""
    inputs = with_bias_input(features, head)
    _, errors = _errors(inputs, head)
    return errors.mT @ inputs / features.shape[1]


def directions(gradients: Tensor, size: int) -> Tensor:
    """Gradients [C, C, d'] with every row of the weight, one for each output, at length 1, and in the same way the
    vector of the bias, if there is one. `size`: d."""
    parts = [F.normalize(gradients[..., :size], dim=-1, eps=_TINY)]
    if size < gradients.shape[-1]:
        parts.append(F.normalize(gradients[..., size:], dim=-2, eps=_TINY))
    return torch.cat(parts, dim=-1)


def distance_gradient(features: Tensor, head: Tensor, wanted: Tensor) -> Tensor:
    """The gradient, in the features [C, m, d], of Σ 1 − cosine between their class gradients and the directions
    `wanted` [C, C, d']: over classes, the rows of the weight, and the bias, if there is one.

    Worked out by hand: autograd takes five times as many operations, and each waits for the one before."""
    size, inputs = features.shape[-1], with_bias_input(features, head)
    chances, errors = _errors(inputs, head)
    met = errors.mT @ inputs / features.shape[1]
    # of 1 − cos(g, w) in g, for w of length 1: (cos(g, w)·g/|g| − w) / |g|
    parts = [_turn(met[..., :size], wanted[..., :size], -1)]
    if size < met.shape[-1]:
        parts.append(_turn(met[..., size:], wanted[..., size:], -2))
    turn = torch.cat(parts, dim=-1) / features.shape[1]  # [C, C, d']
    by_error = inputs @ turn.mT  # [C, m, C]
    by_logit = chances * (by_error - (chances * by_error).sum(dim=-1, keepdim=True))
    return errors @ turn[..., :size] + by_logit @ head[:, :size]


def _turn(met: Tensor, wanted: Tensor, dim: int) -> Tensor:
    length: Tensor = torch.linalg.vector_norm(met, dim=dim, keepdim=True).clamp(min=_TINY)
    along = met / length
    return ((along * wanted).sum(dim=dim, keepdim=True) * along - wanted) / length


def _errors(inputs: Tensor, head: Tensor) -> tuple[Tensor, Tensor]:
    """The probabilities [C, m, C] of inputs [C, m, d'], and these minus the labels."""
    chances = (inputs @ head.mT).softmax(dim=-1)
    return chances, chances - torch.eye(len(inputs), device=head.device).unsqueeze(1)


@statistics.register("federated-features")
@dataclass(frozen=True)
class FederatedFeatures(Statistics):
    """Federated features: each client sends, for each of its classes, the gradient of the re-trained head at its real
    features. The server moves `features` learned features per class until their gradients have the same direction
    (`match_steps` steps of rate `match_lr`), and trains the averaged head on them (`train_steps`, `train_lr`) (CReFF,
    spec 19.17)."""

    features: Count = 100
    match_steps: CountOrZero = 100
    match_lr: Positive = 0.1
    train_steps: CountOrZero = 300
    train_lr: Positive = 0.3
    passes: ClassVar[float] = 1.0

    def check(self, net: Network, share: frozenset[str]) -> None:
        if type(net.head) is not Linear or not share.issuperset(net.parts["head"]):
            raise RequestError(
                "method.statistics = 'federated-features' trains the shared head again, which must be one linear layer "
                "that travels. Accepted: method.head = 'linear', method.share = 'all'"
            )

    def declares(self, net: Network, classes: int) -> Declared:
        size = as_matrix(_head(net.state_dict())).shape[-1]
        return {
            "gradients": Statistic((classes, classes, size), "gradients of the head by class", counts=True),
            "present": Statistic((classes,), "its classes", counts=True, numbers="count"),
        }

    def first(self, net: Network, classes: int, seed: int) -> Tensors:
        """Random features; the head is zero until the first round has trained it (`to_all` sends the model's
        instead)."""
        size = as_matrix(_head(net.state_dict())).shape[-1]
        draw = torch_generator(seed, "federated features")
        drawn = torch.randn(classes, self.features, net.body.features, generator=draw)
        return {FEATURES: drawn, HEAD: torch.zeros(classes, size), SEEN: torch.zeros(classes)}

    def to_all(self, held: ServerView) -> Tensors:
        if WEIGHT not in held.model:  # the caller needs only names and shapes
            return {HEAD: held.shared[HEAD]}
        return {HEAD: torch.where(held.shared[SEEN].any(), held.shared[HEAD], as_matrix(_head(held.model)))}

    @torch.no_grad()
    def of_clients(self, at: VisitEnd) -> Tensors:
        head, classes = at.told[HEAD], at.classes
        total = torch.zeros(len(head), classes * classes, head.shape[-1], device=head.device)
        count = torch.zeros(len(head), classes, device=head.device)
        for batch, said in at.look(at.start):
            member = one_hot_labels(batch, classes)
            inputs = with_bias_input(said.features, head)
            errors = (inputs @ head.mT).softmax(dim=-1) - F.one_hot(batch.labels, classes)
            total += (member.unsqueeze(-1) * errors.unsqueeze(2)).flatten(2).mT @ inputs
            count += member.sum(dim=1)
        mean = total.view(len(head), classes, classes, -1) / count.clamp(min=1).view(len(head), classes, 1, 1)
        return {"gradients": mean, "present": (count > 0).to(mean.dtype)}

    def combine(self, held: ServerView, received: RoundStatistics) -> ServerView:
        present = received.combined["present"]
        wanted = received.combined["gradients"] / present.clamp(min=1).view(
            -1, 1, 1
        )  # mean over clients with the class
        told = self.to_all(replace(held, model=held.before))[HEAD]
        features = self.matched(held.shared[FEATURES], told, wanted, present > 0)
        seen = torch.maximum(held.shared[SEEN], (present > 0).to(present.dtype))
        head = self.retrained(as_matrix(_head(held.model)), features, seen)
        return replace(held, shared={FEATURES: features, HEAD: head, SEEN: seen})

    def shows(self, held: ServerView) -> Tensors:
        head, like = held.shared[HEAD], _head(held.model)
        size = like[WEIGHT].shape[-1]
        return {WEIGHT: head[:, :size].clone(), **({BIAS: head[:, size].clone()} if BIAS in like else {})}

    def matched(self, features: Tensor, head: Tensor, wanted: Tensor, there: Tensor) -> Tensor:
        """The features [C, m, d] after steps that turn their gradients in the direction of `wanted` [C, C, d']. Those
        of classes that no participant has (`there` [C] is false) do not change."""
        goal = directions(wanted, features.shape[-1]) * there.view(-1, 1, 1)  # of an absent class: no direction
        for _ in range(self.match_steps):
            features = features - self.match_lr * distance_gradient(features, head, goal)
        return features

    def retrained(self, head: Tensor, features: Tensor, seen: Tensor) -> Tensor:
        """The head after steps on all features of the classes seen so far; each class has the same weight."""
        classes, count, _ = features.shape
        inputs = with_bias_input(features, head).flatten(0, 1)  # [C·m, d']
        shares = (seen / (seen.sum().clamp(min=1) * count)).repeat_interleave(count)
        weighted = self.train_lr * shares.unsqueeze(1) * inputs
        labels = weighted.view(classes, count, -1).sum(dim=1)  # the part of a step that the labels give: [C, d']
        for _ in range(self.train_steps):
            head = torch.addmm(head + labels, (inputs @ head.mT).softmax(dim=-1).mT, weighted, alpha=-1)
        return head


def _head(model: Tensors) -> Tensors:
    return {name: model[name] for name in (WEIGHT, BIAS) if name in model}
