"""The uploads and statistics of malicious clients, changed by an attack before they are sent (spec 9.6).

G clients, tensors stacked [G, *].
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torso.learn.attacks import Attack, HonestUpload
from torso.nets import Tensors


@dataclass(frozen=True)
class Tamper:
    """An attack on the uploads and statistics of a round. Running statistics of BatchNorm are sent unchanged."""

    attack: Attack
    parameters: tuple[str, ...]  # those that travel
    participants: int  # number of participants of the round
    seed: int
    round: int

    def __call__(
        self, received: Tensors, learned: Tensors, clients: Sequence[int], malicious: frozenset[int]
    ) -> Tensors:
        """The tensors that the clients send [G, *], from those they received and those they learned."""
        places = [place for place, client in enumerate(clients) if client in malicious]
        if not places or not self.parameters:
            return learned
        change = {name: learned[name][places] - received[name][places] for name in self.parameters}
        attackers = tuple(clients[place] for place in places)
        false = self.attack.upload(HonestUpload(change, attackers, self.participants, self.seed, self.round))
        sent = dict(learned)
        for name, false_change in false.items():
            sent[name] = put(learned[name], places, received[name][places] + false_change)
        return sent

    def said(
        self,
        received: Tensors,
        said: Tensors,
        numbers: Mapping[str, str],
        clients: Sequence[int],
        malicious: frozenset[int],
    ) -> Tensors:
        """The statistics that the clients send [G, *], from the honest ones. `numbers`: for each statistic, which
        numbers the server accepts (see `plausible`)."""
        places = [place for place, client in enumerate(clients) if client in malicious]
        if not places:
            return dict(said)
        attackers = tuple(clients[place] for place in places)
        sent = dict(said)
        for name, kind in numbers.items():
            base = received[name][places] if name in received else torch.zeros_like(said[name][places])
            honest = {name: said[name][places] - base}
            upload = HonestUpload(honest, attackers, self.participants, self.seed, self.round, f"noise of {name}")
            false = self.attack.upload(upload)
            if name in false:
                sent[name] = put(said[name], places, plausible(base + false[name], kind))
        return sent


def plausible(lie: Tensor, numbers: str) -> Tensor:
    """A false statistic, changed so that the server does not refuse it: the absolute value if its numbers cannot be
    negative, and rounded if they are counts."""
    if numbers == "any":
        return lie
    return lie.abs().round() if numbers == "count" else lie.abs()


def put(stacked: Tensor, places: list[int], theirs: Tensor) -> Tensor:
    """A copy of the stack [G, *] with other values for the clients at `places`."""
    mixed = stacked.clone()
    mixed[places] = theirs
    return mixed
