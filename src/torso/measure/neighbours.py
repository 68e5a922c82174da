"""Predictions that mix the network's with those of the nearest training samples (kNN-Per, spec 19.11).

G clients at a time, B samples, n remembered samples, C classes, d features, k neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from torso.data.batches import Shuffle
from torso.engine import Workspace
from torso.learn.outputs import look
from torso.measure.accuracy import largest, percent_correct
from torso.measure.base import Evaluation, measure
from torso.nets import Output, Tensors

NEIGHBOURS = 10
SHARES = tuple(step / 10 for step in range(11))  # possible weights of the neighbours; 0 is the network alone


@dataclass(frozen=True)
class Memory:
    """The features, labels and probabilities of G clients' training samples."""

    features: Tensor  # [G, n, d]
    labels: Tensor  # [G, n]
    real: Tensor  # [G, n]: 0 for padding
    said: Tensor  # [G, n, C]: the network's probabilities

    def answer(self, features: Tensor, without_itself: bool = False) -> Tensor:
        """Probabilities [G, B, C] by the nearest samples, each with weight exp(−distance).

        `without_itself`: `features` are those of the memory, and no sample is its own neighbour."""
        distances = torch.cdist(features, self.features)  # [G, B, n]
        distances = distances.masked_fill(self.real.unsqueeze(1) == 0, torch.inf)
        if without_itself:
            itself = torch.eye(distances.shape[-1], dtype=torch.bool, device=distances.device)
            distances = distances.masked_fill(itself, torch.inf)
        nearest, places = distances.topk(min(NEIGHBOURS, distances.shape[-1]), largest=False)  # [G, B, k]
        weights = torch.softmax(-nearest, dim=-1).nan_to_num(0.0)  # all 0 if there is no neighbour
        labels = self.labels.unsqueeze(1).expand_as(distances).gather(-1, places)
        classes = self.said.shape[-1]
        return weights.new_zeros(*features.shape[:2], classes).scatter_add(-1, labels, weights)

    def best_share(self) -> Tensor:
        """The weight of the neighbours [G] in the mix that gives the client's own samples the highest likelihood, with
        each left out of the memory in turn. Of equally good weights, the smallest."""
        near = self.answer(self.features, without_itself=True)
        losses = []
        for share in SHARES:
            mixed = (share * near + (1 - share) * self.said).gather(-1, self.labels.unsqueeze(-1)).squeeze(-1)
            losses.append(-(mixed.clamp(min=1e-6).log() * self.real).sum(dim=1))
        return torch.tensor(SHARES, device=near.device)[torch.stack(losses).argmin(dim=0)]


@measure("neighbours", of="clients")
@torch.no_grad()
def neighbours(workspace: Workspace, clients: Sequence[int], tensors: Tensors, how: Evaluation) -> dict[str, Tensor]:
    """Accuracy of the model that a client holds, mixed with the 10 nearest training samples in feature space. Their
    weight is chosen on the training samples, with each left out in turn (kNN-Per, spec 19.11)."""
    memory = remember(workspace, clients, tensors, how)
    share = memory.best_share().view(-1, 1, 1)

    def mixed(said: Output) -> Tensor:
        return largest(share * memory.answer(said.features) + (1 - share) * said.own.softmax(dim=-1))

    return {
        "neighbours": percent_correct(workspace.context, workspace.test_deck(clients), tensors, how.batch_size, mixed)
    }


def remember(workspace: Workspace, clients: Sequence[int], tensors: Tensors, how: Evaluation) -> Memory:
    """The memory of clients with models [G, *]. Samples are shuffled and not augmented, as for class means (spec
    9.3)."""
    deck, context = workspace.train_deck(clients), workspace.context
    batches = deck.shuffled(how.batch_size, context.lens, Shuffle(how.shuffle.seed, "templates", 0), 0, None)
    outputs = list(look(context, batches, tensors, how.batch_size))
    real = [torch.ones_like(b.labels, dtype=torch.float32) if b.real is None else b.real for b, _ in outputs]
    return Memory(
        torch.cat([said.features for _, said in outputs], dim=1),
        torch.cat([batch.labels for batch, _ in outputs], dim=1),
        torch.cat(real, dim=1),
        torch.cat([F.softmax(said.own, dim=-1) for _, said in outputs], dim=1),
    )
