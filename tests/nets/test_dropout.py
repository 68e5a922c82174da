"""Dropout of Torso's own networks: masks from keys, the same for a client in any stack, and PyTorch's arithmetic."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from torso.data.batches import Batch, Deck, Shuffle
from torso.errors import RequestError
from torso.nets import Network, Tensors, apply, learnable, skeleton
from torso.nets.dropout import Dropout, dropout_mask, dropping_by_keys
from torso.randomness import random_bits

from .samples import DROPS, images, small, spread

KEYS = torch.tensor([11, 12, 13])


def test_a_mask_by_hand() -> None:
    """Two samples of five values take two hashes each. A hash gives four numbers of 15 bits, the lowest bits first."""
    mine = int(random_bits(torch.tensor([7]), 2)[0, 1])  # the layer with number 1
    words = random_bits(torch.tensor([mine]), 4)[0].tolist()
    numbers = [
        [(word >> (15 * lane)) & 32767 for word in words[2 * b : 2 * b + 2] for lane in range(4)] for b in (0, 1)
    ]
    wanted = [[number >= 8192 for number in row[:5]] for row in numbers]
    assert dropout_mask(torch.tensor([7]), 1, 2, 5, 0.25)[0].tolist() == wanted


@pytest.mark.parametrize("chance", [0.25, 0.5])
def test_the_share_of_dropped_values_is_the_probability(chance: float) -> None:
    """Within four standard deviations, for 3 × 40 × 1,000 values. Clients, samples, layers and steps differ."""
    found = dropout_mask(KEYS, 0, 40, 1000, chance)
    assert abs(found.double().mean().item() - (1 - chance)) < 4 * (chance * (1 - chance) / found.numel()) ** 0.5
    for other in (
        found.roll(1, 0),
        found.roll(1, 1),
        dropout_mask(KEYS, 1, 40, 1000, chance),
        dropout_mask(KEYS + 1, 0, 40, 1000, 0.5),
    ):
        assert 0.4 < (found == other).double().mean().item() < 0.7


def test_a_mask_does_not_depend_on_other_clients() -> None:
    whole = dropout_mask(KEYS, 0, 6, 10, 0.5)
    assert torch.equal(dropout_mask(KEYS[1:2], 0, 6, 10, 0.5)[0], whole[1])  # other clients
    assert torch.equal(dropout_mask(KEYS, 0, 4, 10, 0.5), whole[:, :4])  # padding after the samples


def plain(tensors: Tensors, client: int, x: Tensor, masks: list[Tensor]) -> Tensor:
    """The network in plain PyTorch, with given dropout masks [B, C, H, W] and [B, 128]."""
    t = {name: tensor[client] for name, tensor in tensors.items()}
    x = F.relu(F.conv2d(x, t["body.blocks.0.conv.weight"], t["body.blocks.0.conv.bias"]))
    x = F.relu(F.conv2d(x, t["body.blocks.1.0.conv.weight"], t["body.blocks.1.0.conv.bias"]))
    x = F.max_pool2d(x, 2) * masks[0] / 0.75
    x = F.relu(F.linear(x.flatten(1), t["body.blocks.2.0.linear.weight"], t["body.blocks.2.0.linear.bias"]))
    return F.linear(x * masks[1] / 0.5, t["head.weight"], t["head.bias"])


def stacked(
    net: Network, tensors: Tensors, x: Tensor, keys: Tensor, real: Tensor | None = None
) -> tuple[Tensor, Tensors]:
    names = learnable(net, tensors)
    leaves = {name: t.clone().requires_grad_() for name, t in tensors.items()}
    logits = apply(skeleton(net).train(), leaves, x, real, keys).logits
    counted = logits if real is None else logits * real[..., None]
    grads = torch.autograd.grad(counted.square().sum(), [leaves[n] for n in names])
    return logits.detach(), dict(zip(names, grads, strict=True))


def test_stacked_clients_are_plain_pytorch_with_these_masks() -> None:
    net, image = small("pfl-cnn")
    tensors, x = spread(net, 3), images(3, 4, *image)
    logits, grads = stacked(net, tensors, x, KEYS)
    side = (image[1] - 4) // 2
    maps = dropout_mask(KEYS, 0, 4, 64 * side * side, 0.25).view(3, 4, side, side, 64).permute(0, 1, 4, 2, 3)
    hidden = dropout_mask(KEYS, 1, 4, 128, 0.5)
    for g in range(3):
        leaves = {name: t.clone().requires_grad_() for name, t in tensors.items()}
        said = plain(leaves, g, x[g], [maps[g], hidden[g]])
        torch.testing.assert_close(logits[g], said, rtol=1e-8, atol=1e-9)
        wanted = torch.autograd.grad(said.square().sum(), list(leaves.values()))
        for name, grad in zip(leaves, wanted, strict=True):
            torch.testing.assert_close(grads[name][g], grad[g], rtol=1e-7, atol=1e-9)


def test_whole_channels_are_left_out_by_hand() -> None:
    """A map of ones with six channels: a channel is 0 everywhere or 2 everywhere, by the mask of six numbers."""
    layer, ones = Dropout(0.5, place=0, whole=True), torch.ones(3 * 4, 6, 2, 2)
    with dropping_by_keys([layer], KEYS):
        found = layer(ones)
    stays = dropout_mask(KEYS, 0, 4, 6, 0.5).view(12, 6, 1, 1)
    assert torch.equal(found, 2.0 * stays.expand(12, 6, 2, 2))
    assert 0 < stays.sum() < stays.numel()


def test_fed_rods_network_leaves_out_channels_and_hidden_units() -> None:
    """Against plain PyTorch: dropout of channels after ReLU and pool is the same as before them."""
    net, image = small("rod-mnist-dropout")
    tensors, x = spread(net, 3), images(3, 4, *image)
    logits, _ = stacked(net, tensors, x, KEYS)
    channels, units = dropout_mask(KEYS, 0, 4, 64, 0.5), dropout_mask(KEYS, 1, 4, 50, 0.5)
    for g in range(3):
        t = {name: tensor[g] for name, tensor in tensors.items()}
        y = F.max_pool2d(F.relu(F.conv2d(x[g], t["body.blocks.0.conv.weight"], t["body.blocks.0.conv.bias"])), 2)
        y = F.conv2d(y, t["body.blocks.1.0.conv.weight"], t["body.blocks.1.0.conv.bias"])
        y = F.relu(F.max_pool2d(y * channels[g][:, :, None, None] / 0.5, 2)).flatten(1)
        y = F.relu(F.linear(y, t["body.blocks.2.0.linear.weight"], t["body.blocks.2.0.linear.bias"]))
        said = F.linear(y * units[g] / 0.5, t["head.weight"], t["head.bias"])
        torch.testing.assert_close(logits[g], said, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("body", DROPS)
def test_one_by_one_and_padded_are_the_same_clients(body: str) -> None:
    net, image = small(body)
    tensors, x = spread(net, 3), images(3, 4, *image)
    real = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0], [1, 0, 0, 0]], dtype=torch.float64)
    logits, grads = stacked(net, tensors, x, KEYS, real)
    for g, size in enumerate((4, 3, 1)):
        alone = {name: t[g : g + 1] for name, t in tensors.items()}
        said, own = stacked(net, alone, x[g : g + 1, :size], KEYS[g : g + 1])
        torch.testing.assert_close(logits[g, :size], said[0], rtol=1e-8, atol=1e-9)
        for name, grad in own.items():
            torch.testing.assert_close(grads[name][g], grad[0], rtol=1e-7, atol=1e-9)


def test_nothing_is_dropped_in_evaluation_and_keys_are_needed_in_training() -> None:
    net, image = small("pfl-cnn")
    tensors, x = spread(net, 2), images(2, 4, *image)
    bare = skeleton(net)
    one, two = (apply(bare.eval(), tensors, x).logits for _ in range(2))
    assert torch.equal(one, two)
    with pytest.raises(RequestError, match="there is no key to draw them from"):
        apply(bare.train(), tensors, x)
    apply(bare, tensors, x, keys=KEYS[:2])
    assert all(layer.keys is None for layer in bare.modules() if isinstance(layer, Dropout))


def test_a_network_called_by_the_user_draws_as_pytorch_does() -> None:
    net, image = small("pfl-cnn")
    x = images(4, *image)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        first = net.train()(x)
        torch.manual_seed(0)
        assert torch.equal(first, net(x))
        assert not torch.equal(first, net(x))


def dealt(clients: list[int], sizes: list[int], epoch: int = 0) -> list[Batch]:
    rows = [torch.arange(size) for size in sizes]
    deck = Deck.of(torch.zeros(10, 1, 1, 1, dtype=torch.uint8), torch.zeros(10, dtype=torch.long), rows, clients)
    return list(deck.shuffled(3, _Lens(), Shuffle(5, "train", 2), epoch, None, keyed="device"))


class _Lens:
    def widths(self, *_: object) -> None:
        return None

    def look(self, samples: Tensor, index: Tensor, *_: object) -> Tensor:
        return samples[index]


def test_keys_are_of_client_epoch_and_step() -> None:
    both = dealt([3, 8], [10, 4])
    keys = torch.stack([batch.keys for batch in both if isinstance(batch.keys, Tensor)])  # [steps, G]
    assert len(set(keys.flatten().tolist())) == keys.numel() == 8
    alone = dealt([8], [4])
    assert [int(batch.keys[0]) for batch in alone if isinstance(batch.keys, Tensor)] == keys[:2, 1].tolist()
    later = dealt([3, 8], [10, 4], epoch=1)[0].keys
    assert isinstance(later, Tensor)
    assert not set(later.tolist()) & set(keys.flatten().tolist())
    assert both[0].first(1).keys == keys[0, :1]


def test_a_batch_that_is_dealt_again_has_other_keys() -> None:
    batch = dealt([3, 8], [10, 4])[2]
    assert batch.active is not None
    again, third = batch.again(1).keys, batch.again(2).keys
    assert isinstance(again, Tensor)
    assert isinstance(third, Tensor)
    assert isinstance(batch.keys, Tensor)
    assert len({*again.tolist(), *third.tolist(), *batch.keys.tolist()}) == 6
    other = replace(dealt([3, 8], [10, 4])[0], active=None)
    filled = batch.filled_from(other).keys
    twice = other.again(1).keys
    assert isinstance(filled, Tensor)
    assert isinstance(twice, Tensor)
    assert filled.tolist() == [int(batch.keys[0]), int(twice[1])]  # the second has no samples in the third batch
