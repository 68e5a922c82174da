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
from torso.learn import outputs
from torso.learn.objectives import cross_entropy
from torso.learn.outputs import look, outputs_by_row, samples_per_pass
from torso.learn.task import LocalContext
from torso.measure.base import Evaluation, measure
from torso.nets import Output, Tensors

NO_CLASS = -1  # a prediction that is always wrong: no label has this value


def largest(scores: Tensor, among: Tensor | None = None) -> Tensor:
    """The class [G, B] with the largest score [G, B, C], among the classes for which `among` [G, 1, C] is true.

    NO_CLASS if a score is not finite: argmax would give class 0 for a model of NaN, and count that as right for some
    samples."""
    allowed = scores if among is None else scores.masked_fill(~among, -torch.inf)
    return allowed.argmax(dim=-1).masked_fill(~scores.isfinite().all(dim=-1), NO_CLASS)


def own_prediction(said: Output) -> Tensor:
    """The class [G, B] that the client predicts: by its personal logits if the head is dual."""
    return largest(said.own)


def generic_prediction(said: Output) -> Tensor:
    """The class [G, B] that the generic head predicts."""
    return largest(said.logits)


@torch.no_grad()
def percent_correct(
    context: LocalContext,
    deck: Deck,
    tensors: Tensors,
    batch_size: int,
    answer: Callable[[Output], Tensor] = own_prediction,
) -> Tensor:
    """Accuracy [G] in percent on a deck. `answer` makes predicted classes [G, B] of the network's output; the default
    is the class with the largest logit."""
    right = torch.zeros(len(deck.clients), device=deck.index.device)
    many = samples_per_pass(context, deck, batch_size)
    for batch, said in look(context, deck.in_order(many, context.lens), tensors, many):
        right += _hit(batch, answer(said)).sum(dim=1)
    return 100 * right / on_device(right.device, deck.sizes)  # 0 / 0 is NaN: nothing to measure on


def _hit(batch: Batch, answer: Tensor) -> Tensor:
    """1 for each sample whose prediction is its label, 0 for others and for padding [G, B]."""
    hit = (answer == batch.labels).float()
    return hit if batch.real is None else hit * batch.real


@torch.no_grad()
def mean_loss(context: LocalContext, deck: Deck, tensors: Tensors, batch_size: int) -> Tensor:
    """Mean cross-entropy [G] of the logits that the clients predict by, over a deck; 0 for a client without samples."""
    total = torch.zeros(len(deck.clients), device=deck.index.device)
    many = samples_per_pass(context, deck, batch_size)
    for batch, said in look(context, deck.in_order(many, context.lens), tensors, many):
        losses = cross_entropy(said.own, batch.labels)
        total += (losses if batch.real is None else losses * batch.real).sum(dim=1)
    return total / on_device(total.device, deck.sizes).clamp(min=1)


@measure("initial", of="clients")
def initial(workspace: Workspace, clients: Sequence[int], tensors: Tensors, how: Evaluation) -> dict[str, Tensor]:
    """Accuracy of the model that a client holds, before fine-tuning, on the client's own test data (spec 9.1)."""
    return {"initial": percent_correct(workspace.context, workspace.test_deck(clients), tensors, how.batch_size)}


@measure("personalized", of="own", swept=True)
def personalized(workspace: Workspace, clients: Sequence[int], tensors: Tensors, how: Evaluation) -> dict[str, Tensor]:
    """Accuracy of the client's own model, as method.personal makes it, on its own test data. Usually this model is
    fine-tuned on the client's training data (spec 9.2).

    A sweep of epochs adds personalized@E."""
    return {"personalized": percent_correct(workspace.context, workspace.test_deck(clients), tensors, how.batch_size)}


@measure("benign", of="own")
def benign(workspace: Workspace, clients: Sequence[int], tensors: Tensors, how: Evaluation) -> dict[str, Tensor]:
    """Accuracy of the own models of honest clients, on their own test data (spec 9.6)."""
    found = percent_correct(workspace.context, workspace.test_deck(clients), tensors, how.batch_size)
    return {"benign": _of_honest(workspace, clients, found)}


@measure("backdoor", of="own", marked=True)
def backdoor(workspace: Workspace, clients: Sequence[int], tensors: Tensors, how: Evaluation) -> dict[str, Tensor]:
    """Success of a backdoor: how often the own models of honest clients classify a test image with the trigger as the
    attackers' target (attack backdoor); less is better. Images of the target class are left out."""
    return {"backdoor": _success(workspace, clients, tensors, how)}


