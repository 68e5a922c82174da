"""Whole runs against plain PyTorch: nn.Module, torch.optim.SGD, state_dict copies, one client after another.

The reference shares the batches with Torso and nothing else: ordinary forward passes, no stacked tensors, no phases.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from torso import Config
from torso.data.batches import Shuffle
from torso.engine import SERVER, Workspace
from torso.runs.job import Simulation, simulate
from torso.runs.run import run
from torso.runs.sampling import sample

from . import plain_losses
from .plain_losses import Loss, Seen

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
    loss: Loss = plain_losses.cross_entropy
    rho: float = 0.0  # how far the gradient is taken from where the model stands (FedSAM)
    beta: float = 1.0  # weight of the client's own gradient beside the last round's mean (MoFedSAM)


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
    "fedlc": Recipe(loss=plain_losses.calibrated),
    "fedrs": Recipe(loss=plain_losses.restricted),
    "fedntd": Recipe(loss=plain_losses.not_true),
    "moon": Recipe(loss=plain_losses.contrast),
    "fedsam": Recipe(rho=0.05),
    "mofedsam": Recipe(rho=0.05, beta=0.1),
}


def belongs(name: str, parts: str) -> bool:
    return bool(parts) and name.partition(".")[0] in parts.split("+")


def train(net: nn.Module, parts: str, epochs: range, deck, context, shuffle, recipe: Recipe, start, told=None) -> int:  # type: ignore[no-untyped-def]
    groups = [
        {"params": [p], "lr": LR * (recipe.head_factor if n.startswith("head") else 1.0)}
        for n, p in net.named_parameters()
        if belongs(n, parts)
    ]
    optimiser = torch.optim.SGD(groups, momentum=MOMENTUM, weight_decay=DECAY)
    net.train()
    received, before, drift = told or (None, None, None)
    counts, steps = torch.bincount(deck.labels[deck.index[0]], minlength=context.classes).double(), 0
    for epoch in epochs:
        for batch in deck.shuffled(8, context.lens, shuffle, epoch, context.change, context.skip_single):
            seen = Seen(net, received, before, batch.inputs[0], batch.labels[0], counts.float())
            stood = climb(net, seen, recipe) if recipe.rho else None
            optimiser.zero_grad()
            loss = recipe.loss(seen)
            if start is not None:
                held = [(p, start[n]) for n, p in net.named_parameters() if belongs(n, recipe.shared)]
                loss = loss + recipe.mu / 2 * sum(((p - s) ** 2).sum() for p, s in held)
            loss.backward()
            if stood:
                net.load_state_dict(stood)
            if recipe.beta < 1:
                for name, parameter in net.named_parameters():
                    parameter.grad = recipe.beta * parameter.grad + (1 - recipe.beta) * drift[name]
            optimiser.step()
            steps += 1
    return steps


def climb(net: nn.Module, seen: Seen, recipe: Recipe) -> dict[str, torch.Tensor]:
    """Move to w + ρ·g/‖g‖, and say where w was."""
    grads = torch.autograd.grad(recipe.loss(seen), list(net.parameters()))
    length = torch.cat([g.flatten() for g in grads]).norm()
    stood = copy.deepcopy(net.state_dict())
    with torch.no_grad():
        for parameter, grad in zip(net.parameters(), grads, strict=True):
            parameter.add_(recipe.rho * grad / length)
    return stood


def reference(job: Simulation, recipe: Recipe) -> tuple[dict[str, torch.Tensor], dict[int, dict[str, torch.Tensor]]]:
    federation, workspace = job.federation, Workspace.at(job.net, job.federation)
    server = {n: t.clone() for n, t in job.model.items()}
    private: dict[int, dict[str, torch.Tensor]] = {}
    last: dict[int, nn.Module] = {}  # what each client's last visit left
    drift = {n: torch.zeros_like(p) for n, p in job.net.named_parameters()}
    for number in range(1, ROUNDS + 1):
        chosen = sample(job.roster, 1.0 if recipe.everybody else 0.5, 0, number)
        sent, moved = [], []
        for client in chosen:
            net = copy.deepcopy(job.net)
            net.load_state_dict({**server, **private.get(client, {})})
            met = 0
            start = server if recipe.mu else None
            received = copy.deepcopy(net)
            told = received, last.get(client, received), drift
            for parts, epochs in recipe.phases:
                deck, shuffle = workspace.train_deck([client]), Shuffle(0, "train", number)
                steps = train(
                    net, parts, range(met, met + epochs), deck, workspace.context, shuffle, recipe, start, told
                )
                met += epochs
            last[client] = net
            moved.append(LR * plain_losses.plain_steps(steps, MOMENTUM))
            state = {n: t.detach().clone() for n, t in net.state_dict().items()}
            sent.append((len(federation.train.rows(client)), state))
            if recipe.kept:
                private[client] = {n: t for n, t in state.items() if belongs(n, recipe.kept)}
        total = sum(n for n, _ in sent)
        pace = sum(n / total * each for (n, _), each in zip(sent, moved, strict=True))
        drift = {n: sum(k / total * (server[n] - s[n]) for k, s in sent) / pace for n in drift}  # type: ignore[misc]
        for name in server:
            if belongs(name, recipe.shared):
                server[name] = sum(n / total * state[name] for n, state in sent)  # type: ignore[assignment]
        if recipe.server:
            net = copy.deepcopy(job.net)
            net.load_state_dict(server)
            deck, shuffle = workspace.train_deck([SERVER]), Shuffle(0, "server", number)
            train(net, recipe.server, range(1), deck, workspace.context, shuffle, recipe, None)
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
