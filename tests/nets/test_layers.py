"""The client dimension of layers, and BatchNorm against PyTorch's."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from torso.nets.layers import BatchNorm2d, Linear, concatenated, flat, track

from .samples import images


def test_the_samples_of_clients_are_concatenated() -> None:
    x = images(3, 2, 4, 5, 6)
    line = concatenated(x)
    assert line.shape == (6, 4, 5, 6)
    torch.testing.assert_close(line[2:4], x[1])
    torch.testing.assert_close(flat(line, 3), x.flatten(2))


def test_concatenation_copies_nothing() -> None:
    x = images(3, 2, 5, 6, 4).movedim(-1, 2)
    line = concatenated(x)
    assert line.data_ptr() == x.data_ptr()
    assert line.is_contiguous(memory_format=torch.channels_last)
    plain = line.contiguous()
    assert flat(plain, 3).data_ptr() == plain.data_ptr()


@pytest.mark.parametrize("bias", [True, False])
def test_linear(bias: bool) -> None:
    layer, x = Linear(4, 5, bias=bias).double(), images(3, 2, 4)
    tensors = {name: images(3, *p.shape, seed=2) for name, p in layer.named_parameters()}
    out = functional_call(layer, tensors, (x,))
    for g in range(3):
        torch.testing.assert_close(out[g], functional_call(layer, {n: t[g] for n, t in tensors.items()}, (x[g],)))


def norms(tracks: bool) -> tuple[BatchNorm2d, nn.BatchNorm2d]:
    ours, torchs = BatchNorm2d(4, tracks).double(), nn.BatchNorm2d(4, track_running_stats=tracks).double()
    with torch.no_grad():
        ours.weight.copy_(images(4, seed=3))
        ours.bias.copy_(images(4, seed=4))
    torchs.load_state_dict(ours.state_dict())
    return ours, torchs


@pytest.mark.parametrize("tracks", [True, False])
@pytest.mark.parametrize("masked", [True, False])
def test_batchnorm_is_torchs(tracks: bool, masked: bool) -> None:
    ours, torchs = norms(tracks)
    real = torch.tensor([[1.0, 1, 0, 1]]) if masked else None
    for seed in range(3):
        x = images(4, 4, 3, 3, seed=seed)
        rows = slice(None) if real is None else real[0] > 0
        torch.testing.assert_close(ours(x, real)[rows], torchs(x[rows]))
    assert ours.state_dict().keys() == torchs.state_dict().keys()
    for name, tensor in torchs.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name], tensor)
    ours.eval(), torchs.eval()
    torch.testing.assert_close(ours(x, real)[rows], torchs(x[rows]))


@pytest.mark.parametrize("masked", [True, False])
def test_buffers_that_are_slices_move_too(masked: bool) -> None:
    norm, x = BatchNorm2d(4, tracks=True).double(), images(3, 2, 4, 3, 3)
    whole = torch.zeros(3, 10, dtype=torch.float64)
    tensors = {n: t.repeat(3, *[1] * t.ndim) for n, t in norm.state_dict().items()} | {"running_mean": whole[:, 2:6]}
    with torch.no_grad():
        functional_call(norm, tensors, (concatenated(x), torch.ones(3, 2) if masked else None))
    torch.testing.assert_close(whole[:, 2:6], 0.1 * x.mean((1, 3, 4)))
    assert (whole[:, :2] == 0).all()
    assert tensors["num_batches_tracked"].tolist() == [1, 1, 1]


@pytest.mark.parametrize("tracks", [True, False])
def test_one_value_per_channel_gives_the_bias(tracks: bool) -> None:
    norm, _ = norms(tracks)
    x = images(1, 4, 1, 1).requires_grad_()
    before = {n: t.clone() for n, t in norm.state_dict().items()}
    out = norm(x)
    out.sum().backward()
    torch.testing.assert_close(out[0, :, 0, 0], norm.bias)
    assert x.grad is not None
    assert (x.grad == 0).all()
    assert all(torch.equal(t, before[n]) for n, t in norm.state_dict().items())


def test_padding_cannot_grow() -> None:
    """A channel that is constant over the real samples has variance 0. Values of padding must not be divided by it."""
    norm = BatchNorm2d(1, tracks=False)
    x = torch.tensor([1.0, 1.0, 1e30]).view(3, 1, 1, 1)
    out = norm(x, torch.tensor([[1.0, 1.0, 0.0]]))
    assert out.abs().max() < 1e-3


def test_masked_keeps_channels_last_and_dtype() -> None:
    norm = BatchNorm2d(4, tracks=True)
    x = torch.randn(2, 4, 3, 3, dtype=torch.bfloat16).contiguous(memory_format=torch.channels_last)
    out: Tensor = norm(x, torch.ones(1, 2))
    assert out.dtype == torch.bfloat16
    assert out.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("norm", [BatchNorm2d(4, tracks=True), nn.BatchNorm2d(4)])
def test_track(norm: nn.BatchNorm2d) -> None:
    fresh = {n: t.clone() for n, t in norm.state_dict().items()}
    track(norm, False)
    assert list(norm.state_dict()) == ["weight", "bias"]
    assert norm.eval()(torch.randn(8, 4, 2, 2)).mean().abs() < 1e-5
    track(norm, True)
    assert norm.state_dict().keys() == fresh.keys()
    assert all(torch.equal(t, fresh[n]) for n, t in norm.state_dict().items())
