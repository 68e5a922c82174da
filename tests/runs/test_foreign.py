"""Runs of networks that are not Torso's own: dropout that repeats, parameters that nothing reaches, BatchNorm."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.runs import samples
from torch import Tensor, nn

from torso import Config, RequestError, run
from torso.data.batches import Batch
from torso.learn.gradients import gradients_at
from torso.learn.steps import pairs
from torso.nets import Body, bodies, body_of
from torso.runs.job import simulate
from torso.runs.run import Stopped


class Dropping(nn.Module):
    """Dropout as a layer and as a function, and a path that is dropped for a sample (torch.rand, as timm had it)."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 16), nn.Linear(16, 16)
        self.drop = nn.Dropout(0.3)
        self.fc = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.drop(F.relu(self.first(x.flatten(1))))
        path = F.dropout(F.relu(self.second(x)), 0.2, self.training)
        if self.training:
            path = path * (torch.rand(len(x), 1, device=x.device) < 0.8) / 0.8
        return self.fc(x + path)  # type: ignore[no-any-return]


class Spare(Dropping):
    """With a layer that forward never uses."""

    def __init__(self, frozen: bool = False) -> None:
        super().__init__()
        del self.fc
        self.spare = nn.Linear(3, 2).requires_grad_(not frozen)
        self.fc = nn.Linear(16, 10)


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn, self.fc = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(F.relu(self.bn(self.conv(x))).mean((2, 3)))  # type: ignore[no-any-return]


def is_spare(name: str, layer: nn.Module) -> bool:
    return name.startswith("spare.")


@pytest.fixture(autouse=True)
def _bodies(monkeypatch: pytest.MonkeyPatch) -> None:
    def made(make: Any, **parts: Any) -> Any:
        def body(channels: int, height: int, width: int) -> Body:
            return body_of(make(), parts=parts)

        return body

    monkeypatch.setitem(bodies, "dropping", made(Dropping))
    monkeypatch.setitem(bodies, "spare", made(Spare, spare=is_spare))
    monkeypatch.setitem(bodies, "spare-frozen", made(lambda: Spare(frozen=True), spare=is_spare))
    monkeypatch.setitem(bodies, "normed", made(Normed))


def config(body: str, *sets: str) -> Config:
    return samples.tiny("fedper", f"model.body={body}", "train.rounds=3", *sets)


def bits(*sets: str) -> dict[str, Any]:
    result = run(config("dropping", *sets), federation=samples.digits())
    assert result.ok
    assert result.state is not None
    return {**samples.bits(result.state), "accuracy": {n: a.clients for n, a in result.accuracy.items()}}


