"""A plain step that updates large linear layers without storing their gradients.

The gradient of a linear layer is a product of two matrices (its factors) with one row for each sample. In a batch of
ten it is a thousand times as large as the factors, and writing and reading it takes longer than the computation. So SGD
without momentum computes the product and the step in one pass over the weights.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torso.data.batches import Batch
from torso.fast import is_fast
from torso.learn.drift import NoDrift
from torso.learn.sgd import Sgd
from torso.learn.steps import Learner
from torso.nets.stacked_linear import Casts, Factors, left_as_factors

LARGE = 1 << 23  # a weight with at least this many numbers is updated by factors …
_MOST = 64  # … if the batch has at most this many samples


def factored_step(learner: Learner, batch: Batch, casts: Casts) -> Tensor:
    """One step of SGD on a batch, with the result of `learner.at` and `learner.move`; returns the summed losses [G].

    `casts`: the weights in 16 bits that the previous step left, if only that step has changed the weights; else
    empty."""
    names = _large(learner, batch)
    with left_as_factors([learner.tensors[name] for name in names], casts) as factors:
        grads, total = learner.at(learner.tensors, batch)
    alone: dict[str, Factors] = {}
    for name in names:
        found = factors[learner.tensors[name].data_ptr()]
        if len(found) == 1 and not any(grads[name].stride()):
            alone[name] = found[0]
        else:  # the loss also depends on the weight in other ways
            casts.pop(learner.tensors[name].data_ptr(), None)
            for each in found:
                grads[name] = grads[name] + each.product(grads[name].dtype)
    learner.move({name: grad for name, grad in grads.items() if name not in alone}, batch)
    for name, each in alone.items():
        _move(learner, name, each, batch.active, casts.get(learner.tensors[name].data_ptr()))
    return total


@torch.no_grad()
def _move(learner: Learner, name: str, factors: Factors, active: Tensor | None, cast: Tensor | None) -> None:
    """One step of SGD for a weight whose gradient is the product of `factors`. `cast` gets the new weight in 16
    bits."""
    tensor = learner.tensors[name]
    rate = learner.rates[name]
    decay = learner.sgd.weight_decay
    if is_fast(tensor):
        from torso.learn.sgd_kernel import step_by_product

        step_by_product(tensor, *factors, active, rate, decay, cast)
        return
    Sgd(0.0, decay).step({name: tensor}, {name: factors.product(tensor.dtype)}, {name: rate}, active)
    if cast is not None:
        cast.copy_(tensor)


def _large(learner: Learner, batch: Batch) -> tuple[str, ...]:
    """The weights that can be updated by the factors of their gradients."""
    if (
        batch.lead is not None
        or learner.sgd.momentum
        or type(learner.settings.drift) is not NoDrift
        or batch.labels.shape[1] > _MOST
    ):
        return ()
    return tuple(name for name in learner.names if name in learner.rates and _is_large(learner.tensors[name]))


def _is_large(tensor: Tensor) -> bool:
    return tensor.ndim == 3 and tensor.numel() >= LARGE and tensor.is_contiguous() and tensor.dtype == torch.float32
