"""Operations and memory: what torch counts is what one counts by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from torso import run
from torso.engine.memory import peak_memory_bytes
from torso.nets import LinearHead, build, flops, learnable
from torso.nets.flops import step_flops
from torso.runs.job import simulate

from .samples import digits, tiny

A, B, C = 64 * 200, 200 * 200, 200 * 10  # multiplications per sample of the three layers of `mlp` on digits


@pytest.mark.parametrize("batch", [2, 50])
def test_a_step_of_the_mlp_by_hand(batch: int) -> None:
    """Two operations per multiplication: forward A + B + C; back to weights A + B + C, and through layers B + C."""
    net = simulate(tiny(), digits()).net
    every, head = list(net.state_dict()), net.parts["head"]
    assert step_flops(net, (1, 8, 8), batch) == 2 * batch * (A + B + C)
    assert step_flops(net, (1, 8, 8), batch, every) == 2 * batch * (2 * (A + B + C) + B + C)
    assert step_flops(net, (1, 8, 8), batch, head) == 2 * batch * (A + B + 2 * C)


@pytest.mark.parametrize("body", ["conv4", "mobilenet", "resnet18"])
def test_a_convolution_costs_the_same_forward_to_its_input_and_to_its_weight(body: str) -> None:
    """Depthwise ones too. The first has no way back to its input: the image."""
    net = build(body, 10, (3, 32, 32), LinearHead(), seed=0)
    first = next(module for module in net.modules() if isinstance(module, torch.nn.Conv2d))
    to_image = 2 * first.weight.numel() * 32 * 32
    assert (
        step_flops(net, (3, 32, 32), 2, learnable(net, net.state_dict()))
        == 3 * step_flops(net, (3, 32, 32), 2) - 2 * to_image
    )


def test_of_networks_that_are_built_alike_one_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not of those that differ, nor of those that compute something of their own."""
    looks = []
    look = flops._there_and_back
    monkeypatch.setattr(flops, "_alike", {})
    monkeypatch.setattr(flops, "_there_and_back", lambda *asked: looks.append(1) or look(*asked))

    def counted(image: tuple[int, int, int] = (1, 8, 8), classes: int = 3, norm: str = "default") -> int:
        net = build("conv3", classes, image, LinearHead(), norm=norm, seed=len(looks))  # type: ignore[arg-type]
        return step_flops(net, image, 2)

    first = counted()
    assert (counted(), len(looks)) == (first, 1)
    assert counted(classes=4) - first == 2 * 2 * net_features()
    assert counted(image=(1, 16, 16)) > first
    assert (counted(norm="running"), len(looks)) == (first, 4)
    own = build("conv3", 3, (1, 8, 8), LinearHead(), seed=0)
    own.body.forward = lambda x, real=None: x.new_zeros(*x.shape[:2], net_features())  # type: ignore[method-assign]
    assert step_flops(own, (1, 8, 8), 2) == 2 * 2 * 3 * net_features()  # of its head alone


def net_features() -> int:
    return build("conv3", 3, (1, 8, 8), LinearHead()).body.features


@pytest.mark.parametrize(
    ("method", "each"),
    [
        ("fedavg", 2 * (A + B + C) + B + C),
        ("ditto", 2 * (2 * (A + B + C) + B + C)),  # a second model is trained
        ("lp", A + B + 2 * C),
    ],
)
def test_a_runs_operations_are_those_of_its_samples(method: str, each: int, tmp_path: Path) -> None:
    result = run(tiny(method, "measure.names=[]"), tmp_path / "run", federation=digits())
    lines = [json.loads(line) for line in (tmp_path / "run" / "history.jsonl").read_text().splitlines()]
    met = sum(int(digits().train.sizes_of(line["participants"]).sum()) for line in lines)
    assert result.cost.flops == 2 * met * each
    assert lines[-1]["flops"] == result.cost.flops


def test_class_means_cost_a_forward_pass() -> None:
    result = run(tiny("fedncm", "measure.names=[]"), federation=digits())
    assert result.cost.flops == 2 * (A + B + C) * len(digits().train.order)


def test_memory_of_the_process_is_known_on_cpu() -> None:
    known = peak_memory_bytes(torch.device("cpu"))
    assert known is not None
    assert 50e6 < known < 1e12  # torch alone takes more than 50 MB
    assert peak_memory_bytes(torch.device("meta")) is None
