"""Adapters through rounds, against a federated loop in plain PyTorch that knows no adapters.

In the loop every layer has the weight W + (alpha / rank) · b a, in float64, and autograd finds the gradients of a and b
through that sum. Nothing of Torso's is used but the start, the participants, and how samples become input. Clients are
stacked in Torso, and differ in size; each epoch is one batch, so that shuffles do not matter.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

import torso
from torso import Config
from torso.nets import Tensors
from torso.results.peft_file import save_adapters
from torso.runs.job import simulate
from torso.runs.objects import register_objects
from torso.runs.sampling import participants

RANK, ALPHA, LR, EPOCHS, ROUNDS = 2, 6.0, 0.1, 2, 3
SIZES = (4, 11, 7)
LORA = {"rank": RANK, "alpha": ALPHA, "targets": "all"}


class Small(nn.Module):
    """Convolutions 3×3, grouped and 1×1 with stride, BatchNorm, attention by one fused layer, a layer used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.grouped, self.point = nn.Conv2d(4, 4, 3, groups=2), nn.Conv2d(4, 8, 1, stride=2, bias=False)
        self.qkv, self.twice, self.head = nn.Linear(8, 24), nn.Linear(8, 8), nn.Linear(8, 4)
        self.norm.running_mean = torch.linspace(-0.2, 0.2, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.point(self.grouped(self.norm(self.conv(x)).tanh()))
        tokens = x.flatten(2).transpose(1, 2)
        queries, keys, values = self.qkv(tokens).chunk(3, dim=-1)
        tokens = tokens + F.scaled_dot_product_attention(queries, keys, values)
        return self.head(self.twice(self.twice(tokens).tanh()).mean(1))  # type: ignore[no-any-return]


def whole(tensors: Tensors) -> Tensors:
    """The module's own tensors, with b a added to the weights."""
    found = {n.removeprefix("body.module."): t for n, t in tensors.items() if ".lora_" not in n}
    for name, a in tensors.items():
        if name.endswith(".lora_a.weight"):
            layer = name.removesuffix(".lora_a.weight")
            change = (tensors[f"{layer}.lora_b.weight"].flatten(1) @ a.flatten(1)).view(-1, *a.shape[1:])
            weight = f"{layer.removeprefix('body.module.')}.weight"
            found[weight] = found[weight] + ALPHA / RANK * change
    return found


class Loop:
    """Rounds by hand. `travels` and `learns` say of a name whether it does."""

    def __init__(self, start: Tensors, samples: list[tuple[Tensor, Tensor]], share: str, train: str) -> None:
        self.module = Small().double().eval()
        self.model = {n: t.double() if t.is_floating_point() else t for n, t in start.items()}
        self.samples = samples
        self.learn = [n for n in start if any(part in n for part in PARTS[train])]
        self.travel = [n for n in self.learn if any(part in n for part in PARTS[share])]
        self.kept: list[Tensors] = [{} for _ in samples]
        self.own = [{n: torch.zeros_like(self.model[n]) for n in self.travel} for _ in samples]  # of a correction

    def gradient(self, held: Tensors, client: int) -> Tensors:
        x, labels = self.samples[client]
        leaves = {n: held[n].clone().requires_grad_() for n in self.learn}
        loss = F.cross_entropy(functional_call(self.module, whole({**held, **leaves}), (x,)), labels)
        return dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))

    def visit(self, client: int, drift: str, momentum: float, mean: Tensors) -> tuple[Tensors, Tensors]:
        start = {**self.model, **self.kept[client]}
        held, speed, own = dict(start), dict.fromkeys(self.learn, torch.zeros(())), self.own[client]
        for _ in range(EPOCHS):
            grads = self.gradient(held, client)
            for n in self.travel:
                if drift == "scaffold":
                    grads[n] += mean[n] - own[n]
                elif drift:
                    grads[n] += 0.5 * (held[n] - start[n]) - (own[n] if drift == "dynamic" else 0)
            for n, grad in grads.items():
                speed[n] = momentum * speed[n] + grad
                held[n] = held[n] - LR * speed[n]
        moved = {n: held[n] - start[n] for n in self.travel}
        if drift == "scaffold":
            return held, {n: own[n] - mean[n] - moved[n] / (LR * EPOCHS) for n in own}
        return held, {n: own[n] - 0.5 * moved[n] for n in own} if drift == "dynamic" else own

    def round(self, chosen: tuple[int, ...], drift: str, momentum: float) -> None:
        mean = {n: sum(own[n] for own in self.own) / len(self.own) for n in self.travel}
        found = {client: self.visit(client, drift, momentum, mean) for client in chosen}  # type: ignore[arg-type]
        every = sum(SIZES[client] for client in chosen)
        for n in self.travel:
            self.model[n] = sum(SIZES[client] / every * held[n] for client, (held, _) in found.items())  # type: ignore[assignment]
        for client, (held, own) in found.items():
            self.own[client] = own
            self.kept[client] = {n: held[n] for n in self.learn if n not in self.travel}
        if drift == "dynamic":
            for n in self.travel:
                self.model[n] = self.model[n] - sum(own[n] for own in self.own) / len(self.own) / 0.5


