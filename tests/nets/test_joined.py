"""`joined`: the user's module with the weights of a client's model."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import torso
from torso import Config, RequestError
from torso.nets import LinearHead, Network, build


class Mine(nn.Module):
    """A module whose head is not the last layer that it registers, and has an unusual name."""

    def __init__(self, classes: int = 3, wide: int = 5) -> None:
        super().__init__()
        self.fc = nn.Linear(wide, classes)
        self.first = nn.Sequential(nn.Linear(4, wide), nn.BatchNorm1d(wide), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.first(x))


def result(model: nn.Module, *sets: str) -> torso.Result:
    rows = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
    clients = {
        name: (rows[k::2], (rows[k::2, 0] > 0).long() + (rows[k::2, 1] > 0).long()) for k, name in enumerate("ab")
    }
    config = Config.load(
        None, ["method.name=fedbabu", "train.rounds=2", "train.batch_size=10", "data.clients=0", *sets]
    )
    return torso.run(config, clients=clients, model=model)


@pytest.fixture(scope="module")
def net() -> Network:
    return result(Mine()).network("a")


def test_the_module_answers_as_the_network(net: Network) -> None:
    mine = torso.joined(net, given := Mine())
    assert (type(mine), mine.training) == (Mine, False)
    assert set(mine.state_dict()) == set(given.state_dict())
    rows = net.prepare(torch.randn(7, 4))
    torch.testing.assert_close(mine(rows), net(rows))
    assert not any(
        part.data_ptr() == other.data_ptr() for part, other in zip(mine.parameters(), net.parameters(), strict=True)
    )


def test_a_module_with_other_classes_gets_a_last_layer_of_the_right_size() -> None:
    net = result(Mine(classes=1000)).network("b")
    mine = torso.joined(net, Mine(classes=1000))
    rows = net.prepare(torch.randn(7, 4))
    assert mine(rows).shape == (7, 3)
    torch.testing.assert_close(mine(rows), net(rows))


def test_a_module_that_does_not_fit_is_refused(net: Network) -> None:
    with pytest.raises(RequestError, match=r"not of a Mine like this one: .*size mismatch"):
        torso.joined(net, Mine(wide=6))
    with pytest.raises(RequestError, match=r"head .* is more than .*save_model"):
        torso.joined(result(Mine(), "method.head=normalized").network("a"), Mine())
    with pytest.raises(RequestError, match=r"body of the network is not that of a module alone"):
        torso.joined(build(body="mlp", classes=3, input=(1, 2, 2), head=LinearHead()), Mine())
