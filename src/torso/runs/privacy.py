"""Differential privacy of a run: its sampling rate, its noise, and the privacy budget that is spent so far."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torso.config import PrivacyConfig
from torso.errors import RequestError
from torso.nets import Tensors
from torso.server.accountant import Releases, epsilon_of, noise_for
from torso.server.private import Mechanism, PrivateSum

_CLIP = 1.0  # the default clip
_WEAK = 0.01  # the user is warned of a larger δ
_LOUD = 5.0  # the user is warned if the noise is this many times as long as the longest mean update


@dataclass(frozen=True)
class Privacy:
    """The privacy of a whole run."""

    config: PrivacyConfig
    fraction: float  # q, the share of clients that take part in a round
    clients: int  # N, the number of training clients
    rounds: tuple[int, ...]  # the rounds in which clients send something
    exchanges: tuple[int, ...]  # the rounds before which all clients are asked for class sums
    seed: int
    variances: frozenset[str] = frozenset()  # tensors that are kept at zero or above, whatever the noise
    numbers: int = 0  # the largest number of values that a client sends in a round
    # the key from which noise and samples are drawn, in a real federation; empty in a simulation, where both follow
    # from the seed, so that a run can be repeated
    secret: bytes = b""

    @property
    def poisson(self) -> bool:
        return self.config.sampling == "poisson"

    @property
    def delta(self) -> float:
        return self.config.delta or float(self.clients**-1.1)

    @property
    def clip(self) -> float:
        return self.config.clip or _CLIP

    @property
    def size(self) -> int:
        """⌊q·N⌋, at least one: the number of clients in a sample of fixed size."""
        return max(math.floor(self.clients * self.fraction + 1e-9), 1)

    @property
    def rate(self) -> float:
        """The probability that a client takes part in a round."""
        return self.fraction if self.poisson else self.size / self.clients

    @property
    def expected(self) -> float:
        """m, the expected number of participants, by which a sum is divided."""
        return self.clients * self.rate

    @property
    def told(self) -> int:
        """The number of participants that clients are told: the expected one, since the true one is a secret."""
        return max(round(self.expected), 1)

    @cached_property
    def sampling_seed(self) -> int:
        return int.from_bytes(self._key("participants"), "little") if self.secret else self.seed

    def _key(self, purpose: str) -> bytes:
        origin = self.secret or repr(self.seed).encode()
        return hashlib.blake2b(origin, digest_size=32, person=purpose.encode()).digest()

    @cached_property
    def noise(self) -> float:
        """z, the noise multiplier: as the config sets it, or the smallest that stays within the config's ε."""
        if not self.config.epsilon:
            return self.config.noise
        return noise_for(self.config.epsilon, lambda noise: self._spent(self.last, noise))

    @property
    def last(self) -> int:
        """The last round that spends privacy. 0: only the exchange before the first round does."""
        return max(self.rounds, default=0)

    def epsilon(self, round: int) -> float:
        """The ε that is spent after this round."""
        return self._spent(round, self.noise)

    def _spent(self, round: int, noise: float) -> float:
        exchanges = sum(each <= max(round, 1) for each in self.exchanges)
        rounds = sum(each <= round for each in self.rounds)
        fixed = not self.poisson and self.rate < 1
        size, clients = (self.size, self.clients) if fixed else (0, 0)
        releases = (Releases(exchanges, noise, 1.0), Releases(rounds, noise, self.rate, fixed, clients, size))
        return epsilon_of(releases, self.delta)

    @cached_property
    def mechanism(self) -> Mechanism:
        adapts, asked = self.config.quantile > 0, self.config.count_noise
        found = Mechanism(
            noise=self.noise,
            clip=self.clip,
            expected=self.expected,
            key=self._key("noise"),
            binds=bool(self.secret),
            quantile=self.config.quantile,
            rate=self.config.clip_rate,
            count_noise=(asked or max(self.expected / 20, self.noise)) if adapts and self.noise else 0.0,
        )
        if adapts and self.noise and found.count_noise <= self.noise / 2:
            raise RequestError(
                f"privacy.count_noise = {found.count_noise:g} alone costs more than privacy.noise = {self.noise:g} "
                f"allows. Expected: more than {self.noise / 2:g}, or 0 for the usual"
            )
        return found

    def settle(self) -> None:
        """Compute the noise and check the settings. Done before a run begins: the accountant may take seconds."""
        self.so_far(self.last, {})

    def notes(self) -> tuple[str, ...]:
        """What the user should know before the first round."""
        loud = self.mechanism.update_noise * math.sqrt(self.numbers) / self.expected
        found = [self.words()]
        if self.rounds and loud >= _LOUD:
            found.append(
                f"privacy: the noise of a round is about {loud:.3g} times as long as the mean update can be, since "
                f"{self.numbers:,} numbers travel and {self.expected:.3g} clients take part. More clients, or a "
                "smaller part that travels, would help"
            )
        if self.delta > _WEAK:
            found.append(
                f"privacy: δ = {self.delta:.2g} is large, since there are {self.clients} clients. With this chance ε "
                "says nothing. Example: --set privacy.delta=0.001"
            )
        return tuple(found)

    def words(self) -> str:
        """One line about the ε that the whole run spends, its noise, clip and sampling."""
        spent = self.epsilon(self.last)
        cost = f"ε = {spent:.4g} at δ = {self.delta:.3g}" if math.isfinite(spent) else "no bound on ε (no noise)"
        found = f", found for privacy.epsilon = {self.config.epsilon:g}" if self.config.epsilon else ""
        adapts = f", which adapts to quantile {self.config.quantile:g}" if self.config.quantile else ""
        who = f"each client with chance {self.rate:.4g}" if self.poisson else f"{self.size} of {self.clients} clients"
        clip = f"clip {self.clip:g}{adapts}, {who} in a round; all clients weigh the same"
        if not self.rounds:
            clip = "all clients are asked once, for directions of length one"
        return f"privacy: {cost} after {len(self.rounds)} rounds; noise {self.noise:.4g}{found}, {clip}"

    def sum_of(self, model: Tensors, travels: Collection[str], state: Tensors) -> PrivateSum:
        """An empty private sum for a round that begins at this model. Integer tensors (counters) are left out."""
        start = {name: model[name] for name in sorted(travels) if model[name].is_floating_point()}
        return PrivateSum(self.mechanism, state, start, self.variances)

    def so_far(self, round: int, state: Tensors) -> dict[str, float | None]:
        """The ε that is spent after a round (None: no bound), and the clip of the next round."""
        spent = self.epsilon(round)
        return {"epsilon": spent if math.isfinite(spent) else None, "clip": self.mechanism.bound(state)}

    def as_json(self, round: int, state: Tensors) -> dict[str, Any]:
        """The entry "privacy" of result.json."""
        return {
            **self.so_far(round, state),
            "delta": self.delta,
            "noise": self.noise,
            "sampling": self.config.sampling,
            "rate": self.rate,
            "clients": self.clients,
            "adaptive": self.mechanism.adapts,
        }
