"""A head of class means: the class whose mean feature has the largest cosine to the sample's features (spec 9.3).

n samples, d features, C classes.
"""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torso.nets.heads import Normalized
from torso.nets.network import Network

HEAD = {"name": "normalized", "bias": True}  # as a card names it
NEVER = -1e4  # bias of a class without samples: its probability is 0
_SCALES = 2.0 ** torch.arange(0, 8.5, 0.5)  # of cosines, 1 to 256: they become logits


@torch.no_grad()
def with_class_means(net: Network, features: Tensor, labels: Tensor, classes: int) -> Network:
    """The body of a network with a head of class means, from features [n, d] and classes [n] of some samples.

    Only classes that have samples are ever answered. The head is linear on features of length one, so that every format
    of a model can hold it."""
    means = torch.zeros(classes, features.shape[1]).index_add_(0, labels, features)  # length does not matter
    present = torch.bincount(labels, minlength=classes) > 0
    head = Normalized(bias=True).build(features.shape[1], classes, True)
    assert isinstance(head, nn.Linear)
    head.weight.copy_(best_scale(features, labels, classes) * F.normalize(means, dim=1))
    head.bias.copy_(torch.where(present, 0.0, NEVER))
    made = Network(copy.deepcopy(net.body), head, net.input)
    made.personal = True
    return made.eval()


def best_scale(features: Tensor, labels: Tensor, classes: int) -> float:
    """The factor of the cosines that gives the samples the best probabilities (least cross-entropy). Each sample is
    left out of the mean of its own class; one that is alone in its class says nothing."""
    sums = torch.zeros(classes, features.shape[1]).index_add_(0, labels, features)
    counts = torch.bincount(labels, minlength=classes)
    lengths = F.normalize(features, dim=1)
    cosines = lengths @ F.normalize(sums, dim=1).T
    without = F.normalize(sums[labels] - features, dim=1)
    cosines[torch.arange(len(labels)), labels] = (lengths * without).sum(dim=1)
    cosines = cosines.masked_fill(counts == 0, -torch.inf)[counts[labels] > 1]
    if not len(cosines):
        return 16.0  # every class has one sample: nothing can be measured
    told = labels[counts[labels] > 1]
    losses = torch.stack([F.cross_entropy(scale * cosines, told) for scale in _SCALES])
    return float(_SCALES[losses.argmin()])
