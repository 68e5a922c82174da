"""What malicious clients do (spec 9.6): to their labels before the run, and to what they send in each round.

G clients, tensors stacked [G, *].
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from statistics import NormalDist

import numpy as np
import torch
from torch import Tensor

from torso.data import Federation, Split
from torso.errors import RequestError, from_outside
from torso.kinds import NotNegative, Positive
from torso.learn.stacked import per_client
from torso.nets import Tensors
from torso.randomness import numpy_generator, torch_generator
from torso.registry import Registry


@dataclass(frozen=True)
class Upload:
    """An honest upload: `change` [G, *] of the parameters that travel; whose it is, and among how many participants."""

    change: Tensors
    clients: tuple[int, ...]
    participants: int
    seed: int
    round: int


class Attack:
    """The base of attacks. A client that overrides nothing is honest."""

    def labels(self, honest: Tensor, classes: int, rng: np.random.Generator) -> Tensor:
        """The labels [n] that malicious clients train on, in place of their own; asked once, before the run."""
        return honest

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


@attacks.register("random-updates")
@dataclass(frozen=True)
class RandomUpdates(Attack):
    """Gaussian noise of mean 0, whose spread is that of all entries of the client's honest update."""

    def upload(self, honest: Upload) -> Tensors:
        entries = torch.cat([change.reshape(len(change), -1) for change in honest.change.values()], dim=1)
        noise: Tensors = {}
        generators = [torch_generator(honest.seed, "attack", "noise", honest.round, k) for k in honest.clients]
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
    """The federation with its malicious clients: ⌊fraction · N⌋ of those that train, drawn once."""
    if isinstance(attack, NoAttack):
        return federation
    training = np.setdiff1d(np.arange(federation.clients), federation.newcomers, assume_unique=True)
    count = math.floor(len(training) * fraction + 1e-9)
    if not count:
        raise RequestError(
            f"attack.fraction = {fraction} of {len(training)} training clients is nobody, and attack.kind = "
            f"{_name(attack)!r}. Accepted: {1 / len(training):.3g} or more, or attack.kind = none"
        )
    drawn = numpy_generator(seed, "attack", "clients").choice(training, count, replace=False)
    return _relabelled(replace(federation, malicious=frozenset(drawn.tolist())), attack, seed)


def _relabelled(federation: Federation, attack: Attack, seed: int) -> Federation:
    """The labels of malicious clients as the attack has them.

    What the server has of the same images (spec 3.3, 5.7) keeps its labels: copies behind the others, nobody's own."""
    split = federation.train
    hostile = torch.cat([split.rows(client) for client in sorted(federation.malicious)])
    honest = split.labels[hostile]
    rng, what = numpy_generator(seed, "attack", "labels"), f"attack.kind = {_name(attack)!r}: labels"
    expected = f"int64 [{len(honest)}] from 0 to {federation.classes - 1}"
    with from_outside(what, expected):
        said = attack.labels(honest, federation.classes, rng).to(honest.device)
    fits = said.shape == honest.shape and said.dtype == honest.dtype
    if not fits or bool(((said < 0) | (said >= federation.classes)).any()):
        found = f"{str(said.dtype).removeprefix('torch.')} {list(said.shape)} from {said.min()} to {said.max()}"
        raise RequestError(f"{what} gives {found}. Expected: {expected}")
    if torch.equal(said, honest):
        return federation
    labels = split.labels.clone()
    labels[hostile] = said
    servers = torch.cat([federation.server_rows, federation.meta_rows])
    both = torch.unique(servers[torch.isin(servers, hostile)])
    place = torch.arange(len(labels), device=labels.device)
    place[both] = len(labels) + torch.arange(len(both), device=labels.device)
    samples = torch.cat([split.samples, split.samples[both]]) if len(both) else split.samples
    return replace(
        federation,
        train=Split(samples, torch.cat([labels, split.labels[both]]), split.order, split.offsets),
        server_rows=place[federation.server_rows],
        meta_rows=place[federation.meta_rows],
    )


def _name(attack: Attack) -> str:
    return next((name for name, kind in attacks.items() if kind is type(attack)), type(attack).__name__)


@dataclass(frozen=True)
class Tamper:
    """What the visits of a round do to the uploads of malicious clients. Running statistics are sent as they are."""

    attack: Attack
    parameters: tuple[str, ...]  # that travel
    participants: int
    seed: int
    round: int

    def __call__(
        self, received: Tensors, learned: Tensors, clients: Sequence[int], malicious: frozenset[int]
    ) -> Tensors:
        """What arrives at the server [G, *], from what the clients received and what they have learned."""
        places = [place for place, client in enumerate(clients) if client in malicious]
        if not places or not self.parameters:
            return learned
        change = {name: learned[name][places] - received[name][places] for name in self.parameters}
        who = tuple(clients[place] for place in places)
        false = self.attack.upload(Upload(change, who, self.participants, self.seed, self.round))
        return {**learned, **{n: put(learned[n], places, received[n][places] + f) for n, f in false.items()}}


def put(stacked: Tensor, places: list[int], theirs: Tensor) -> Tensor:
    """The stack [G, *] with other values at some places."""
    mixed = stacked.clone()
    mixed[places] = theirs
    return mixed
