"""Bodies of torchvision, timm and transformers by name, with weights in the files that these libraries write.

The weights are random, and the results are compared with those of the library's own network. Nothing is downloaded.
"""

from __future__ import annotations

import pickle
import sys
import urllib.error
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import save_file
from tests.conftest import Torso
from tests.nets.test_zoo import SMALL, library
from torch import Tensor, nn

from torso import Config, RequestError
from torso.data.wants import Wants
from torso.nets import LinearHead, Network, bodies, build, wants_of
from torso.results.body_weights import load_body
from torso.runs.job import simulate


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    """Skip all tests here if the libraries are not installed."""
    for name in ("torchvision", "timm", "transformers"):
        library(name)


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every attempt to use the network fails."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise urllib.error.URLError("no network here")

    monkeypatch.setattr(torch.hub, "urlopen", refuse)


class Case(NamedTuple):
    body: str
    head: str  # the library's name of its last layer
    size: int = 64


def classifier(body: str) -> nn.Module:
    """The library's own network with 1,000 classes, in eval mode, with drawn weights and statistics."""
    family, _, name = body.partition("/")
    torch.manual_seed(1)
    if family == "torchvision":
        made: nn.Module = library("torchvision").models.get_model(name, weights=None)
    else:
        made = library("timm").create_model(name, pretrained=False, **({"img_size": 64} if "vit" in name else {}))
    for key, buffer in made.named_buffers():
        if key.endswith("running_mean"):
            buffer.normal_(0, 0.1)
        elif key.endswith("running_var"):
            buffer.uniform_(0.5, 1.5)
    return made.eval()


def made(body: str, size: int = 64, channels: int = 3, seed: int = 0) -> Network:
    return build(body, 5, (channels, size, size), LinearHead(), seed=seed)


def filled(body: str, weights: object, size: int = 64) -> tuple[Network, list[str]]:
    """A network in eval mode whose body has the weights, and what a run reports about these."""
    net, notes = made(body, size), list[str]()
    model = dict(net.state_dict())
    net.load_state_dict(model | load_body(str(weights), model, body, notes))
    return net.eval(), notes


def images(size: int = 64) -> Tensor:
    return torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(0))


CASES = [
    Case("torchvision/resnet18", "fc"),
    Case("torchvision/mobilenet_v3_small", "classifier.3"),
    Case("timm/test_resnet.r160_in1k", "fc"),
    Case("timm/mobilenetv3_small_050.lamb_in1k", "classifier"),
    Case("timm/test_convnext", "head.fc"),
    Case("timm/test_vit", "head"),
]
FORMS = [
    ("whole.pth", lambda t: t),
    ("wrapped.pt", lambda t: {"state_dict": {f"module.{name}": tensor for name, tensor in t.items()}, "epoch": 3}),
    ("model.bin", lambda t: {"model": {name: tensor.half().float() for name, tensor in t.items()}}),
]


@pytest.mark.parametrize("case", CASES, ids=[case.body for case in CASES])
def test_a_body_with_the_librarys_weights_computes_what_the_library_does(case: Case, tmp_path: Path) -> None:
    theirs = classifier(case.body)
    file, form = FORMS[CASES.index(case) % 2]
    torch.save(form(theirs.state_dict()), tmp_path / file)
    net, notes = filled(case.body, tmp_path / file, case.size)
    layer = theirs.get_submodule(case.head)
    assert isinstance(layer, nn.Linear)
    with torch.no_grad():
        torch.testing.assert_close(layer(net.features(images())), theirs(images()), rtol=1e-5, atol=1e-5)
    assert notes == [
        f"model.weights = '{tmp_path / file}': the head of the pre-training ({case.head}.bias, {case.head}.weight) is "
        "left out"
    ]


