"""Privacy accounting: the ε at a given δ that rounds cost, by the library dp-accounting (torso[privacy]).

Two runs are neighbours if one client's updates are zero in one of them. N, the number of clients, is public. So one
client changes the clipped sum by at most S, and the multiplier z is the standard deviation of the noise divided by S.

| sampling          | counted as                                                                          | by  |
|-------------------|-------------------------------------------------------------------------------------|-----|
| Poisson, q < 1    | Gaussian mechanism on a Poisson sample                                              | PLD |
| all, q = 1        | Gaussian mechanism                                                                  | PLD |
| fixed size, q < 1 | the smaller of: Gaussian on a sample without replacement, where one client's update | RDP |
|                   | may be replaced by any other (2S, so z/2); Gaussian without sampling                | PLD |

PLD (privacy loss distributions) gives the smaller ε. If z is below 0.3, RDP (Rényi) is used instead: a PLD would take
minutes, for an ε too large to protect any client.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import ModuleType
from typing import Any

from torso.errors import RequestError

_STEP = 1e-3  # cell width of a privacy loss distribution; rounding is pessimistic
_SMALL = 0.3  # for multipliers z below this, RDP is used
_ORDERS = (*range(2, 65), 80, 96, 128, 192, 256, 512, 1024)  # Rényi orders
_DIGITS = 4  # significant digits of the multiplier that `noise_for` finds
_CLOSE = 1e-3  # relative precision of the search


@dataclass(frozen=True)
class Releases:
    """`count` releases of a noised sum over a sample of the clients."""

    count: int
    noise: float  # multiplier z
    rate: float  # sampling rate q
    fixed: bool = False  # whether each sample has the same size, drawn without replacement; else Poisson
    clients: int = 0  # N, for fixed samples
    size: int = 0  # ⌊q·N⌋, for fixed samples

    @property
    def sampled(self) -> bool:
        return self.rate < 1


def epsilon_of(releases: Sequence[Releases], delta: float) -> float:
    """ε at δ of all releases together; infinite if one of them has no noise."""
    spent = tuple(each for each in releases if each.count)
    if not spent:
        return 0.0
    if any(not each.noise for each in spent):
        return math.inf
    return _epsilon(spent, delta)


@lru_cache(maxsize=4096)
def _epsilon(spent: tuple[Releases, ...], delta: float) -> float:
    if any(each.fixed and each.sampled for each in spent):
        plain = tuple(Releases(each.count, each.noise, 1.0) if each.fixed else each for each in spent)
        return min(_by_rdp(spent, delta), _epsilon(plain, delta))
    small = min(each.noise for each in spent) < _SMALL
    return _by_rdp(spent, delta) if small else _by_pld(spent, delta)


def _by_pld(spent: tuple[Releases, ...], delta: float) -> float:
    """ε by privacy loss distributions, for releases over all clients or Poisson samples."""
    composed: Any = None
    for each in spent:
        own = _loss(each.noise, each.rate).self_compose(each.count)
        composed = own if composed is None else composed.compose(own)
    return float(composed.get_epsilon_for_delta(delta))


@lru_cache(maxsize=8)
def _loss(noise: float, rate: float) -> Any:
    """The privacy loss distribution of one release."""
    return library().pld.privacy_loss_distribution.from_gaussian_mechanism(
        noise, sampling_prob=rate, value_discretization_interval=_STEP
    )


def _by_rdp(spent: tuple[Releases, ...], delta: float) -> float:
    """ε by Rényi divergences. If one release is over a fixed sample, all releases are counted for a client whose update
    is replaced by another: noise over 2S."""
    dp = library()
    replaced = any(each.fixed and each.sampled for each in spent)
    relation = dp.NeighboringRelation.REPLACE_ONE if replaced else dp.NeighboringRelation.ADD_OR_REMOVE_ONE
    accountant = dp.rdp.RdpAccountant(_ORDERS, relation)
    for each in spent:
        event = dp.GaussianDpEvent(each.noise / 2 if replaced else each.noise)
        if each.sampled and each.fixed:
            event = dp.SampledWithoutReplacementDpEvent(each.clients, each.size, event)
        elif each.sampled:
            event = dp.PoissonSampledDpEvent(each.rate, event)
        accountant.compose(event, each.count)
    return float(accountant.get_epsilon(delta))


def noise_for(epsilon: float, spent: Callable[[float], float]) -> float:
    """The smallest noise multiplier (four digits, rounded up) at which ε, `spent(multiplier)`, is within the budget."""
    low, high = 0.0, 1.0
    while spent(high) > epsilon:
        low, high = high, high * 2
        if high > 1e6:
            raise RequestError(
                f"privacy.epsilon = {epsilon:g} cannot be reached: noise of a million times the clip is not enough. "
                "Expected: a larger privacy.epsilon or privacy.delta, or fewer rounds"
            )
    while high - low > _CLOSE * high:
        middle = (low + high) / 2
        low, high = (middle, high) if spent(middle) > epsilon else (low, middle)
    unit = 10.0 ** (math.floor(math.log10(high)) - _DIGITS + 1)
    steps = math.ceil(high / unit - 1e-9)
    while spent(found := float(f"{steps * unit:.{_DIGITS}g}")) > epsilon:  # the accountant's ε is not quite monotonic
        steps += 1
    return found


def library() -> ModuleType:
    """The module dp_accounting; raises RequestError with the command that installs it if it is missing."""
    try:
        import dp_accounting
        import dp_accounting.pld
        import dp_accounting.rdp
    except ModuleNotFoundError:
        raise RequestError(
            "privacy.noise and privacy.epsilon need dp-accounting. Install it with: pip install 'torso[privacy]'"
        ) from None
    found: ModuleType = dp_accounting
    return found