@pytest.fixture(scope="module")
def one_worker() -> dict[str, Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(bodies, "dropping", lambda channels, height, width: body_of(Dropping()))
        return bits("run.workers=1")


@pytest.mark.parametrize(
    "sets",
    [
        ("run.workers=2",),
        ("run.workers=2", "run.clients_at_once=2"),
        ("run.engine=batched", "run.clients_at_once=1"),
        ("run.engine=batched",),
    ],
)
def test_dropout_has_the_same_bits_with_any_workers_stack_and_engine(
    sets: tuple[str, ...], one_worker: dict[str, Any]
) -> None:
    torch.rand(7)  # the global stream is elsewhere, and nobody minds
    assert bits(*sets) == one_worker


def test_dropout_is_drawn_in_training_alone_and_by_the_seed(one_worker: dict[str, Any]) -> None:
    assert bits("run.seed=1") != one_worker
    net = simulate(config("dropping"), samples.digits()).net.eval()
    x = torch.randn(5, 1, 8, 8)
    assert torch.equal(net(x), net(x))


def test_dropout_of_a_resumed_run_is_that_of_one_left_alone(tmp_path: Path) -> None:
    whole, parted, asked = tmp_path / "whole", tmp_path / "parted", config("dropping", "method.step=envelope")
    assert run(asked, whole, federation=samples.digits()).ok
    listener = samples.StopAfter(1)
    with pytest.raises(Stopped):
        run(asked, parted, federation=samples.digits(), listener=listener, stop=listener.stop)
    torch.rand(7)
    assert run(asked, parted, federation=samples.digits(), resume=True).ok
    samples.assert_same_run(parted, whole)


def test_every_pass_over_a_batch_draws_anew() -> None:
    batch = Batch(torch.zeros(2, 1, 1, 2, 2), torch.zeros(2, 1), keys=(5, 6))
    passes = [batch, batch.again(0), batch.again(1)]
    assert len({key for each in passes for key in each.keys or ()}) == 6
    assert batch.again(1).keys == batch.again(1).keys


def test_who_meets_a_batch_twice_draws_the_same_in_a_stack_and_alone() -> None:
    """Client 0 has two batches, client 1 one (spec 5.2)."""
    first = Batch(torch.zeros(2, 1, 1, 2, 2), torch.zeros(2, 1), keys=(5, 6))
    second = replace(first, active=torch.tensor([True, False]), keys=(7, 8))
    ((_, stacked),) = pairs(iter([first, second]))
    ((_, alone),) = pairs(iter([replace(first, keys=(6,))]))
    assert alone.keys is not None
    assert stacked.keys == (7, *alone.keys)


@pytest.mark.parametrize(
    ("sets", "key"),
    [
        ((), "method.train"),
        (("method.train=all-spare",), "method.personal.phases"),
        (("method.train=all-spare", "personalize.part=body"), "personalize.part"),
    ],
)
def test_a_parameter_that_the_loss_does_not_reach_is_named_before_the_run(
    sets: tuple[str, ...], key: str, tmp_path: Path
) -> None:
    words = rf"^{key} trains body\.module\.spare\.weight, body\.module\.spare\.bias, which the loss does not depend on"
    with pytest.raises(RequestError, match=words):
        run(config("spare", "method.name=fedavg", *sets), tmp_path / "out", federation=samples.digits())
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("body", "sets"),
    [("spare-frozen", ()), ("spare", ("method.train=all-spare", "personalize.part=all-spare"))],
)
def test_it_may_be_frozen_or_left_out(body: str, sets: tuple[str, ...]) -> None:
    result = run(config(body, "method.name=fedavg", *sets), federation=samples.digits())
    assert result.ok
    assert result.state is not None
    job = simulate(config(body, "method.name=fedavg", *sets), samples.digits())
    spare = [name for name in job.net.state_dict() if ".spare." in name]
    assert len(spare) == 2
    assert all(torch.equal(result.state.model[name], job.model[name]) for name in spare)
    sent = sum(4 * t.numel() for n, t in job.model.items() if n not in spare) * 3 * 3  # three clients, three rounds
    assert result.cost.bytes_up == result.cost.bytes_down == sent


def test_at_a_step_it_is_named_as_well() -> None:
    """Where nobody could look before: a loss of one's own, say."""
    leaves = {"used": torch.ones(1, 1, requires_grad=True), "spare": torch.ones(1, 1, requires_grad=True)}
    with pytest.raises(RequestError, match=r"^method\.train trains spare, which .*\.requires_grad_\(False\)"):
        gradients_at(leaves, leaves["used"].sum())
    with pytest.raises(RequestError, match=r"trains used, spare, which"):
        gradients_at(leaves, torch.zeros(()))


