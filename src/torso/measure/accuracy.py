"""The accuracies of clients on their own test data, and of the generic model (spec 9.1 to 9.3, 9.6, 9.8).

G clients at a time, B samples, C classes, d features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from torso.data.batches import Batch, Deck, Shuffle
from torso.data.sending import on_device
from torso.engine import Workspace
from torso.learn import looking
from torso.learn.looking import look, side_by_side, width
from torso.learn.objectives import cross_entropy
from torso.learn.task import LocalContext
from torso.measure.base import Evaluation, measure
from torso.nets import Output, Tensors

NO_CLASS = -1  # no label is: an answer that is always wrong


def largest(scores: Tensor, among: Tensor | None = None) -> Tensor:
    """The class [G, B] of the largest score [G, B, C], where `among` [G, 1, C] if given.

    None where a score is not finite: argmax would take a model of NaN to say class 0, and count that as right."""
    allowed = scores if among is None else scores.masked_fill(~among, -torch.inf)
    return allowed.argmax(dim=-1).masked_fill(~scores.isfinite().all(dim=-1), NO_CLASS)


def own_answer(said: Output) -> Tensor:
    """What the client says: its personal logits where the head is dual."""
    return largest(said.own)


def generic_answer(said: Output) -> Tensor:
    return largest(said.logits)


@torch.no_grad()
def percent_correct(
    context: LocalContext,
    deck: Deck,
    tensors: Tensors,
    batch_size: int,
    answer: Callable[[Output], Tensor] = own_answer,
) -> Tensor:
    """Accuracy [G] on a deck. `answer` turns what the network says into classes [G, B]; default: the largest logit."""
    right, many = torch.zeros(len(deck.clients), device=deck.index.device), width(context, deck, batch_size)
    for batch, said in look(context, deck.in_order(many, context.lens), tensors, many):
        right += _hit(batch, answer(said)).sum(dim=1)
    return 100 * right / on_device(right.device, deck.sizes)  # 0 / 0 is NaN: nothing to measure on


def _hit(batch: Batch, answer: Tensor) -> Tensor:
    """1 for each sample whose answer is its label, 0 for others and for padding [G, B]."""
    hit = (answer == batch.labels).float()
    return hit if batch.real is None else hit * batch.real


@torch.no_grad()
def mean_loss(context: LocalContext, deck: Deck, tensors: Tensors, batch_size: int) -> Tensor:
    """Cross-entropy [G] of what the clients go by, over a deck; 0 where it is empty."""
    total = torch.zeros(len(deck.clients), device=deck.index.device)
    many = width(context, deck, batch_size)
    for batch, said in look(context, deck.in_order(many, context.lens), tensors, many):
        losses = cross_entropy(said.own, batch.labels)
        total += (losses if batch.real is None else losses * batch.real).sum(dim=1)
    return total / on_device(total.device, deck.sizes).clamp(min=1)


@measure("initial", of="clients")
def initial(workspace: Workspace, clients: Sequence[int], tensors: Tensors, how: Evaluation) -> dict[str, Tensor]:
    """The model that a client holds, before fine-tuning, on the client's own test data (spec 9.1)."""
    return {"initial": percent_correct(workspace.context, workspace.test_deck(clients), tensors, how.batch_size)}


@measure("personalized", of="own", swept=True)
def personalized(workspace: Workspace, clients: Sequence[int], tensors: Tensors, how: Evaluation) -> dict[str, Tensor]:
    """The client's own model, as method.personal makes it: usually fine-tuned on its training data (spec 9.2).

    A sweep of epochs adds personalized@E."""
    return {"personalized": percent_correct(workspace.context, workspace.test_deck(clients), tensors, how.batch_size)}


@measure("benign", of="own")
def benign(workspace: Workspace, clients: Sequence[int], tensors: Tensors, how: Evaluation) -> dict[str, Tensor]:
    """The own models of the clients that do not attack, on their own test data (spec 9.6)."""
    found = percent_correct(workspace.context, workspace.test_deck(clients), tensors, how.batch_size)
    return {"benign": _of_honest(workspace, clients, found)}


@measure("backdoor", of="own", marked=True)
def backdoor(workspace: Workspace, clients: Sequence[int], tensors: Tensors, how: Evaluation) -> dict[str, Tensor]:
    """How often the own models of clients that do not attack take a marked test image for what attackers want (attack
    backdoor); less is better. Images of that class are left out."""
    return {"backdoor": _success(workspace, clients, tensors, how)}


@measure("backdoor_initial", of="clients", marked=True)
def backdoor_initial(
    workspace: Workspace, clients: Sequence[int], tensors: Tensors, how: Evaluation
) -> dict[str, Tensor]:
    """The same of the models that they hold before fine-tuning."""
    return {"backdoor_initial": _success(workspace, clients, tensors, how)}


