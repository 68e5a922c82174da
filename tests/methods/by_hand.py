"""NumPy references for the network of tiny.py, in float64 and without autograd, and federations to try them on.

Logits are W(s ⊙ x). With p = softmax(logits) and e the label's unit vector, a sample has ∂ℓ/∂W = (p − e)(s ⊙ x)ᵀ and
∂ℓ/∂s = x ⊙ Wᵀ(p − e). Nothing here calls the code under test.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.testing import assert_close

from torso.data import Federation, Split
from torso.engine import OneByOne
from torso.personal.state import State
from torso.runs.job import Simulation
from torso.runs.rounds import Round, play_round

from . import tiny

Floats = npt.NDArray[np.float64]
BODY, HEAD = "body.blocks.0.weight", "head.weight"


class Data(NamedTuple):
    """Samples x [n, 2] and labels y [n]."""

    x: Floats
    y: npt.NDArray[np.int64]

    @classmethod
    def of(cls, x: Sequence[Sequence[float]], y: Sequence[int]) -> Data:
        return cls(np.array(x, dtype=np.float64), np.array(y, dtype=np.int64))


class Model(NamedTuple):
    """s [2] and W [C, 2]."""

    s: Floats
    w: Floats

    def moved(self, other: Model, by: float) -> Model:
        """self + by · other."""
        return Model(self.s + by * other.s, self.w + by * other.w)

    def minus(self, other: Model) -> Model:
        return self.moved(other, -1.0)

    def squared(self) -> float:
        return float((self.s**2).sum() + (self.w**2).sum())


ZEROS = Model(np.ones(2), np.zeros((2, 2)))  # what tiny's job starts from with head="zeros"
EYE = Model(np.ones(2), np.eye(2))
NOUGHT = Model(np.zeros(2), np.zeros((2, 2)))
FIRST = Data.of([(1, 0)], [0])  # tiny's client 0
SECOND = Data.of([(0, 1)], [1])  # one of the three equal samples of tiny's client 1


def softmax(z: Floats) -> Floats:
    e = np.exp(z - z.max(axis=-1, keepdims=True))
    made: Floats = e / e.sum(axis=-1, keepdims=True)
    return made


def losses(model: Model, data: Data, offset: Floats | float = 0.0) -> Floats:
    """−log softmax(logits + offset) at the label, per sample."""
    p = softmax((data.x * model.s) @ model.w.T + offset)
    found: Floats = -np.log(p[np.arange(len(data.y)), data.y])
    return found


def gradient(model: Model, data: Data, offset: Floats | float = 0.0, weights: Floats | float = 1.0) -> Model:
    """Of the mean of weight · loss."""
    p = softmax((data.x * model.s) @ model.w.T + offset)
    p[np.arange(len(data.y)), data.y] -= 1
    p *= np.broadcast_to(np.asarray(weights, dtype=np.float64), data.y.shape)[:, None] / len(data.y)
    return Model(((p @ model.w) * data.x).sum(axis=0), p.T @ (data.x * model.s))


def sgd(model: Model, data: Data, lr: float, steps: int = 1, target: Model | None = None, pull: float = 0.0) -> Model:
    """Plain steps on the same batch, on loss + (pull/2)·‖model − target‖²."""
    for _ in range(steps):
        grad = gradient(model, data)
        if target is not None:
            grad = grad.moved(model.minus(target), pull)
        model = model.moved(grad, -lr)
    return model


def mean(models: Sequence[Model], weights: Sequence[float]) -> Model:
    total = NOUGHT
    for model, weight in zip(models, weights, strict=True):
        total = total.moved(model, weight)
    return total


def same(found: Mapping[str, Tensor], expected: Model, head: str = HEAD, tol: float = 2e-6) -> None:
    """Tensors of the network against the reference."""
    assert_close(found[BODY].double(), torch.from_numpy(expected.s), atol=tol, rtol=tol)
    assert_close(found[head].double(), torch.from_numpy(expected.w), atol=tol, rtol=tol)


def equal(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def read(found: Mapping[str, Tensor], head: str = HEAD) -> Model:
    return Model(found[BODY].double().numpy(), found[head].double().numpy())


def federated(clients: Sequence[Data], meta_rows: Sequence[int] = (), server_rows: Sequence[int] = ()) -> Federation:
    """These samples, client after client; pixel values must be multiples of 1/255, of which 0.2 is one."""
    pixels = torch.tensor(np.concatenate([data.x for data in clients]) * 255).round().to(torch.uint8).view(-1, 1, 2, 1)
    labels = torch.from_numpy(np.concatenate([data.y for data in clients]))
    offsets = np.concatenate([[0], np.cumsum([len(data.y) for data in clients])]).astype(np.int64)
    split = Split(pixels, labels, torch.arange(len(labels)), offsets)
    meta, server = (torch.tensor(rows, dtype=torch.int64) for rows in (meta_rows, server_rows))
    return replace(
        tiny.federation(),
        train=split,
        test=split,
        clients=len(clients),
        meta_rows=meta,
        server_rows=server,
    )


def on(task: Simulation, federation: Federation) -> Simulation:
    """The same job with other data of the same shape."""
    return task.on(federation)


def story(task: Simulation, rounds: int, at_once: int = 1) -> list[tuple[State, Round]]:
    """The state after each round, and who took part."""
    state, told = State.begin(task.model), []
    with OneByOne(task.net, task.federation, workers=1, at_once=at_once) as engine:
        for number in range(1, rounds + 1):
            state, played = play_round(task.stage(number), state, task.roster, engine, seed=0)
            told.append((state, played))
    return told


def last(task: Simulation, rounds: int = 1, at_once: int = 1) -> State:
    return story(task, rounds, at_once)[-1][0]
