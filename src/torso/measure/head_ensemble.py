"""A generic and a personal head, mixed for each test sample without its label (FedTHE, spec 19.22).

G clients at a time, B samples, C classes, d features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torso.data.batches import Deck, Shuffle
from torso.engine import Workspace
from torso.learn.stacked import one_by_one
from torso.measure.accuracy import class_sums, largest, percent_correct
from torso.measure.base import Evaluation, measure
from torso.measure.shifts import corrupted_decks, shifted
from torso.nets import Output, Tensors
from torso.nets.dual import generic_share
from torso.nets.network import CENTRES
from torso.server.centre import CENTRE

ALPHA = 0.1  # weight of a sample in the moving average of test features (history)
BETA = 0.3  # weight of a sample's own feature against this history


@dataclass
class HeadEnsemble:
    """The predictions of G clients for their test samples, batch after batch. It keeps a moving average of the
    features."""

    generic: Tensor  # [G, d]: mean feature of all clients' training samples …
    own: Tensor  # [G, d]: … and of the client's own
    history: Tensor | None = None  # [G, d]: moving average of the features of test samples; None: no sample so far

    def __call__(self, said: Output) -> Tensor:
        """The predicted classes [G, B]."""
        weight = self.weights(said).unsqueeze(-1)  # [G, B, 1]
        return largest(weight * said.logits + (1 - weight) * said.own)

    def weights(self, said: Output) -> Tensor:
        """e [G, B], the weight of the generic head in the mix: the one with the least loss."""
        seen = self.seen(said.features)
        return generic_share(said.logits, said.own, seen, self.generic.unsqueeze(1), self.own.unsqueeze(1))

    def seen(self, features: Tensor) -> Tensor:
        """β·h + (1 − β)·history [G, B, d], sample after sample. The history begins with the first sample."""
        past = self.history
        found = []
        for h in features.unbind(dim=1):
            past = h if past is None else ALPHA * h + (1 - ALPHA) * past
            found.append(BETA * h + (1 - BETA) * past)
        self.history = past
        return torch.stack(found, dim=1)


@torch.no_grad()
def _ensemble(workspace: Workspace, clients: Sequence[int], tensors: Tensors, how: Evaluation) -> HeadEnsemble:
    """The ensembles of clients with models [G, *], without history."""
    total, count = class_sums(workspace, clients, tensors, how.batch_size, Shuffle(how.shuffle.seed, "templates", 0))
    own = total.sum(dim=1) / count.sum(dim=1, keepdim=True).clamp(min=1)
    return HeadEnsemble(how.visit.told_to(workspace, clients)[CENTRE], own)


def centres_of(workspace: Workspace, clients: Sequence[int], tensors: Tensors, how: Evaluation) -> Tensors:
    """The mean features [G, 2, d] that exported own models [G, *] need to mix their heads: of all clients, and of the
    client. Empty for methods that do not mix heads."""
    if CENTRES not in workspace.context.net.client_facts or CENTRE not in how.visit.told_to(workspace, clients):
        return {}
    if workspace.context.exact and len(clients) > 1:  # padding changes how the sums of a measure are rounded
        each = [centres_of(workspace, [k], mine, how)[CENTRES] for k, mine in one_by_one(clients, tensors)]
        return {CENTRES: torch.cat(each)}
    found = _ensemble(workspace, clients, tensors, how)
    return {CENTRES: torch.stack([found.generic, found.own], dim=1)}


def mixed_answer(centres: Tensor) -> Callable[[Output], Tensor]:
    """The predictions of exported models: each sample by itself, without a history. `centres` [G, 2, d] as in
    `centres_of`."""
    generic, own = centres[:, :1], centres[:, 1:]

    def answer(said: Output) -> Tensor:
        share = generic_share(said.logits, said.own, said.features, generic, own).unsqueeze(-1)
        return largest(share * said.logits + (1 - share) * said.own)

    return answer


def _on(
    decks: Iterable[Deck], workspace: Workspace, clients: Sequence[int], tensors: Tensors, how: Evaluation
) -> Tensor:
    """The mean accuracy over decks; each deck begins a new history."""
    start = _ensemble(workspace, clients, tensors, how)
    found = []
    for deck in decks:
        answer = HeadEnsemble(start.generic, start.own)
        found.append(percent_correct(workspace.context, deck, tensors, how.batch_size, answer))
    return torch.stack(found).mean(dim=0)


@measure("test_time", of="own", two_heads=True)
def at_test_time(workspace: Workspace, clients: Sequence[int], tensors: Tensors, how: Evaluation) -> dict[str, Tensor]:
    """Accuracy of the client's own model with its generic and personal head mixed for each test sample, by the
    confidence of both heads and the sample's features (FedTHE, spec 19.22)."""
    return {"test_time": _on([workspace.test_deck(clients)], workspace, clients, tensors, how)}


@measure("test_time_shifted", of="own", two_heads=True)
def at_test_time_shifted(
    workspace: Workspace, clients: Sequence[int], tensors: Tensors, how: Evaluation
) -> dict[str, Tensor]:
    """As test_time, on the client's test samples redrawn with other shares of their classes (spec 9.11)."""
    deck = shifted(workspace.test_deck(clients), how.shift, how.shuffle.seed)
    return {"test_time_shifted": _on([deck], workspace, clients, tensors, how)}


@measure("test_time_corrupted", of="own", images=True, two_heads=True)
def at_test_time_corrupted(
    workspace: Workspace, clients: Sequence[int], tensors: Tensors, how: Evaluation
) -> dict[str, Tensor]:
    """As test_time, on corrupted copies of the client's test images: the mean over corruptions and severities (spec
    9.12)."""
    return {"test_time_corrupted": _on(corrupted_decks(workspace, clients, how), workspace, clients, tensors, how)}
