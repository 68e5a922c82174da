"""The ways to a model for a new client. n samples, C classes."""

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
class Client:
    """What a client brings: samples [n, *] and classes [n] by their place in `names`, of which the first are known."""

    samples: Array
    labels: Ints
    names: tuple[str, ...]
    known: int  # classes of the model

    def take(self, rows: Ints) -> Client:
        return replace(self, samples=self.samples[rows], labels=self.labels[rows])

    @property
    def familiar(self) -> Client:
        """Without the samples of new classes."""
        return self.take(np.flatnonzero(self.labels < self.known))

    @property
    def new(self) -> bool:
        """Whether it has classes that the model has not."""
        return len(self.names) > self.known

    def __len__(self) -> int:
        return len(self.labels)


def split_by_class(labels: Ints, share: float, seed: int) -> tuple[Ints, Ints]:
    """Rows to learn from and rows held out: of every class a share."""
    return stratified(labels, share, numpy_generator(seed, "personalize", "held out").random(len(labels)))


def ways(net: Network, result: Result | None, new: bool) -> dict[str, str]:
    """Each way with the reason why it is not allowed here, or "". Of ways that do equally well the first is taken: it
    keeps all classes of the model, and is done at once. `new`: the client has classes that the model has not."""
    makes = isinstance(net.head, DualHead) and isinstance(net.head.personal, HyperLinear)
    norms = any(isinstance(module, _BatchNorm) for module in net.modules())
    no_head = "this network makes no heads; only Fed-RoD's hypernetwork does (fedrod-hyper)"
    no_rule = "a model file does not say how new clients train; the folder of its run does"
    known_only = "it is for known classes only, and the data have others" if new else ""
    return {
        "hyper": known_only if makes else no_head,
        "calibrate": known_only if norms else "this network has no BatchNorm",
        "class-means": "",
        "tune": no_rule if result is None else "",
    }


def made(
    how: str, generic: Network, result: Result | None, train: Client, epochs: int | None
) -> tuple[Network, tuple[str, ...]]:
    """The personal network. New classes are served by class means, over the body that the chosen way has left."""
    familiar, said = train.familiar, []
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


def _with_made_head(net: Network, train: Client) -> Network:
    """The head that the hypernetwork makes from the client's mix of classes (spec 6.3)."""
    made = copy.deepcopy(net)
    counts = torch.from_numpy(np.bincount(train.labels, minlength=train.known)).float()
    facts = {name: tensor[0] for name, tensor in made.facts(counts[None], {}).items()}
    made.fill({**made.state_dict(), **facts}, personal=True)
    return made


def _without_statistics(net: Network) -> Network:
    """A copy whose BatchNorm goes by the batch, so that it can be calibrated."""
    made = copy.deepcopy(net)
    for module in made.modules():
        if isinstance(module, _BatchNorm):
            track(module, False)
    return made


def _by_class_means(net: Network, train: Client) -> Network:
    """The network with a head of the client's class means, in which new classes have rows, too."""
    features = in_batches(train.samples, lambda part: net.features(net.prepare(part)))
    classes = len(train.names)
    made = with_class_means(net, features, torch.from_numpy(train.labels), classes)
    card = card_of(net)
    names = train.names if classes > train.known else card.class_names
    made.card = replace(card, head=HEAD, classes=classes, class_names=names)
    return made
