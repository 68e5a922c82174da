"""BatchNorm layers whose batch counters are all increased together, after the forward pass of their network.

Each of PyTorch's layers adds 1 to its own counter at every step. That takes one kernel launch per layer, for a number
that only a layer without momentum reads. Here it takes one launch per network. Parameters, buffers, their names and
values, and the arithmetic are PyTorch's.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


class _Counted(_BatchNorm):
    """A BatchNorm layer that notes its counter instead of increasing it."""

    noted: list[Tensor]  # counters of the layers that were called; all layers of a network share the list

    def forward(self, x: Tensor) -> Tensor:
        # the dictionaries are read directly, because attribute access of a module is slow
        buffers, parameters, momentum = self._buffers, self._parameters, self.momentum
        count = buffers["num_batches_tracked"]
        if not self.training or count is None or momentum is None or not self.track_running_stats:
            return super().forward(x)
        if x.numel() <= x.shape[1]:
            return super().forward(x)  # raises PyTorch's error about one value per channel
        self._check_input_dim(x)  # type: ignore[no-untyped-call]
        self.noted.append(count)
        tensors = parameters["weight"], parameters["bias"], buffers["running_mean"], buffers["running_var"]
        return torch.batch_norm(x, *tensors, True, momentum, self.eps, torch.backends.cudnn.enabled)


class _Counted1d(_Counted, nn.BatchNorm1d):
    pass


class _Counted2d(_Counted, nn.BatchNorm2d):
    pass


class _Counted3d(_Counted, nn.BatchNorm3d):
    pass


_KINDS: dict[type[nn.Module], type[_Counted]] = {
    nn.BatchNorm1d: _Counted1d,
    nn.BatchNorm2d: _Counted2d,
    nn.BatchNorm3d: _Counted3d,
}


def count_together(net: nn.Module) -> None:
    """Change a network in place so that its BatchNorm layers count after its forward pass.

    Call it on a copy. Subclasses of PyTorch's layers stay as they are."""
    noted: list[Tensor] = []
    for module in net.modules():
        if kind := _KINDS.get(type(module)):
            module.__class__ = kind
            cast("_Counted", module).noted = noted
    if any(isinstance(module, _Counted) for module in net.modules()):
        net.register_forward_hook(lambda *_: _count(noted))


def _count(noted: list[Tensor]) -> None:
    """Increase the noted counters, and empty the list."""
    with torch.no_grad():
        if len({id(count) for count in noted}) == len(noted):
            if noted:
                torch._foreach_add_(noted, 1)
        else:  # a layer is used twice, and must count twice
            for count in noted:
                count.add_(1)
    noted.clear()
