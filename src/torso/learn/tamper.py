"""What malicious clients send in place of what they have learned, and of what they would say beside it (spec 9.6).

G clients, tensors stacked [G, *].
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torso.learn.attacks import Attack, Upload
from torso.nets import Tensors


@dataclass(frozen=True)
class Tamper:
    """What the visits of a round do to the uploads of malicious clients, and to the statistics beside them. Running
    statistics of BatchNorm are sent as they are."""

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

    def said(
        self,
        received: Tensors,
        said: Tensors,
        numbers: Mapping[str, str],
        clients: Sequence[int],
        malicious: frozenset[int],
    ) -> Tensors:
        """The statistics that arrive [G, *]; `numbers`: what those of each can be (`plausible`)."""
        places = [place for place, client in enumerate(clients) if client in malicious]
        who, lies = tuple(clients[place] for place in places), {}
        for name, kind in numbers.items() if places else ():
            base = received[name][places] if name in received else torch.zeros_like(said[name][places])
            honest = {name: said[name][places] - base}
            upload = Upload(honest, who, self.participants, self.seed, self.round, f"noise of {name}")
            if name in (false := self.attack.upload(upload)):
                lies[name] = put(said[name], places, plausible(base + false[name], kind))
        return {**said, **lies}


def plausible(lie: Tensor, numbers: str) -> Tensor:
    """A lie that the server does not refuse at once: without its sign where numbers cannot be negative, and rounded
    where they count."""
    if numbers == "any":
        return lie
    return lie.abs().round() if numbers == "count" else lie.abs()


def put(stacked: Tensor, places: list[int], theirs: Tensor) -> Tensor:
    """The stack [G, *] with other values at some places."""
    mixed = stacked.clone()
    mixed[places] = theirs
    return mixed
