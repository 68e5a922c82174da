"""Attacks of malicious clients (spec 9.6): on their labels and images before the run, and on what they send in a round.

G clients, tensors stacked [G, *].
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import reduce
from statistics import NormalDist

import numpy as np
import torch
from torch import Tensor

from torso.data import Federation, Pixels, Split
from torso.errors import RequestError, running_user_code
from torso.kinds import Count, CountOrZero, Fraction, NotNegative, Positive
from torso.learn.stacked import per_client
from torso.nets import Tensors
from torso.randomness import numpy_generator, torch_generator
from torso.registry import Registry


@dataclass(frozen=True)
class HonestUpload:
    """The honest upload of malicious clients, from which an attack makes theirs.

    A statistic that is sent with the model is an upload of its own. Its change is the difference to what the server
    sent under the same name, or to zero."""

    change: Tensors  # [G, *]: the changes of the parameters that travel
    clients: tuple[int, ...]  # the G malicious clients
    participants: int  # number of participants of the round
    seed: int
    round: int
    what: str = "noise"  # a name for the random numbers: those of each statistic differ from those of the model


class Attack:
    """The base class of attacks. An attack that overrides nothing does nothing."""

    def labels(self, honest: Tensor, classes: int, rng: np.random.Generator) -> Tensor:
        """The labels [n] that all malicious clients train on, instead of their own. Called once, before the run."""
        return honest

    def samples(self, honest: Tensor, labels: Tensor, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        """The images, uint8 [n, H, W, C], and labels [n] that a malicious client trains on. Called once for each of
        them, after `labels`."""
        return honest, labels

    def marked(self, images: Tensor) -> Tensor | None:
        """Images, uint8 [n, H, W, C], with the trigger of a backdoor; None: the attack is no backdoor."""
        return None

    def wanted(self) -> int:
        """The class that the model shall predict for images with the trigger."""
        return 0

    def upload(self, honest: HonestUpload) -> Tensors:
        """The changes [G, *] that malicious clients send. Tensors that are not in the result are sent unchanged."""
        return {}

    def together(self, honest: Tensors, attackers: int) -> Tensors:
        """The change [*] that every malicious participant of a round sends, if they know the changes [H, *] of all
        honest participants. Tensors that are not in the result are sent unchanged."""
        return {}

    @classmethod
    def colludes(cls) -> bool:
        """Whether malicious clients use the uploads of honest ones."""
        return cls.together is not Attack.together

    @classmethod
    def changes_samples(cls) -> bool:
        """Whether malicious clients train on changed images."""
        return cls.samples is not Attack.samples or cls.marked is not Attack.marked

    @classmethod
    def changes_data(cls) -> bool:
        """Whether malicious clients train on changed labels or images."""
        return cls.labels is not Attack.labels or cls.changes_samples()

    @classmethod
    def replaces_uploads(cls) -> bool:
        """Whether malicious clients send something else than what they learned."""
        return cls.upload is not Attack.upload or cls.colludes()


attacks: Registry[type[Attack]] = Registry("attack.kind")


@attacks.register("none")
@dataclass(frozen=True)
class NoAttack(Attack):
    """No attack: all clients are honest."""


@attacks.register("label-poisoning")
@dataclass(frozen=True)
class LabelPoisoning(Attack):
    """Random training labels, drawn uniformly once before the run."""

    def labels(self, honest: Tensor, classes: int, rng: np.random.Generator) -> Tensor:
        return torch.from_numpy(rng.integers(classes, size=len(honest)))


@attacks.register("label-flip")
@dataclass(frozen=True)
class LabelFlip(Attack):
    """Swapped training labels: class c of C becomes class C − 1 − c (Fang et al. 2020)."""

    def labels(self, honest: Tensor, classes: int, rng: np.random.Generator) -> Tensor:
        return classes - 1 - honest


@attacks.register("backdoor")
@dataclass(frozen=True)
class Backdoor(Attack):
    """A backdoor: a white square of `size` × `size` pixels in the lower right corner of a `share` of the training
    images, whose label becomes `target` (BadNets, Gu et al. 2017). The measure backdoor says how often a test image
    with the square is classified as `target`."""

    target: CountOrZero = 0
    share: Fraction = 0.5
    size: Count = 3

    def samples(self, honest: Tensor, labels: Tensor, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        count = math.floor(self.share * len(honest) + 0.5)
        chosen = torch.from_numpy(rng.choice(len(honest), count, replace=False)).to(honest.device)
        images, said = honest.clone(), labels.clone()
        images[chosen], said[chosen] = self.marked(honest[chosen]), self.target
        return images, said

    def marked(self, images: Tensor) -> Tensor:
        if self.size > min(images.shape[1:3]):
            raise RequestError(
                f"attack.kind.size = {self.size}: images are {images.shape[1]}×{images.shape[2]}. "
                f"Accepted: 1 to {min(images.shape[1:3])}"
            )
        marked = images.clone()
        marked[:, -self.size :, -self.size :] = 255
        return marked

    def wanted(self) -> int:
        return self.target


@attacks.register("random-updates")
@dataclass(frozen=True)
class RandomUpdates(Attack):
    """Gaussian noise of mean 0, with the standard deviation of all entries of the client's honest update."""

    def upload(self, honest: HonestUpload) -> Tensors:
        entries = torch.cat([change.reshape(len(change), -1) for change in honest.change.values()], dim=1)
        noise: Tensors = {}
        generators = [torch_generator(honest.seed, "attack", honest.what, honest.round, k) for k in honest.clients]
        spread = entries.std(dim=1, correction=0)
        for name, change in honest.change.items():
            drawn = [torch.randn(change.shape[1:], generator=generator) for generator in generators]
            noise[name] = torch.stack(drawn).to(change) * per_client(spread, change)
        return noise


