"""What malicious clients do (spec 9.6): to their labels and images before the run, and to what they send in a round.

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
from torso.errors import RequestError, from_outside
from torso.kinds import Count, CountOrZero, Fraction, NotNegative, Positive
from torso.learn.stacked import per_client
from torso.nets import Tensors
from torso.randomness import numpy_generator, torch_generator
from torso.registry import Registry


@dataclass(frozen=True)
class Upload:
    """An honest upload: `change` [G, *] of the parameters that travel; whose it is, and among how many participants.

    A statistic that is sent beside the model is an upload of its own: a change from zero, or from what was received
    under its name. `what`: its name."""

    change: Tensors
    clients: tuple[int, ...]
    participants: int
    seed: int
    round: int
    what: str = "noise"


class Attack:
    """The base of attacks. A client that overrides nothing is honest."""

    def labels(self, honest: Tensor, classes: int, rng: np.random.Generator) -> Tensor:
        """The labels [n] that malicious clients train on, in place of their own; asked once, before the run."""
        return honest

    def samples(self, honest: Tensor, labels: Tensor, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        """The images, uint8 [n, H, W, C], and labels [n] that one of them trains on; asked once, after `labels`."""
        return honest, labels

    def marked(self, images: Tensor) -> Tensor | None:
        """Images, uint8 [n, H, W, C], with what makes the model answer as attackers want; None: it is not that kind."""
        return None

    def wanted(self) -> int:
        """The class that marked images are to be taken for."""
        return 0

    def upload(self, honest: Upload) -> Tensors:
        """The change [G, *] that malicious clients send; what is not named is sent as it was learned."""
        return {}

    def together(self, honest: Tensors, attackers: int) -> Tensors:
        """The change [*] that all malicious participants of a round send, who know the changes [H, *] of all honest
        ones; what is not named is sent as it was learned."""
        return {}

    @classmethod
    def colludes(cls) -> bool:
        """Whether what attackers send depends on what others send."""
        return cls.together is not Attack.together

    @classmethod
    def changes_samples(cls) -> bool:
        return cls.samples is not Attack.samples or cls.marked is not Attack.marked

    @classmethod
    def changes_data(cls) -> bool:
        """Whether attackers train on other labels or samples than they were given."""
        return cls.labels is not Attack.labels or cls.changes_samples()

    @classmethod
    def replaces_uploads(cls) -> bool:
        return cls.upload is not Attack.upload or cls.colludes()


attacks: Registry[type[Attack]] = Registry("attack.kind")


@attacks.register("none")
@dataclass(frozen=True)
class NoAttack(Attack):
    """Nobody attacks."""


@attacks.register("label-poisoning")
@dataclass(frozen=True)
class LabelPoisoning(Attack):
    """Training labels are drawn anew, uniformly, once before the run."""

    def labels(self, honest: Tensor, classes: int, rng: np.random.Generator) -> Tensor:
        return torch.from_numpy(rng.integers(classes, size=len(honest)))


@attacks.register("label-flip")
@dataclass(frozen=True)
class LabelFlip(Attack):
    """Class c of C is trained on as class C − 1 − c (Fang et al. 2020)."""

    def labels(self, honest: Tensor, classes: int, rng: np.random.Generator) -> Tensor:
        return classes - 1 - honest


@attacks.register("backdoor")
@dataclass(frozen=True)
class Backdoor(Attack):
    """A white square of `size` pixels in the lower right corner of a `share` of the images, trained on as class
    `target` (BadNets, Gu et al. 2017). The measure backdoor tells how often a marked test image is taken for it."""

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
    """Gaussian noise of mean 0, whose spread is that of all entries of the client's honest update."""

    def upload(self, honest: Upload) -> Tensors:
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
    """The honest update times the number of participants: after averaging, the server has the attacker's model."""

    def upload(self, honest: Upload) -> Tensors:
        return {name: change * honest.participants for name, change in honest.change.items()}


@attacks.register("sign-flip")
@dataclass(frozen=True)
class SignFlip(Attack):
    """The honest update with its sign changed, `factor` times as long."""

    factor: Positive = 1.0

    def upload(self, honest: Upload) -> Tensors:
        return {name: -self.factor * change for name, change in honest.change.items()}


@attacks.register("not-finite")
@dataclass(frozen=True)
class NotFinite(Attack):
    """NaN in place of every number of the update. A server that used one such upload would have no model left: it must
    be found, and left out."""

    def upload(self, honest: Upload) -> Tensors:
        return {name: torch.full_like(change, math.nan) for name, change in honest.change.items()}


