"""A federation small enough to work out by hand.

Client 0 has one sample x = (1, 0) of class 0, client 1 three copies of x = (0, 1) of class 1. The body multiplies the
two pixels by s = (s₀, s₁), which starts at (1, 1); the head is W (2 × 2) without bias. With p = softmax(W(s ⊙ x)) and
e the label's unit vector, ∂ℓ/∂W = (p − e)(s ⊙ x)ᵀ and ∂ℓ/∂s = x ⊙ Wᵀ(p − e).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from torso.config import Config
from torso.data import Federation, Pixels, Split
from torso.engine import OneByOne
from torso.nets import Body, Network, build
from torso.nets.bodies import bodies
from torso.nets.heads import head_inits
from torso.personal.state import State
from torso.runs.job import Simulation
from torso.runs.rounds import play_round
from torso.runs.stages import stages

SIGMA = 1 / (1 + math.e)  # softmax of a gap of one, the smaller side: 0.26894


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))

    def forward(self, x: Tensor, real: Tensor | None = None) -> Tensor:
        weight = self.weight.view(-1, 1, 1, 1, 2)  # [G, …]
        return (x.view(len(weight), -1, 1, 1, 2) * weight).flatten(0, 1)  # x [G·B, 1, 1, 2]


def scale(channels: int, height: int, width: int) -> Body:
    """Two pixels, each times a number."""
    return Body([Scale()], features=2)


def zeros(weight: Tensor, bias: Tensor | None, generator: torch.Generator) -> None:
    weight.zero_()


def eye(weight: Tensor, bias: Tensor | None, generator: torch.Generator) -> None:
    nn.init.eye_(weight)


@pytest.fixture(autouse=True)
def tiny_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The body `scale` and the heads `zeros` and `eye`, known while a test runs and unknown to other tests."""
    monkeypatch.setitem(bodies, "scale", scale)
    monkeypatch.setitem(head_inits, "zeros", zeros)
    monkeypatch.setitem(head_inits, "eye", eye)


def _split() -> Split:
    pixels = [(255, 0), (0, 255), (0, 255), (0, 255)]
    images = torch.tensor(pixels, dtype=torch.uint8).view(4, 1, 2, 1)
    return Split(images, torch.tensor([0, 1, 1, 1]), torch.arange(4), np.array([0, 1, 4]))


def federation(server_rows: tuple[int, ...] = ()) -> Federation:
    split = _split()
    return Federation(
        name="tiny",
        train=split,
        test=split,
        classes=2,
        input=Pixels(1, 1, 2, (0.0,), (1.0,)),
        augment="none",
        clients=2,
        newcomers=np.array([], dtype=np.int64),
        server_rows=torch.tensor(server_rows, dtype=torch.int64),
        meta_rows=torch.tensor([0, 1], dtype=torch.int64),
    )


def job(
    method: Any, head: str = "zeros", server_rows: tuple[int, ...] = (), bias: bool = False, **train: Any
) -> Simulation:
    settings = {"rounds": 4, "local_epochs": 1, "fraction": 1.0, "lr": 1.0, "momentum": 0.0, "schedule": "const"}
    config = Config(
        method=method, model={"body": "scale", "head_init": head, "head_bias": bias}, train={**settings, **train}
    )
    net: Network = build("scale", 2, (1, 1, 2), config.method.head, head_init=head, head_bias=bias)
    model = {name: tensor.detach() for name, tensor in net.state_dict().items()}
    data = federation(server_rows)
    return Simulation(config, data.roster, net, stages(config, net), model, data)


def play(task: Simulation, rounds: int = 1) -> State:
    state = State.begin(task.model)
    with OneByOne(task.net, task.federation, workers=2) as engine:
        for number in range(1, rounds + 1):
            state, _ = play_round(task.stage(number), state, task.roster, engine, seed=0)
    return state


def head(state: State) -> Tensor:
    return state.model["head.weight"]


def body(state: State) -> Tensor:
    return state.model["body.blocks.0.weight"]
