"""Whole runs against plain PyTorch: nn.Module, torch.optim.SGD, state_dict copies, one client after another.

The reference shares the batches with Torso and nothing else: ordinary forward passes, no stacked tensors, no lessons.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from torso import Config
from torso.data.batches import Shuffle
from torso.engine import SERVER, Desk
from torso.runs.job import Simulation, simulate
from torso.runs.rounds import sample
from torso.runs.run import run

EPOCHS, LR, MOMENTUM, DECAY, ROUNDS = 2, 0.05, 0.9, 1e-3, 3


@dataclass
class Recipe:
    """(parts, epochs) in order; what is averaged; what a client keeps; the server's own epoch."""

    phases: tuple[tuple[str, int], ...] = (("body+head", EPOCHS),)
    shared: str = "body+head"
    kept: str = ""
    head_factor: float = 1.0
    mu: float = 0.0
    server: str = ""
    everybody: bool = False


RECIPES = {
    "fedavg": Recipe(),
    "fedbabu": Recipe((("body", EPOCHS),), "body"),
    "fedper": Recipe(shared="body", kept="head"),
    "fedper-reset": Recipe(shared="body"),
    "fedrep": Recipe((("head", EPOCHS), ("body", 1)), "body", "head"),
    "local-only": Recipe(shared="", kept="body+head", everybody=True),
    "fedprox": Recipe(mu=0.01),
    "fedprox-babu": Recipe((("body", EPOCHS),), "body", mu=0.01),
    "fedavg-data-sharing": Recipe(server="body+head"),
    "fedbabu-data-sharing": Recipe((("body", EPOCHS),), "body", server="body"),
}


def belongs(name: str, parts: str) -> bool:
    return bool(parts) and name.partition(".")[0] in parts.split("+")


def train(net: nn.Module, parts: str, epochs: range, deck, room, shuffle, recipe: Recipe, start) -> None:  # type: ignore[no-untyped-def]
    groups = [
        {"params": [p], "lr": LR * (recipe.head_factor if n.startswith("head") else 1.0)}
        for n, p in net.named_parameters()
        if belongs(n, parts)
    ]
    optimiser = torch.optim.SGD(groups, momentum=MOMENTUM, weight_decay=DECAY)
    net.train()
    for epoch in epochs:
        for batch in deck.shuffled(8, room.lens, shuffle, epoch, room.change, room.skip_single):
            optimiser.zero_grad()
            loss = F.cross_entropy(net(batch.inputs[0]), batch.labels[0])
            if start is not None:
                held = [(p, start[n]) for n, p in net.named_parameters() if belongs(n, recipe.shared)]
                loss = loss + recipe.mu / 2 * sum(((p - s) ** 2).sum() for p, s in held)
            loss.backward()
            optimiser.step()


def reference(job: Simulation, recipe: Recipe) -> tuple[dict[str, torch.Tensor], dict[int, dict[str, torch.Tensor]]]:
    federation, desk = job.federation, Desk.at(job.net, job.federation)
    server = {n: t.clone() for n, t in job.model.items()}
    private: dict[int, dict[str, torch.Tensor]] = {}
    for number in range(1, ROUNDS + 1):
        chosen = sample(job.roster, 1.0 if recipe.everybody else 0.5, 0, number)
        sent = []
        for client in chosen:
            net = copy.deepcopy(job.net)
            net.load_state_dict({**server, **private.get(client, {})})
            met = 0
            start = server if recipe.mu else None
            for parts, epochs in recipe.phases:
                deck, shuffle = desk.train_deck([client]), Shuffle(0, "train", number)
                train(net, parts, range(met, met + epochs), deck, desk.room, shuffle, recipe, start)
                met += epochs
            state = {n: t.detach().clone() for n, t in net.state_dict().items()}
            sent.append((len(federation.train.rows(client)), state))
            if recipe.kept:
                private[client] = {n: t for n, t in state.items() if belongs(n, recipe.kept)}
        total = sum(n for n, _ in sent)
        for name in server:
            if belongs(name, recipe.shared):
                server[name] = sum(n / total * state[name] for n, state in sent)  # type: ignore[assignment]
        if recipe.server:
            net = copy.deepcopy(job.net)
            net.load_state_dict(server)
            deck, shuffle = desk.train_deck([SERVER]), Shuffle(0, "server", number)
            train(net, recipe.server, range(1), deck, desk.room, shuffle, recipe, None)
            server = {n: t.detach().clone() for n, t in net.state_dict().items()}
    return server, private


def config(method: str, body: str = "mlp", **train: object) -> Config:
    return Config(
        method=method,
        data={
            "clients": 6,
            "partition": "dirichlet-class",
            "alpha": 1.0,
            "augment": "crop-flip-2",
            "server_fraction": 0.05,
            "source": "synthetic",
            "synthetic": {"samples": 400, "test_samples": 60},
        },
        model={"body": body},
        train={
            "rounds": ROUNDS,
            "local_epochs": EPOCHS,
            "fraction": 0.5,
            "batch_size": 8,
            "lr": LR,
            "momentum": MOMENTUM,
            "weight_decay": DECAY,
            "schedule": "const",
            **train,
        },
        measure={"names": ["generic"]},
        run={"workers": 1},
    )


def agree(method: str, recipe: Recipe, body: str = "mlp", **train: object) -> None:
    asked = config(method, body, **train)
    job = simulate(asked)
    server, private = reference(job, recipe)
    result = run(asked, federation=job.federation)
    assert result.state is not None
    for name, tensor in server.items():
        torch.testing.assert_close(
            result.state.model[name], tensor, rtol=1e-4, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}"
        )
    assert result.state.clients.of_kind("kept").keys() == private.keys()
    for client, own in private.items():
        for name, tensor in own.items():
            torch.testing.assert_close(result.state.clients[client].kept[name], tensor, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("method", RECIPES)
def test_run_equals_plain_pytorch(method: str) -> None:
    agree(method, RECIPES[method])


def test_fedbabu_with_batchnorm_equals_plain_pytorch() -> None:
    """FedBABU only: where a head learns, its last bits differ, and ReLU and max-pool magnify them in three rounds."""
    agree("fedbabu", RECIPES["fedbabu"], body="conv3")


def test_head_rate_equals_a_parameter_group() -> None:
    agree("fedavg", Recipe(head_factor=0.1), head_lr_factor=0.1)
