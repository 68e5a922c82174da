"""Precision is chosen for a while and put back."""

from __future__ import annotations

import torch

from torso.fast import dot_precision
from torso.nets import LinearHead, apply, build
from torso.precision import activation_type, computing


def test_switches_are_put_back() -> None:
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    with computing("tf32"):
        assert dot_precision(torch.zeros(1)) == "tf32"
        with computing("fp32"):
            assert dot_precision(torch.zeros(1)) == "ieee"
            assert not torch.backends.cudnn.allow_tf32
        assert torch.backends.cudnn.allow_tf32
    assert (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32) == before


def test_bf16_keeps_weights_gradients_and_losses_in_float32() -> None:
    for body in ("conv4", "resnet8", "vgg11"):
        net = build(body, 3, (3, 32, 32), LinearHead(), seed=0)
        tensors = {n: t.repeat(2, *[1] * t.ndim) for n, t in net.state_dict().items()}
        leaves = {n: t.requires_grad_() for n, t in tensors.items() if n in dict(net.named_parameters())}
        x = torch.randn(2, 4, 3, 32, 32)
        said = apply(net, {**tensors, **leaves}, x.to(activation_type("bf16")))
        exact = apply(net, {**tensors, **leaves}, x)
        assert said.logits.dtype == said.features.dtype == torch.float32
        grads = torch.autograd.grad(said.logits.sum(), list(leaves.values()))
        assert all(g.dtype == torch.float32 for g in grads)
        torch.testing.assert_close(said.logits, exact.logits, rtol=0.1, atol=0.05)
