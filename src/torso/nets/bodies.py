"""The registry of bodies, and the bodies of spec 11: functions of (channels, height, width), or of an `Input`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, wraps
from itertools import pairwise
from math import prod
from typing import Literal, TypeVar

from torch import Tensor, nn

from torso.data.inputs import Floats, Input, Pixels, Tokens
from torso.data.wants import ANYTHING, Wants
from torso.errors import RequestError, did_you_mean
from torso.nets.blocks import Chain, Dense, Norm, Residual, Subsample, Unit, glorot_uniform, he_normal
from torso.nets.body import Body, FlatBody
from torso.nets.dropout import Dropout
from torso.nets.sequences import Embedding, Encoder, SequenceBody
from torso.registry import Registry

BodyMaker = Callable[..., Body]
"""A function that returns a Body: of (channels, height, width), for images, or of an Input, if `takes` marks it."""
Maker = TypeVar("Maker", bound=BodyMaker)


class Bodies(Registry[BodyMaker]):
    """Bodies by name. A name with a slash, such as `torchvision/resnet18`, is looked up in `families`."""

    def look_up(self, name: str, key: str) -> BodyMaker:
        family, slash, _ = name.partition("/")
        if slash and name not in self and family in families:
            return families[family](name)
        if slash and name not in self:
            raise RequestError(
                f"{key} = {name!r} is unknown: there is no {family!r}{did_you_mean(family, families)} "
                f"Accepted before the slash: {', '.join(families)}"
            )
        return super().look_up(name, key)


bodies = Bodies("model.body")
families: dict[str, Callable[[str], BodyMaker]] = {}
"""Makers of bodies from other libraries, by the word before the slash. They are called with the whole name."""
GIVEN = "given:"  # prefix of the names of modules that a program hands over; registered while it needs them (given.py)


def takes(*kinds: type[Input]) -> Callable[[Maker], Maker]:
    """A decorator that marks a body as a function of an Input of these kinds. Put it below `@bodies.register(name)`."""

    def mark(make: Maker) -> Maker:
        make.takes = kinds  # type: ignore[attr-defined]
        return make

    return mark


def kinds_of(make: BodyMaker) -> tuple[type[Input], ...]:
    """The kinds of input that a body takes."""
    return getattr(make, "takes", (Pixels,))


def is_of_input(make: BodyMaker) -> bool:
    """Whether a body is a function of an Input, and not of (channels, height, width)."""
    return hasattr(make, "takes")


def wants_of(name: str, weights: str = "") -> Wants:
    """What a body expects of samples under `model.weights`: the answer of its maker's `wants(weights)`, if it has this
    function."""
    if name.startswith(GIVEN) and name not in bodies:
        return ANYTHING  # `build` refuses this name
    wants = getattr(bodies[name], "wants", None)
    found: Wants = ANYTHING if wants is None else wants(weights)
    return found


def named_weights(name: str, word: str) -> dict[str, Tensor] | None:
    """A body's tensors, by their names in the body, for a word that its maker's `weights(word)` knows, such as
    `imagenet`. None: the maker does not know the word."""
    weights = getattr(bodies[name], "weights", None)
    found: dict[str, Tensor] | None = None if weights is None else weights(word)
    return found


def is_old_head(name: str, tensor: str) -> bool:
    """Whether a tensor of a body's weights, by its name in the body, belongs to the head of the pre-training."""
    is_of_head = getattr(bodies[name], "is_old_head", None)
    return is_of_head is not None and bool(is_of_head(tensor))


def body(name: str, least: int = 1) -> Callable[[BodyMaker], BodyMaker]:
    """A decorator that registers a body for images of at least least × least pixels."""

    def keep(make: BodyMaker) -> BodyMaker:
        @wraps(make)
        def checked(channels: int, height: int, width: int) -> Body:
            if min(height, width) < least:
                raise RequestError(
                    f"model.body = {name!r} needs images of at least {least}×{least}, found {height}×{width}"
                )
            return make(channels, height, width)

        return bodies.register(name)(checked)

    return keep


def _conv_blocks(channels: int, height: int, width: int, depth: int) -> Body:
    """Blocks of 3×3 convolution (64), BatchNorm, ReLU and max-pool."""
    units = [Unit(channels if i == 0 else 64, 64, 3, norm="batch", pool=nn.MaxPool2d(2)) for i in range(depth)]
    return Body(units, 64 * (height >> depth) * (width >> depth))


@body("conv3", least=8)
def conv3(channels: int, height: int, width: int) -> Body:
    """Three blocks of 3×3 convolution (64), BatchNorm, ReLU and max-pool (3convNet)."""
    return _conv_blocks(channels, height, width, 3)


@body("conv4", least=16)
def conv4(channels: int, height: int, width: int) -> Body:
    """Four blocks of 3×3 convolution (64), BatchNorm, ReLU and max-pool (4convNet)."""
    return _conv_blocks(channels, height, width, 4)


