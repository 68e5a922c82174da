"""Layers that compute for one client or for G clients at once.

A layer is PyTorch's own, except that its parameters may have a leading client dimension (given through
`torch.func.functional_call`). Between layers the samples of all clients are concatenated:

G clients, B samples, C channels, H × W maps
stacked [G, B, C, H, W]   maps [G·B, C, H, W], client 0's samples first   flat [G, B, d]
real    [G, B], 1 for a sample and 0 for padding; None when there is no padding

So every operation on single samples (ReLU, pools, sums, concatenation) is PyTorch's own, and only layers with weights
have to separate the clients. Memory is channels-last. On CUDA the layers use fused kernels (`kernels/`), which must
give what the plain path gives.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from torso.fast import is_fast
from torso.nets.stacked_linear import stacked_linear

ALONE = 16  # from this many input channels on, cuDNN computes the convolution of one client (bench/looking.py)


def concatenated(x: Tensor) -> Tensor:
    """[G, B, C, H, W] -> [G·B, C, H, W]: the clients' samples concatenated; a view in the same memory format."""
    return x.flatten(0, 1)


def flat(x: Tensor, clients: int) -> Tensor:
    """[G·B, C, H, W] -> [G, B, C·H·W], each sample in the order of `torch.flatten`."""
    return x.flatten(1).view(clients, -1, x[0].numel())


def _side_by_side(x: Tensor, clients: int) -> Tensor:
    """[G·B, C, H, W] -> [B, G·C, H, W], so that a grouped convolution can compute for all clients."""
    return x.view(clients, -1, *x.shape[1:]).transpose(0, 1).flatten(1, 2)


def _one_by_one(x: Tensor, clients: int) -> Tensor:
    """[B, G·C, H, W] -> [G·B, C, H, W], the inverse of `_side_by_side`."""
    return x.view(x.shape[0], clients, -1, *x.shape[2:]).transpose(0, 1).flatten(0, 1)


