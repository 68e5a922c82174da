"""Bodies of the user in `build`: which ones are refused. The error names the key that named the body."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from torso.errors import RequestError
from torso.nets import Body, LinearHead, Network, bodies, body_of, build
from torso.nets.blocks import Dense
from torso.report.lists import list_models


class Two(nn.Module):
    """Two linear layers. `after` is called after them, `unused` is registered and never called."""

    def __init__(self, after: nn.Module | None = None, unused: bool = False, head_first: bool = False) -> None:
        super().__init__()
        if head_first:
            self.head = nn.Linear(5, 3)
        self.fc = nn.Linear(16, 5)
        if not head_first:
            self.head = nn.Linear(5, 3)
        if unused:
            self.spare = nn.Linear(5, 3)
        self.after = [after] if after else []  # in a list, so that it is not registered

    def forward(self, x: Tensor) -> Tensor:
        x = self.head(torch.relu(self.fc(x.flatten(1))))
        for layer in self.after:
            x = layer(x)
        return x


def made(make: Any, monkeypatch: pytest.MonkeyPatch) -> Network:
    monkeypatch.setitem(bodies, "mine", make)
    return build("mine", 7, (1, 4, 4), LinearHead())


def test_a_module_that_can_be_split_is_taken_and_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.get_rng_state()
    net = made(lambda c, h, w: body_of(Two()), monkeypatch)
    assert torch.equal(torch.get_rng_state(), before)
    assert {n: tuple(t.shape) for n, t in net.state_dict().items()} == {
        "body.module.fc.weight": (5, 16),
        "body.module.fc.bias": (5,),
        "head.weight": (7, 5),
        "head.bias": (7,),
    }
    assert vars(net.body)["_as_given"] is None


def no_arguments() -> Body:
    return Body([Dense(16, 5)], 5)


SPLIT = r": cannot split Two: body and head \({}\) do not give what the module gives"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda c, h, w: body_of(Two(after=nn.Softmax(1))), SPLIT.format("head")),
        (lambda c, h, w: body_of(Two(unused=True)), SPLIT.format("spare")),
        (lambda c, h, w: body_of(Two(head_first=True)), SPLIT.format("fc")),
        (lambda c, h, w: Two(), r" gave Two\. Expected: a torso\.nets\.Body; torso\.nets\.body_of\(module\)"),
        (no_arguments, r" for images of 4×4 with 1 channel fails: TypeError: no_arg.* of \(channels, height, width\)"),
        (lambda c, h, w: Body([Dense(16, 5)], 6), r" gives \[1, 2, 5\] .* Expected: \[1, 2, 6\], .* features = 6"),
        (lambda c, h, w: body_of(nn.Flatten(), features=9), r" gives \[1, 2, 16\] .* features = 9"),
        (lambda c, h, w: body_of(nn.Sequential(nn.Conv2d(3, 1, 1), nn.Linear(4, 2))), " fails: RuntimeError: Given "),
    ],
)
def test_bodies_that_are_refused(make: Any, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RequestError, match=rf"^model\.body = 'mine'{words}"):
        made(make, monkeypatch)


def test_a_body_that_fails_is_listed_without_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(bodies, "mine", no_arguments)
    row = next(row for row in list_models() if row["name"] == "mine")
    assert (row["for"], row["features"]) == ("–", "–")
