"""What only an accelerator can show: nobody waits for it in the middle of a round, and it agrees with the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from torso import Config
from torso.data.batches import Deck
from torso.engine import Batched, Workspace
from torso.learn.outputs import look
from torso.nets import Body, apply, bodies, body_of
from torso.personal.state import State
from torso.precision import computing
from torso.runs.aggregate import Aggregate
from torso.runs.events import Listener
from torso.runs.job import Simulation, simulate
from torso.runs.loop import Loop
from torso.runs.rounds import Round, play_round
from torso.runs.sampling import participants, weights_of
from torso.runs.telling import tell, visit_of
from torso.server.private import Mechanism, PrivateSum

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

SYNTHETIC = {"samples": 400, "test_samples": 40, "size": 32, "channels": 3}


def job(
    body: str, method: str | dict[str, Any] = "fedbabu", device: str = "cuda", batch_size: int = 16, alpha: float = 0.5
) -> Simulation:
    data = {"source": "synthetic", "clients": 8, "partition": "dirichlet-class", "alpha": alpha, "augment": "crop-flip"}
    return simulate(
        Config(
            method=method,
            data={**data, "synthetic": SYNTHETIC},
            model={"body": body},
            train={"rounds": 3, "local_epochs": 1, "fraction": 0.5, "batch_size": batch_size, "lr": 0.01},
            run={"device": device},
        )
    )


ROBUST = {"name": "fedavg", "server": {"name": "median", "clip": 1.0}}
LATER = [
    "fedlc",
    "fedrs",
    "fedntd",
    "moon",
    "mofedsam",
    "fedetf",
    "fedgela",
    "fedamp",
    "fedthe",
    "fedloge",
    "gpfl",
    "fedproto",
    "fedpac",
    "fedas",
    "feddbe",
    "pfedfda",
    "creff",
]  # losses with teachers, two passes, a head, statistics beside weights


@pytest.mark.parametrize(
    "method",
    ["fedbabu", "scaffold", "ditto", "per-fedavg", "fedrod-hyper", "feddyn", "fedexp", ROBUST, *LATER],
    ids=str,
)
def test_nobody_waits_for_the_device_during_a_visit(method: str | dict[str, Any]) -> None:
    nobody_waits(job("conv4", method))


def test_nobody_waits_for_the_device_during_a_visit_of_a_foreign_body(monkeypatch: pytest.MonkeyPatch) -> None:
    """With dropout and BatchNorm: all widths of batches are recorded before, or go kernel by kernel."""
    monkeypatch.setitem(bodies, "foreign", foreign)
    nobody_waits(job("foreign", "fedavg"))


def test_nobody_waits_for_the_device_when_updates_are_clipped_for_privacy() -> None:
    nobody_waits(simulate(job("conv4").config.but("privacy.noise=0.5", "privacy.quantile=0.5")))


def test_a_private_sum_on_the_device_is_that_on_cpu() -> None:
    """Clipped there, in stacks, with the same noise."""
    start = {"a": torch.randn(300, 20), "b": torch.randn(7)}
    uploads = {name: tensor + 0.01 * torch.randn(6, *tensor.shape) for name, tensor in start.items()}
    mechanism = Mechanism(0.5, 0.7, 8.0, b"key", quantile=0.5, count_noise=1.0)
    found = []
    for device in ("cpu", "cuda"):
        there = PrivateSum(mechanism, {}, {name: tensor.to(device) for name, tensor in start.items()})
        for rows in (slice(0, 1), slice(1, 6)):
            there.add({name: tensor[rows].to(device) for name, tensor in uploads.items()})
        found.append(there.release(3))
    (alone, state), (on_device, other) = found
    assert all(tensor.device.type == "cuda" for tensor in on_device.values())
    torch.testing.assert_close({name: tensor.cpu() for name, tensor in on_device.items()}, alone)
    assert float(other["clip"]) == float(state["clip"])


def foreign(channels: int, height: int, width: int) -> Body:
    layers = [nn.Conv2d(channels, 8, 3, 2), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=8), nn.Dropout(0.2)]
    return body_of(nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten()), features=8)


def nobody_waits(task: Simulation) -> None:
    stage, state = task.plan[0], State.begin(task.model)
    with Batched(task.net, task.federation) as engine:
        for _ in range(2):  # kernels are compiled and recorded
            state, _ = play_round(stage, state, task.roster, engine, seed=0)
        chosen = participants(stage, task.roster, 0, 2)
        told = tell(stage, state.server, task.roster, chosen, 2, seed=0)
        visit, weights = visit_of(stage, told, seed=0), weights_of(task.roster, chosen, "samples")

        def meet() -> None:
            came = Aggregate(stage, told, weights)
            for sent in engine.map(visit, chosen, state.clients):
                came.take(sent)

        for _ in range(2):  # a foreign body's narrow batches are recorded when they come again
            meet()
        torch.cuda.set_sync_debug_mode("error")
        try:
            meet()
        finally:
            torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("method", ["scaffold", "fedper", "fedexp"])
def test_uploads_that_are_not_finite_are_left_out_on_the_device(method: str) -> None:
    """Zeros stand for them in the sums, and the round reads at its end whose they were."""
    sets = ("attack.kind=not-finite", "attack.fraction=0.25", "train.fraction=1.0")
    task = simulate(job("conv4", method).config.but(*sets))
    with Batched(task.net, task.federation) as engine:
        state, played = play_round(task.plan[0], State.begin(task.model), task.roster, engine, seed=0)
    assert played.why == dict.fromkeys(sorted(task.federation.malicious), "not finite")
    held = [*state.model.values(), *state.server.drift.values()]
    assert all(bool(tensor.isfinite().all()) for tensor in held)


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "fedper"])
def test_rounds_that_begin_ahead_are_the_same(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Uneven clients; one sends what is not finite, so that a round that has begun ahead begins again."""
    sets = ("attack.kind=not-finite", "attack.fraction=0.2", "train.rounds=6", "measure.names=initial")
    config, ends, lines = job("conv4", method).config.but(*sets), [], []
    for ahead in (False, True):
        monkeypatch.setattr(Batched, "may_look_ahead", lambda self, ahead=ahead: ahead)
        task, seen = simulate(config), list[Round]()
        loop = Loop(task, listener=Noting(seen))
        with Batched(task.net, task.federation, precision="fp32") as engine:
            for _ in range(6):
                loop.round(engine)
        lines.append([(each.participants, each.why, each.cost.bytes_up) for each in seen])
        ends.append({n: t.cpu() for n, t in loop.state.model.items()})
    assert lines[0] == lines[1]
    assert any(why for _, why, _ in lines[0])
    for name, tensor in ends[0].items():
        torch.testing.assert_close(ends[1][name], tensor, rtol=1e-2, atol=1e-3, msg=name)


