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
    classes = len(features)
    errors = (inputs @ head.mT).softmax(dim=-1) - torch.eye(classes, device=head.device).unsqueeze(1)
    return errors.mT @ inputs / features.shape[1]


def distance(one: Tensor, other: Tensor, size: int) -> Tensor:
    """The distance [C] of gradients [C, C, d']: the sum of 1 − cosine over the rows of the weight, one for each output,
    plus that of the bias, if there is one. `size`: d."""
    far = (1 - F.cosine_similarity(one[..., :size], other[..., :size], dim=-1, eps=1e-12)).sum(dim=-1)
    if size == one.shape[-1]:
        return far
    return far + 1 - F.cosine_similarity(one[..., size], other[..., size], dim=-1, eps=1e-12)


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
        for _ in range(self.match_steps):
            with torch.enable_grad():
                leaf = features.detach().requires_grad_()
                loss = (distance(class_gradients(leaf, head), wanted, leaf.shape[-1]) * there).sum()
                (grad,) = torch.autograd.grad(loss, leaf)
            features = features - self.match_lr * grad
        return features.detach()

    def retrained(self, head: Tensor, features: Tensor, seen: Tensor) -> Tensor:
        """The head after steps on all features of the classes seen so far; each class has the same weight."""
        shares = (seen / seen.sum().clamp(min=1)).view(-1, 1, 1)
        for _ in range(self.train_steps):
            head = head - self.train_lr * (shares * class_gradients(features, head)).sum(dim=0)
        return head


def _head(model: Tensors) -> Tensors:
    return {name: model[name] for name in (WEIGHT, BIAS) if name in model}
