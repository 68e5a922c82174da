"""The gradient of each client's own loss, for G clients at once. Clients do not interact."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from torso.data.batches import Batch
from torso.errors import RequestError, RunFailed
from torso.learn.objectives import Objective, cross_entropy
from torso.learn.stacked import padded
from torso.learn.teachers import TeacherObjective
from torso.nets import Network, Output, Tensors, apply
from torso.nets.compute import allows_padding, drawing, draws
from torso.nets.draws import Seeded
from torso.nets.lora import is_adapter
from torso.registry import Registry

Gradients = Callable[[Network, Tensors, Sequence[str], Batch, Objective, Tensor], tuple[Tensors, Tensor]]
"""(network, tensors [G, *], names, batch, objective, counts) → gradients [G, *] and summed losses [G]. They may have
rows for the first clients only, if these are all that have samples in the batch."""


def leaves_of(tensors: Tensors, names: Sequence[str]) -> Tensors:
    """The named tensors as the leaves of a new graph: same memory, no history."""
    return {name: tensors[name].detach().requires_grad_() for name in names}


def gradients_at(leaves: Tensors, loss: Tensor, alone: bool = False) -> Tensors:
    """The gradient of a loss at each leaf; refuses a leaf on which the loss does not depend. `alone`: nothing else that
    the loss depends on needs a gradient, so that `backward` can be used. It does not have to search for the path to
    each leaf, which saves a tenth of the backward pass."""
    if not loss.requires_grad:
        raise not_reached(tuple(leaves))
    if alone:
        loss.backward()  # type: ignore[no-untyped-call]
        grads = [leaf.grad for leaf in leaves.values()]
        for leaf in leaves.values():
            leaf.grad = None
    else:
        grads = list(torch.autograd.grad(loss, list(leaves.values()), allow_unused=True))
    found = {name: grad for name, grad in zip(leaves, grads, strict=True) if grad is not None}
    if len(found) < len(leaves):
        raise not_reached([name for name in leaves if name not in found])
    return found


def not_reached(names: Sequence[str], key: str = "method.train") -> RequestError:
    """The error for tensors that train but do not change the loss."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    said = f"{key} trains {', '.join(names[:3])}{more}, which the loss does not depend on."
    if all(map(is_adapter, names)):
        return RequestError(
            f"{said} The body reads the weights of such a layer without calling it, or does not use the layer. Choose "
            "others by model.lora.targets"
        )
    return RequestError(
        f"{said} Freeze what is not used (parameter.requires_grad_(False)), or leave it out: a part that holds it, "
        "taken away, as in all-PART"
    )


def check_gradients(axis: Registry[Any], choice: object, grads: Tensors, like: Tensors) -> None:
    """Refuse gradients from a user's part (`choice`, on an axis) if their shapes are not those of `like`. Without this
    check, a tensor without the client dimension would be broadcast silently."""
    for name, grad in grads.items():
        what = f"{axis.key} = {axis.name_of(choice)!r} gives a gradient of {name!r}"
        if name not in like:
            raise RunFailed(f"{what}, which does not learn here. Expected: some of {', '.join(like)}")
        if not isinstance(grad, Tensor):
            raise RunFailed(f"{what} that is no tensor but {type(grad).__name__}. Expected: a tensor")
        if grad.shape != like[name].shape:
            raise RunFailed(
                f"{what} of shape {list(grad.shape)}. Expected: {list(like[name].shape)}, clients first (here "
                f"{len(like[name])})"
            )


def losses_of(said: Output, batch: Batch, objective: Objective, counts: Tensor) -> Tensor:
    """The losses [G, B] of a network's output. Further heads add their own losses; no gradient of these reaches the
    rest of the network, so that the sum can be one loss (spec 6.2)."""
    losses = objective.of_output(said, batch, counts)
    if isinstance(objective, TeacherObjective) and objective.teachers:
        assert batch.taught is not None, "the batch lacks the teachers' outputs that the loss needs"
        losses = losses + objective.against(said, batch.labels, batch.taught)
        if (whole := objective.of_batch(said, batch.real, batch.taught)) is not None:
            losses = losses + whole.unsqueeze(1)
    return with_further_heads(losses, said, batch)


def with_further_heads(losses: Tensor, said: Output, batch: Batch) -> Tensor:
    """Losses [G, B] plus those of a personal head and of an auxiliary head, if the network has them."""
    for logits in (said.personal, said.auxiliary_logits):
        losses = losses if logits is None else losses + cross_entropy(logits, batch.labels)
    return losses


def means(losses: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """The mean loss over each client's real samples [G], with its graph, and the sum without a graph [G]."""
    if batch.real is None:
        mean = losses.mean(dim=1)
        return mean, mean.detach() * losses.shape[1]
    # where, not a product: padding may have a label that the client lacks, and so an infinite loss
    total = torch.where(batch.real > 0, losses, 0.0).sum(dim=1)
    return total / batch.real.sum(dim=1).clamp(min=1), total.detach()


def gradients(
    net: Network, tensors: Tensors, names: Sequence[str], batch: Batch, objective: Objective, counts: Tensor
) -> tuple[Tensors, Tensor]:
    """Gradients [G, *] of each client's mean loss, and its summed losses [G]; zeros for clients without samples."""
    grads, total = leading_gradients(net, tensors, names, batch, objective, counts)
    clients = len(batch.labels)
    return {name: padded(grad, clients) for name, grad in grads.items()}, padded(total, clients)


def leading_gradients(
    net: Network, tensors: Tensors, names: Sequence[str], batch: Batch, objective: Objective, counts: Tensor
) -> tuple[Tensors, Tensor]:
    """As `gradients`, but with rows only for the first clients if the others have no samples in the batch."""
    if batch.lead is not None:
        tensors, counts = {n: t[: batch.lead] for n, t in tensors.items()}, counts[: batch.lead]
        batch = batch.first(batch.lead)
    if _is_for_one(net, batch) and (filled := net.slots.take(net, tensors, names)):
        return _of_one(net, *filled, batch, objective, counts)
    leaves = leaves_of(tensors, names)
    said = apply(net, {**tensors, **leaves}, batch.inputs, batch.real, batch.keys)
    mean, total = means(losses_of(said, batch, objective, counts), batch)
    return gradients_at(leaves, mean.sum()), total


def _is_for_one(net: Network, batch: Batch) -> bool:
    """Whether the network's own parameters can hold the client's tensors, which is faster than a functional call: a
    body of another library, and a stack of one client."""
    if net.body.native or len(batch.labels) != 1:
        return False
    if batch.real is not None:
        return allows_padding(net, batch.inputs)
    return batch.keys is not None or Seeded.here() or not draws(net, batch.inputs)


def _of_one(
    net: Network, filled: Network, leaves: Tensors, batch: Batch, objective: Objective, counts: Tensor
) -> tuple[Tensors, Tensor]:
    """The gradients [1, *] of one client.

    `filled`: a copy of `net` with the client's tensors in it; `leaves` [*]: those whose gradients are computed."""
    x = batch.inputs
    keyed = isinstance(batch.keys, tuple) and draws(net, x) and not Seeded.here()
    with drawing(net, x.device, int(batch.keys[0])) if keyed and batch.keys is not None else nullcontext():
        said = filled(x, stacked=True)
    mean, total = means(losses_of(said, batch, objective, counts), batch)
    recording = x.is_cuda and torch.cuda.is_current_stream_capturing()
    found = gradients_at(leaves, mean.squeeze(0), alone=not recording)
    return {name: grad.unsqueeze(0) for name, grad in found.items()}, total