@attacks.register("model-replacement")
@dataclass(frozen=True)
class ModelReplacement(Attack):
    """The honest update times the number of participants, so that the average is the attacker's model."""

    def upload(self, honest: HonestUpload) -> Tensors:
        return {name: change * honest.participants for name, change in honest.change.items()}


@attacks.register("sign-flip")
@dataclass(frozen=True)
class SignFlip(Attack):
    """The negative of the honest update, times `factor`."""

    factor: Positive = 1.0

    def upload(self, honest: HonestUpload) -> Tensors:
        return {name: -self.factor * change for name, change in honest.change.items()}


@attacks.register("not-finite")
@dataclass(frozen=True)
class NotFinite(Attack):
    """NaN instead of every number of the update. One of these uploads in the mean would destroy the model, so the
    server must find it and leave it out."""

    def upload(self, honest: HonestUpload) -> Tensors:
        return {name: torch.full_like(change, math.nan) for name, change in honest.change.items()}


@attacks.register("alie")
@dataclass(frozen=True)
class ALittleIsEnough(Attack):
    """μ − zσ of the round's honest updates, number by number; the attackers know these updates. With `z` = 0, z is the
    largest at which a majority lies beyond it (ALIE, Baruch et al. 2019)."""

    z: NotNegative = 0.0

    def together(self, honest: Tensors, attackers: int) -> Tensors:
        participants = attackers + len(next(iter(honest.values())))
        z = self.z or hidden_deviations(participants, attackers)
        lie: Tensors = {}
        for name, change in honest.items():
            mean = mean_over(change)
            lie[name] = mean - z * mean_over((change - mean).square()).sqrt()
        return lie


