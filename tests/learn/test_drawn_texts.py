"""Texts are cut to the longest of a batch, and what dropout draws for a client does not depend on others' texts."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from torso.data.batches import Deck, Shuffle
from torso.data.inputs import Input, Tokens
from torso.learn.gradients import gradients
from torso.learn.objectives import CrossEntropy
from torso.nets import Body, Network, Tensors, bodies, body_of, build, learnable, set_modes, skeleton
from torso.nets.bodies import takes
from torso.nets.heads import LinearHead
from torso.nets.lora import Lora

TEXT = Tokens(48, 30)


class Reader(nn.Module):
    """The mean over tokens, with dropout of each token."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.drop = nn.Embedding(TEXT.vocabulary, 6), nn.Dropout(0.5)

    def forward(self, tokens: Tensor) -> Tensor:
        real = (tokens != TEXT.pad).float().unsqueeze(-1)
        return (self.drop(self.table(tokens)) * real).sum(1) / real.sum(1)  # type: ignore[no-any-return]


@takes(Tokens)
def reader(input: Input) -> Body:
    made = body_of(Reader(), 6)
    made.trims = True
    return made


def batch_gradients(net: Network, clients: Sequence[int]) -> tuple[tuple[int, ...], Tensors]:
    """The shape of their first batch, and their gradients. Client 0 has five short texts, client 1 eight long ones."""
    draw = torch.Generator().manual_seed(0)
    samples = torch.randint(1, TEXT.vocabulary, (13, TEXT.length), generator=draw, dtype=torch.int32)
    samples[:5, 9:] = TEXT.pad
    labels, rows = torch.arange(13) % 3, [torch.arange(5), torch.arange(5, 13)]
    bare, names = skeleton(net), learnable(net, net.state_dict())
    set_modes(bare, names)
    deck = Deck.of(samples, labels, [rows[k] for k in clients], clients)
    lens = TEXT.lens(torch.device("cpu")).for_body(net.body.trims)
    batch = next(iter(deck.shuffled(8, lens, Shuffle(0, "train", 1), 0, None, keyed=net.body.keyed)))
    stack = {name: tensor.expand(len(clients), *tensor.shape) for name, tensor in net.state_dict().items()}
    found, _ = gradients(bare, stack, names, batch, CrossEntropy(), deck.class_counts(3))
    return tuple(batch.inputs.shape), found


@pytest.mark.parametrize(("body", "lora"), [("reader", None), ("transformer", Lora(rank=2, dropout=0.5))])
def test_dropout_does_not_depend_on_the_length_of_others_texts(
    body: str, lora: Lora | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(bodies, "reader", reader)
    net = build(body, 3, TEXT, LinearHead(), lora=lora)
    (shape, alone), (wider, together) = batch_gradients(net, [0]), batch_gradients(net, [0, 1])
    assert (shape, wider) == ((1, 5, 16), (2, 8, 48))
    assert_close({name: grad[0] for name, grad in together.items()}, {name: grad[0] for name, grad in alone.items()})
