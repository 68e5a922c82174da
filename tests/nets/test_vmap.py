"""A body that is not Torso's is computed for several clients by vmap only if that works, in the backward pass too."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from torso import Config, run
from torso.data.inputs import Floats
from torso.nets import split
from torso.nets.compute import vmap_error

CPU, INPUT = torch.device("cpu"), Floats((6,))


class LooksBack(torch.autograd.Function):
    """A function whose forward pass can be mapped over clients, and whose backward pass reads a value."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return 2 * grad if float(grad.sum()) > 0 else 2.0 * grad


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.fc = nn.Linear(6, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.between(self.first(x)))  # type: ignore[no-any-return]

    def between(self, x: Tensor) -> Tensor:
        return x.relu()


class OnlyForward(Small):
    def between(self, x: Tensor) -> Tensor:
        return LooksBack.apply(x)  # type: ignore[no-any-return,no-untyped-call]


class Looks(Small):
    def between(self, x: Tensor) -> Tensor:
        return x if bool(x.sum() > 0) else -x


class OfItsOwn(Small):
    """A body with an error that has nothing to do with several clients."""

    def between(self, x: Tensor) -> Tensor:
        raise RuntimeError("the third layer is missing")


@pytest.mark.parametrize(
    ("kind", "why"), [(Small, ""), (OnlyForward, "vmap"), (Looks, "vmap"), (OfItsOwn, "the third layer is missing")]
)
def test_it_is_found_out_beforehand(kind: type[nn.Module], why: str) -> None:
    net = split(kind())
    found = vmap_error(net, INPUT, CPU, torch.float32)
    assert why in found
    assert bool(found) == bool(why)
    assert net.body.vmaps  # tried on a copy


class Attends(nn.Module):
    """Attention whose fused kernels do not support vmap, and a convolution with a bias under autocast and vmap."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.fc = nn.Conv2d(1, 32, 2, 2), nn.Linear(32, 10)
        self.attention = nn.MultiheadAttention(32, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        return self.fc(self.attention(tokens, tokens, tokens, need_weights=False)[0].mean(1))  # type: ignore[no-any-return]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="fused attention and autocast under vmap need CUDA")
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.filterwarnings("ignore:Attends is computed")
def test_attention_trains_on_an_accelerator(precision: str) -> None:
    found = {}
    for device in ("cuda", "cpu"):
        config = Config(
            data={"source": "digits", "clients": 5},
            train={"rounds": 1, "fraction": 1.0, "local_epochs": 1, "batch_size": 20},
            measure={"names": ("initial",)},
            run={"device": device, "precision": precision if device == "cuda" else "auto"},
        )
        torch.manual_seed(0)
        state = run(config, model=Attends()).state
        assert state is not None
        found[device] = state.server.model
    near = {"rtol": 1e-3, "atol": 1e-4} if precision == "fp32" else {"rtol": 0.1, "atol": 2e-2}
    for name, tensor in found["cpu"].items():
        torch.testing.assert_close(found["cuda"][name].cpu(), tensor, **near, msg=name)
