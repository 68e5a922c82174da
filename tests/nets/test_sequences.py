"""Bodies for rows and sequences: stacked or alone gives the same, padding changes nothing, other kinds are refused."""

from __future__ import annotations

import pytest
import torch

from torso.data.inputs import Floats, Input, Pixels, Tokens
from torso.errors import RequestError
from torso.nets import Body, LinearHead, Network, apply, bodies, body_of, build, learnable, smallest_map
from torso.nets.bodies import kinds_of, takes
from torso.nets.build import make_body
from torso.nets.flops import step_flops
from torso.nets.sequences import Embedding, SequenceBody

from .samples import spread

OTHERS = [
    ("mlp", Floats((5,))),
    ("mlp", Floats((2, 3))),
    ("embedding-mean", Tokens(6, 9, pad=8)),
    ("transformer", Tokens(6, 9, pad=8)),
]


def made(body: str, kind: Input) -> Network:
    return build(body, 3, kind, LinearHead(), seed=1).double()


def inputs(kind: Input, clients: int, samples: int) -> torch.Tensor:
    found = kind.example(clients * samples).view(clients, samples, *kind.shape)
    return found.double() if found.is_floating_point() else found


@pytest.mark.parametrize(("body", "kind"), OTHERS)
def test_stacked_is_one_by_one(body: str, kind: Input) -> None:
    """Logits and gradients of three clients in one call, and of each client by a plain call with its weights."""
    net, x = made(body, kind), inputs(kind, 3, 4)
    assert net.body.native
    tensors = {name: t.requires_grad_() for name, t in spread(net, 3).items()}
    said = apply(net, tensors, x)
    grads = torch.autograd.grad(said.logits.square().sum(), [tensors[n] for n in learnable(net, tensors)])
    for g in range(3):
        alone = build(body, 3, kind, LinearHead()).double()
        alone.load_state_dict({name: t[g].detach() for name, t in tensors.items()})
        logits = alone(x[g])
        torch.testing.assert_close(said.logits[g], logits)
        own = torch.autograd.grad(logits.square().sum(), list(alone.parameters()))
        for mine, stacked in zip(own, grads, strict=True):
            torch.testing.assert_close(stacked[g], mine)
    torch.testing.assert_close(net(x), net(x.flatten(0, 1)).view(3, 4, 3))  # of one set of weights, in both shapes


@pytest.mark.parametrize("body", ["embedding-mean", "transformer"])
def test_padding_changes_nothing(body: str) -> None:
    """The embedding of padding has no influence, and a sequence of padding only has finite features."""
    net = made(body, Tokens(6, 9, pad=8))
    x = torch.tensor([[1, 2, 3, 8, 8, 8], [8, 8, 8, 8, 8, 8]])
    before = net(x)
    with torch.no_grad():
        net.get_parameter("body.blocks.0.weight")[8] += 100.0
    torch.testing.assert_close(net(x), before)
    assert before.isfinite().all()
    assert not torch.allclose(net(torch.tensor([[1, 2, 3, 4, 8, 8]])), before[:1])


def test_the_mean_of_embeddings_by_hand() -> None:
    """Ids 0 and 1 have (1, 0) and (0, 3): their mean is (0.5, 1.5), and of 1, 1, 0 it is (1/3, 2)."""
    body = SequenceBody(2, Embedding(3, 2), (), (), 2)
    with torch.no_grad():
        body.get_parameter("blocks.0.weight").copy_(torch.tensor([[1.0, 0.0], [0.0, 3.0], [9.0, 9.0]]))
    found = body(torch.tensor([[[0, 1, 2], [1, 1, 0], [2, 2, 2]]]))
    torch.testing.assert_close(found, torch.tensor([[[0.5, 1.5], [1 / 3, 2.0], [0.0, 0.0]]]))


def test_a_transformer_tells_orders_apart_and_a_mean_does_not() -> None:
    x, turned = torch.tensor([[1, 2, 3, 8, 8, 8]]), torch.tensor([[3, 2, 1, 8, 8, 8]])
    kind = Tokens(6, 9, pad=8)
    assert not torch.allclose(made("transformer", kind)(x), made("transformer", kind)(turned), atol=1e-6)
    torch.testing.assert_close(made("embedding-mean", kind)(x), made("embedding-mean", kind)(turned))


def test_flops_and_smallest_map_take_any_kind_of_input() -> None:
    """mlp on 5 numbers: 2 · (5 · 200 + 200 · 200 + 200 · 3) a sample."""
    net = build("mlp", 3, Floats((5,)), LinearHead())
    assert step_flops(net, Floats((5,)), 2) == 2 * 2 * (5 * 200 + 200 * 200 + 200 * 3)
    assert smallest_map(net, Floats((5,))) > 10**9
    tokens = build("transformer", 3, Tokens(6, 9), LinearHead())
    assert step_flops(tokens, Tokens(6, 9), 2) > 0


def test_a_body_that_does_not_take_the_kind_refuses_by_key() -> None:
    with pytest.raises(RequestError) as refusal:
        build("conv4", 3, Floats((14,)), LinearHead(), source="csv")
    assert str(refusal.value) == (
        "model.body = 'conv4' takes images, and data.source = 'csv' gives rows of 14 numbers. Accepted: mlp, none"
    )
    with pytest.raises(
        RequestError, match=r"'mlp' takes images or arrays of numbers, and the data are sequences of at "
    ):
        make_body("mlp", Tokens(8, 9))
    with pytest.raises(RequestError, match=r"'transformer' takes token sequences, and .* images of 8×8 with 1 channel"):
        make_body("transformer", (1, 8, 8))


def test_a_users_body_for_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any module [B, *] -> [B, d], marked by `takes`. It is tried on two samples."""

    @takes(Floats)
    def mine(input: Floats) -> Body:
        return body_of(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(6, 4), torch.nn.Tanh()), features=width)

    monkeypatch.setitem(bodies, "mine", mine)
    width = 4
    net = build("mine", 3, Floats((2, 3)), LinearHead())
    assert net(torch.zeros(5, 2, 3)).shape == (5, 3)
    assert net(torch.zeros(2, 5, 2, 3)[:1]).shape == (1, 5, 3)
    width = 7
    with pytest.raises(RequestError, match=r"gives \[1, 2, 4\] for 2 samples of one client. Expected: \[1, 2, 7\]"):
        build("mine", 3, Floats((2, 3)), LinearHead())
    assert kinds_of(mine) == (Floats,)
    assert kinds_of(bodies["conv4"]) == (Pixels,)