@body("mobilenet")
def mobilenet(channels: int, height: int, width: int) -> Body:
    """MobileNet for small images: a stem and thirteen depthwise-separable blocks."""
    unit = partial(Unit, bias=False, norm="batch")
    widths = (32, 64, 128, 128, 256, 256, *[512] * 6, 1024, 1024)
    strided = {2, 4, 6, 12}  # numbers of the blocks with stride 2
    blocks: list[nn.Module] = [unit(channels, 32, 3)]
    for number, (inputs, outputs) in enumerate(pairwise(widths), start=1):
        depthwise = unit(inputs, inputs, 3, stride=2 if number in strided else 1, groups=inputs)
        blocks.append(Chain([depthwise, unit(inputs, outputs, 1)]))
    return Body(blocks, 1024, pool=True)


Shortcut = Literal["free", "conv"]  # without parameters, or a 1×1 convolution


def _residual(inputs: int, width: int, stride: int, bottleneck: bool, shortcut: Shortcut) -> Residual:
    """A block of a ResNet: two 3×3 convolutions, or a bottleneck of 1×1, 3×3 and 1×1, and a shortcut."""
    norm: Norm = "running"
    unit = partial(Unit, bias=False, norm=norm)
    outputs = 4 * width if bottleneck else width
    if bottleneck:
        last = unit(width, outputs, 1, relu=False)
        path = Chain([unit(inputs, width, 1), unit(width, width, 3, stride=stride), last])
    else:
        path = Chain([unit(inputs, width, 3, stride=stride), unit(width, width, 3, relu=False)])
    if stride == 1 and inputs == outputs:
        return Residual(path, None)
    if shortcut == "free":
        return Residual(path, Subsample(stride))
    return Residual(path, unit(inputs, outputs, 1, stride=stride, relu=False))


def _resnet(
    channels: int, widths: Sequence[int], depths: Sequence[int], bottleneck: bool = False, shortcut: Shortcut = "conv"
) -> Body:
    """A stem that keeps the size, then stages of residual blocks. Each stage but the first halves the size."""
    blocks: list[nn.Module] = [Unit(channels, widths[0], 3, bias=False, norm="running")]
    inputs = widths[0]
    for stage, (width, depth) in enumerate(zip(widths, depths, strict=True)):
        for i in range(depth):
            stride = 2 if stage > 0 and i == 0 else 1
            blocks.append(_residual(inputs, width, stride, bottleneck, shortcut))
            inputs = 4 * width if bottleneck else width
    return Body(blocks, inputs, pool=True)


_wide = (64, 128, 256, 512)
_narrow = (16, 32, 64)


@body("resnet8")
def resnet8(channels: int, height: int, width: int) -> Body:
    """ResNet8 of widths 16, 32, 64, with shortcuts that have no parameters."""
    return _resnet(channels, _narrow, (1, 1, 1), shortcut="free")


@body("resnet8-conv")
def resnet8_conv(channels: int, height: int, width: int) -> Body:
    """ResNet8 of widths 16, 32, 64, with 1×1 convolutions as shortcuts."""
    return _resnet(channels, _narrow, (1, 1, 1))


@body("resnet20")
def resnet20(channels: int, height: int, width: int) -> Body:
    """ResNet20 of widths 16, 32, 64, with shortcuts that have no parameters."""
    return _resnet(channels, _narrow, (3, 3, 3), shortcut="free")


@body("resnet20-conv")
def resnet20_conv(channels: int, height: int, width: int) -> Body:
    """ResNet20 of widths 16, 32, 64, with 1×1 convolutions as shortcuts."""
    return _resnet(channels, _narrow, (3, 3, 3))


@body("resnet10")
def resnet10(channels: int, height: int, width: int) -> Body:
    """ResNet10 for small images: a 3×3 stem and one basic block in each of four stages."""
    return _resnet(channels, _wide, (1, 1, 1, 1))


@body("resnet18")
def resnet18(channels: int, height: int, width: int) -> Body:
    """ResNet18 for small images: a 3×3 stem and two basic blocks in each of four stages."""
    return _resnet(channels, _wide, (2, 2, 2, 2))


@body("resnet50")
def resnet50(channels: int, height: int, width: int) -> Body:
    """ResNet50 for small images: a 3×3 stem and 3, 4, 6, 3 bottleneck blocks."""
    return _resnet(channels, _wide, (3, 4, 6, 3), bottleneck=True)


