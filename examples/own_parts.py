"""Custom data, a partition, networks and a measure. See docs/own-parts.md."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from torso.config import DataConfig
from torso.data import Floats, partitions, sources
from torso.data.images import Dataset, Images
from torso.data.partitions import Partition
from torso.data.rows import Rows
from torso.engine import Workspace
from torso.learn.outputs import look
from torso.measure.base import Evaluation, measure
from torso.nets import Body, Tensors, bodies, body_of
from torso.nets.bodies import takes


@sources.register("stripes")
def stripes(options: DataConfig, seed: int) -> Dataset:
    """Stripes that lie (class 0) or stand (class 1), with noise."""
    rng, boards = np.random.default_rng(seed), np.indices((8, 8)) % 2 * 200  # [2, 8, 8]

    def split(n: int) -> Images:
        labels = np.arange(n) % 2
        return Images((boards[labels] + rng.integers(0, 56, (n, 8, 8))).astype(np.uint8), labels)

    return Dataset("stripes", split(1000), split(200), classes=2)


@partitions.register("in-turn")
def in_turn(dataset: Dataset, options: DataConfig, seed: int) -> Partition:
    """Image n belongs to client n modulo data.clients, in both splits."""
    owners = (np.arange(len(split)) % options.clients for split in (dataset.train, dataset.test))
    return Partition(*(Rows.from_owner(owner, options.clients) for owner in owners))


@bodies.register("small-cnn")
def small_cnn(channels: int, height: int, width: int) -> Body:
    """Two convolutions, and the mean over what they see."""
    layers = nn.Conv2d(channels, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU()
    return body_of(nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten()), features=32)


@bodies.register("tanh-rows")
@takes(Floats)
def tanh_rows(input: Floats) -> Body:
    """One hidden layer of 32 on arrays of numbers."""
    layers = nn.Flatten(), nn.Linear(math.prod(input.shape), 32), nn.Tanh()
    return body_of(nn.Sequential(*layers), features=32)


@bodies.register("adapter-cnn")
def adapter_cnn(channels: int, height: int, width: int) -> Body:
    """A convolution that stays as it is, a small layer that learns, and dropout."""
    trunk = nn.Conv2d(channels, 16, 3, padding=1).requires_grad_(False)
    layers = {"trunk": trunk, "relu": nn.ReLU(), "pool": nn.AdaptiveAvgPool2d(1), "flatten": nn.Flatten()}
    layers |= {"adapter": nn.Linear(16, 16), "drop": nn.Dropout(0.1)}
    module = nn.Sequential(OrderedDict(layers))
    return body_of(module, features=16, parts={"adapter": lambda name, layer: name.startswith("adapter.")})


@measure("sure", of="clients")
@torch.no_grad()
def sure(workspace: Workspace, clients: Sequence[int], tensors: Tensors, how: Evaluation) -> dict[str, Tensor]:
    """How much of its own test data a client is at least 90 % sure about, rightly or not."""
    deck, context = workspace.test_deck(clients), workspace.context
    count = torch.zeros(len(clients), device=deck.index.device)
    for batch, said in look(context, deck.in_order(how.batch_size, context.lens), tensors):
        is_sure = said.own.softmax(dim=-1).amax(dim=-1) >= 0.9  # [G, B]
        count += (is_sure if batch.real is None else is_sure * batch.real).sum(dim=1)
    return {"sure": 100 * count / torch.as_tensor(deck.sizes, device=count.device)}
