"""Accuracies by classes: weighted by a client's mix of classes (P-FL, spec 9.4), or on classes that it lacks (9.5).

G clients, B samples, C classes; models are stacked [G, *].
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from torch import Tensor

from torso.data.batches import Batch
from torso.engine import Workspace
from torso.learn.outputs import look
from torso.measure.accuracy import generic_hits, own_prediction
from torso.measure.base import Evaluation, measure
from torso.nets import Output, Tensors


@torch.no_grad()
def look_at_test(
    workspace: Workspace, count: int, tensors: Tensors, batch_size: int, numbers: Iterable[int] | None = None
) -> Iterator[tuple[Batch, Output]]:
    """The outputs of `count` models [count, *] for the whole test set in its fixed order, or for the batches with these
    numbers."""
    if numbers is None:
        numbers = range(-(-len(workspace.federation.test.labels) // batch_size))
    for number in numbers:
        stretch = workspace.test_stretches([number], batch_size)
        (batch,) = stretch.in_order(batch_size, workspace.context.lens)
        for_all = Batch(batch.inputs.expand(count, *batch.inputs.shape[1:]), batch.labels.expand(count, -1))
        yield from look(workspace.context, iter([for_all]), tensors)


@torch.no_grad()
def right_by_class(
    workspace: Workspace,
    clients: Sequence[int],
    tensors: Tensors,
    batch_size: int,
    answer: Callable[[Output], Tensor] = own_prediction,
) -> tuple[Tensor, Tensor]:
    """The correct predictions of G models on the whole test set by class [G, C], and the numbers of samples [C]."""
    labels, classes = workspace.federation.test.labels, workspace.context.classes
    right = torch.zeros(len(clients), classes, device=labels.device)
    for batch, said in look_at_test(workspace, len(clients), tensors, batch_size):
        right.scatter_add_(1, batch.labels, (answer(said) == batch.labels).float())
    return right, torch.bincount(labels, minlength=classes).float()


def weighted_accuracy(right: Tensor, there: Tensor, counts: Tensor) -> Tensor:
    """P-FL [G] in percent: Σ_c p(c)·right_c / Σ_c p(c)·n_c, from correct predictions `right` [G, C] or [C], test
    samples `there` [C] and each client's training samples `counts` [G, C] (spec 9.4). NaN for a client without training
    samples."""
    mix = counts / counts.sum(dim=1, keepdim=True)
    return 100 * (mix * right).sum(dim=1) / (mix * there).sum(dim=1)


def percent_by_mix(
    workspace: Workspace,
    clients: Sequence[int],
    tensors: Tensors,
    batch_size: int,
    answer: Callable[[Output], Tensor] = own_prediction,
) -> Tensor:
    """P-FL [G]: accuracy on the whole test set, each sample weighted by the client's share of its class (spec 9.4)."""
    right, there = right_by_class(workspace, clients, tensors, batch_size, answer)
    return weighted_accuracy(right, there, workspace.train_deck(clients).class_counts(workspace.context.classes))


@measure("generic_as_personal", of="mixes")
def generic_as_personal(
    workspace: Workspace, clients: Sequence[int], tensors: Tensors, how: Evaluation
) -> dict[str, Tensor]:
    """P-FL of the generic model: accuracy on the whole test set, each sample weighted by the client's share of its
    class (spec 9.4).

    Ditto's GM (spec 9.6)."""
    found = [
        hit.new_zeros(len(hit), workspace.context.classes).scatter_add_(1, batch.labels, hit)
        for batch, hit in generic_hits(workspace, clients, tensors, how)
    ]
    return {"generic_as_personal": torch.cat(found)}


@measure("personal", of="own", whole_test=True)
def personal(workspace: Workspace, clients: Sequence[int], tensors: Tensors, how: Evaluation) -> dict[str, Tensor]:
    """P-FL of the clients' own models, as method.personal makes them (spec 9.4). Ditto's PM (spec 9.6)."""
    return {"personal": percent_by_mix(workspace, clients, tensors, how.batch_size)}


@measure("local", of="local", whole_test=True)
def local(workspace: Workspace, clients: Sequence[int], tensors: Tensors, how: Evaluation) -> dict[str, Tensor]:
    """P-FL of the client's model after one more visit, before aggregation. Ditto's LM (spec 9.6)."""
    return {"local": percent_by_mix(workspace, clients, tensors, how.batch_size)}


@torch.no_grad()
def right_by_side(
    workspace: Workspace, clients: Sequence[int], tensors: Tensors, batch_size: int
) -> tuple[Tensor, Tensor]:
    """Correct predictions on the clients' own test samples [G, 2] and the numbers of samples [G, 2]: for classes that
    the client does not train on (0), and for those that it trains on (1)."""
    deck, context = workspace.test_deck(clients), workspace.context
    known = workspace.train_deck(clients).class_counts(context.classes) > 0
    right = torch.zeros(len(clients), 2, device=deck.index.device)
    there = torch.zeros_like(right)
    for batch, said in look(context, deck.in_order(batch_size, context.lens), tensors, batch_size):
        side = known.gather(1, batch.labels).long()
        real = torch.ones_like(side, dtype=right.dtype) if batch.real is None else batch.real
        right.scatter_add_(1, side, (own_prediction(said) == batch.labels) * real)
        there.scatter_add_(1, side, real)
    return right, there


@measure("id_before", "ood_before", of="clients")
def before(workspace: Workspace, clients: Sequence[int], tensors: Tensors, how: Evaluation) -> dict[str, Tensor]:
    """Accuracy of the model that a client holds, on its own test samples of classes that it trains on (id) and of other
    classes (ood). A client without samples of a kind is left out (spec 9.5)."""
    right, there = right_by_side(workspace, clients, tensors, how.batch_size)
    outside, inside = (100 * right / there).unbind(dim=1)  # 0 / 0 is NaN: nothing to measure on
    return {"id_before": inside, "ood_before": outside}


@measure("id_after", "ood_after", of="own")
def after(workspace: Workspace, clients: Sequence[int], tensors: Tensors, how: Evaluation) -> dict[str, Tensor]:
    """Accuracy of the client's own model, as method.personal makes it, on its own test samples of classes that it
    trains on (id) and of other classes (ood) (spec 9.5)."""
    found = before(workspace, clients, tensors, how)
    return {"id_after": found["id_before"], "ood_after": found["ood_before"]}
