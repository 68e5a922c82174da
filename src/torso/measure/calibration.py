"""The expected calibration error: how far a model's confidence differs from its accuracy (spec 9.10).

G clients, B samples, C classes, K bins of equal width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from torso.data.batches import Batch
from torso.data.sending import on_device
from torso.engine import Workspace
from torso.learn.outputs import look, outputs_by_row
from torso.measure.base import Evaluation, measure
from torso.nets import Output, Tensors


def own_logits(said: Output) -> Tensor:
    """The logits that the client predicts by."""
    return said.own


def generic_logits(said: Output) -> Tensor:
    """The logits of the generic head."""
    return said.logits


def confidence_gaps(
    looks: Iterable[tuple[Batch, Output]], bins: int, logits: Callable[[Output], Tensor], total: Tensor
) -> Tensor:
    """Confidence minus correctness (1 or 0), summed over the samples of each bin [G, K], added to `total` in place.

    The confidence p of a sample is its largest probability; it is in the bin ((b − 1)/K, b/K]. If the probabilities are
    not finite, the sample counts as wrong with confidence 1."""
    for batch, said in looks:
        confidence, predicted = logits(said).softmax(dim=-1).max(dim=-1)  # [G, B]
        finite = confidence.isfinite()
        confidence = confidence.masked_fill(~finite, 1.0)
        right = (predicted == batch.labels) & finite
        gap = confidence - right.to(confidence.dtype)
        place = ((confidence * bins).ceil().long() - 1).clamp(0, bins - 1)
        total.scatter_add_(1, place, gap if batch.real is None else gap * batch.real)
    return total


def error_of(gap: Tensor, samples: Tensor) -> Tensor:
    """ECE [G] in percent: Σ_b |Σ (confidence − correctness)| / n, from the sums of bins [G, K]; NaN without samples."""
    return 100 * gap.abs().sum(dim=1) / samples


@torch.no_grad()
def _of_clients(workspace: Workspace, clients: Sequence[int], tensors: Tensors, how: Evaluation) -> Tensor:
    """ECE [G] of the clients' models on their own test data."""
    deck = workspace.test_deck(clients)
    context = workspace.context
    nothing = torch.zeros(len(clients), how.bins, device=deck.index.device)
    looks = look(context, deck.in_order(how.batch_size, context.lens), tensors, how.batch_size)
    return error_of(confidence_gaps(looks, how.bins, own_logits, nothing), on_device(nothing.device, deck.sizes))


@measure("ece_initial", of="clients")
def ece_initial(workspace: Workspace, clients: Sequence[int], tensors: Tensors, how: Evaluation) -> dict[str, Tensor]:
    """Expected calibration error of the model that a client holds, on the client's own test data, in percent; less is
    better (spec 9.10)."""
    return {"ece_initial": _of_clients(workspace, clients, tensors, how)}


@measure("ece_personalized", of="own")
def ece_personalized(
    workspace: Workspace, clients: Sequence[int], tensors: Tensors, how: Evaluation
) -> dict[str, Tensor]:
    """Expected calibration error of the client's own model, as method.personal makes it, on its own test data; less is
    better (spec 9.10)."""
    return {"ece_personalized": _of_clients(workspace, clients, tensors, how)}


@measure("ece_generic", of="server")
@torch.no_grad()
def ece_generic(workspace: Workspace, clients: Sequence[int], tensors: Tensors, how: Evaluation) -> dict[str, Tensor]:
    """Expected calibration error of the generic model on the whole test set; less is better (spec 9.10)."""
    generic_model = {name: tensor[:1] for name, tensor in tensors.items()}
    deck = workspace.test_stretches(clients, how.batch_size)
    found = [
        confidence_gaps([(batch, said)], how.bins, generic_logits, said.logits.new_zeros(len(batch.labels), how.bins))
        for batch, said in outputs_by_row(workspace.context, deck, generic_model, how.batch_size)
    ]
    return {"ece_generic": torch.cat(found)}
