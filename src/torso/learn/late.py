"""A plain step in which large linear layers move by the factors of their gradients.

The gradient of a linear layer is a product of two matrices with one row for each sample. In a batch of ten it is a
thousand times as large as they are, and to write and read it takes longer than all that is computed with it. So SGD
without momentum takes the product and the step in one pass over the weights.
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

LARGE = 1 << 23  # numbers of a weight for which that is worth it …
_MOST = 64  # … and samples of a batch


def step(learner: Learner, batch: Batch, casts: Casts) -> Tensor:
    """A step of SGD on a batch; returns the summed losses [G]. The same as `learner.at` and `learner.move`.

    `casts`: of the step before, where nothing but that has moved the weights; else empty."""
    names = _large(learner, batch)
    with left_as_factors([learner.tensors[name] for name in names], casts) as factors:
        grads, total = learner.at(learner.tensors, batch)
    alone: dict[str, Factors] = {}
    for name in names:
        found = factors[learner.tensors[name].data_ptr()]
        if len(found) == 1 and not any(grads[name].stride()):
            alone[name] = found[0]
        else:  # the loss depends on it in other ways, too
            casts.pop(learner.tensors[name].data_ptr(), None)
            for each in found:
                grads[name] = grads[name] + each.product(grads[name].dtype)
    learner.move({name: grad for name, grad in grads.items() if name not in alone}, batch)
    for name, each in alone.items():
        _move(learner, name, each, batch.active, casts.get(learner.tensors[name].data_ptr()))
    return total


@torch.no_grad()
def _move(learner: Learner, name: str, factors: Factors, active: Tensor | None, cast: Tensor | None) -> None:
    tensor, rate, decay = learner.tensors[name], learner.rates[name], learner.sgd.weight_decay
    if is_fast(tensor):
        from torso.learn.sgd_kernel import step_by_product

        step_by_product(tensor, *factors, active, rate, decay, cast)
        return
    Sgd(0.0, decay).step({name: tensor}, {name: factors.product(tensor.dtype)}, {name: rate}, active)
    if cast is not None:
        cast.copy_(tensor)


def _large(learner: Learner, batch: Batch) -> tuple[str, ...]:
    """Weights that may move like this."""
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
