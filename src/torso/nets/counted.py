"""BatchNorm that counts its batches together with all others of its network.

PyTorch's layers each add 1 to a counter of their own at every step: as many launches as there are layers, for a number
that only a layer without momentum reads. Here a network does it in one launch after its forward pass. Parameters,
buffers, their names and their values are PyTorch's; so is the arithmetic.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


class _Counted(_BatchNorm):
    noted: list[Tensor]  # counters of the layers that were called; one list for a network

    def forward(self, x: Tensor) -> Tensor:
        held, own, momentum = self._buffers, self._parameters, self.momentum
        count = held["num_batches_tracked"]
        if not self.training or count is None or momentum is None or not self.track_running_stats:
            return super().forward(x)
        if x.numel() <= x.shape[1]:
            return super().forward(x)  # which says what is wrong with one value per channel
        self._check_input_dim(x)  # type: ignore[no-untyped-call]
        self.noted.append(count)
        given = own["weight"], own["bias"], held["running_mean"], held["running_var"]
        return torch.batch_norm(x, *given, True, momentum, self.eps, torch.backends.cudnn.enabled)


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
    """Let the BatchNorm layers of a network, a copy of one's own, count after its forward pass. Kinds that somebody has
    made from PyTorch's stay as they are."""
    noted: list[Tensor] = []
    for module in net.modules():
        if kind := _KINDS.get(type(module)):
            module.__class__ = kind
            cast("_Counted", module).noted = noted
    if any(isinstance(module, _Counted) for module in net.modules()):
        net.register_forward_hook(lambda *_: _count(noted))


def _count(noted: list[Tensor]) -> None:
    with torch.no_grad():
        if len({id(count) for count in noted}) == len(noted):
            torch._foreach_add_(noted, 1) if noted else None
        else:  # a layer that is used twice
            for count in noted:
                count.add_(1)
    noted.clear()