@pytest.mark.parametrize("engine", ["one-by-one", "batched"])
def test_a_foreign_batchnorm_goes_one_client_at_a_time_and_the_run_says_so(engine: str) -> None:
    heard = samples.Heard()
    asked = config("normed", f"run.engine={engine}", "method.share=body-norm")
    result = run(asked, federation=samples.digits(), listener=heard)
    assert heard.notes == [
        "model.body = 'normed' is computed one client at a time: its BatchNorm layers are not Torso's own and would "
        "count padding"
    ]
    assert result.state is not None
    kept = {name for own in result.state.clients.of_kind("kept").values() for name in own}
    assert {n for n in kept if n.startswith("body.")} == {
        f"body.module.bn.{n}" for n in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    }
    means = [own["body.module.bn.running_mean"] for own in result.state.clients.of_kind("kept").values()]
    assert len({tuple(mean.tolist()) for mean in means}) == len(means)
    with pytest.raises(RequestError, match=r"run\.clients_at_once = 2: BatchNorm"):
        run(asked.but("run.clients_at_once=2"), federation=samples.digits())


class HandNorm(nn.Module):
    """BatchNorm as many write it: forward puts other tensors in the place of its buffers, or of plain attributes."""

    def __init__(self, registered: bool) -> None:
        super().__init__()
        self.mean, self.var = torch.zeros(4), torch.ones(4)
        if registered:
            del self.mean, self.var
            self.register_buffer("mean", torch.zeros(4))
            self.register_buffer("var", torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        mean, var = self.mean, self.var
        if self.training:
            mean, var = x.mean((0, 2, 3)), x.var((0, 2, 3), correction=0)
            unbiased = var.detach() * (x.numel() / 4) / (x.numel() / 4 - 1)
            self.mean, self.var = 0.9 * self.mean + 0.1 * mean.detach(), 0.9 * self.var + 0.1 * unbiased
        wide = (slice(None), None, None)
        return (x - mean[wide]) / torch.sqrt(var[wide] + 1e-5)


def net_with(norm: nn.Module) -> nn.Module:
    torch.manual_seed(2)
    flat = [nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 10)]
    return nn.Sequential(nn.Conv2d(1, 4, 3), norm, *flat)


def test_buffers_that_forward_replaces_move_as_those_that_it_changes() -> None:
    """nn.BatchNorm2d says what comes out: training, averaging and evaluation by running statistics."""
    asked = samples.tiny("fedavg", "train.rounds=2")
    by_torch, by_hand = (
        run(asked, federation=samples.digits(), model=net_with(norm))
        for norm in (nn.BatchNorm2d(4, affine=False), HandNorm(registered=True))
    )
    assert by_torch.state is not None
    assert by_hand.state is not None
    theirs, ours = by_torch.state.model, by_hand.state.model
    for name, tensor in ours.items():
        like = name.replace("1.mean", "1.running_mean").replace("1.var", "1.running_var")
        torch.testing.assert_close(tensor, theirs[like], rtol=1e-3, atol=1e-4)
    assert ours["body.module.1.mean"].abs().max() > 0.01


def test_what_lasts_outside_buffers_is_refused() -> None:
    with pytest.raises(RequestError, match=r"depends on its earlier calls, .* self\.register_buf"):
        run(samples.tiny("fedavg"), federation=samples.digits(), model=net_with(HandNorm(registered=False)))


def test_a_norm_by_the_batch_meets_one_sample_of_one_pixel() -> None:
    """In evaluation its answer is the layer's bias, as with Torso's own BatchNorm; operations are counted, too."""
    layers = [nn.Flatten(), nn.Linear(64, 4), nn.BatchNorm1d(4, track_running_stats=False)]
    torch.manual_seed(2)
    module = nn.Sequential(*layers, nn.Linear(4, 10))
    nn.init.constant_(layers[2].get_parameter("bias"), 0.5)
    result = run(samples.tiny("fedavg", "train.rounds=1"), federation=samples.digits(), model=module)
    net = result.network()
    torch.testing.assert_close(
        net.features(torch.randn(1, 1, 8, 8))[0], net.get_parameter("body.module.2.bias"), rtol=0, atol=1e-4
    )


def test_a_module_of_another_precision_is_refused() -> None:
    with pytest.raises(RequestError, match=r"0\.weight of model \(Sequential\) is float64\. Expected: float32"):
        run(samples.tiny("fedavg"), federation=samples.digits(), model=net_with(nn.Identity()).double())
