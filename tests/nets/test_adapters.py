"""Adapters (LoRA): which layers get one, what it computes, and G clients in one pass of one frozen body."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.nets.test_zoo import library
from torch import Tensor, nn
from torch.testing import assert_close

from torso import RequestError
from torso.data.batches import Batch
from torso.data.inputs import Input, Pixels, Tokens
from torso.learn.gradients import gradients
from torso.learn.objectives import CrossEntropy
from torso.nets import Network, OfTokens, Tensors, apply, bodies, body_of, build, learnable, set_modes, skeleton
from torso.nets.blocks import Unit
from torso.nets.bodies import takes
from torso.nets.heads import LinearHead
from torso.nets.lora import Adapted, Lora, is_adapter

IMAGE = Pixels(3, 8, 8)
TEXT = Tokens(6, 30)
INPUTS: dict[str, Input] = {"bert": TEXT, "transformer": TEXT, "rod-cifar": Pixels(3, 18, 18)}


class ConvNet(nn.Module):
    """BatchNorm that has seen data, a depthwise convolution, and 1×1 convolutions with padding and with stride 2."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, padding=1)
        self.norm = nn.BatchNorm2d(6)
        self.deep = nn.Conv2d(6, 6, 3, padding=1, groups=6)
        self.edge = nn.Conv2d(6, 6, 1, padding=1)
        self.point = nn.Conv2d(6, 8, 1, stride=2)
        self.drop = nn.Dropout(0.5)
        self.norm.running_mean = torch.linspace(-1, 1, 6)
        self.norm.running_var = torch.linspace(0.5, 2, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = self.edge(self.deep(F.relu(self.norm(self.stem(x)))))
        return self.drop(self.point(x)).mean((2, 3))


class LengthFirst(nn.Module):
    """Its layers get the samples second, as in torch's transformers by default, so adapters cannot separate clients."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(2).permute(2, 0, 1)  # [pixels, samples, channels]
        return self.query(tokens).tanh().mean(0)  # type: ignore[no-any-return]


class Mixes(nn.Module):
    """Every sample depends on the whole batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(192, 4)

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(1)
        return self.layer(flat - flat.mean(0))  # type: ignore[no-any-return]


class Experts(nn.Module):
    """A mixture of experts: a sample's features choose its layer, so a layer may get rows of one client only."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.left, self.right = nn.Linear(192, 6), nn.Linear(6, 4), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x.flatten(1))
        goes, out = x[:, 0] > 5, x.new_zeros(len(x), 4)  # true for none of the samples that a body is tried with
        out[goes], out[~goes] = self.left(x[goes]), self.right(x[~goes])
        return out


class Sorted(nn.Module):
    """A layer gets the samples sorted by one of their values."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.layer = nn.Linear(192, 6), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x.flatten(1))
        order = x[:, 0].argsort()
        return self.layer(x[order])[order.argsort()]  # type: ignore[no-any-return]


class MixesInTraining(Mixes):
    """As `Mixes` in training; in evaluation a sample depends on itself only."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if self.training else self.layer(x.flatten(1))


class Twins(nn.Module):
    """A module with one layer under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.query = nn.Linear(192, 4), nn.Linear(4, 4)
        self.again = self.query

    def forward(self, x: Tensor) -> Tensor:
        return self.again(self.query(self.first(x.flatten(1))).tanh())  # type: ignore[no-any-return]


def bert() -> nn.Module:
    transformers = library("transformers")
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    config = transformers.BertConfig(num_labels=4, vocab_size=30, max_position_embeddings=8, **sizes)
    return OfTokens(transformers.BertForSequenceClassification(config))


@pytest.fixture(autouse=True)
def _bodies(monkeypatch: pytest.MonkeyPatch) -> None:
    made = {"convnet": (ConvNet, 8), "length-first": (LengthFirst, 4), "mixes": (Mixes, 4), "experts": (Experts, 4)}
    made |= {"sorted": (Sorted, 4), "mixes-in-training": (MixesInTraining, 4)}
    for name, (kind, features) in made.items():
        monkeypatch.setitem(
            bodies, name, lambda channels, height, width, kind=kind, features=features: body_of(kind(), features)
        )
    monkeypatch.setitem(bodies, "bert", takes(Tokens)(lambda input: body_of(bert())))


def net_of(body: str, **options: Any) -> Network:
    input = INPUTS.get(body, IMAGE)
    return build(body, 5, input, LinearHead(), lora=Lora(**{"rank": 2, **options}))


def clients_of(net: Network, count: int) -> Tensors:
    """The network's tensors for several clients: frozen ones are shared, the others are moved away from their start."""
    draw = torch.Generator().manual_seed(1)
    return {
        name: tensor.detach().expand(count, *tensor.shape)
        if name in net.frozen
        else tensor.detach() + torch.randn(count, *tensor.shape, generator=draw) / 16
        for name, tensor in net.state_dict().items()
    }


def batch_of(net: Network, clients: int = 3, width: int = 4) -> Batch:
    """A ragged batch: the second client has two samples."""
    assert net.input is not None
    x = net.input.example(clients * width).view(clients, width, *net.input.shape)
    labels = torch.arange(clients * width).view(clients, width) % 5
    real = torch.ones(clients, width)
    real[1, 2:] = 0
    return Batch(x, labels, real)


def rows(tensors: Tensors, batch: Batch, place: int) -> Iterator[Any]:
    assert batch.real is not None
    size = int(batch.real[place].sum())
    yield {name: tensor[place : place + 1] for name, tensor in tensors.items()}
    yield Batch(batch.inputs[place : place + 1, :size], batch.labels[place : place + 1, :size], None)


BODIES = ["resnet8", "conv3", "rod-cifar", "mlp", "transformer", "convnet", "bert"]
ONE_PASS = {"resnet8": True, "conv3": False, "rod-cifar": True, "mlp": True, "transformer": True}


@pytest.mark.parametrize("body", BODIES)
def test_one_pass_for_all_clients_is_one_by_one(body: str) -> None:
    """Outputs and gradients of three ragged clients, with the network in the modes of a round."""
    net = net_of(body)
    assert net.body.once == ONE_PASS.get(body, True)
    assert net.body.one_pass
    assert net.stacks
    learning = learnable(net, net.state_dict())
    tensors, batch, bare = clients_of(net, 3), batch_of(net), skeleton(net)
    set_modes(bare, learning)
    counts, calls = torch.ones(3, 5), watched(bare)
    grads, total = gradients(bare, tensors, learning, batch, CrossEntropy(), counts)
    assert calls == [1]
    said = apply(bare, tensors, batch.inputs, batch.real)
    if batch.inputs.ndim == 5:  # images in the other memory layout
        last = batch.inputs.permute(0, 1, 3, 4, 2).contiguous().permute(0, 1, 4, 2, 3)
        assert_close(apply(bare, tensors, last, batch.real).logits, said.logits, rtol=1e-5, atol=1e-5)
    for place in range(3):
        mine, own = rows(tensors, batch, place)
        alone, loss = gradients(bare, mine, learning, own, CrossEntropy(), counts[:1])
        assert_close(total[place], loss[0], rtol=1e-5, atol=1e-5)
        heard = apply(bare, mine, own.inputs)
        assert_close(said.logits[place, : own.labels.shape[1]], heard.logits[0], rtol=1e-5, atol=1e-5)
        for name in learning:
            assert_close(grads[name][place], alone[name][0], rtol=1e-4, atol=1e-5)


def watched(net: Network) -> list[int]:
    """How often the body is called."""
    calls = [0]

    def count(*_: Any) -> None:
        calls[0] += 1

    net.body.register_forward_hook(count)
    return calls


def test_the_change_is_alpha_over_rank_times_b_a() -> None:
    """A linear layer and a 3×3 convolution equal their plain kind under W + (alpha / rank) · b a."""
    net = net_of("convnet", rank=2, alpha=6.0, targets=("all",))
    tensors = {n: t[0] for n, t in clients_of(net, 1).items()}
    plain = ConvNet()
    for name in ("stem", "edge", "point"):
        a, b = (tensors[f"body.module.{name}.lora_{half}.weight"] for half in "ab")
        change = 3.0 * torch.einsum("or,rikl->oikl", b.flatten(1), a)
        weight = tensors[f"body.module.{name}.weight"] + change
        plain.get_submodule(name).load_state_dict({"weight": weight, "bias": tensors[f"body.module.{name}.bias"]})
    for name in ("norm", "deep"):
        part = {n: tensors[f"body.module.{name}.{n}"] for n in plain.get_submodule(name).state_dict()}
        plain.get_submodule(name).load_state_dict(part)
    x = IMAGE.example(3)
    net.load_state_dict(tensors)
    assert_close(net.eval().features(x), plain.eval()(x), rtol=1e-4, atol=1e-5)


def test_at_the_start_the_network_is_what_it_was_and_the_base_has_its_names() -> None:
    """b is zero. a depends on the seed and the layer's name, not on which other layers have an adapter."""
    plain = build("resnet8", 5, IMAGE, LinearHead(), seed=3)
    net = build("resnet8", 5, IMAGE, LinearHead(), seed=3, lora=Lora())
    assert_close(net.eval()(IMAGE.example(2)), plain.eval()(IMAGE.example(2)))
    state = net.state_dict()
    assert all(torch.equal(state[name], tensor) for name, tensor in plain.state_dict().items())
    few = build("resnet8", 5, IMAGE, LinearHead(), seed=3, lora=Lora(targets=("blocks.0.conv",))).state_dict()
    (a, b) = (f"body.blocks.0.conv.lora_{half}.weight" for half in "ab")
    assert {name for name in few if is_adapter(name)} == {a, b}
    assert torch.equal(few[a], state[a])
    assert few[a].abs().max() <= 1 / 27**0.5  # U(±1/√in) of 3 channels × 3 × 3
    assert not few[b].any()
    other = build("resnet8", 5, IMAGE, LinearHead(), seed=4, lora=Lora()).state_dict()
    assert not torch.equal(other[a], state[a])


def test_parts_and_what_is_frozen() -> None:
    net = net_of("transformer")
    a, b = net.parts["lora.a"], net.parts["lora.b"]
    assert a
    assert all(name.endswith("mixes.lora_a.weight") for name in a)
    assert set(net.parts["lora"]) == {*a, *b}
    assert set(learnable(net, net.parts["all"])) == {*a, *b, "head.weight", "head.bias"}
    assert net.frozen == set(net.parts["body"]) - {*a, *b}


def test_auto_takes_query_and_value_of_a_foreign_encoder() -> None:
    net = net_of("bert")
    layers = [name for name, module in net.named_modules() if isinstance(module, Adapted)]
    assert len(layers) == 4
    assert {name.rpartition(".")[2] for name in layers} == {"query", "value"}


def test_auto_in_a_body_without_attention_takes_all_but_depthwise_convolutions() -> None:
    adapted = [name for name, module in net_of("convnet").body.named_modules() if isinstance(module, Adapted)]
    assert adapted == ["module.stem", "module.edge", "module.point"]


@pytest.mark.parametrize(
    ("targets", "found"),
    [
        (("point",), ["module.point"]),
        ((r".*st.m", "point"), ["module.stem", "module.point"]),
        (("all",), None),
        (("auto", "point"), None),  # no attention: all
    ],
)
def test_targets_by_name_or_expression(targets: tuple[str, ...], found: list[str] | None) -> None:
    body = net_of("convnet", targets=targets).body
    layers = [name for name, module in body.named_modules() if isinstance(module, Adapted)]
    assert layers == (found or ["module.stem", "module.edge", "module.point"])


@pytest.mark.parametrize(
    ("targets", "words"),
    [
        (("deep",), r"model\.lora\.targets = 'deep' is no layer of model\.body = 'convnet'.*such as module\.stem"),
        (("(",), r"model\.lora\.targets = '\(' is no regular expression"),
    ],
)
def test_targets_that_are_none_are_refused(targets: tuple[str, ...], words: str) -> None:
    with pytest.raises(RequestError, match=words):
        net_of("convnet", targets=targets)


def test_a_rank_above_that_of_every_layer_is_refused_before_memory_is_taken() -> None:
    """conv4 on colour images: its widest matrix is 64 × 576."""
    assert build("conv4", 5, (3, 16, 16), LinearHead(), lora=Lora(rank=64)).parts["lora"]
    with pytest.raises(RequestError, match=r"model\.lora\.rank = 65 .* model\.body = 'conv4' .*Accepted: 0 to 64"):
        build("conv4", 5, (3, 16, 16), LinearHead(), lora=Lora(rank=65))


class SamePadding(nn.Conv2d):
    """A convolution that pads more on one side, as TensorFlow does. An adapter would have to do the same."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(F.pad(x, (0, 1, 0, 1)))


class Pointwise(nn.Conv2d):
    """A convolution that computes the same as nn.Conv2d with its own forward."""

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.weight, self.bias)


def test_a_subclass_of_conv2d_gets_an_adapter_only_if_it_computes_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = nn.Sequential(SamePadding(3, 4, 3, stride=2), Pointwise(4, 4, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    monkeypatch.setitem(bodies, "own", lambda channels, height, width: body_of(module, features=4))
    net = net_of("own")
    assert [name for name, module in net.body.named_modules() if isinstance(module, Adapted)] == ["module.1"]
    assert net.body.once


@pytest.mark.parametrize("body", ["length-first", "mixes", "experts", "sorted"])
def test_a_body_that_mixes_or_moves_samples_is_not_computed_in_one_pass(body: str) -> None:
    """`build` finds it out, and clients are computed one by one, with the same results."""
    net = net_of(body)
    assert not net.body.once
    assert not net.body.one_pass
    tensors, x = clients_of(net, 2), IMAGE.example(6).view(2, 3, *IMAGE.shape)
    bare = skeleton(net).eval()
    together = apply(bare, tensors, x).logits
    for place in (0, 1):
        mine = {name: tensor[place : place + 1] for name, tensor in tensors.items()}
        assert_close(together[place], apply(bare, mine, x[place : place + 1]).logits[0])


def test_a_body_that_mixes_samples_in_training_alone_is_computed_client_by_client_there() -> None:
    """With `base` = train. In evaluation all clients are computed in one pass."""
    net = net_of("mixes-in-training", base="train")
    assert net.body.once
    assert not net.body.one_pass
    tensors, x = clients_of(net, 2), IMAGE.example(6).view(2, 3, *IMAGE.shape)
    for bare in (skeleton(net).train(), skeleton(net).eval()):
        together = apply(bare, tensors, x).logits
        for place in (0, 1):
            mine = {name: tensor[place : place + 1] for name, tensor in tensors.items()}
            assert_close(together[place], apply(bare, mine, x[place : place + 1]).logits[0])


def test_a_layer_under_two_names_gets_no_adapter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its adapter would have two names, and each would overwrite what the other has learned."""
    module = Twins().requires_grad_(False)
    monkeypatch.setitem(bodies, "twins", lambda channels, height, width: body_of(module, 4))
    net = net_of("twins")
    with pytest.raises(RequestError, match=r"'query' is no layer of model\.body = 'twins' that could get an adapter"):
        net_of("twins", targets=("query",))
    assert [name for name, layer in net.body.named_modules() if isinstance(layer, Adapted)] == ["module.first"]
    assert_close(net.eval().features(IMAGE.example(2)), module(IMAGE.example(2)))


def test_batch_norm_gets_the_adapted_map() -> None:
    """As the fused kernels call it (blocks.py): without the bias, which BatchNorm adds, and without statistics."""
    net = net_of("resnet8")
    unit = net.body.blocks[0]
    assert isinstance(unit, Unit)
    assert isinstance(unit.conv, Adapted)
    nn.init.ones_(unit.conv.get_parameter("lora_b.weight"))
    x = IMAGE.example(2)
    said, statistics = unit.conv.before_norm(x, None, counted=True)
    bias = 0 if unit.conv.bias is None else unit.conv.bias[:, None, None]
    assert_close(said + bias, unit.conv(x))
    assert statistics is None


def test_a_base_that_differs_between_clients_is_not_shared() -> None:
    """As in a stack of two runs with different seeds."""
    net = net_of("convnet")
    tensors = {name: tensor.clone() for name, tensor in clients_of(net, 2).items()}
    tensors["body.module.stem.weight"][1] += 1
    x, bare = IMAGE.example(2)[:, None], skeleton(net).eval()
    together = apply(bare, tensors, x).logits
    for place in (0, 1):
        mine = {name: tensor[place : place + 1] for name, tensor in tensors.items()}
        assert_close(together[place], apply(bare, mine, x[place : place + 1]).logits[0])


def modes(net: Network) -> tuple[bool, bool, bool]:
    set_modes(net, learnable(net, net.state_dict()))
    module = net.body.get_submodule("module")
    return net.body.training, module.get_submodule("drop").training, module.get_submodule("norm").training


def test_the_frozen_body_computes_as_in_evaluation_by_default() -> None:
    assert modes(net_of("convnet")) == (True, False, False)
    assert modes(net_of("convnet", base="train")) == (True, True, False)


@pytest.mark.parametrize(("body", "options"), [("convnet", {"base": "train"}), ("mlp", {"dropout": 0.5})])
def test_dropout_draws_from_each_clients_key(body: str, options: dict[str, Any]) -> None:
    """Clients are then computed one after the other, so other clients in the stack do not matter."""
    net = net_of(body, **options)
    assert not net.body.one_pass
    tensors, batch, bare = clients_of(net, 3), batch_of(net), skeleton(net)
    set_modes(bare, learnable(net, net.state_dict()))
    with pytest.raises(RequestError, match="no key to draw them from"):
        apply(bare, tensors, batch.inputs, batch.real)
    together = apply(bare, tensors, batch.inputs, batch.real, keys=[7, 8, 9]).logits
    mine, own = rows(tensors, batch, 1)
    assert_close(together[1, :2], apply(bare, mine, own.inputs, keys=[8]).logits[0])
    assert not torch.equal(together[1, :2], apply(bare, mine, own.inputs, keys=[6]).logits[0])
    bare.eval()
    assert_close(apply(bare, tensors, batch.inputs, batch.real).logits[1, :2], apply(bare, mine, own.inputs).logits[0])


@pytest.mark.parametrize("targets", ["all", "conv"])
def test_dropout_behind_flat_features_is_each_clients(targets: str) -> None:
    """In the frozen body, with base = train, after a hidden layer, which gets all clients' samples concatenated."""
    net = build("pfl-cnn", 5, IMAGE, LinearHead(), lora=Lora(rank=2, targets=(targets,), base="train"))
    tensors, x, keys, bare = (
        clients_of(net, 2),
        IMAGE.example(6).view(2, 3, *IMAGE.shape),
        torch.tensor([7, 8]),
        skeleton(net),
    )
    set_modes(bare, learnable(net, net.state_dict()))
    together = apply(bare, tensors, x, keys=keys).logits
    for place in (0, 1):
        mine = {name: tensor[place : place + 1] for name, tensor in tensors.items()}
        alone = apply(bare, mine, x[place : place + 1], keys=keys[place : place + 1]).logits
        assert_close(together[place], alone[0])


def test_a_network_with_adapters_is_copied_and_pickled() -> None:
    net = net_of("convnet").eval()
    x = IMAGE.example(2)
    assert_close(copy.deepcopy(net)(x), net(x))
    layer = net.body.get_submodule("module.point")
    again = pickle.loads(pickle.dumps(layer))
    assert type(again) is type(layer)
    assert_close(again(torch.ones(1, 6, 4, 4)), layer(torch.ones(1, 6, 4, 4)))
