"""What scores of canaries prove about privacy.

A canary is a client that is in the training or not; its score is large when it seems to be in. A threshold on the score
is a guess, with a rate of false alarms (`alarms`: canaries that are out and are taken for in) and a rate of hits
(`hits`: canaries that are in and are taken for in). Under (ε, δ)-differential privacy, whatever the guess:

    hits ≤ exp(ε) · alarms + δ        1 − alarms ≤ exp(ε) · (1 − hits) + δ

The threshold is chosen on one half of the scores. The other half gives, by Clopper and Pearson, a lower bound of the
hits and an upper bound of the alarms, which hold together with the stated confidence.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

Floats = NDArray[np.float64]
Profile = Callable[[Floats], Floats]  # ε → δ of one mechanism
Family = Callable[[float], Profile]  # the same for each amount of noise
EPSILONS = np.linspace(0, 12, 49)  # at which a mechanism is compared with rates
MIDDLE = (0.1, 0.9)  # quantiles of all scores between which a threshold tells most about the noise
_NORMAL = NormalDist()


@dataclass(frozen=True)
class Scores:
    """The scores of canaries that took part in the training, and of those that did not."""

    present: Floats
    absent: Floats

    def halves(self) -> tuple[Scores, Scores]:
        """Every other canary, in the order in which they were played."""
        return Scores(self.present[::2], self.absent[::2]), Scores(self.present[1::2], self.absent[1::2])

    def rates(self, threshold: float, confidence: float) -> Rates:
        """Bounds of both rates that hold together with this confidence."""
        each = (1 - confidence) / 2
        hits, alarms = int((self.present >= threshold).sum()), int((self.absent >= threshold).sum())
        return Rates(threshold, least(hits, len(self.present), each), most(alarms, len(self.absent), each))

    def quantiles(self, low: float, high: float, count: int = 24) -> list[float]:
        """Thresholds between these quantiles of all scores."""
        every = np.concatenate([self.present, self.absent])
        found: list[float] = np.unique(np.quantile(every, np.linspace(low, high, count))).tolist()
        return found


@dataclass(frozen=True)
class Rates:
    """A lower bound of the share of hits, and an upper bound of the share of false alarms."""

    threshold: float
    hits: float
    alarms: float

    def epsilon(self, delta: float) -> float:
        """The smallest ε ≥ 0 that both inequalities allow."""
        pairs = (self.hits, self.alarms), (1 - self.alarms, 1 - self.hits)
        return max(math.log((more - delta) / less) if more > delta + less else 0.0 for more, less in pairs)

    @property
    def shift(self) -> float:
        """How far apart two normal distributions of variance 1 lie that have these rates."""
        inside = min(max(self.hits, 1e-12), 1 - 1e-12), min(max(self.alarms, 1e-12), 1 - 1e-12)
        return _NORMAL.inv_cdf(inside[0]) - _NORMAL.inv_cdf(inside[1])

    def allowed_by(self, profile: Profile) -> bool:
        """Whether a mechanism that is (ε, δ(ε))-private at every ε can have these rates."""
        factor, delta = np.exp(EPSILONS), profile(EPSILONS)
        return bool(
            np.all(self.hits <= factor * self.alarms + delta)
            and np.all(1 - self.alarms <= factor * (1 - self.hits) + delta)
        )


def least(successes: int, trials: int, error: float) -> float:
    """The one-sided lower bound of a share by Clopper and Pearson; it is wrong with probability `error` at most."""
    return float(stats.beta.ppf(error, successes, trials - successes + 1)) if successes else 0.0


def most(successes: int, trials: int, error: float) -> float:
    """The one-sided upper bound."""
    return float(stats.beta.ppf(1 - error, successes + 1, trials - successes)) if successes < trials else 1.0


def best_rates(
    scores: Scores, confidence: float, worth: Callable[[Rates], float], between: tuple[float, float]
) -> Rates:
    """The rates of the second half at the threshold that is worth most on the first."""
    first, second = scores.halves()
    chosen = max((first.rates(at, confidence) for at in first.quantiles(*between)), key=worth)
    return second.rates(chosen.threshold, confidence)


def epsilon_bound(scores: Scores, delta: float, confidence: float) -> float:
    """A lower bound of ε at δ, with this confidence, whatever the mechanism."""
    return best_rates(scores, confidence, lambda rates: rates.epsilon(delta), (0.0, 1.0)).epsilon(delta)


def noise_bound(scores: Scores, family: Family, confidence: float, about: float) -> float:
    """The largest noise at which a mechanism of this family can have these scores: an upper bound, with this
    confidence, of the noise that there is. `about`: the noise that is claimed, from which the search starts.

    All ε are compared, not the one at a small δ, so it takes far fewer canaries than `epsilon_bound`."""
    rates = best_rates(scores, confidence, lambda rates: rates.shift, MIDDLE)
    low, high = about / 8, about * 8
    if not rates.allowed_by(family(low)):
        return low
    if rates.allowed_by(family(high)):
        return math.inf
    while high / low > 1.01:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if rates.allowed_by(family(middle)) else (low, middle)
    return high


def gaussian_profile(shift: float) -> Profile:
    """ε → δ of the Gaussian mechanism whose outcomes lie `shift` standard deviations apart (Balle and Wang 2018)."""

    def delta_at(epsilon: Floats) -> Floats:
        tail = special.log_ndtr(-epsilon / shift - shift / 2)  # its logarithm: it underflows before exp(ε) overflows
        return np.asarray(special.ndtr(-epsilon / shift + shift / 2) - np.exp(epsilon + tail))

    return delta_at
