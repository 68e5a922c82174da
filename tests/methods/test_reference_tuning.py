"""Fine-tuning against plain PyTorch (spec 9.2): a fresh SGD with the run's momentum and without its weight decay.

The reference shares the batches with Torso and nothing else.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torso import Config, Result, run
from torso.data.batches import Shuffle
from torso.engine import Workspace
from torso.runs.job import simulate

ROUNDS, EPOCHS, LR, MOMENTUM, BATCH = 2, 2, 0.05, 0.9, 5


@dataclass(frozen=True)
class Case:
    """A method on a body, the part that the user asks for, and what is tuned: (parts, epochs) in order."""

    method: str
    body: str = "mlp"
    part: str = "method"
    phases: tuple[tuple[str, int], ...] = (("body+head", EPOCHS),)


CASES = (
    Case("fedavg"),
    Case("fedper"),
    Case("lg-fedavg"),
    Case("fedrep", phases=(("head", EPOCHS), ("body", 1))),
    Case("fedbabu", "conv3", "body", (("body", EPOCHS),)),  # BatchNorm by the batch
    Case("fedbabu", "resnet8", "head", (("head", EPOCHS),)),  # running statistics of a body that stays
    Case("fedavg", "resnet8"),  # running statistics that move
)


def config(case: Case) -> Config:
    """Clients of different sizes; weight decay, momentum and batches of the rounds that would all show."""
    return Config(
        method=case.method,
        data={
            "clients": 4,
            "partition": "dirichlet-class",
            "alpha": 0.5,
            "min_size": 2,
            "augment": "crop-flip-2",
            "source": "synthetic",
            "synthetic": {"samples": 60, "test_samples": 20},
        },
        model={"body": case.body},
        train={
            "rounds": ROUNDS,
            "local_epochs": 1,
            "fraction": 0.5,
            "batch_size": 8,
            "lr": 0.1,
            "momentum": MOMENTUM,
            "weight_decay": 0.3,
        },
        personalize={"part": case.part, "epochs": EPOCHS, "lr": LR, "batch_size": BATCH},
        measure={"names": ["personalized"]},
        run={"workers": 1},
    )


def tuned(net: nn.Module, case: Case, deck, context, number: int) -> dict[str, Tensor]:  # type: ignore[no-untyped-def]
    """The tensors after the phases, each with an optimiser of its own. A part that stays is in evaluation mode."""
    met = 0
    for parts, epochs in case.phases:
        learns = {name: name.partition(".")[0] in parts.split("+") for name, _ in net.named_parameters()}
        mine = [p for name, p in net.named_parameters() if learns[name]]
        optimiser = torch.optim.SGD(mine, lr=LR, momentum=MOMENTUM)
        for part in ("body", "head"):
            net.get_submodule(part).train(part in parts)
        for epoch in range(met, met + epochs):
            shuffle = Shuffle(0, "personalize", number)
            for batch in deck.shuffled(BATCH, context.lens, shuffle, epoch, context.change, context.skip_single):
                optimiser.zero_grad()
                F.cross_entropy(net(batch.inputs[0]), batch.labels[0]).backward()
                optimiser.step()
        met += epochs
    return {name: tensor.detach() for name, tensor in net.state_dict().items()}


def held(result: Result, client: int) -> dict[str, Tensor]:
    """What a client begins with: the server's tensors, and its own where it keeps some."""
    assert result.state is not None
    clients = result.state.clients
    return {**result.state.model, **(clients[client].kept if client in clients else {})}


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.method}-{case.body}-{case.part}")
def test_fine_tuning_equals_plain_pytorch(case: Case) -> None:
    asked = config(case)
    job = simulate(asked)
    result = run(asked, federation=job.federation)
    assert result.state is not None
    workspace = Workspace.at(job.net, job.federation)
    for client in range(job.federation.clients):
        net = copy.deepcopy(job.net)
        net.load_state_dict(held(result, client))
        expected = tuned(net, case, workspace.train_deck([client]), workspace.context, result.state.server.round)
        found = result.network(client).state_dict()
        for name, tensor in expected.items():
            torch.testing.assert_close(
                found[name], tensor, rtol=1e-3, atol=1e-5, msg=lambda m, n=name, k=client: f"client {k}, {n}: {m}"
            )
