"""Layers for one client or for G at once.

A layer is PyTorch's own, except that its parameters may carry a leading client dimension (given through
`torch.func.functional_call`). Between layers the clients are folded into the channels:

G clients, B samples, C channels, H × W maps
stacked [G, B, C, H, W]   folded [B, G·C, H, W], client 0's channels first   flat [G, B, d]
real    [G, B], 1 for a sample and 0 for padding; None when there is no padding

For G = 1 folded is the ordinary [B, C, H, W], and nothing is copied.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


def fold(x: Tensor) -> Tensor:
    """[G, B, C, H, W] -> [B, G·C, H, W]; one client: a view, memory format kept."""
    return x[0] if x.shape[0] == 1 else x.transpose(0, 1).flatten(1, 2)


def per_client(x: Tensor, clients: int) -> Tensor:
    """[B, G·C, H, W] seen as [B, G, C, H, W]; memory format kept."""
    return x.view(x.shape[0], clients, -1, *x.shape[2:])


def unfold(x: Tensor, clients: int) -> Tensor:
    """[B, G·C, H, W] -> [G, B, C·H·W], each sample in the order of `torch.flatten`."""
    if clients == 1:
        return x.flatten(1).unsqueeze(0)
    return per_client(x, clients).transpose(0, 1).flatten(2)


def concat(maps: Sequence[Tensor], clients: int) -> Tensor:
    """Join folded maps along the channels of each client."""
    if clients == 1:
        return torch.cat(tuple(maps), 1)
    return torch.cat([per_client(x, clients) for x in maps], 2).flatten(1, 2)


class Conv2d(nn.Conv2d):
    """A convolution of folded maps; zero padding only."""

    def forward(self, x: Tensor) -> Tensor:
        if self._is_matmul(x):
            weight = self.weight.view(self.out_channels, self.in_channels)
            return F.linear(x.permute(0, 2, 3, 1), weight).permute(0, 3, 1, 2)
        if self.weight.ndim == 4:
            return super().forward(x)
        groups = self.groups * self.weight.shape[0]
        bias = None if self.bias is None else self.bias.flatten()
        return F.conv2d(x, self.weight.flatten(0, 1), bias, self.stride, self.padding, self.dilation, groups)

    def _is_matmul(self, x: Tensor) -> bool:
        """A 1×1 convolution of one client on a map of few pixels, on CPU: 1.2 to 1.5 times as fast as a product."""
        return (
            self.kernel_size == (1, 1)
            and self.stride == (1, 1)
            and self.groups == 1
            and self.bias is None
            and self.weight.numel() == self.out_channels * self.in_channels
            and x.shape[2] * x.shape[3] <= 4
            and x.device.type == "cpu"
        )


class Linear(nn.Linear):
    """A linear layer of flat features [G, B, d] (without a client dimension: of any [..., d])."""

    def forward(self, x: Tensor) -> Tensor:
        if self.weight.ndim == 2:
            return super().forward(x)
        weight = self.weight.transpose(1, 2)
        bias: Tensor | None = self.bias
        return torch.bmm(x, weight) if bias is None else torch.baddbmm(bias.unsqueeze(1), x, weight)


class BatchNorm2d(nn.BatchNorm2d):
    """BatchNorm of folded maps, each client by its own samples, padding left out (spec 12.2).

    Without running statistics (`tracks` false) the batch's are used in training and in evaluation. With them, training
    moves the buffers in place, the stacked ones given through `functional_call` too; a client with fewer than two
    values per channel (all padding, say) leaves its buffers as they are.
    """

    def __init__(self, channels: int, tracks: bool) -> None:
        super().__init__(channels, track_running_stats=tracks)

    @property
    def tracks(self) -> bool:
        return self.running_mean is not None

    def forward(self, x: Tensor, real: Tensor | None = None) -> Tensor:
        if self.tracks and not self.training:
            return self._native(x, training=False)
        if real is None and x.numel() > x.shape[1]:
            return self._native(x, training=True)
        return self._by_hand(x, real)

    def _native(self, x: Tensor, training: bool) -> Tensor:
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
        return out

    def _by_hand(self, x: Tensor, real: Tensor | None) -> Tensor:
        """Statistics over the real samples; the padding comes out as the bias, so it can never grow large."""
        clients = self.weight.numel() // self.num_features
        weight, bias = (p.view(clients, -1, 1, 1) for p in (self.weight, self.bias))
        maps = per_client(x.to(weight.dtype), clients)
        mask = maps.new_ones(clients, x.shape[0]) if real is None else real.to(weight.dtype)
        values = mask.sum(1) * (x.shape[2] * x.shape[3])
        count = values.clamp(min=1).view(-1, 1, 1, 1)
        mask = mask.t()[..., None, None, None]
        mean = (maps * mask).sum((0, 3, 4), keepdim=True) / count
        centred = (maps - mean) * mask
        var = centred.square().sum((0, 3, 4), keepdim=True) / count
        self._move(mean.detach(), var.detach(), values)
        out = centred * (torch.rsqrt(var + self.eps) * weight) + bias
        return out.flatten(1, 2).to(x.dtype)

    @torch.no_grad()
    def _move(self, mean: Tensor, var: Tensor, values: Tensor) -> None:
        """Running statistics from mean and (biased) var [1, G, C, 1, 1] of values [G] per channel."""
        if self.running_mean is None or self.running_var is None or self.num_batches_tracked is None:
            return
        moves = values > 1
        share = (_momentum(self) * moves.to(mean.dtype)).unsqueeze(1)
        unbiased = var.reshape(len(values), -1) * (values / (values - 1).clamp(min=1)).unsqueeze(1)
        for buffer, seen in ((self.running_mean, mean.reshape(len(values), -1)), (self.running_var, unbiased)):
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
