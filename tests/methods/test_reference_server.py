"""Whole runs of methods with a memory or a server rule against plain PyTorch (spec 3.7 to 3.10).

Clients of different sizes, several batches and epochs, momentum, weight decay, a rate that falls, and clients that are
absent. The reference shares the batches with Torso and nothing else.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from torso import Config, run
from torso.data.batches import Shuffle
from torso.engine import Workspace
from torso.runs.job import Simulation, simulate
from torso.runs.sampling import sample

ROUNDS, EPOCHS, LR, FALLS, MOMENTUM, DECAY, BATCH, CLIENTS = 3, 2, 0.05, 0.5, 0.9, 1e-3, 8, 6
Model = dict[str, Tensor]
Visits = dict[int, Model]  # what each participant sends
Correct = Callable[[int, Model, Model], Model]  # (client, its model, the received one) → what is added to the gradient


def config(method: Any, fraction: float) -> Config:
    return Config(
        method=method,
        data={
            "clients": CLIENTS,
            "partition": "dirichlet-class",
            "alpha": 0.3,
            "source": "synthetic",
            "synthetic": {"samples": 200, "test_samples": 20},
        },
        model={"body": "mlp"},
        train={
            "rounds": ROUNDS,
            "local_epochs": EPOCHS,
            "fraction": fraction,
            "batch_size": BATCH,
            "lr": LR,
            "momentum": MOMENTUM,
            "weight_decay": DECAY,
            "schedule": "exp",
            "decay": FALLS,
        },
        measure={"names": ["generic"]},
        run={"workers": 1},
    )


class Clients:
    """Local training of one client after the other."""

    def __init__(self, job: Simulation) -> None:
        self.job, self.workspace = job, Workspace.at(job.net, job.federation)
        self.sizes = [len(job.federation.train.rows(k)) for k in range(CLIENTS)]

    def chosen(self, number: int) -> tuple[int, ...]:
        return sample(self.job.roster, self.job.config.train.fraction, 0, number)

    def visit(self, received: Model, number: int, correct: Correct | None = None, clip: float = 0.0) -> Visits:
        return {k: self._train(k, received, number, correct, clip) for k in self.chosen(number)}

    def _train(self, client: int, received: Model, number: int, correct: Correct | None, clip: float) -> Model:
        net, deck = copy.deepcopy(self.job.net), self.workspace.train_deck([client])
        net.load_state_dict(received)
        optimiser = torch.optim.SGD(net.parameters(), LR * FALLS ** (number - 1), MOMENTUM, weight_decay=DECAY)
        for epoch in range(EPOCHS):
            for batch in deck.shuffled(BATCH, self.workspace.context.lens, Shuffle(0, "train", number), epoch, None):
                optimiser.zero_grad()
                F.cross_entropy(net(batch.inputs[0]), batch.labels[0]).backward()  # type: ignore[no-untyped-call]
                if correct:
                    more = correct(client, {n: p.detach() for n, p in net.named_parameters()}, received)
                    for name, parameter in net.named_parameters():
                        assert parameter.grad is not None
                        parameter.grad += more[name]
                if clip:
                    torch.nn.utils.clip_grad_norm_(net.parameters(), clip)
                optimiser.step()
        return {n: t.detach().clone() for n, t in net.state_dict().items()}

    def shares(self, sent: Visits) -> dict[int, float]:
        return {k: self.sizes[k] / sum(self.sizes[j] for j in sent) for k in sent}

    def mean(self, sent: Visits) -> Model:
        shares = self.shares(sent)
        return {n: sum(shares[k] * sent[k][n] for k in sent) for n in self.job.model}  # type: ignore[misc]


def zeros(model: Model) -> Model:
    return {n: torch.zeros_like(t) for n, t in model.items()}


def scaffold(job: Simulation, plain: bool) -> Model:
    """Option II. `plain`: K steps count as K; else as far as momentum moves under a gradient of one."""
    clients, theta = Clients(job), dict(job.model)
    own, common = {k: zeros(theta) for k in range(CLIENTS)}, zeros(theta)
    for number in range(1, ROUNDS + 1):
        sent = clients.visit(theta, number, lambda k, _, __: {n: common[n] - own[k][n] for n in theta})  # noqa: B023
        moved = zeros(theta)
        for k, y in sent.items():
            speed, steps = 0.0, 0.0
            for _ in range(EPOCHS * -(-clients.sizes[k] // BATCH)):
                speed = 1.0 if plain else MOMENTUM * speed + 1.0
                steps += speed
            pace = steps * LR * FALLS ** (number - 1)
            new = {n: own[k][n] - common[n] + (theta[n] - y[n]) / pace for n in theta}
            moved = {n: moved[n] + new[n] - own[k][n] for n in theta}
            own[k] = new
        common = {n: common[n] + moved[n] / CLIENTS for n in theta}
        theta = clients.mean(sent)
    return theta


def feddyn(job: Simulation) -> Model:
    alpha, clip = 0.1, 0.5
    clients, theta = Clients(job), dict(job.model)
    own, h, mean = {k: zeros(theta) for k in range(CLIENTS)}, zeros(theta), theta

    def correct(k: int, at: Model, received: Model) -> Model:
        return {n: -own[k][n] + alpha * (at[n] - received[n]) for n in at}

    for number in range(1, ROUNDS + 1):
        sent = clients.visit(theta, number, correct, clip)
        for k, y in sent.items():
            own[k] = {n: own[k][n] - alpha * (y[n] - theta[n]) for n in theta}
            h = {n: h[n] - alpha / CLIENTS * (y[n] - theta[n]) for n in theta}
        mean = clients.mean(sent)
        theta = {n: mean[n] - h[n] / alpha for n in theta}
    return theta


def adaptive(job: Simulation, second: Callable[[Tensor, Tensor], Tensor], beta1: float) -> Model:
    """Server rate 0.01, τ = 1e-3, v from τ², no bias correction."""
    clients, theta = Clients(job), dict(job.model)
    m, v = zeros(theta), {n: torch.full_like(t, 1e-6) for n, t in theta.items()}
    for number in range(1, ROUNDS + 1):
        mean = clients.mean(clients.visit(theta, number))
        delta = {n: mean[n] - t for n, t in theta.items()}
        m = {n: beta1 * m[n] + (1 - beta1) * d for n, d in delta.items()}
        v = {n: second(v[n], d**2) for n, d in delta.items()}
        theta = {n: theta[n] + 0.01 * m[n] / (v[n] ** 0.5 + 1e-3) for n in theta}
    return theta


def with_torch(job: Simulation, **options: Any) -> Model:
    """torch.optim.Adam on −Δ."""
    clients = Clients(job)
    theta = {n: t.clone().requires_grad_() for n, t in job.model.items()}
    optimiser = torch.optim.Adam(theta.values(), lr=0.01, **options)
    for number in range(1, ROUNDS + 1):
        now = {n: t.detach().clone() for n, t in theta.items()}
        mean = clients.mean(clients.visit(now, number))
        for name, tensor in theta.items():
            tensor.grad = now[name] - mean[name]
        optimiser.step()
    return {n: t.detach() for n, t in theta.items()}


def with_momentum(job: Simulation) -> Model:
    clients, theta = Clients(job), dict(job.model)
    m = zeros(theta)
    for number in range(1, ROUNDS + 1):
        mean = clients.mean(clients.visit(theta, number))
        m = {n: 0.9 * m[n] + mean[n] - theta[n] for n in theta}
        theta = {n: theta[n] + m[n] for n in theta}
    return theta


def fedexp(job: Simulation) -> Model:
    clients, theta, longest = Clients(job), dict(job.model), 0.0
    for number in range(1, ROUNDS + 1):
        sent = clients.visit(theta, number)
        mean, shares = clients.mean(sent), clients.shares(sent)
        of_each = sum(shares[k] * sum(float(((y[n] - theta[n]) ** 2).sum()) for n in theta) for k, y in sent.items())
        of_mean = sum(float(((mean[n] - theta[n]) ** 2).sum()) for n in theta)
        pace = max(1.0, of_each / (2 * (of_mean + 1e-3)))
        longest = max(longest, pace)
        theta = {n: theta[n] + pace * (mean[n] - theta[n]) for n in theta}
    assert longest > 1, "no step was longer than FedAvg's: nothing is tested"
    return theta


def adam(v: Tensor, square: Tensor) -> Tensor:
    return 0.99 * v + 0.01 * square


def yogi(v: Tensor, square: Tensor) -> Tensor:
    return v - 0.01 * square * torch.sign(v - square)


CASES: dict[str, tuple[Any, Callable[[Simulation], Model]]] = {
    "scaffold": ("scaffold", lambda job: scaffold(job, plain=True)),
    "scaffold, momentum": (
        {"name": "scaffold", "drift": {"divisor": "momentum"}},
        lambda job: scaffold(job, plain=False),
    ),
    "feddyn": ({"name": "feddyn", "drift": {"alpha": 0.1, "clip": 0.5}}, feddyn),
    "fedadam": ("fedadam", lambda job: adaptive(job, adam, 0.9)),
    "fedyogi": ("fedyogi", lambda job: adaptive(job, yogi, 0.9)),
    "fedadagrad": ("fedadagrad", lambda job: adaptive(job, torch.add, 0.0)),
    "fedadam-torch": ("fedadam-torch", lambda job: with_torch(job, weight_decay=1e-5)),
    "fedadam-torch, options": (
        {"name": "fedadam-torch", "server": {"weight_decay": 0.2, "eps": 0.01, "beta1": 0.8, "beta2": 0.9}},
        lambda job: with_torch(job, weight_decay=0.2, eps=0.01, betas=(0.8, 0.9)),
    ),
    "fedavgm": ("fedavgm", with_momentum),
    "fedexp": ("fedexp", fedexp),
}


@pytest.mark.parametrize("name", CASES)
def test_run_equals_plain_pytorch(name: str) -> None:
    method, reference = CASES[name]
    asked = config(method, 1.0 if name == "fedexp" else 0.5)  # few clients differ too little
    job = simulate(asked)
    expected = reference(job)
    result = run(asked, federation=job.federation)
    assert result.state is not None
    for tensor, wanted in expected.items():
        torch.testing.assert_close(
            result.state.model[tensor], wanted, rtol=1e-3, atol=1e-5, msg=lambda m, n=tensor: f"{n}: {m}"
        )