class Conv2d(nn.Conv2d):
    """A convolution of maps [G·B, C, H, W], with zero padding only."""

    def forward(self, x: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias.view(len(self._stacked), -1)
        out, _ = self._compute(x, bias)
        return out

    def before_norm(self, x: Tensor, real: Tensor | None, counted: bool = True) -> tuple[Tensor, Tensor | None]:
        """The convolution without its bias, which the BatchNorm layer adds itself, and the statistics that this layer
        needs: if `counted` and a kernel can compute them, else None."""
        return self._compute(x, None, counted=counted, real=real)

    @property
    def _stacked(self) -> Tensor:
        return self.weight if self.weight.ndim == 5 else self.weight.unsqueeze(0)

    def _compute(
        self, x: Tensor, bias: Tensor | None, counted: bool = False, real: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """The map, and the statistics for BatchNorm (see `before_norm`). `bias`: [G, C]."""
        weight = self._stacked
        kind = self._kernel(len(weight), bias is not None) if is_fast(x) else "plain"
        if kind == "plain":
            flat_bias = None if bias is None else bias.flatten().to(x.dtype)
            return self._plain(x, weight.to(x.dtype), flat_bias), None
        x, padding, spare = self._padded(x)
        stride = self.stride[0]
        if kind == "depthwise":
            from torso.nets.kernels.depthwise import depthwise

            return depthwise(x, weight, stride, padding, spare), None
        from torso.nets.kernels.conv import convolution, pointwise

        if kind == "pointwise":
            return pointwise(x, weight.flatten(2)), None
        return convolution(x, weight, bias, stride, padding, counted, real, spare)

    def _padded(self, x: Tensor) -> tuple[Tensor, int, int]:
        """Arguments of the fused kernels: the map, its padding on every side, and the additional padding below and on
        the right."""
        return x, int(self.padding[0]), 0

    def _kernel(self, clients: int, with_bias: bool) -> Literal["pointwise", "depthwise", "dense", "plain"]:
        """Which fused kernel computes this layer; "plain": none does."""
        square = all(len(set(side)) == 1 for side in (self.kernel_size, self.stride, self.padding))
        if not square or self.dilation != (1, 1) or isinstance(self.padding, str):
            return "plain"
        if self._is_pointwise and not with_bias:
            return "pointwise"
        if self.groups > 1:
            is_depthwise = self.groups == self.in_channels == self.out_channels and not with_bias
            return "depthwise" if is_depthwise else "plain"
        return "plain" if clients == 1 and self.in_channels >= ALONE else "dense"

    def _plain(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The convolution by torch's operations. `weight`: [G, out, in, K, K]; `bias`: [G·out]."""
        clients = len(weight)
        if clients == 1:
            return self._alone(x, weight[0], bias)
        if x.device.type == "cpu":  # client by client: twice as fast as a grouped convolution
            biases = [None] * clients if bias is None else bias.chunk(clients)
            each = zip(x.chunk(clients), weight, biases, strict=True)
            return torch.cat([self._alone(*one) for one in each])
        x, groups = _side_by_side(x, clients), self.groups * clients
        out = F.conv2d(x, weight.flatten(0, 1), bias, self.stride, self.padding, self.dilation, groups)
        return _one_by_one(out, clients)

    def _alone(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The convolution of one client."""
        if self._is_pointwise and bias is None and x.shape[2] * x.shape[3] <= 4 and x.device.type == "cpu":
            # on a map of few pixels a linear layer is 1.2 to 1.5 times as fast as a convolution
            return F.linear(x.permute(0, 2, 3, 1), weight.view(weight.shape[:2])).permute(0, 3, 1, 2)
        return F.conv2d(x, weight, bias, self.stride, self.padding, self.dilation, self.groups)

    @property
    def _is_pointwise(self) -> bool:
        return self.kernel_size == self.stride == (1, 1) and self.groups == 1 and self.padding == (0, 0)


class SameConv2d(Conv2d):
    """A convolution with TensorFlow's padding `same`: a side becomes ceil(side / stride), and an odd row or column of
    zeros goes below or to the right."""

    def extra_repr(self) -> str:
        sizes = super().extra_repr()  # type: ignore[no-untyped-call]
        return f"{sizes}, zeros around to ceil(side / stride), an odd one below and on the right"

    def _zeros(self, x: Tensor) -> tuple[int, int, int, int]:
        """The zeros to add on the left, on the right, above and below."""
        kernel, stride = self.kernel_size[0], self.stride[0]

        def total(side: int) -> int:
            outputs = -(-side // stride)  # rounded up
            return max((outputs - 1) * stride + kernel - side, 0)

        height, width = x.shape[2:]
        across, down = total(width), total(height)
        return across // 2, across - across // 2, down // 2, down - down // 2

    def _padded(self, x: Tensor) -> tuple[Tensor, int, int]:
        left, right, above, below = self._zeros(x)
        if (left, right) == (above, below):
            return x, left, right - left
        return F.pad(x, (left, right, above, below)), 0, 0

    def _plain(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return super()._plain(F.pad(x, self._zeros(x)), weight, bias)


class Linear(nn.Linear):
    """A linear layer of flat features [G, B, d], or of any [..., d] if its weight has no client dimension."""

    def forward(self, x: Tensor) -> Tensor:
        if is_fast(x) and self.weight.ndim == 3:
            return stacked_linear(x, self.weight, self.bias)
        weight = self.weight.to(x.dtype)
        bias = None if self.bias is None else self.bias.to(x.dtype)
        if weight.ndim == 2:
            return F.linear(x, weight, bias)
        weight = weight.transpose(1, 2)
        return torch.bmm(x, weight) if bias is None else torch.baddbmm(bias.unsqueeze(1), x, weight)


class BatchNorm2d(nn.BatchNorm2d):
    """BatchNorm of maps: each client is normalised by the statistics of its own samples, without padding (spec 12.2).

    Without running statistics (`tracks` false) those of the batch are used in training and in evaluation. With them,
    training updates the buffers in place, also stacked ones that come through `functional_call`. A client with fewer
    than two values per channel, for example one whose samples are all padding, keeps its buffers.
    """

    def __init__(self, channels: int, tracks: bool, eps: float = 1e-5) -> None:
        super().__init__(channels, eps, track_running_stats=tracks)

    @property
    def tracks(self) -> bool:
        return self.running_mean is not None

    @property
    def by_batch(self) -> bool:
        """Whether the statistics of the batch are used, and not the running ones."""
        return self.training or not self.tracks

    @property
    def _clients(self) -> int:
        return self.weight.numel() // self.num_features

    def forward(self, x: Tensor, real: Tensor | None = None) -> Tensor:
        if not self.by_batch:
            return self._native(x, training=False)
        if is_fast(x):
            return self.fused(x, real)
        if real is None and x.shape[0] * x.shape[2] * x.shape[3] > self._clients:
            return self._native(x, training=True)
        return self._by_hand(x, real)

    def fused(
        self,
        x: Tensor,
        real: Tensor | None,
        before: Tensor | None = None,
        sums: Tensor | None = None,
        relu: bool = False,
        pool: int = 1,
        cap: float = 0.0,
    ) -> Tensor:
        """BatchNorm, a pool and ReLU in one pass by a kernel. By running statistics the result has no gradient.

        `before`: a bias that is still to be added to x. `sums`: the statistics of x, if they are known. `pool`: the
        side of the pool. `cap`: the largest value that ReLU lets through; 0: no limit."""
        from torso.nets.kernels.norm import by_known, normalise

        clients = self._clients
        weight, bias = self.weight.view(clients, -1), self.bias.view(clients, -1)
        if not self.by_batch and self.running_mean is not None and self.running_var is not None:
            mean, var = self.running_mean.view(clients, -1), self.running_var.view(clients, -1)
            known = None if before is None else before.view(clients, -1)
            return by_known(x, mean, var, weight, bias, known, self.eps, relu, pool, cap)
        out, mean, var = normalise(x, weight, bias, before, real, sums, self.eps, relu, pool, cap)
        if self.tracks:
            mean = mean if before is None else mean + before.detach().view(clients, -1)
            samples = mean.new_full((clients,), x.shape[0] / clients) if real is None else real.sum(1)
            self._move(mean, var, samples * (x.shape[2] * x.shape[3]))
        return out

    def _native(self, x: Tensor, training: bool) -> Tensor:
        """BatchNorm by torch's operation, without padding."""
        clients = self._clients
        if clients > 1 and x.device.type == "cpu" and not self.tracks:
            # client by client: to change the memory layout would take longer than the additional calls
            each = zip(x.chunk(clients), self.weight, self.bias, strict=True)
            return torch.cat([F.batch_norm(one, None, None, w, b, training, 0.0, self.eps) for one, w, b in each])
        if clients > 1:
            x = _side_by_side(x, clients)
        buffers = [b for b in (self.running_mean, self.running_var) if b is not None]
        flat = [b.flatten() for b in buffers]  # views, so that batch_norm updates the buffers themselves …
        mean, var = flat if flat else (None, None)
        weight, bias = self.weight.flatten(), self.bias.flatten()
        out = F.batch_norm(x, mean, var, weight, bias, training, _momentum(self), self.eps)
        if training and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            for buffer, moved in zip(buffers, flat, strict=True):
                if not buffer.is_contiguous():  # … unless a buffer is a slice of a larger tensor: then they are copies
                    buffer.copy_(moved.view(buffer.shape))
        return out if clients == 1 else _one_by_one(out, clients)

    def _by_hand(self, x: Tensor, real: Tensor | None) -> Tensor:
        """BatchNorm by the statistics of the real samples. Padding becomes the bias, so its values stay small."""
        clients = self._clients
        weight, bias = (p.view(clients, 1, -1, 1, 1) for p in (self.weight, self.bias))
        maps = x.to(weight.dtype).view(clients, -1, *x.shape[1:])
        mask = maps.new_ones(maps.shape[:2]) if real is None else real.to(weight.dtype)
        values = mask.sum(1) * (x.shape[2] * x.shape[3])
        count = values.clamp(min=1).view(-1, 1, 1, 1, 1)
        mask = mask[..., None, None, None]
        mean = (maps * mask).sum((1, 3, 4), keepdim=True) / count
        centred = (maps - mean) * mask
        var = centred.square().sum((1, 3, 4), keepdim=True) / count
        self._move(mean.detach().view(clients, -1), var.detach().view(clients, -1), values)
        out = centred * (torch.rsqrt(var + self.eps) * weight) + bias
        return out.flatten(0, 1).to(x.dtype)

    @torch.no_grad()
    def _move(self, mean: Tensor, var: Tensor, values: Tensor) -> None:
        """Update the running statistics from mean and (biased) variance [G, C] over `values` [G] per channel."""
        if self.running_mean is None or self.running_var is None or self.num_batches_tracked is None:
            return
        moves = values > 1
        share = (_momentum(self) * moves.to(mean.dtype)).unsqueeze(1)
        unbiased = var * (values / (values - 1).clamp(min=1)).unsqueeze(1)
        for buffer, seen in ((self.running_mean, mean), (self.running_var, unbiased)):
            wide = buffer.view(seen.shape)
            wide.add_(share * (seen - wide))
        self.num_batches_tracked.view(-1).add_(moves)


def _momentum(norm: _BatchNorm) -> float:
    """The momentum of a BatchNorm layer, PyTorch's 0.1 if it has none."""
    return 0.1 if norm.momentum is None else norm.momentum


def track(norm: _BatchNorm, tracks: bool) -> None:
    """Give a BatchNorm layer new running statistics, or remove them (`model.norm`, spec 12.2)."""
    if tracks == (norm.running_mean is not None):
        return
    device = norm.weight.device if norm.affine else None
    norm.track_running_stats = tracks
    norm.register_buffer("running_mean", torch.zeros(norm.num_features, device=device) if tracks else None)
    norm.register_buffer("running_var", torch.ones(norm.num_features, device=device) if tracks else None)
    counter = torch.zeros((), dtype=torch.int64, device=device)
    norm.register_buffer("num_batches_tracked", counter if tracks else None)