class Noting(Listener):
    """Keeps the rounds."""

    def __init__(self, seen: list[Round]) -> None:
        self.seen = seen

    def round(self, played: Round, *rest: Any) -> None:
        self.seen.append(played)


@pytest.mark.parametrize("body", ["conv4", "mobilenet", "resnet18", "vgg11"])
def test_a_step_on_the_device_is_a_step_on_cpu(body: str) -> None:
    """One step of ragged batches in fp32: from the second step on, float32 sums in another order make deep networks
    with BatchNorm part ways on CPU alone (a stack of four against clients one by one), so a round shows nothing."""
    assert distance_of_steps(body) < 0.1


@pytest.mark.parametrize("method", LATER)
def test_a_step_of_a_later_method_on_the_device_is_a_step_on_cpu(method: str) -> None:
    """What teachers say is copied into the memory of the recording; a second pass reads other weights."""
    assert distance_of_steps("conv4", method) < 0.1


def test_a_step_of_a_foreign_body_on_the_device_is_a_step_on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recorded there, its weights and running statistics; without dropout, whose numbers differ between devices."""

    def still(channels: int, height: int, width: int) -> Body:
        body = foreign(channels, height, width)
        body.get_submodule("module.4").p = 0.0
        return body

    monkeypatch.setitem(bodies, "foreign", still)
    assert distance_of_steps("foreign") < 0.01


def test_a_foreign_body_says_the_same_of_a_short_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """In evaluation a short batch is padded, which changes no answer; five samples and a batch size of 64."""
    monkeypatch.setitem(bodies, "foreign", foreign)
    task = job("foreign", "fedavg")
    workspace = Workspace.at(task.net, task.federation)
    deck = Deck.of(
        workspace.federation.train.samples, workspace.federation.train.labels, [torch.arange(5, device="cuda")], [0]
    )
    tensors = {name: tensor[None] for name, tensor in task.model.items()}
    with torch.no_grad():
        ((batch, said),) = look(workspace.context, deck.in_order(64, workspace.context.lens), tensors, 64)
        with computing("fp32"):
            alone = apply(workspace.context.net, tensors, batch.inputs)
    assert said.features.shape == (1, 5, 8)
    torch.testing.assert_close(said.features, alone.features, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(said.logits, alone.logits, rtol=1e-4, atol=1e-5)


def distance_of_steps(body: str, method: str = "fedavg") -> float:
    """How far a step on the device is from one on CPU, for the length of that."""
    ends = []
    for device in ("cpu", "cuda"):
        task = job(body, method, device, batch_size=64, alpha=5.0)  # 42 to 56 images a client
        with Batched(task.net, task.federation, precision="fp32") as engine:
            state, _ = play_round(task.plan[0], State.begin(task.model), task.roster, engine, seed=0)
        held = state.server.uploads or {0: state.model}  # a server that averages nothing keeps its model
        held = held if task.plan[0].travels else state.clients.of_kind("kept")  # nor moves where only statistics travel
        ends.append([t.cpu().double() - task.model[n].cpu() for k in sorted(held) for n, t in held[k].items()])
    on_cpu, on_device = (torch.cat([step.flatten() for step in steps]) for steps in ends)
    assert on_cpu.norm() > 0
    return float((on_cpu - on_device).norm() / on_cpu.norm())


def test_frozen_blocks_are_held_once_and_a_step_is_that_on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """With recorded gradients: the kernels read one tensor for all clients, and the step is that of clients on CPU."""

    def half_frozen(channels: int, height: int, width: int) -> Body:
        body = bodies["conv4"](channels, height, width)
        list(body.blocks)[1].requires_grad_(False)
        return body

    monkeypatch.setitem(bodies, "half-frozen", half_frozen)
    assert distance_of_steps("half-frozen") < 0.1
    task = job("half-frozen", "fedavg")
    stage, state = task.plan[0], State.begin(task.model)
    chosen = participants(stage, task.roster, 0, 1)
    visit = visit_of(stage, tell(stage, state.server, task.roster, chosen, 1, seed=0), seed=0)
    with Batched(task.net, task.federation, at_once=len(chosen)) as engine:
        (learned,) = engine.map(visit.alone, chosen)
    assert len(task.net.frozen) == 4
    for name, tensor in learned.tensors.items():
        each = task.model[name].numel() * task.model[name].element_size()
        copies = 1 if name in task.net.frozen else len(chosen)
        assert tensor.untyped_storage().nbytes() == copies * each, name
    assert all(torch.equal(learned.tensors[name][1], task.model[name]) for name in task.net.frozen)


@pytest.mark.parametrize("body", ["resnet8", "efficientnet-lite0", "foreign"])
def test_adapters_of_stacked_clients_on_the_device_are_those_on_cpu(body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One frozen body for all clients, recorded: Torso's own, and one with BatchNorm and a depthwise convolution."""

    def foreign(channels: int, height: int, width: int) -> Body:
        layers = nn.Conv2d(channels, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3, groups=16)
        return body_of(nn.Sequential(*layers, nn.Conv2d(16, 32, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()), features=32)

    monkeypatch.setitem(bodies, "foreign", foreign)
    assert distance_of_steps(body, "fedit") < 0.01
    task = job(body, "fedit")
    with Batched(task.net, task.federation, at_once=4) as engine:
        state = State.begin(task.model)
        for _ in range(2):
            state, _ = play_round(task.plan[0], state, task.roster, engine, seed=0)
        assert engine._workspace is not None
        assert engine._workspace.context.recorder is not None
        assert engine._workspace.context.recorder._recordings or engine._workspace.context.recorder._plays
        assert not getattr(engine._workspace.context.recorder, "refused", "")
    assert all(torch.equal(state.model[name], task.model[name]) for name in task.net.frozen)


def test_dropout_on_the_device_repeats_in_any_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also inside attention, whose kernels take no generator."""

    def encoder(channels: int, height: int, width: int) -> Body:
        layer = nn.TransformerEncoderLayer(channels * width, 4, 64, dropout=0.3, batch_first=True)
        return body_of(nn.Sequential(Rows(), layer, Mean()), features=channels * width)

    monkeypatch.setitem(bodies, "encoder", encoder)
    ends = []
    for at_once in (1, 1, 4):
        task, before = job("encoder", "fedavg"), torch.cuda.get_rng_state()
        with Batched(task.net, task.federation, at_once=at_once, precision="fp32") as engine:
            state, _ = play_round(task.plan[0], State.begin(task.model), task.roster, engine, seed=0)
        assert torch.equal(torch.cuda.get_rng_state(), before)
        torch.rand(3, device="cuda")
        ends.append(torch.cat([tensor.flatten() for tensor in state.model.values()]))
    assert torch.equal(ends[0], ends[1])
    torch.testing.assert_close(ends[0], ends[2], rtol=1e-4, atol=1e-5)


class Rows(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.transpose(1, 2).flatten(2)  # [B, C, H, W] → [B, H, C·W]


class Mean(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean(dim=1)