def _success(workspace: Workspace, clients: Sequence[int], tensors: Tensors, how: Evaluation) -> Tensor:
    return _of_honest(
        workspace, clients, percent_correct(workspace.context, workspace.marked_deck(clients), tensors, how.batch_size)
    )


def _of_honest(workspace: Workspace, clients: Sequence[int], found: Tensor) -> Tensor:
    """NaN for those who attack."""
    hostile = torch.tensor([k in workspace.federation.malicious for k in clients], device=found.device)
    return found.masked_fill(hostile, torch.nan)


@measure("local_only", of="clients", trains_body=True)
def local_only(workspace: Workspace, clients: Sequence[int], tensors: Tensors, how: Evaluation) -> dict[str, Tensor]:
    """The client on its own test data had it trained alone, for as many epochs as the run has (rounds times local
    epochs): what taking part is worth to it. As expensive as a run in which everybody comes in every round."""
    alone = how.alone(workspace, clients)
    return {"local_only": percent_correct(workspace.context, workspace.test_deck(clients), alone, how.batch_size)}


@measure("local_only_best_on_test", of="clients", trains_body=True)
def local_only_best_on_test(
    workspace: Workspace, clients: Sequence[int], tensors: Tensors, how: Evaluation
) -> dict[str, Tensor]:
    """Not a fair measure: as local_only, with for each client the epoch that is best on the very test data that it is
    measured on, as FedBABU's code does (spec 5.1). It shows what that choice adds; compare nothing else by it."""
    deck = workspace.test_deck(clients)
    best = torch.full((len(clients),), torch.nan, device=deck.index.device)
    for models in how.alone_by_epoch(workspace, clients):
        best = torch.fmax(best, percent_correct(workspace.context, deck, models, how.batch_size))
    return {"local_only_best_on_test": best}


@measure("without_head", of="clients")
def without_head(workspace: Workspace, clients: Sequence[int], tensors: Tensors, how: Evaluation) -> dict[str, Tensor]:
    """The nearest of the client's own class means in feature space instead of the head (spec 9.3)."""
    templates, known = class_means(workspace, clients, tensors, how)

    def nearest(said: Output) -> Tensor:
        features = said.features
        if how.templates == "cosine":
            close = F.normalize(features, dim=-1) @ F.normalize(templates, dim=-1).transpose(1, 2)
        else:
            close = -torch.cdist(features, templates)
        return largest(close, known.unsqueeze(1))

    return {
        "without_head": percent_correct(
            workspace.context, workspace.test_deck(clients), tensors, how.batch_size, nearest
        )
    }


def class_means(
    workspace: Workspace, clients: Sequence[int], tensors: Tensors, how: Evaluation
) -> tuple[Tensor, Tensor]:
    """Mean feature per class of the client's training samples [G, C, d], and which classes it has [G, C].

    Not augmented, and shuffled: class after class, as the code has them, batch statistics of BatchNorm are skewed
    (spec 9.3)."""
    if how.template_order == "shuffled":
        total, count = class_sums(
            workspace, clients, tensors, how.batch_size, Shuffle(how.shuffle.seed, "templates", 0)
        )
    else:
        deck = workspace.train_deck(clients).by_class()
        total, count = looking.class_sums(workspace.context, deck, tensors, how.batch_size, None)
    return total / count.clamp(min=1).unsqueeze(-1), count > 0


def class_sums(
    workspace: Workspace, clients: Sequence[int], tensors: Tensors, batch_size: int, order: Shuffle | None
) -> tuple[Tensor, Tensor]:
    """Features of the clients' training samples summed by class [G, C, d], and how many there are [G, C]."""
    return looking.class_sums(workspace.context, workspace.train_deck(clients), tensors, batch_size, order)


@measure("generic", of="server")
def generic(workspace: Workspace, clients: Sequence[int], tensors: Tensors, how: Evaluation) -> dict[str, Tensor]:
    """The generic model on the whole test set (spec 9.8)."""
    return {"generic": torch.cat([hit.sum(dim=1) for _, hit in generic_hits(workspace, clients, tensors, how)])}


@torch.no_grad()
def generic_hits(
    workspace: Workspace, numbers: Sequence[int], tensors: Tensors, how: Evaluation
) -> Iterator[tuple[Batch, Tensor]]:
    """Batches of the whole test set, by their numbers and some at a time, and 1 for each sample that the first model
    answers rightly [·, B]."""
    one, deck = (
        {name: tensor[:1] for name, tensor in tensors.items()},
        workspace.test_stretches(numbers, how.batch_size),
    )
    for batch, said in side_by_side(workspace.context, deck, one, how.batch_size):
        yield batch, _hit(batch, generic_answer(said))
