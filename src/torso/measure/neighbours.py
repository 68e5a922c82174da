"""A memory of features beside the network: its answer is mixed with that of the nearest training samples (kNN-Per).

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
from torso.learn.looking import look
from torso.measure.accuracy import largest, percent_correct
from torso.measure.base import Evaluation, measure
from torso.nets import Output, Tensors

NEIGHBOURS = 10
SHARES = tuple(step / 10 for step in range(11))  # of the neighbours in the mix; the first is the network alone


@dataclass(frozen=True)
class Memory:
    """What G clients remember of their training samples; `real` [G, n] marks those that are no padding."""

    features: Tensor  # [G, n, d]
    labels: Tensor  # [G, n]
    real: Tensor  # [G, n]
    said: Tensor  # [G, n, C]: the network's probabilities

    def answer(self, features: Tensor, without_itself: bool = False) -> Tensor:
        """Probabilities [G, B, C] by the nearest samples, each with weight exp(−distance).

        `without_itself`: the features are the remembered ones, and none is its own neighbour."""
        far = torch.cdist(features, self.features).masked_fill(self.real.unsqueeze(1) == 0, torch.inf)  # [G, B, n]
        if without_itself:
            far = far.masked_fill(torch.eye(far.shape[-1], dtype=torch.bool, device=far.device), torch.inf)
        near, places = far.topk(min(NEIGHBOURS, far.shape[-1]), largest=False)  # [G, B, k]
        weights = torch.softmax(-near, dim=-1).nan_to_num(0.0)  # 0 everywhere where there is no neighbour
        labels = self.labels.unsqueeze(1).expand_as(far).gather(-1, places)
        classes = self.said.shape[-1]
        return weights.new_zeros(*features.shape[:2], classes).scatter_add(-1, labels, weights)

    def best_share(self) -> Tensor:
        """The share of the neighbours [G] that gives a client's own samples the best probabilities, each left out of
        the memory in its turn; the smallest of equal ones."""
        near = self.answer(self.features, without_itself=True)
        losses = []
        for share in SHARES:
            mixed = (share * near + (1 - share) * self.said).gather(-1, self.labels.unsqueeze(-1)).squeeze(-1)
            losses.append(-(mixed.clamp(min=1e-6).log() * self.real).sum(dim=1))
        return torch.tensor(SHARES, device=near.device)[torch.stack(losses).argmin(dim=0)]


@measure("neighbours", of="clients")
@torch.no_grad()
def neighbours(workspace: Workspace, clients: Sequence[int], tensors: Tensors, how: Evaluation) -> dict[str, Tensor]:
    """The model that a client holds, mixed with the 10 nearest of its training samples in feature space; their share
    is chosen on these samples, each left out in its turn (kNN-Per, spec 19.11)."""
    memory = remember(workspace, clients, tensors, how)
    share = memory.best_share().view(-1, 1, 1)

    def mixed(said: Output) -> Tensor:
        return largest(share * memory.answer(said.features) + (1 - share) * said.own.softmax(dim=-1))

    return {
        "neighbours": percent_correct(workspace.context, workspace.test_deck(clients), tensors, how.batch_size, mixed)
    }


def remember(workspace: Workspace, clients: Sequence[int], tensors: Tensors, how: Evaluation) -> Memory:
    """Shuffled and not augmented, as class means are (spec 9.3)."""
    deck, context = workspace.train_deck(clients), workspace.context
    batches = deck.shuffled(how.batch_size, context.lens, Shuffle(how.shuffle.seed, "templates", 0), 0, None)
    met = list(look(context, batches, tensors, how.batch_size))
    real = [torch.ones_like(b.labels, dtype=torch.float32) if b.real is None else b.real for b, _ in met]
    return Memory(
        torch.cat([said.features for _, said in met], dim=1),
        torch.cat([batch.labels for batch, _ in met], dim=1),
        torch.cat(real, dim=1),
        torch.cat([F.softmax(said.own, dim=-1) for _, said in met], dim=1),
    )