PARTS = {
    **{"lora+head": (".lora_", "head."), "lora.b+head": (".lora_b.", "head."), "lora": (".lora_",)},
    **{"lora.a": (".lora_a.",), "lora.a+head": (".lora_a.", "head.")},
}
DRIFTS = {
    "": {},
    "proximal": {"drift": {"name": "proximal", "mu": 0.5}},
    "scaffold": {"drift": {"name": "scaffold"}},
    "dynamic": {"drift": {"name": "dynamic", "alpha": 0.5, "clip": 0.0, "report": "cloud"}},
}
CASES = [  # trains, travels, correction, momentum, share of the clients
    ("lora+head", "lora+head", "", 0.9, 1.0),  # FedIT
    ("lora.b+head", "lora.b+head", "", 0.0, 0.7),  # FFA-LoRA
    ("lora+head", "lora.a", "proximal", 0.5, 1.0),  # FedSA-LoRA, and FedProx on a
    ("lora+head", "lora.a", "dynamic", 0.0, 0.7),  # … and FedDyn on a
    ("lora+head", "lora.a+head", "scaffold", 0.0, 0.7),  # b personal
    ("lora+head", "lora", "", 0.0, 1.0),  # the head personal
]


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> tuple[nn.Module, list[Any], Path]:
    """A module, clients, and adapters that are not zero: under b = 0 nothing reaches a."""
    draw = np.random.default_rng(0)
    torch.manual_seed(0)
    module = Small()
    clients = [
        (draw.standard_normal((size, 2, 6, 6)).astype(np.float32) + place / 2, draw.integers(0, 4, size))
        for place, size in enumerate(SIZES)
    ]
    both = [(each, (each[0][:2], each[1][:2])) for each in clients]
    handed = register_objects(Config(method="fedit", model={"lora": LORA}), both, module)
    net = copy.deepcopy(simulate(handed.config).net)
    for name in net.parts["lora"]:
        tensor = net.get_parameter(name).data
        tensor.copy_(torch.from_numpy(draw.standard_normal(tensor.shape).astype(np.float32)) / 4)
    return module, both, save_adapters(net, tmp_path_factory.mktemp("adapters"))


@pytest.mark.parametrize(("train", "share", "drift", "momentum", "fraction"), CASES)
def test_rounds_are_those_of_a_loop_on_whole_weights(
    begun: tuple[nn.Module, list[Any], Path], train: str, share: str, drift: str, momentum: float, fraction: float
) -> None:
    module, clients, folder = begun
    options = {"rounds": ROUNDS, "local_epochs": EPOCHS, "fraction": fraction, "lr": LR, "momentum": momentum}
    config = Config(
        method={"name": "fedit", "train": train, "share": share, **DRIFTS[drift]},
        model={"lora": {**LORA, "weights": str(folder)}},
        train={**options, "schedule": "const", "batch_size": 64},
        run={"engine": "batched", "clients_at_once": 3},
        measure={"names": ["generic"]},
    )
    handed = register_objects(config, clients, module)
    job = simulate(handed.config)
    lens = job.net.input.lens(torch.device("cpu"))  # type: ignore[union-attr]
    samples = [
        (lens.look(torch.from_numpy(x), torch.arange(len(x))[None])[0].double(), torch.from_numpy(labels))
        for (x, labels), _ in clients
    ]
    loop = Loop(job.model, samples, share, train)
    for round in range(1, ROUNDS + 1):
        loop.round(participants(job.plan[0], job.roster, 0, round), drift, momentum)
    found = torso.run(config, clients=clients, model=module, progress=False).state
    assert found is not None
    for name, tensor in loop.model.items():
        torch.testing.assert_close(found.model[name].to(tensor.dtype), tensor, rtol=1e-5, atol=1e-6)
    for client, kept in enumerate(loop.kept):
        held = found.clients[client].kept if client in found.clients else {}
        assert held.keys() == kept.keys()
        for name, tensor in kept.items():
            torch.testing.assert_close(held[name].double(), tensor, rtol=1e-5, atol=1e-6)
    moved = {name for name, tensor in loop.model.items() if not torch.equal(tensor.float(), job.model[name].float())}
    assert moved == set(loop.travel)
