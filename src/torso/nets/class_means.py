"""A head of class means: it predicts the class whose mean feature has the largest cosine to a sample's (spec 9.3).

n samples, d features, C classes.
"""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torso.nets.heads import Normalized
from torso.nets.network import Network

HEAD = {"name": "normalized", "bias": True}  # this head in a card
ABSENT_CLASS_BIAS = -1e4  # bias of a class without samples, so that its probability is 0
_SCALES = 2.0 ** torch.arange(0, 8.5, 0.5)  # factors from cosines to logits that are tried, 1 to 256


@torch.no_grad()
def with_class_means(net: Network, features: Tensor, labels: Tensor, classes: int) -> Network:
    """The body of a network with a head of class means, from features [n, d] and classes [n] of some samples.

    The head never predicts a class without samples. It is a linear layer on features of length one, so that every
    file format for models can hold it."""
    means = torch.zeros(classes, features.shape[1]).index_add_(0, labels, features)  # sums: their length is irrelevant
    present = torch.bincount(labels, minlength=classes) > 0
    head = Normalized(bias=True).build(features.shape[1], classes, True)
    assert isinstance(head, nn.Linear)
    head.weight.copy_(best_scale(features, labels, classes) * F.normalize(means, dim=1))
    head.bias.copy_(torch.where(present, 0.0, ABSENT_CLASS_BIAS))
    made = Network(copy.deepcopy(net.body), head, net.input)
    made.personal = True
    return made.eval()


def best_scale(features: Tensor, labels: Tensor, classes: int) -> float:
    """The factor from cosines to logits that gives the samples the least cross-entropy.

    Each sample is left out of the mean of its own class. A sample that is the only one of its class is not used."""
    sums = torch.zeros(classes, features.shape[1]).index_add_(0, labels, features)
    counts = torch.bincount(labels, minlength=classes)
    directions = F.normalize(features, dim=1)
    cosines = directions @ F.normalize(sums, dim=1).T
    means_without = F.normalize(sums[labels] - features, dim=1)
    cosines[torch.arange(len(labels)), labels] = (directions * means_without).sum(dim=1)
    used = counts[labels] > 1
    cosines = cosines.masked_fill(counts == 0, -torch.inf)[used]
    if not len(cosines):
        return 16.0  # every class has at most one sample, so there is nothing to measure by
    losses = torch.stack([F.cross_entropy(scale * cosines, labels[used]) for scale in _SCALES])
    return float(_SCALES[losses.argmin()])