@attacks.register("alie")
@dataclass(frozen=True)
class ALittleIsEnough(Attack):
    """μ − zσ of the round's honest updates, which the attackers know, number by number; `z` = 0 takes the largest z
    that leaves a majority beyond it (ALIE, Baruch et al. 2019)."""

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
    """z with Φ(z) = (n − f − s)/(n − f): s = ⌊n/2⌋ + 1 − f honest updates beyond z make a majority with f attackers. 0
    where that would lie on the other side of the mean, as it does while f is small."""
    honest = participants - attackers
    supporters = max(participants // 2 + 1 - attackers, 1)
    return NormalDist().inv_cdf(max((honest - supporters) / honest, 0.5))


@attacks.register("inner-product")
@dataclass(frozen=True)
class InnerProduct(Attack):
    """−factor times the mean of the honest updates of the round, which the attackers know (inner-product manipulation,
    Xie et al. 2020)."""

    factor: Positive = 0.5

    def together(self, honest: Tensors, attackers: int) -> Tensors:
        return {name: -self.factor * mean_over(change) for name, change in honest.items()}


def mean_over(stacked: Tensor) -> Tensor:
    """The mean over the first dimension, one client after the other: no number of threads changes a bit of it."""
    return reduce(torch.add, stacked.unbind()) / len(stacked)


def attacked(federation: Federation, attack: Attack, fraction: float, seed: int) -> Federation:
    """The federation with its malicious clients: ⌊fraction · N⌋ of those that train, drawn once. One that has some is
    what this made of it before."""
    if isinstance(attack, NoAttack) or federation.malicious:
        return federation
    training = np.setdiff1d(np.arange(federation.clients), federation.newcomers, assume_unique=True)
    count = math.floor(len(training) * fraction + 1e-9)
    if not count:
        raise RequestError(
            f"attack.fraction = {fraction} of {len(training)} training clients is nobody, and attack.kind = "
            f"{attacks.name_of(attack)!r}. Accepted: {1 / len(training):.3g} or more, or attack.kind = none"
        )
    drawn = numpy_generator(seed, "attack", "clients").choice(training, count, replace=False)
    federation = replace(federation, malicious=frozenset(drawn.tolist()))
    if attack.changes_samples():
        _check_marks(federation, attack)
        return replace(_changed(federation, attack, seed), marked=_marked(federation, attack))
    return _changed(federation, attack, seed)


def _check_marks(federation: Federation, attack: Attack) -> None:
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
    """The test images that are not of the wanted class, marked, each with the wanted class as its label."""
    test, target = federation.test, attack.wanted()
    images = attack.marked(test.samples)
    if images is None:
        return None
    others = (test.labels[test.order] != target).cpu().numpy()
    before = np.concatenate([[0], np.cumsum(others)])
    order = test.order[torch.from_numpy(others).to(test.order.device)]
    return Split(images, torch.full_like(test.labels, target), order, before[test.offsets])


def _changed(federation: Federation, attack: Attack, seed: int) -> Federation:
    """The labels, and images, of malicious clients as the attack has them.

    What the server has of the same samples (spec 3.3, 5.7) stays: copies behind the others, nobody's own."""
    split = federation.train
    hostile = torch.cat([split.rows(client) for client in sorted(federation.malicious)])
    honest = split.labels[hostile]
    said = _labels(federation, attack, honest, seed)
    if torch.equal(said, honest) and not attack.changes_samples():
        return federation
    labels, samples = split.labels.clone(), split.samples
    labels[hostile] = said
    if attack.changes_samples():
        samples = samples.clone()
        for client in sorted(federation.malicious):
            rows, rng = split.rows(client), numpy_generator(seed, "attack", "samples", client)
            samples[rows], labels[rows] = attack.samples(samples[rows], labels[rows], rng)
    servers = torch.cat([federation.server_rows, federation.meta_rows])
    both = torch.unique(servers[torch.isin(servers, hostile)])
    place = torch.arange(len(labels), device=labels.device)
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
    rng, what = numpy_generator(seed, "attack", "labels"), f"attack.kind = {attacks.name_of(attack)!r}: labels"
    expected = f"int64 [{len(honest)}] from 0 to {federation.classes - 1}"
    with from_outside(what, expected):
        said = attack.labels(honest, federation.classes, rng).to(honest.device)
    fits = said.shape == honest.shape and said.dtype == honest.dtype
    if not fits or bool(((said < 0) | (said >= federation.classes)).any()):
        found = f"{str(said.dtype).removeprefix('torch.')} {list(said.shape)} from {said.min()} to {said.max()}"
        raise RequestError(f"{what} gives {found}. Expected: {expected}")
    return said
