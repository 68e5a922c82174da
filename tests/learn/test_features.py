"""Head-only phases on features computed once: the same models as through the whole network, and only where allowed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from torso import Config
from torso.data.augment import augmentations
from torso.data.batches import Shuffle
from torso.data.inputs import Tokens
from torso.engine import Workspace
from torso.learn import features, local
from torso.learn.drift import DriftState, Proximal
from torso.learn.features import are_fixed
from torso.learn.local import learn_by_epoch
from torso.learn.phases import Phase, local_phases
from torso.learn.steps import LocalSettings, LookAhead
from torso.learn.task import LocalResult, LocalTask
from torso.nets import LinearHead, Tensors, apply, build
from torso.runs.job import Simulation, simulate

RAGGED = {
    **{"clients": 4, "partition": "dirichlet-class", "alpha": 0.5},
    **{"source": "synthetic", "synthetic": {"samples": 300, "test_samples": 40}},
}


def job_of(body: str = "conv3", head: str = "linear", norm: str = "running") -> Simulation:
    return simulate(Config(data=RAGGED, method={"name": "fedavg", "head": head}, model={"body": body, "norm": norm}))


def task_of(
    job: Simulation, *plan: Phase, clients: tuple[int, ...] = (0, 1, 2, 3), **settings: Any
) -> tuple[LocalTask, Tensors]:
    workspace = Workspace.at(job.net, job.federation)
    how = LocalSettings(20, 0.9, 0.001, **settings)
    task = LocalTask(
        workspace.context, workspace.train_deck(clients), local_phases(job.net, plan, 3, 0.05), how, Shuffle(0, "t", 1)
    )
    return task, workspace.models(job.model, clients)


def walked(task: LocalTask, start: Tensors, anchor: DriftState | None = None) -> list[LocalResult]:
    return [
        replace(at, tensors={n: t.clone() for n, t in at.tensors.items()}) for at in learn_by_epoch(task, start, anchor)
    ]


@pytest.mark.parametrize("clients", [(2,), (0, 1, 2, 3)])
@pytest.mark.parametrize("head", ["linear", "normalized", "mlp", "dual"])
@pytest.mark.parametrize("body", ["mlp", "conv3"])
def test_both_ways_agree_after_every_epoch(
    body: str, head: str, clients: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With momentum, weight decay, a drift correction, and clients of different sizes; then the body learns as well, so
    that what comes after a head-only phase is tested too."""
    task, start = task_of(job_of(body, head), Phase("head"), Phase("all", 1), clients=clients, drift=Proximal(0.5))
    anchor = DriftState({n: torch.zeros_like(t[0]) for n, t in start.items() if t.is_floating_point()}, {})
    once = walked(task, start, anchor)
    monkeypatch.setattr(local, "are_fixed", lambda *_: False)
    whole = walked(task, start, anchor)
    assert [at.epochs for at in once] == [at.epochs for at in whole] == [0, 1, 2, 3, 4]
    for one, other in zip(once, whole, strict=True):
        assert one.tensors.keys() == other.tensors.keys()
        for name, tensor in other.tensors.items():
            assert_close(one.tensors[name], tensor, rtol=1e-4, atol=1e-5)
        assert_close(one.loss, other.loss, rtol=1e-4, atol=1e-5)
    moved = next(name for name in start if name.startswith("head"))
    assert not torch.equal(once[3].tensors[moved], once[0].tensors[moved])


def test_the_body_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    task, start = task_of(job_of(), Phase("head"), clients=(0,))
    calls = []
    task.context.net.body.register_forward_hook(lambda *_: calls.append(1))
    walked(task, start)
    batches = -(-task.deck.sizes[0] // 20)
    assert len(calls) == batches
    monkeypatch.setattr(local, "are_fixed", lambda *_: False)
    walked(task, start)
    assert len(calls) == batches + 3 * batches


def fixed(task: LocalTask) -> bool:
    phase = task.plan[0]
    return are_fixed(task, phase, tuple(phase.rates))


def test_where_features_may_change_they_are_computed_anew() -> None:
    plain, _ = task_of(job_of(), Phase("head"))
    assert fixed(plain)
    assert not fixed(replace(plain, context=replace(plain.context, change=augmentations["flip"])))
    assert not fixed(task_of(job_of(norm="batch"), Phase("head"))[0])  # BatchNorm goes by the batch
    assert not fixed(task_of(job_of(), Phase("all"))[0])
    assert not fixed(task_of(job_of(), Phase("blocks:1"))[0])
    assert not fixed(task_of(job_of(), Phase("head", 1))[0])  # nothing to gain
    assert not fixed(task_of(job_of(), Phase("head"), step=LookAhead())[0])
    assert not are_fixed(plain, plain.plan[0], ("body.blocks.0.conv.weight",))  # one optimiser over all phases


@pytest.mark.parametrize("trims", [False, True])
def test_sequences_of_one_length_stand_together(trims: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Features as of sequences with all their padding, in the order of the samples; batches are as wide as needed."""
    kind = Tokens(64, 9, pad=8)
    net = build("transformer", 3, kind, LinearHead(), seed=1)
    samples = torch.full((50, 64), 8, dtype=torch.int32)
    for row, length in enumerate(torch.randint(1, 60, (50,), generator=torch.Generator().manual_seed(0)).tolist()):
        samples[row, :length] = row % 8
    tensors = dict(net.state_dict())
    whole = apply(net.eval(), {name: t[None] for name, t in tensors.items()}, samples[None].long()).features[0]
    widths = []
    monkeypatch.setattr(
        features, "apply", lambda net, tensors, x: (widths.append(x.shape[2]), apply(net, tensors, x))[1]
    )
    lens = kind.lens(torch.device("cpu")).for_body(trims)
    assert_close(features.features_of(net, tensors, samples, lens, 8), whole, rtol=1e-4, atol=1e-5)
    assert len(set(widths)) == (4 if trims else 1)
    assert widths == sorted(widths, reverse=True)  # the widest first: memory runs out at once, or not at all
