"""Gradients of clients that lead a batch, and of all."""

from __future__ import annotations

import torch

from torso.data.batches import Batch
from torso.learn.gradients import gradients, leading_gradients
from torso.learn.objectives import CrossEntropy
from torso.nets import LinearHead, build, learnable, set_modes, skeleton


def test_clients_without_samples_have_gradients_of_zero_or_none_at_all() -> None:
    """Three clients, of which the first two have samples: theirs are what they are in a batch that says nothing."""
    whole = build("mlp", 4, (1, 4, 4), LinearHead(), seed=0)
    draw = torch.Generator().manual_seed(0)
    tensors = {n: t + 0.1 * torch.randn(3, *t.shape, generator=draw) for n, t in whole.state_dict().items()}
    net, names = skeleton(whole), learnable(whole, whole.state_dict())
    set_modes(net, names)
    images, labels = torch.rand(3, 5, 1, 4, 4, generator=draw), torch.arange(15).view(3, 5) % 4
    active = torch.tensor([True, True, False])
    real = torch.tensor([[1.0, 1, 1, 1, 1], [1, 1, 0, 0, 0], [0, 0, 0, 0, 0]])
    rest = net, tensors, names
    silent = Batch(images, labels, real, active)
    wanted, losses = gradients(*rest, silent, CrossEntropy(), torch.ones(3, 4))
    said = Batch(images, labels, real, active, lead=2)
    full, total = gradients(*rest, said, CrossEntropy(), torch.ones(3, 4))
    first, short = leading_gradients(*rest, said, CrossEntropy(), torch.ones(3, 4))
    torch.testing.assert_close(total, losses)
    torch.testing.assert_close(short, losses[:2])
    assert losses[2] == 0
    for name, grad in wanted.items():
        assert grad[:2].abs().sum() > 0
        torch.testing.assert_close(full[name], grad)
        torch.testing.assert_close(first[name], grad[:2])
