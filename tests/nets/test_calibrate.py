"""Calibration gives BatchNorm the statistics of a set of samples, exactly."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.nets.samples import small
from torch import nn

import torso
from torso.data.inputs import Pixels
from torso.nets import Network, build, split
from torso.nets.calibrate import calibrate, goes_by_batch
from torso.nets.card import Card
from torso.nets.heads import LinearHead


def by_batch(body: str = "conv3") -> tuple[Network, torch.Tensor]:
    net, image = small(body)
    x = torch.randn(11, *image, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert goes_by_batch(net)
    return net.eval(), x


class Small(nn.Module):
    """A network with a BatchNorm layer that uses batch statistics, one that is never called, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(2, affine=False, track_running_stats=False)
        self.idle = nn.BatchNorm1d(2, track_running_stats=False)
        self.fc = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.norm(x.flatten(1)))


def test_the_statistics_are_mean_and_biased_variance() -> None:
    """By hand: 1, 2, 3, 6 have the mean 3 and the variance (4 + 1 + 0 + 9) / 4 = 3.5; 0, 0, 4, 0 have 1 and 3."""
    net = split(Small())
    x = torch.tensor([[1.0, 0.0], [2.0, 0.0], [3.0, 4.0], [6.0, 0.0]]).view(4, 1, 1, 2)
    for at_once in (4, 3, 2):
        made = calibrate(net, x, at_once)
        norm = made.body.get_submodule("module.norm")
        assert norm.running_mean.tolist() == pytest.approx([3, 1])
        assert norm.running_var.tolist() == pytest.approx([3.5, 3])
        assert not goes_by_batch(made)  # not even the layer that is never called


@pytest.mark.parametrize("at_once", [11, 4])
def test_one_sample_is_answered_as_in_a_batch_with_all_of_them(at_once: int) -> None:
    """A network of three layers: with statistics of single batches of 4, the later layers would be wrong."""
    net, x = by_batch()
    whole = net(x)
    made = calibrate(net, x, at_once)
    torch.testing.assert_close(made(x), whole)
    torch.testing.assert_close(torch.cat([made(one) for one in x.split(1)]), whole)
    assert not torch.allclose(torch.cat([net(one) for one in x.split(1)]), whole, atol=1e-3)  # uncalibrated


def test_one_sample_has_no_statistics() -> None:
    net, x = by_batch()
    with pytest.raises(torso.RequestError, match=r"cannot be calibrated on 1 samples. Expected: at least 2"):
        calibrate(net, x[:1])


def test_a_residual_network_is_calibrated_in_the_order_of_its_calls() -> None:
    image = (2, 8, 8)
    net = build("resnet8-conv", 3, image, LinearHead(), norm="batch", seed=1).double().eval()
    x = torch.randn(6, *image, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.testing.assert_close(calibrate(net, x, at_once=2)(x), net(x))


def test_the_network_itself_stays_as_it_was() -> None:
    net, x = by_batch()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    calibrate(net, x)
    assert goes_by_batch(net)
    assert before.keys() == net.state_dict().keys()
    assert all(tensor.equal(net.state_dict()[name]) for name, tensor in before.items())


def test_the_card_says_so_and_a_network_with_running_statistics_is_left_alone() -> None:
    kind = Pixels(1, 8, 8, (0.5,), (0.25,))
    images = np.random.default_rng(0).integers(0, 256, (9, 8, 8), dtype=np.uint8)
    for norm, count in (("batch", 9), ("running", 0)):
        net = build("conv3", 3, kind, LinearHead(), norm=norm).eval()  # type: ignore[arg-type]
        net.card = Card(
            *("m", "d", "conv3", {"name": "linear"}, True, norm, 3, kind),  # type: ignore[arg-type]
            batch_statistics=norm == "batch",
            kind="generic",
            torso="0",
        )
        made = torso.calibrated(net, images)
        assert made.card is not None
        assert (made.card.norm, made.card.batch_statistics, made.card.calibrated) == ("running", False, count)
        torch.testing.assert_close(made(made.prepare(images)), net(net.prepare(images)), atol=1e-5, rtol=1e-4)