def hidden_deviations(participants: int, attackers: int) -> float:
    """z with Φ(z) = (n − f − s)/(n − f): the s = ⌊n/2⌋ + 1 − f honest updates beyond z are a majority together with f
    attackers. If f is small, this z would lie on the other side of the mean; then it is 0."""
    honest = participants - attackers
    supporters = max(participants // 2 + 1 - attackers, 1)
    return NormalDist().inv_cdf(max((honest - supporters) / honest, 0.5))


@attacks.register("inner-product")
@dataclass(frozen=True)
class InnerProduct(Attack):
    """−`factor` times the mean of the round's honest updates, which the attackers know (inner-product manipulation, Xie
    et al. 2020)."""

    factor: Positive = 0.5

    def together(self, honest: Tensors, attackers: int) -> Tensors:
        return {name: -self.factor * mean_over(change) for name, change in honest.items()}


def mean_over(stacked: Tensor) -> Tensor:
    """The mean over the first dimension, added client by client, so that its bits do not depend on the number of
    threads."""
    return reduce(torch.add, stacked.unbind()) / len(stacked)


def attacked(federation: Federation, attack: Attack, fraction: float, seed: int) -> Federation:
    """The federation with malicious clients: ⌊fraction · N⌋ of the N clients that train, drawn once, with their data
    changed. A federation that has malicious clients already comes back unchanged."""
    if isinstance(attack, NoAttack) or federation.malicious:
        return federation
    training = np.setdiff1d(np.arange(federation.clients), federation.newcomers, assume_unique=True)
    count = math.floor(len(training) * fraction + 1e-9)
    if not count:
        raise RequestError(
            f"attack.fraction = {fraction} of {len(training)} training clients makes none of them malicious, and "
            f"attack.kind = {attacks.name_of(attack)!r}. Accepted: {1 / len(training):.3g} or more, or attack.kind = "
            "none"
        )
    drawn = numpy_generator(seed, "attack", "clients").choice(training, count, replace=False)
    federation = replace(federation, malicious=frozenset(drawn.tolist()))
    if attack.changes_samples():
        _check_marks(federation, attack)
        return replace(_changed(federation, attack, seed), marked=_marked(federation, attack))
    return _changed(federation, attack, seed)


def _check_marks(federation: Federation, attack: Attack) -> None:
    """Refuse a backdoor for data that are not images, and a target that is not a class."""
    if not isinstance(federation.input, Pixels):
        raise RequestError(
            f"attack.kind = {attacks.name_of(attack)!r} marks images, and the data are {federation.input.words}. "
            f"Accepted: {', '.join(sorted(name for name, kind in attacks.items() if not kind.changes_samples()))}"
        )
    if attack.wanted() >= federation.classes:
        raise RequestError(
            f"attack.kind.target = {attack.wanted()} is not a class. Accepted: 0 to {federation.classes - 1}"
        )


def _marked(federation: Federation, attack: Attack) -> Split | None:
    """The test images that are not of the wanted class, with the trigger, and the wanted class as label."""
    test = federation.test
    target = attack.wanted()
    images = attack.marked(test.samples)
    if images is None:
        return None
    others = (test.labels[test.order] != target).cpu().numpy()
    before = np.concatenate([[0], np.cumsum(others)])
    order = test.order[torch.from_numpy(others).to(test.order.device)]
    return Split(images, torch.full_like(test.labels, target), order, before[test.offsets])


def _changed(federation: Federation, attack: Attack, seed: int) -> Federation:
    """The federation with the labels and images of malicious clients changed by the attack.

    The server's own data (spec 3.3, 5.7) may contain the same samples and must not change. So the unchanged samples are
    appended behind all others, where they belong to no client."""
    split = federation.train
    hostile = torch.cat([split.rows(client) for client in sorted(federation.malicious)])
    honest = split.labels[hostile]
    false = _labels(federation, attack, honest, seed)
    if torch.equal(false, honest) and not attack.changes_samples():
        return federation
    labels = split.labels.clone()
    samples = split.samples
    labels[hostile] = false
    if attack.changes_samples():
        samples = samples.clone()
        for client in sorted(federation.malicious):
            rows = split.rows(client)
            rng = numpy_generator(seed, "attack", "samples", client)
            samples[rows], labels[rows] = attack.samples(samples[rows], labels[rows], rng)
    servers = torch.cat([federation.server_rows, federation.meta_rows])
    both = torch.unique(servers[torch.isin(servers, hostile)])  # rows of the server and of a malicious client
    place = torch.arange(len(labels), device=labels.device)  # where the server finds each row
    place[both] = len(labels) + torch.arange(len(both), device=labels.device)
    samples = torch.cat([samples, split.samples[both]]) if len(both) else samples
    return replace(
        federation,
        train=Split(samples, torch.cat([labels, split.labels[both]]), split.order, split.offsets),
        server_rows=place[federation.server_rows],
        meta_rows=place[federation.meta_rows],
    )


def _labels(federation: Federation, attack: Attack, honest: Tensor, seed: int) -> Tensor:
    """The labels [n] that malicious clients train on, checked."""
    rng = numpy_generator(seed, "attack", "labels")
    what = f"attack.kind = {attacks.name_of(attack)!r}: labels"
    expected = f"int64 [{len(honest)}] from 0 to {federation.classes - 1}"
    with running_user_code(what, expected):
        said = attack.labels(honest, federation.classes, rng).to(honest.device)
    fits = said.shape == honest.shape and said.dtype == honest.dtype
    if not fits or bool(((said < 0) | (said >= federation.classes)).any()):
        found = f"{str(said.dtype).removeprefix('torch.')} {list(said.shape)} from {said.min()} to {said.max()}"
        raise RequestError(f"{what} gives {found}. Expected: {expected}")
    return said
