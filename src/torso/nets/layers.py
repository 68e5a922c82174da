"""Layers for one client or for G at once.

A layer is PyTorch's own, except that its parameters may carry a leading client dimension (given through
`torch.func.functional_call`). Between layers the clients' samples stand in line:

G clients, B samples, C channels, H × W maps
stacked [G, B, C, H, W]   maps [G·B, C, H, W], client 0's samples first   flat [G, B, d]
real    [G, B], 1 for a sample and 0 for padding; None when there is no padding

So whatever goes sample by sample (ReLU, pools, sums, joins) is PyTorch's own, and only layers with weights know of
clients. Memory is channels-last. On CUDA these use fused kernels (`kernels/`); the plain path is what they must equal.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from torso.fast import is_fast
from torso.nets.stacked_linear import stacked_linear

ALONE = 16  # channels from which on cuDNN computes a convolution of one client (bench/looking.py tries others)


def in_line(x: Tensor) -> Tensor:
    """[G, B, C, H, W] -> [G·B, C, H, W]; a view, memory format kept."""
    return x.flatten(0, 1)


def flat(x: Tensor, clients: int) -> Tensor:
    """[G·B, C, H, W] -> [G, B, C·H·W], each sample in the order of `torch.flatten`."""
    return x.flatten(1).view(clients, -1, x[0].numel())


def _side_by_side(x: Tensor, clients: int) -> Tensor:
    """[G·B, C, H, W] -> [B, G·C, H, W], where a grouped convolution computes for all clients."""
    return x.view(clients, -1, *x.shape[1:]).transpose(0, 1).flatten(1, 2)


def _one_by_one(x: Tensor, clients: int) -> Tensor:
    """[B, G·C, H, W] -> [G·B, C, H, W]."""
    return x.view(x.shape[0], clients, -1, *x.shape[2:]).transpose(0, 1).flatten(0, 1)


class Conv2d(nn.Conv2d):
    """A convolution of maps; zero padding only."""

    def forward(self, x: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias.view(len(self._stacked), -1)
        out, _ = self._compute(x, bias)
        return out

    def before_norm(self, x: Tensor, real: Tensor | None, counted: bool = True) -> tuple[Tensor, Tensor | None]:
        """Without the bias, which BatchNorm knows of; where a kernel can and `counted`, with the statistics for it."""
        return self._compute(x, None, counted=counted, real=real)

    @property
    def _stacked(self) -> Tensor:
        return self.weight if self.weight.ndim == 5 else self.weight.unsqueeze(0)

    def _compute(
        self, x: Tensor, bias: Tensor | None, counted: bool = False, real: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        weight = self._stacked
        kind = self._kernel(len(weight), bias is not None) if is_fast(x) else "plain"
        if kind == "plain":
            return self._plain(x, weight.to(x.dtype), None if bias is None else bias.flatten().to(x.dtype)), None
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
        """The map, zeros to be thought around it, and so many more below and on the right: for the fused kernels."""
        return x, int(self.padding[0]), 0

    def _kernel(self, clients: int, with_bias: bool) -> Literal["pointwise", "depthwise", "dense", "plain"]:
        """Which fused kernel computes this layer."""
        square = all(len(set(side)) == 1 for side in (self.kernel_size, self.stride, self.padding))
        if not square or self.dilation != (1, 1) or isinstance(self.padding, str):
            return "plain"
        if self._is_pointwise and not with_bias:
            return "pointwise"
        if self.groups > 1:
            alone = self.groups == self.in_channels == self.out_channels and not with_bias
            return "depthwise" if alone else "plain"
        return "plain" if clients == 1 and self.in_channels >= ALONE else "dense"

    def _plain(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        clients = len(weight)
        if clients == 1:
            return self._alone(x, weight[0], bias)
        if x.device.type == "cpu":  # twice as fast as a grouped convolution
            biases = [None] * clients if bias is None else bias.chunk(clients)
            each = zip(x.chunk(clients), weight, biases, strict=True)
            return torch.cat([self._alone(*one) for one in each])
        x, groups = _side_by_side(x, clients), self.groups * clients
        out = F.conv2d(x, weight.flatten(0, 1), bias, self.stride, self.padding, self.dilation, groups)
        return _one_by_one(out, clients)

    def _alone(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if self._is_pointwise and bias is None and x.shape[2] * x.shape[3] <= 4 and x.device.type == "cpu":
            # on a map of few pixels 1.2 to 1.5 times as fast as a product
            return F.linear(x.permute(0, 2, 3, 1), weight.view(weight.shape[:2])).permute(0, 3, 1, 2)
        return F.conv2d(x, weight, bias, self.stride, self.padding, self.dilation, self.groups)

    @property
    def _is_pointwise(self) -> bool:
        return self.kernel_size == self.stride == (1, 1) and self.groups == 1 and self.padding == (0, 0)


class SameConv2d(Conv2d):
    """Padded as TensorFlow's `same`: a side becomes ceil(side / stride), and an odd zero goes below or to the right."""

    def extra_repr(self) -> str:
        sizes = super().extra_repr()  # type: ignore[no-untyped-call]
        return f"{sizes}, zeros around to ceil(side / stride), an odd one below and on the right"

    def _zeros(self, x: Tensor) -> tuple[int, int, int, int]:
        """Left, right, above, below."""
        (height, width), kernel, stride = x.shape[2:], self.kernel_size[0], self.stride[0]
        across, down = (max(-(-side // stride) * stride - stride + kernel - side, 0) for side in (width, height))
        return across // 2, -(-across // 2), down // 2, -(-down // 2)

    def _padded(self, x: Tensor) -> tuple[Tensor, int, int]:
        left, right, above, below = self._zeros(x)
        if (left, right) == (above, below):
            return x, left, right - left
        return F.pad(x, (left, right, above, below)), 0, 0

    def _plain(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return super()._plain(F.pad(x, self._zeros(x)), weight, bias)


class Linear(nn.Linear):
    """A linear layer of flat features [G, B, d] (without a client dimension: of any [..., d])."""

    def forward(self, x: Tensor) -> Tensor:
        if is_fast(x) and self.weight.ndim == 3:
            return stacked_linear(x, self.weight, self.bias)
        weight, bias = self.weight.to(x.dtype), None if self.bias is None else self.bias.to(x.dtype)
        if weight.ndim == 2:
            return F.linear(x, weight, bias)
        weight = weight.transpose(1, 2)
        return torch.bmm(x, weight) if bias is None else torch.baddbmm(bias.unsqueeze(1), x, weight)


class BatchNorm2d(nn.BatchNorm2d):
    """BatchNorm of maps, each client by its own samples, padding left out (spec 12.2).

    Without running statistics (`tracks` false) the batch's are used in training and in evaluation. With them, training
    moves the buffers in place, the stacked ones given through `functional_call` too; a client with fewer than two
    values per channel (all padding, say) leaves its buffers as they are.
    """

    def __init__(self, channels: int, tracks: bool, eps: float = 1e-5) -> None:
        super().__init__(channels, eps, track_running_stats=tracks)

    @property
    def tracks(self) -> bool:
        return self.running_mean is not None

    @property
    def by_batch(self) -> bool:
        """Whether the batch's own statistics are used."""
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
        """By the batch's statistics, then a pool and ReLU (up to `cap`, if any), in one pass. `before`: a bias that x
        was to have; `sums`: its statistics, where they are known. By running statistics, it has no gradient."""
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
        clients = self._clients
        if clients > 1 and x.device.type == "cpu" and not self.tracks:  # the layout counts for more than the launches
            each = zip(x.chunk(clients), self.weight, self.bias, strict=True)
            return torch.cat([F.batch_norm(one, None, None, w, b, training, 0.0, self.eps) for one, w, b in each])
        x = x if clients == 1 else _side_by_side(x, clients)
        buffers = [b for b in (self.running_mean, self.running_var) if b is not None]
        flat = [b.flatten() for b in buffers]  # views, so that batch_norm moves the buffers, …
        mean, var = flat if flat else (None, None)
        weight, bias = self.weight.flatten(), self.bias.flatten()
        out = F.batch_norm(x, mean, var, weight, bias, training, _momentum(self), self.eps)
        if training and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            for buffer, moved in zip(buffers, flat, strict=True):
                if not buffer.is_contiguous():  # … except of slices of a larger tensor
                    buffer.copy_(moved.view(buffer.shape))
        return out if clients == 1 else _one_by_one(out, clients)

    def _by_hand(self, x: Tensor, real: Tensor | None) -> Tensor:
        """Statistics over the real samples; the padding comes out as the bias, so it can never grow large."""
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
        """Running statistics from mean and (biased) var [G, C] of values [G] per channel."""
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
    return 0.1 if norm.momentum is None else norm.momentum


def track(norm: _BatchNorm, tracks: bool) -> None:
    """Give a BatchNorm fresh running statistics, or take them away (`model.norm`, spec 12.2)."""
    if tracks == (norm.running_mean is not None):
        return
    place = norm.weight.device if norm.affine else None
    norm.track_running_stats = tracks
    norm.register_buffer("running_mean", torch.zeros(norm.num_features, device=place) if tracks else None)
    norm.register_buffer("running_var", torch.ones(norm.num_features, device=place) if tracks else None)
    counter = torch.zeros((), dtype=torch.int64, device=place)
    norm.register_buffer("num_batches_tracked", counter if tracks else None)
