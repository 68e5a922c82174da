"""BatchNorm layers that count their batches together: PyTorch's numbers, names and errors."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from torso.nets.counted import count_together


class Normed(nn.Module):
    """A network with BatchNorm. `times`: how often its second layer is used in a forward pass."""

    def __init__(self, times: int = 1, momentum: float | None = 0.1) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, momentum=momentum)
        self.flat, self.still = nn.BatchNorm1d(4), nn.BatchNorm1d(4, track_running_stats=False)
        self.times = times

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.conv(x)).relu().mean((2, 3))
        for _ in range(self.times):
            x = self.flat(x)
        return self.still(x)  # type: ignore[no-any-return]


@pytest.mark.parametrize("module", [Normed(), Normed(times=3), Normed(times=0), Normed(momentum=None)])
def test_buffers_outputs_and_gradients_are_pytorchs(module: Normed) -> None:
    torch.manual_seed(0)
    ours = copy.deepcopy(module)
    count_together(ours)
    for _ in range(3):
        x = torch.randn(5, 3, 6, 6)
        wanted, found = module(x), ours(x)
        torch.testing.assert_close(found, wanted, rtol=0, atol=0)
        torch.testing.assert_close(dict(ours.state_dict()), dict(module.state_dict()), rtol=0, atol=0)
    theirs = torch.autograd.grad(wanted.square().sum(), list(module.parameters()), allow_unused=True)
    mine = torch.autograd.grad(found.square().sum(), list(ours.parameters()), allow_unused=True)
    torch.testing.assert_close(mine, theirs, rtol=0, atol=0)
    assert int(ours.norm.num_batches_tracked) == 3
    assert int(ours.flat.num_batches_tracked) == 3 * module.times


def test_nothing_is_counted_in_evaluation() -> None:
    ours = Normed()
    count_together(ours)
    ours.eval()(torch.randn(5, 3, 6, 6))
    assert int(ours.norm.num_batches_tracked) == 0


def test_one_value_per_channel_is_refused_as_by_pytorch() -> None:
    ours = nn.Sequential(nn.BatchNorm1d(4))
    count_together(ours)
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        ours(torch.randn(1, 4))
    ours(torch.randn(2, 4))
    assert int(ours[0].num_batches_tracked) == 2  # type: ignore[arg-type]  # PyTorch's layer counts before it refuses


def test_a_subclass_of_batchnorm_stays() -> None:
    class Own(nn.BatchNorm2d):
        pass

    ours = nn.Sequential(Own(3), nn.BatchNorm2d(3))
    count_together(ours)
    assert type(ours[0]) is Own
    assert isinstance(ours[1], nn.BatchNorm2d)
    assert list(ours.state_dict()) == list(nn.Sequential(Own(3), nn.BatchNorm2d(3)).state_dict())