@measure("backdoor_initial", of="clients", marked=True)
def backdoor_initial(
    workspace: Workspace, clients: Sequence[int], tensors: Tensors, how: Evaluation
) -> dict[str, Tensor]:
    """As backdoor, for the models that honest clients hold before fine-tuning."""
    return {"backdoor_initial": _success(workspace, clients, tensors, how)}


def _success(workspace: Workspace, clients: Sequence[int], tensors: Tensors, how: Evaluation) -> Tensor:
    """How often honest clients' models [G, *] predict the target for images with the trigger [G], in percent."""
    found = percent_correct(workspace.context, workspace.marked_deck(clients), tensors, how.batch_size)
    return _of_honest(workspace, clients, found)


def _of_honest(workspace: Workspace, clients: Sequence[int], found: Tensor) -> Tensor:
    """The values [G] with NaN for malicious clients."""
    hostile = torch.tensor([k in workspace.federation.malicious for k in clients], device=found.device)
    return found.masked_fill(hostile, torch.nan)


@measure("local_only", of="clients", trains_body=True)
def local_only(workspace: Workspace, clients: Sequence[int], tensors: Tensors, how: Evaluation) -> dict[str, Tensor]:
    """Accuracy on the client's own test data of a model that the client trained alone, for as many epochs as the run
    has (rounds times local epochs). The difference to personalized is what taking part gains. It costs as much as a run
    in which all clients take part in every round."""
    alone = how.alone(workspace, clients)
    return {"local_only": percent_correct(workspace.context, workspace.test_deck(clients), alone, how.batch_size)}


@measure("local_only_best_on_test", of="clients", trains_body=True)
def local_only_best_on_test(
    workspace: Workspace, clients: Sequence[int], tensors: Tensors, how: Evaluation
) -> dict[str, Tensor]:
    """Not a fair measure: as local_only, but each client's best epoch is chosen on the test data that it is measured
    on, as in FedBABU's code (spec 5.1). It shows what this choice adds; do not compare other measures with it."""
    deck = workspace.test_deck(clients)
    best = torch.full((len(clients),), torch.nan, device=deck.index.device)
    for models in how.alone_by_epoch(workspace, clients):
        best = torch.fmax(best, percent_correct(workspace.context, deck, models, how.batch_size))
    return {"local_only_best_on_test": best}


@measure("without_head", of="clients")
def without_head(workspace: Workspace, clients: Sequence[int], tensors: Tensors, how: Evaluation) -> dict[str, Tensor]:
    """Accuracy with the nearest of the client's own class means in feature space instead of the head (spec 9.3)."""
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
    """The mean feature of each class over the client's training samples [G, C, d], and which classes it has [G, C].

    The samples are not augmented, and shuffled. Class after class, as in the authors' code (`template_order` "code"),
    the batch statistics of BatchNorm would be skewed (spec 9.3)."""
    if how.template_order == "shuffled":
        order = Shuffle(how.shuffle.seed, "templates", 0)
        total, count = class_sums(workspace, clients, tensors, how.batch_size, order)
    else:
        deck = workspace.train_deck(clients).by_class()
        total, count = outputs.class_sums(workspace.context, deck, tensors, how.batch_size, None)
    return total / count.clamp(min=1).unsqueeze(-1), count > 0


def class_sums(
    workspace: Workspace, clients: Sequence[int], tensors: Tensors, batch_size: int, order: Shuffle | None
) -> tuple[Tensor, Tensor]:
    """The sums of features by class [G, C, d] over the clients' training samples, and the numbers of samples [G, C]."""
    return outputs.class_sums(workspace.context, workspace.train_deck(clients), tensors, batch_size, order)


@measure("generic", of="server")
def generic(workspace: Workspace, clients: Sequence[int], tensors: Tensors, how: Evaluation) -> dict[str, Tensor]:
    """Accuracy of the generic model on the whole test set (spec 9.8)."""
    return {"generic": torch.cat([hit.sum(dim=1) for _, hit in generic_hits(workspace, clients, tensors, how)])}


@torch.no_grad()
def generic_hits(
    workspace: Workspace, numbers: Sequence[int], tensors: Tensors, how: Evaluation
) -> Iterator[tuple[Batch, Tensor]]:
    """The batches with these numbers of the whole test set, several together as rows, and 1 for each sample that the
    generic model classifies correctly [·, B]. The rows of `tensors` are all the generic model; the first is used."""
    generic_model = {name: tensor[:1] for name, tensor in tensors.items()}
    deck = workspace.test_stretches(numbers, how.batch_size)
    for batch, said in outputs_by_row(workspace.context, deck, generic_model, how.batch_size):
        yield batch, _hit(batch, generic_prediction(said))
