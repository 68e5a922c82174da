"""The ways to make a personal model for a new client. n samples, C classes."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch.nn.modules.batchnorm import _BatchNorm

from torso.data.images import Ints
from torso.data.inputs import Array
from torso.data.parted import stratified
from torso.nets import Network
from torso.nets.calibrate import calibrated, goes_by_batch
from torso.nets.class_means import HEAD, with_class_means
from torso.nets.dual import DualHead, HyperLinear
from torso.nets.layers import track
from torso.nets.network import card_of
from torso.randomness import numpy_generator
from torso.results.result import Result
from torso.runs.predict import in_batches


@dataclass(frozen=True, eq=False)
class NewClient:
    """The labelled samples of a new client."""

    samples: Array  # [n, *]
    labels: Ints  # [n], indices into `names`
    names: tuple[str, ...]  # of all classes, first those of the model
    known: int  # number of classes of the model

    def take(self, rows: Ints) -> NewClient:
        """The client with only these samples."""
        return replace(self, samples=self.samples[rows], labels=self.labels[rows])

    @property
    def familiar(self) -> NewClient:
        """The client without the samples of new classes."""
        return self.take(np.flatnonzero(self.labels < self.known))

    @property
    def new(self) -> bool:
        """Whether the client has classes that the model does not have."""
        return len(self.names) > self.known

    def __len__(self) -> int:
        return len(self.labels)


def split_by_class(labels: Ints, share: float, seed: int) -> tuple[Ints, Ints]:
    """Rows to train on, and held-out rows: a share of each class."""
    return stratified(labels, share, numpy_generator(seed, "personalize", "held out").random(len(labels)))


def ways(net: Network, result: Result | None, new: bool) -> dict[str, str]:
    """Way -> why it cannot be used here, or an empty string.

    The order matters: if ways do equally well, the first is taken. The first ones keep all classes of the model and
    need no training. `new`: whether the client has classes that the model does not have."""
    has_hypernetwork = isinstance(net.head, DualHead) and isinstance(net.head.personal, HyperLinear)
    has_norms = any(isinstance(module, _BatchNorm) for module in net.modules())
    no_head = "this network makes no heads; only Fed-RoD's hypernetwork does (fedrod-hyper)"
    no_rule = "a model file does not say how new clients train; the folder of its run does"
    known_only = "it is for known classes only, and the data have others" if new else ""
    return {
        "hyper": known_only if has_hypernetwork else no_head,
        "calibrate": known_only if has_norms else "this network has no BatchNorm",
        "class-means": "",
        "tune": no_rule if result is None else "",
    }


def make_model(
    how: str, generic: Network, result: Result | None, train: NewClient, epochs: int | None
) -> tuple[Network, tuple[str, ...]]:
    """The personal network that a way makes, and remarks.

    If the client has new classes, the head is replaced by class means of the features of the network that was made."""
    familiar = train.familiar
    said = []
    net = generic
    if how == "tune" and len(familiar):
        assert result is not None
        net = result.newcomer(familiar.samples, familiar.labels, epochs=epochs)
    elif how == "calibrate":
        net = _without_statistics(generic)
    elif how == "hyper":
        net = _with_made_head(generic, train)
    if goes_by_batch(net) or card_of(net).calibrated:
        net = calibrated(_without_statistics(net), train.samples)
        said.append(f"BatchNorm has the statistics of {len(train)} samples of the client now")
    if how == "class-means" or train.new:
        net = _by_class_means(net, train)
        missing = train.known - len(np.unique(familiar.labels))
        if missing:
            said.append(f"it answers only with classes of the data, which lack {missing} of {train.known} known ones")
    net.card = replace(card_of(net), kind="newcomer", client=None)
    return net, tuple(said)


def _with_made_head(net: Network, train: NewClient) -> Network:
    """The network with the head that the hypernetwork makes from the client's mix of classes (spec 6.3)."""
    made = copy.deepcopy(net)
    counts = torch.from_numpy(np.bincount(train.labels, minlength=train.known)).float()
    facts = {name: tensor[0] for name, tensor in made.facts(counts[None], {}).items()}
    made.fill({**made.state_dict(), **facts}, personal=True)
    return made


def _without_statistics(net: Network) -> Network:
    """A copy whose BatchNorm uses the statistics of the batch, so that it can be calibrated."""
    made = copy.deepcopy(net)
    for module in made.modules():
        if isinstance(module, _BatchNorm):
            track(module, False)
    return made


def _by_class_means(net: Network, train: NewClient) -> Network:
    """The network with a head of the client's class means, with a row for each class, also for new ones."""
    features = in_batches(train.samples, lambda part: net.features(net.prepare(part)))
    classes = len(train.names)
    made = with_class_means(net, features, torch.from_numpy(train.labels), classes)
    card = card_of(net)
    names = train.names if classes > train.known else card.class_names
    made.card = replace(card, head=HEAD, classes=classes, class_names=names)
    return made
