"""Networks of torchvision, timm and transformers, as their libraries make them, with their dropout and drop-path.

They are small networks of their kind with random weights. Nothing is downloaded.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.runs import samples
from torch import Tensor, nn

from torso import run
from torso.data.batches import Batch
from torso.learn.gradients import gradients
from torso.learn.objectives import CrossEntropy
from torso.nets import Network, OfTokens, Tensors, bodies, body_of, learnable, part_names, set_modes, skeleton, split

_OPS = torch.library.Library("torchvision", "FRAGMENT")  # must live as long as what is defined in it


def torchvision() -> ModuleType:
    """torchvision. Built for CUDA it cannot be imported with torch for CPU, because two operations are missing.
    No network here calls these, so it is enough to define their names."""
    try:
        return importlib.import_module("torchvision")
    except RuntimeError as error:  # operator torchvision::nms does not exist
        if "torchvision::" not in str(error):
            raise
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]
    for op in ("nms", "qnms"):
        _OPS.define(f"{op}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return importlib.import_module("torchvision")


def library(name: str) -> Any:
    """The library; if it is not installed, the test is skipped."""
    try:
        vision = torchvision()  # timm imports it, and so does transformers
        return vision if name == "torchvision" else importlib.import_module(name)
    except ImportError as error:
        pytest.skip(f"{name} is not installed: {error}")


def tv_vit() -> nn.Module:
    make = library("torchvision").models.VisionTransformer
    return make(32, 16, 2, 4, 32, 64, dropout=0.1, attention_dropout=0.1, num_classes=5)  # type: ignore[no-any-return]


def tv_convnext() -> nn.Module:
    models = library("torchvision").models.convnext
    stages = [models.CNBlockConfig(8, 16, 1), models.CNBlockConfig(16, None, 2)]
    return models.ConvNeXt(stages, stochastic_depth_prob=0.5, num_classes=5)  # type: ignore[no-any-return]


def timm(name: str, **options: Any) -> nn.Module:
    return library("timm").create_model(name, num_classes=5, **options)  # type: ignore[no-any-return]


def hf(kind: str, model: str = "ForSequenceClassification", **options: Any) -> nn.Module:
    transformers = library("transformers")
    config = getattr(transformers, f"{kind}Config")(num_labels=5, **options)
    return getattr(transformers, f"{kind}{model}")(config)  # type: ignore[no-any-return]


SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
TEXT = {"vocab_size": 50, "max_position_embeddings": 40}
Make = Callable[[], nn.Module]
IMAGES: dict[str, tuple[Make, str]] = {  # and the name of the layer that is the head
    "torchvision resnet18": (lambda: library("torchvision").models.resnet18(num_classes=5), "fc"),
    "torchvision mobilenetv3": (
        lambda: library("torchvision").models.mobilenet_v3_small(num_classes=5),
        "classifier.3",
    ),
    "torchvision vit": (tv_vit, "heads.head"),
    "torchvision convnext": (tv_convnext, "classifier.2"),
    "timm resnet18": (lambda: timm("resnet18", drop_rate=0.1, drop_path_rate=0.1), "fc"),
    "timm mobilenetv3": (lambda: timm("mobilenetv3_small_050", drop_rate=0.1, drop_path_rate=0.1), "classifier"),
    "timm vit": (
        lambda: timm(
            "vit_tiny_patch16_224", img_size=32, embed_dim=32, depth=2, num_heads=4, drop_rate=0.1, attn_drop_rate=0.1
        ),
        "head",
    ),
    "timm convnext": (
        lambda: timm("convnext_atto", depths=(1, 1, 1, 1), dims=(8, 16, 16, 16), drop_path_rate=0.5),
        "head.fc",
    ),
    "transformers vit": (
        lambda: hf("ViT", "ForImageClassification", **SMALL, image_size=32, patch_size=16, hidden_dropout_prob=0.1),
        "classifier",
    ),
}
TOKENS: dict[str, tuple[Make, str]] = {
    "bert": (lambda: OfTokens(hf("Bert", **SMALL, **TEXT)), "model.classifier"),
    "roberta": (lambda: OfTokens(hf("Roberta", **SMALL, **TEXT), padding=1), "model.classifier.out_proj"),
    # it registers a dropout after its head
    "distilbert": (
        lambda: OfTokens(hf("DistilBert", dim=32, n_layers=2, n_heads=4, hidden_dim=64, **TEXT)),
        "model.classifier",
    ),
}


def step(net: Network, x: Tensor, *keys: int) -> Tensors:
    """The gradients of one training step of G clients with the same weights."""
    tensors = {n: t.detach().expand(len(keys), *t.shape).clone() for n, t in net.state_dict().items()}
    names, bare = learnable(net, tensors), skeleton(net)
    set_modes(bare, names)
    batch = Batch(x.expand(len(keys), *x.shape), torch.tensor([[0, 1, 2, 3]] * len(keys)), keys=keys)
    return gradients(bare, tensors, names, batch, CrossEntropy(), torch.ones(len(keys), 5))[0]


def check(make: Make, head: str, x: Tensor) -> None:
    torch.manual_seed(0)
    module = make()
    net = split(module, example=x)
    layer = module.get_submodule(head)
    assert torch.equal(net.head.get_parameter("weight"), layer.get_parameter("weight"))
    assert net.body.features == layer.get_parameter("weight").shape[1]
    assert len(part_names(net, "body")) == len(module.state_dict()) - 2
    assert part_names(net, "norm")
    first = step(net, x, 1)
    assert all(torch.equal(grad, first[name]) for name, grad in step(net, x, 1).items())
    if not net.body.draws:
        return
    assert any(not torch.equal(grad, first[name]) for name, grad in step(net, x, 2).items())
    if net.stacks:
        both = step(net, x, 2, 1)
        assert all(torch.equal(grad[1:], first[name]) for name, grad in both.items())


@pytest.mark.parametrize(("make", "head"), IMAGES.values(), ids=IMAGES)
def test_an_image_network_goes_through_split(make: Make, head: str) -> None:
    check(make, head, torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0)))


@pytest.mark.parametrize(("make", "head"), TOKENS.values(), ids=TOKENS)
def test_an_encoder_of_text_goes_through_split(make: Make, head: str) -> None:
    tokens = torch.randint(2, 50, (4, 12), generator=torch.Generator().manual_seed(0))
    tokens[1, 7:] = 1 if head.endswith("out_proj") else 0  # the id of padding, of Roberta and of the others
    check(make, head, tokens)


def test_padded_tokens_change_nothing() -> None:
    net = split(OfTokens(hf("Bert", **SMALL, **TEXT))).eval()
    tokens = torch.randint(2, 50, (2, 6))
    torch.testing.assert_close(net(F.pad(tokens, (0, 3))), net(tokens), rtol=1e-4, atol=1e-5)


def test_one_of_them_through_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """FedBN on a transformer: the LayerNorms and the head are not sent."""
    library("timm")

    def vit(channels: int, height: int, width: int) -> Any:
        small = {"img_size": (height, width), "in_chans": channels, "patch_size": 4}
        return body_of(timm("vit_tiny_patch16_224", embed_dim=16, depth=1, num_heads=2, drop_path_rate=0.2, **small))

    monkeypatch.setitem(bodies, "vit", vit)
    asked = samples.tiny("fedavg", "model.body=vit", "train.rounds=1", "method.share=body-norm")
    result = run(asked, federation=samples.digits())
    assert result.ok
    assert result.state is not None
    assert {name.split(".")[-2] for own in result.state.clients.of_kind("kept").values() for name in own} == {
        "head",
        "norm",
        "norm1",
        "norm2",
    }
