"""Statistical bounds on ε and on the noise, from the scores of canaries.

A canary is a client that is a part of the training or not. Its score is large if it seems to be a part. A threshold on
the score classifies canaries as present or absent. `hits` is its true positive rate (present canaries that are
classified as present), `alarms` its false positive rate (absent canaries that are classified as present). Under
(ε, δ)-differential privacy, every classifier satisfies

    hits ≤ exp(ε) · alarms + δ        1 − alarms ≤ exp(ε) · (1 − hits) + δ

The threshold is chosen on one half of the scores. From the other half, the method of Clopper and Pearson gives a lower
bound of the hits and an upper bound of the alarms. Both hold together with the stated confidence.
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
Profile = Callable[[Floats], Floats]  # the privacy profile of a mechanism: ε → δ
Family = Callable[[float], Profile]  # noise multiplier → privacy profile
EPSILONS = np.linspace(0, 12, 49)  # the ε at which a profile is compared with rates
MIDDLE = (0.1, 0.9)  # quantiles of all scores; thresholds between them are the most informative about the noise
_NORMAL = NormalDist()


@dataclass(frozen=True)
class Scores:
    """The scores of canaries that took part in the training, and of those that did not."""

    present: Floats
    absent: Floats

    def halves(self) -> tuple[Scores, Scores]:
        """Two halves: the canaries at even and at odd places, in the order of the runs."""
        return Scores(self.present[::2], self.absent[::2]), Scores(self.present[1::2], self.absent[1::2])

    def rates(self, threshold: float, confidence: float) -> Rates:
        """Bounds of both rates at a threshold, which hold together with this confidence."""
        each = (1 - confidence) / 2
        hits = int((self.present >= threshold).sum())
        alarms = int((self.absent >= threshold).sum())
        return Rates(threshold, lower_bound(hits, len(self.present), each), upper_bound(alarms, len(self.absent), each))

    def quantiles(self, low: float, high: float, count: int = 24) -> list[float]:
        """`count` quantiles of all scores between two levels, without duplicates; candidates for a threshold."""
        scores = np.concatenate([self.present, self.absent])
        found: list[float] = np.unique(np.quantile(scores, np.linspace(low, high, count))).tolist()
        return found


@dataclass(frozen=True)
class Rates:
    """A lower bound of the hit rate and an upper bound of the false alarm rate, at one threshold."""

    threshold: float
    hits: float
    alarms: float

    def epsilon(self, delta: float) -> float:
        """The smallest ε ≥ 0 that satisfies both inequalities of this module."""
        pairs = (self.hits, self.alarms), (1 - self.alarms, 1 - self.hits)
        return max(math.log((more - delta) / less) if more > delta + less else 0.0 for more, less in pairs)

    @property
    def shift(self) -> float:
        """The distance between the means of two normal distributions of variance 1 that have these rates."""
        hits = min(max(self.hits, 1e-12), 1 - 1e-12)
        alarms = min(max(self.alarms, 1e-12), 1 - 1e-12)
        return _NORMAL.inv_cdf(hits) - _NORMAL.inv_cdf(alarms)

    def allowed_by(self, profile: Profile) -> bool:
        """Whether a mechanism that is (ε, δ(ε))-private at every ε can have these rates."""
        factor, delta = np.exp(EPSILONS), profile(EPSILONS)
        return bool(
            np.all(self.hits <= factor * self.alarms + delta)
            and np.all(1 - self.alarms <= factor * (1 - self.hits) + delta)
        )


def lower_bound(successes: int, trials: int, error: float) -> float:
    """The one-sided Clopper-Pearson lower bound of a share; it is wrong with probability `error` at most."""
    return float(stats.beta.ppf(error, successes, trials - successes + 1)) if successes else 0.0


def upper_bound(successes: int, trials: int, error: float) -> float:
    """The one-sided Clopper-Pearson upper bound of a share; it is wrong with probability `error` at most."""
    return float(stats.beta.ppf(1 - error, successes + 1, trials - successes)) if successes < trials else 1.0


def best_rates(
    scores: Scores, confidence: float, worth: Callable[[Rates], float], between: tuple[float, float]
) -> Rates:
    """The rates on the second half of the scores, at the threshold that maximises `worth` on the first half.

    `between`: the quantiles of the scores between which thresholds are tried."""
    first, second = scores.halves()
    chosen = max((first.rates(at, confidence) for at in first.quantiles(*between)), key=worth)
    return second.rates(chosen.threshold, confidence)


def epsilon_bound(scores: Scores, delta: float, confidence: float) -> float:
    """A lower bound of ε at δ, with this confidence, for any mechanism."""
    return best_rates(scores, confidence, lambda rates: rates.epsilon(delta), (0.0, 1.0)).epsilon(delta)


def noise_bound(scores: Scores, family: Family, confidence: float, about: float) -> float:
    """An upper bound of the noise multiplier, with this confidence: the largest at which `family` allows these scores.

    `about`: the claimed noise, around which the search takes place. The whole privacy profile is compared, not only ε
    at one small δ, so this needs far fewer canaries than `epsilon_bound`."""
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
    """The privacy profile of a Gaussian mechanism: sensitivity / standard deviation = `shift` (Balle and Wang 2018)."""

    def delta_at(epsilon: Floats) -> Floats:
        tail = special.log_ndtr(-epsilon / shift - shift / 2)  # as a logarithm: ndtr underflows before exp(ε) overflows
        return np.asarray(special.ndtr(-epsilon / shift + shift / 2) - np.exp(epsilon + tail))

    return delta_at