@pytest.mark.parametrize("name", ["squeezenet1_1", "squeezenet1_0"])
def test_squeezenet_is_features_and_a_pool_with_a_linear_head(name: str, tmp_path: Path) -> None:
    """Spec 7: torchvision's classifier, a convolution, is replaced by pool → flatten → Linear(512, C)."""
    theirs = classifier(f"torchvision/{name}")
    save_file(theirs.state_dict(), tmp_path / "squeeze.safetensors")
    net, notes = filled(f"torchvision/{name}", tmp_path / "squeeze.safetensors")
    assert (net.body.features, net.head.get_parameter("weight").shape) == (512, (5, 512))
    features = theirs.get_submodule("features")
    with torch.no_grad():
        torch.testing.assert_close(net.features(images()), features(images()).mean((2, 3)), rtol=1e-5, atol=1e-5)
    assert not any(isinstance(layer, nn.Dropout) for layer in net.modules())
    assert notes[0].endswith("the head of the pre-training (classifier.1.bias, classifier.1.weight) is left out")


def encoder(kind: str, folder: Path, **options: Any) -> nn.Module:
    """An image classifier of transformers and the folder that it writes."""
    transformers = library("transformers")
    torch.manual_seed(1)
    config = getattr(transformers, f"{kind}Config")(num_labels=7, **options)
    found: Any = getattr(transformers, f"{kind}ForImageClassification")(config).eval()
    found.save_pretrained(folder)
    mean, std = [0.5, 0.4, 0.3], [0.2, 0.3, 0.4]
    text = f'{{"image_mean": {mean}, "image_std": {std}, "size": {{"height": 32, "width": 32}}}}'
    (folder / "preprocessor_config.json").write_text(text)
    return found  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", ["ViT", "ResNet"])
def test_an_image_encoder_of_transformers_comes_from_its_folder(kind: str, tmp_path: Path) -> None:
    vit = {**SMALL, "image_size": 32, "patch_size": 16}
    resnet = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic"}
    theirs = encoder(kind, tmp_path, **(vit if kind == "ViT" else resnet))
    body = f"hf/{tmp_path}"
    net, notes = filled(body, "pretrained", 32)
    layer = theirs.get_submodule("classifier" if kind == "ViT" else "classifier.1")
    with torch.no_grad():
        features = net.features(images(32))
        torch.testing.assert_close(layer(features), theirs(images(32)).logits, rtol=1e-5, atol=1e-5)
    assert "is left out" in notes[0]
    assert wants_of(body, "pretrained") == Wants(
        f"model.body = {body!r}", 32, 3, (0.5, 0.4, 0.3), (0.2, 0.3, 0.4), lr=0.01
    )
    assert wants_of(body).size == (32 if kind == "ViT" else 0)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(RequestError, match=r"model.weights = 'pretrained' of model.body = .* cannot be downloaded"):
        filled(body, "pretrained", 32)


def test_words_of_the_libraries_and_what_their_weights_expect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file among torch.hub's downloads is used. Without it and without a network, the error names its path."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    body = "torchvision/resnet18"
    place = tmp_path / "hub" / "checkpoints" / "resnet18-f37072fd.pth"
    with pytest.raises(RequestError, match=rf"cannot be downloaded .*no network here.*Put https://.* at {place}"):
        filled(body, "IMAGENET1K_V1")
    place.parent.mkdir(parents=True, exist_ok=True)
    theirs = classifier(body)
    torch.save(theirs.state_dict(), place)
    net, _ = filled(body, "DEFAULT")
    assert torch.equal(net.state_dict()["body.module.conv1.weight"], theirs.state_dict()["conv1.weight"])
    key, usual = f"model.body = {body!r}", ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    assert wants_of(body, "IMAGENET1K_V1") == Wants(key, 224, 3, *usual, lr=0.01)
    assert wants_of(body) == Wants(key, channels=3, usual=224)
    assert wants_of("timm/test_vit", "pretrained").size == wants_of("timm/test_vit").size == 160
    assert wants_of("timm/test_vit").mean == ()
    assert wants_of("timm/test_resnet").size == 0


