"""What malicious clients send instead of what they have learned (spec 9.6). G clients, tensors stacked [G, *]."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torso.learn.stacked import per_client
from torso.nets import Tensors
from torso.randomness import torch_generator


@dataclass(frozen=True)
class Upload:
    """An honest upload: `change` [G, *] of the parameters that travel; whose it is, and among how many participants."""

    change: Tensors
    clients: tuple[int, ...]
    participants: int
    seed: int
    round: int


def random_updates(honest: Upload) -> Tensors:
    """Gaussian noise of mean 0, whose spread is that of all entries of the client's honest update."""
    entries = torch.cat([change.flatten(1) for change in honest.change.values()], dim=1)
    noise: Tensors = {}
    generators = [torch_generator(honest.seed, "attack", "noise", honest.round, k) for k in honest.clients]
    spread = entries.std(dim=1, correction=0)
    for name, change in honest.change.items():
        drawn = [torch.randn(change.shape[1:], generator=generator) for generator in generators]
        noise[name] = torch.stack(drawn).to(change) * per_client(spread, change)
    return noise


def model_replacement(honest: Upload) -> Tensors:
    """The honest update times the number of participants: after averaging, the server has the attacker's model."""
    return {name: change * honest.participants for name, change in honest.change.items()}


TAMPERS: Mapping[str, Callable[[Upload], Tensors]] = {
    "random-updates": random_updates,
    "model-replacement": model_replacement,
}


@dataclass(frozen=True)
class Tamper:
    """What the visits of a round do to the uploads of malicious clients. Running statistics are sent as they are."""

    kind: str
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
        false = TAMPERS[self.kind](Upload(change, who, self.participants, self.seed, self.round))
        return {**learned, **{n: _put(learned[n], places, received[n][places] + f) for n, f in false.items()}}


def _put(stacked: Tensor, places: list[int], theirs: Tensor) -> Tensor:
    mixed = stacked.clone()
    mixed[places] = theirs
    return mixed
