"""Accuracy under distribution shift: test samples with other shares of classes, or corrupted images (spec 9.11, 9.12).

G clients, n samples.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from torso.data.batches import Deck
from torso.data.images import Ints
from torso.engine import Workspace
from torso.measure.accuracy import percent_correct
from torso.measure.base import Evaluation, measure
from torso.measure.corruptions import corrupted
from torso.nets import Tensors
from torso.randomness import numpy_generator


def redrawn(labels: Ints, alpha: float, rng: np.random.Generator) -> Ints:
    """n places among samples with these labels [n], drawn with replacement. First a mix of the existing classes is
    drawn from a Dirichlet distribution with parameter `alpha`; then, for each place, a class from the mix and a sample
    of the class."""
    if not len(labels):
        return np.empty(0, dtype=np.int64)
    order = np.argsort(labels, kind="stable")
    _, starts, counts = np.unique(labels[order], return_index=True, return_counts=True)
    mix = rng.dirichlet(np.full(len(counts), alpha))
    drawn = rng.choice(len(counts), size=len(labels), p=mix)
    within = (rng.random(len(labels)) * counts[drawn]).astype(np.int64)
    return np.asarray(order[starts[drawn] + within], dtype=np.int64)


def shifted(deck: Deck, alpha: float, seed: int) -> Deck:
    """A deck with redrawn samples of each client. They depend only on the seed, the client and its samples."""
    labels, index = deck.labels[deck.index].cpu().numpy(), deck.index.cpu()
    rows = []
    for place, (client, size) in enumerate(zip(deck.clients, deck.sizes, strict=True)):
        places = redrawn(labels[place, :size], alpha, numpy_generator(seed, "label shift", client))
        rows.append(index[place, torch.from_numpy(places)].to(deck.index.device))
    return Deck.of(deck.samples, deck.labels, rows, deck.clients)


def _on_shifted(workspace: Workspace, clients: Sequence[int], tensors: Tensors, how: Evaluation) -> Tensor:
    """Accuracy [G] of models [G, *] on redrawn test samples."""
    deck = shifted(workspace.test_deck(clients), how.shift, how.shuffle.seed)
    return percent_correct(workspace.context, deck, tensors, how.batch_size)


@measure("shifted_initial", of="clients")
def shifted_initial(
    workspace: Workspace, clients: Sequence[int], tensors: Tensors, how: Evaluation
) -> dict[str, Tensor]:
    """Accuracy of the model that a client holds, on its own test samples redrawn with other shares of their classes
    (spec 9.11)."""
    return {"shifted_initial": _on_shifted(workspace, clients, tensors, how)}


@measure("shifted_personalized", of="own")
def shifted_personalized(
    workspace: Workspace, clients: Sequence[int], tensors: Tensors, how: Evaluation
) -> dict[str, Tensor]:
    """Accuracy of the client's own model, on its own test samples redrawn with other shares of their classes (spec
    9.11)."""
    return {"shifted_personalized": _on_shifted(workspace, clients, tensors, how)}


def corrupted_decks(workspace: Workspace, clients: Sequence[int], how: Evaluation) -> Iterator[Deck]:
    """The clients' test images with each corruption and severity of the evaluation, one deck at a time."""
    clean = workspace.test_deck(clients)
    for name in how.corruptions:
        for severity in how.severities:
            yield corrupted(clean, name, severity, how.shuffle.seed)


def _on_corrupted(workspace: Workspace, clients: Sequence[int], tensors: Tensors, how: Evaluation) -> Tensor:
    """Accuracy [G] of models [G, *], as the mean over corruptions and severities."""
    decks = corrupted_decks(workspace, clients, how)
    found = [percent_correct(workspace.context, deck, tensors, how.batch_size) for deck in decks]
    return torch.stack(found).mean(dim=0)


@measure("corrupted_initial", of="clients", images=True)
def corrupted_initial(
    workspace: Workspace, clients: Sequence[int], tensors: Tensors, how: Evaluation
) -> dict[str, Tensor]:
    """Accuracy of the model that a client holds, on corrupted copies of its own test images: the mean over
    measure.corruptions and measure.severities (spec 9.12)."""
    return {"corrupted_initial": _on_corrupted(workspace, clients, tensors, how)}


@measure("corrupted_personalized", of="own", images=True)
def corrupted_personalized(
    workspace: Workspace, clients: Sequence[int], tensors: Tensors, how: Evaluation
) -> dict[str, Tensor]:
    """Accuracy of the client's own model, on corrupted copies of its own test images: the mean over measure.corruptions
    and measure.severities (spec 9.12)."""
    return {"corrupted_personalized": _on_corrupted(workspace, clients, tensors, how)}