def test_weights_of_a_run_and_of_an_exported_model_expect_the_same_images(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    config = Config.load(None, ["model.body=timm/test_resnet", f"model.weights={tmp_path}/a.pth", "data.size=48"])
    (tmp_path / "run" / "config.toml").write_text(config.as_toml())
    found = wants_of("timm/test_resnet", str(tmp_path / "run"))
    assert (found.size, len(found.mean)) == (48, 3)
    about = {"image": "[3, 24, 24]", "mean": "[0.1, 0.2, 0.3]", "std": "[1, 1, 1]"}
    save_file({"body.module.x": torch.zeros(1)}, tmp_path / "ours.safetensors", metadata=about)
    found = wants_of("timm/test_resnet", str(tmp_path / "ours.safetensors"))
    assert (found.size, found.channels, found.mean) == (24, 3, (0.1, 0.2, 0.3))


def test_a_body_is_drawn_from_the_seed_alone() -> None:
    for body in ("torchvision/squeezenet1_1", "timm/test_resnet"):
        torch.manual_seed(5)
        before = torch.get_rng_state()
        first, second, other = (made(body, seed=seed).state_dict() for seed in (0, 0, 1))
        assert torch.equal(before, torch.get_rng_state())
        assert all(torch.equal(tensor, second[name]) for name, tensor in first.items())
        assert any(not torch.equal(tensor, other[name]) for name, tensor in first.items())
    assert made("timm/test_resnet", channels=1).state_dict()["body.module.conv1.0.weight"].shape[1] == 1


def test_pretrained_weights_bring_a_rate_that_a_request_may_replace(tmp_path: Path) -> None:
    body, weights = "model.body=timm/test_resnet", f"model.weights={tmp_path}/weights.pth"
    assert Config.load(None, [body, weights]).train.lr == 0.01
    assert Config.load(None, [body, weights, "train.lr=0.2"]).train.lr == 0.2
    assert Config.load(None, [body]).train.lr == Config().train.lr == 0.1
    assert Config.load(None, ["model.body=mlp", weights]).train.lr == 0.1


# bad input


@pytest.fixture
def own() -> dict[str, Tensor]:
    return dict(classifier("timm/test_resnet").state_dict())


def refused(weights: object, body: str = "timm/test_resnet") -> str:
    with pytest.raises(RequestError) as error:
        filled(body, weights)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_weights_that_do_not_fit_are_named_with_both_shapes(own: dict[str, Tensor], tmp_path: Path) -> None:
    path = tmp_path / "other.pth"
    torch.save({**own, "conv1.0.weight": torch.zeros(24, 1, 3, 3)}, path)
    assert refused(path) == (
        f"model.weights = '{path}' does not fit model.body = 'timm/test_resnet': body.module.conv1.0.weight is float32 "
        f"[24, 1, 3, 3], expected float32 {list(own['conv1.0.weight'].shape)}. Give weights of this body, or change "
        "model.body"
    )
    torch.save({name: tensor for name, tensor in own.items() if not name.startswith("layer1")}, path)
    assert "it lacks body.module.layer1" in refused(path)
    torch.save({**own, "extra.weight": torch.zeros(3)}, path)
    assert "it has body.module.extra.weight [3], which the body has not" in refused(path)
    torch.save({**own, "bn1.weight": own["bn1.weight"] * torch.nan}, path)
    assert "body.module.bn1.weight holds NaN or infinite values" in refused(path)


def test_old_files_without_counters_and_half_precision_fit(own: dict[str, Tensor], tmp_path: Path) -> None:
    old = {name: tensor.half() for name, tensor in own.items() if not name.endswith("num_batches_tracked")}
    save_file(old, tmp_path / "old.safetensors")
    net, _ = filled("timm/test_resnet", tmp_path / "old.safetensors")
    assert net.state_dict()["body.module.conv1.0.weight"].dtype == torch.float32


class Harmless:
    """An object whose class runs code when it is unpickled."""


def test_files_that_are_no_weights(tmp_path: Path) -> None:
    torch.save({"model": Harmless()}, tmp_path / "objects.pth")
    assert "holds objects that are no tensors, and a pickle of objects may run any program" in refused(
        tmp_path / "objects.pth"
    )
    (tmp_path / "plain.pt").write_bytes(pickle.dumps(Harmless()))
    assert "is no file of weights" in refused(tmp_path / "plain.pt")
    (tmp_path / "text.pth").write_text("conv1 = 0.5\n")
    assert "is no file of weights" in refused(tmp_path / "text.pth")
    (tmp_path / "empty.bin").write_bytes(b"")
    assert "is no file of weights" in refused(tmp_path / "empty.bin")
    torch.save([torch.zeros(2)], tmp_path / "list.pt")
    assert "holds list. Expected: tensors by name" in refused(tmp_path / "list.pt")
    torch.save({"epoch": 3}, tmp_path / "epoch.pt")
    assert "holds epoch, which are no tensors" in refused(tmp_path / "epoch.pt")
    (tmp_path / "weights.txt").write_text("0.5")
    assert "is no file of weights. Expected: a .safetensors" in refused(tmp_path / "weights.txt")
    assert "did you mean 'IMAGENET1K_V1'? Accepted: IMAGENET1K_V1, DEFAULT, a path" in refused(
        "IMAGENET1K_V", "torchvision/resnet18"
    )


UNKNOWN = {
    "torchvision/resnet19": "torchvision has no 'resnet19'; did you mean 'resnet18'?",
    "timm/mobilenetv3_small_05": "timm has no 'mobilenetv3_small_05'; did you mean 'mobilenetv3_small_0",
    "timm/resnet18.a9_in1k": "timm has no 'resnet18.a9_in1k'; did you mean 'resnet18.a",
    "hf/tests": "tests has no config.json. Expected: the folder of a saved model",
    "timn/resnet18": "there is no 'timn'; did you mean 'timm'? Accepted before the slash: torchvision, timm",
}


@pytest.mark.parametrize("body", UNKNOWN)
def test_an_unknown_name_is_answered_with_the_nearest(body: str) -> None:
    with pytest.raises(RequestError) as error:
        Config(model={"body": body})
    assert UNKNOWN[body] in str(error.value)
    assert str(error.value).startswith(f"model.body = {body!r}")


def test_an_encoder_of_neither_images_nor_texts(tmp_path: Path) -> None:
    library("transformers").Wav2Vec2Config(vocab_size=0).save_pretrained(tmp_path)
    with pytest.raises(RequestError, match=r"is a Wav2Vec2 model, which takes neither images nor texts\. Expected: an"):
        bodies[f"hf/{tmp_path}"]


def test_an_extra_that_is_not_installed_is_one_line_and_nothing_is_written(
    torso: Torso, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    said = torso("run", "--out", "here", sets=["model.body=timm/convnext_pico"])
    assert said.status == 2
    assert said.err.strip().splitlines()[-1].endswith("Install it: pip install 'torso[vision]'")
    assert not (tmp_path / "here").exists()


def test_an_image_size_that_the_network_cannot_take(tmp_path: Path) -> None:
    with pytest.raises(
        RequestError,
        match=r"model.body = 'torchvision/alexnet' fails: .*too small.* not images of 8×8 .*; set data.size, such as",
    ):
        simulate(Config.load(None, ["model.body=torchvision/alexnet", "data.clients=10"]))


def test_heads_and_constants_that_are_not_as_usual() -> None:
    assert bodies["torchvision/regnet_y_400mf"].old_head == ("fc.",)  # type: ignore[attr-defined]
    assert bodies["timm/levit_128s"].old_head == ("head.", "head_dist.")  # type: ignore[attr-defined]
    # with its own weights it maps ImageNet's constants to these (transform_input)
    assert wants_of("torchvision/googlenet", "DEFAULT").mean == (0.5, 0.5, 0.5)