@body("vgg11", least=32)
def vgg11(channels: int, height: int, width: int) -> Body:
    """VGG11 without BatchNorm: eight convolutions and two hidden layers of 512."""
    widths = (channels, 64, 128, 256, 256, 512, 512, 512, 512)
    pooled = {1, 2, 4, 6, 8}
    blocks: list[nn.Module] = [
        Unit(inputs, outputs, 3, pool=nn.MaxPool2d(2) if i in pooled else None)
        for i, (inputs, outputs) in enumerate(pairwise(widths), start=1)
    ]
    for unit in blocks:
        unit.apply(partial(he_normal, mode="fan_out"))
    return Body([*blocks, Dense(512 * (height // 32) * (width // 32), 512), Dense(512, 512)], 512)


def _he(blocks: Sequence[nn.Module], features: int) -> Body:
    """A body whose weights are drawn from He's N(0, 2 / fan in)."""
    made = Body(blocks, features)
    made.apply(partial(he_normal, mode="fan_in"))
    return made


@body("rod-mnist", least=16)
def rod_mnist(channels: int, height: int, width: int) -> Body:
    """Fed-RoD's network for (E/F)MNIST: two valid 5×5 convolutions (32, 64) and a hidden layer of 50."""
    return _he(_two_convolutions(channels, height, width), 50)


@body("rod-mnist-dropout", least=16)
def rod_mnist_dropout(channels: int, height: int, width: int) -> Body:
    """rod-mnist with dropout of ½: of whole channels after the second convolution, and of hidden units. An earlier
    program of Fed-RoD's author has it."""
    first, second, hidden = _two_convolutions(channels, height, width)
    second = Chain([second, Dropout(0.5, place=0, whole=True)])
    hidden = Chain([hidden, Dropout(0.5, place=1)])
    return _he([first, second, hidden], 50)


def _two_convolutions(channels: int, height: int, width: int) -> list[nn.Module]:
    """Two valid 5×5 convolutions with pools, and a hidden layer of 50."""
    first = Unit(channels, 32, 5, padding=0, pool=nn.MaxPool2d(2))
    second = Unit(32, 64, 5, padding=0, pool=nn.MaxPool2d(2))
    last_height, last_width = (((side - 4) // 2 - 4) // 2 for side in (height, width))
    return [first, second, Dense(64 * last_height * last_width, 50)]


@body("rod-cifar", least=18)
def rod_cifar(channels: int, height: int, width: int) -> Body:
    """Fed-RoD's network for CIFAR: three valid 3×3 convolutions (32, 64, 64) and a hidden layer of 64."""
    return _three_convolutions((channels, 32, 64, 64), height, width)


def _three_convolutions(widths: tuple[int, int, int, int], height: int, width: int) -> Body:
    """Three valid 3×3 convolutions, pools after the first two, and a hidden layer of 64. `widths`: the channels of the
    image and of each convolution's output."""
    units: list[nn.Module] = [
        Unit(widths[0], widths[1], 3, padding=0, pool=nn.MaxPool2d(2)),
        Unit(widths[1], widths[2], 3, padding=0, pool=nn.MaxPool2d(2)),
        Unit(widths[2], widths[3], 3, padding=0),
    ]
    last_height, last_width = (((side - 2) // 2 - 2) // 2 - 2 for side in (height, width))
    return _he([*units, Dense(widths[3] * last_height * last_width, 64)], 64)


@body("pfl-cnn", least=6)
def pfl_cnn(channels: int, height: int, width: int) -> Body:
    """pfl-research's network for CIFAR-10: two valid 3×3 convolutions (32, 64), a pool, a hidden layer of 128, dropout
    of 0.25 and 0.5."""
    second = Chain([Unit(32, 64, 3, padding=0, pool=nn.MaxPool2d(2)), Dropout(0.25, place=0)])
    hidden = Chain([Dense(64 * ((height - 4) // 2) * ((width - 4) // 2), 128), Dropout(0.5, place=1)])
    made = Body([Unit(channels, 32, 3, padding=0), second, hidden], 128)
    made.apply(glorot_uniform)
    return made


@body("rod-cifar-wide", least=18)
def rod_cifar_wide(channels: int, height: int, width: int) -> Body:
    """rod-cifar with 128, 256 and 224 channels: 1.04 million weights, near the 1.03 that Fed-RoD counts."""
    return _three_convolutions((channels, 128, 256, 224), height, width)


@bodies.register("mlp")
@takes(Pixels, Floats)
def mlp(input: Input) -> Body:
    """Two hidden layers of 200 on the flattened image, or on the row of a table."""
    dense = [Dense(prod(input.shape), 200), Dense(200, 200)]
    return Body(dense, 200) if isinstance(input, Pixels) else FlatBody(dense, 200)


@bodies.register("none")
@takes(Floats)
def none(input: Floats) -> Body:
    """No layers: the head takes the numbers themselves, such as the features of `model.encoder`."""
    return FlatBody((), prod(input.shape))


@bodies.register("embedding-mean")
@takes(Tokens)
def embedding_mean(input: Tokens) -> Body:
    """The mean of the tokens' embeddings (64), and a hidden layer of 200."""
    return SequenceBody(input.pad, Embedding(input.vocabulary, 64), (), (Dense(64, 200),), 200)


@bodies.register("transformer")
@takes(Tokens)
def transformer(input: Tokens) -> Body:
    """A small transformer encoder: two layers of width 64 with four heads, and the mean over its tokens."""
    layers = [Encoder(64, heads=4) for _ in range(2)]
    return SequenceBody(input.pad, Embedding(input.vocabulary, 64, input.length, std=0.02), layers, (), 64)
