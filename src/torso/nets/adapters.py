"""Gives a body LoRA adapters: chooses the layers, and finds out whether one forward pass can serve G clients."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from torso import randomness
from torso.data.inputs import Input
from torso.errors import RequestError
from torso.nets.body import Body
from torso.nets.draws import PickDetector
from torso.nets.layers import Conv2d
from torso.nets.lora import Lora, adapter_parts, put_adapter
from torso.nets.split import is_linear

Layer = nn.Linear | nn.Conv2d
ATTENTION = frozenset(
    {"query", "value", "q_proj", "v_proj", "q_lin", "v_lin", "to_q", "to_v", "wq", "wv", "q", "v"}
    | {"qkv", "in_proj", "Wqkv", "query_key_value", "mixes"}
)
"""Names that libraries give to the layers of queries and values. Some make queries, keys and values by one layer."""
# modules that read the weights of their inner layers and never call these: an adapter there would have no effect
_READERS = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)


def adapt(body: Body, lora: Lora, seed: int, where: str) -> None:
    """Freeze a body and give its chosen layers adapters, drawn from the seed and the layer's name.

    `where`: how messages name the body."""
    layers = adaptable(body)
    names = targets(layers, lora.targets, where)
    _check_rank(lora.rank, [layers[name] for name in names], where)
    body.requires_grad_(False)
    for name in names:
        put_adapter(layers[name], lora, randomness.torch_generator(seed, "weights", "lora", name))
    body.lora = lora
    only_adapters_draw = body.native or lora.base == "eval"
    body.draws = lora.dropout > 0 if only_adapters_draw else None


def _check_rank(rank: int, layers: Sequence[Layer], where: str) -> None:
    """Refuse a rank above that of every layer: it adds nothing and can use up the memory. The default always passes."""
    most = max(Lora.rank, *(min(layer.weight.flatten(1).shape) for layer in layers))
    if rank > most:
        raise RequestError(
            f"model.lora.rank = {rank} is above the rank of every layer of {where} that gets an adapter. "
            f"Accepted: 0 to {most}"
        )


def adaptable(body: nn.Module) -> dict[str, Layer]:
    """The layers that can have an adapter, by name: linear layers, and convolutions without groups.

    A layer that the body has under two names cannot have one: each name would get different adapter weights."""
    found: dict[str, Layer] = {}
    readers = tuple(f"{name}." for name, module in body.named_modules() if isinstance(module, _READERS))
    names = Counter(id(module) for _, module in body.named_modules(remove_duplicate=False))
    for name, module in body.named_modules():
        fits = is_linear(module) or (isinstance(module, nn.Conv2d) and _is_plain(module))
        if fits and names[id(module)] == 1 and not name.startswith(readers):
            assert isinstance(module, Layer)
            found[name] = module
    return found


def _is_plain(layer: nn.Conv2d) -> bool:
    """Whether a layer computes what an nn.Conv2d without groups does. A subclass of nn.Conv2d is tried out."""
    if layer.groups != 1 or layer.padding_mode != "zeros":
        return False
    if type(layer) in (nn.Conv2d, Conv2d):
        return True
    largest = max(size * step for size, step in zip(layer.kernel_size, layer.dilation, strict=True))
    return all(_computes(layer, largest + more) for more in range(max(layer.stride) + 1))


@torch.no_grad()
def _computes(layer: nn.Conv2d, side: int) -> bool:
    """Whether a layer gives the same as an nn.Conv2d for a map of side × side pixels."""
    probe = torch.linspace(-1, 1, layer.in_channels * side * side).view(1, -1, side, side).to(layer.weight)
    wanted = F.conv2d(probe, layer.weight, layer.bias, layer.stride, layer.padding, layer.dilation)
    try:
        found: Tensor = layer(probe)
    except Exception:  # the forward of a user's layer may raise anything
        return False
    return found.shape == wanted.shape and torch.allclose(found, wanted, rtol=1e-4, atol=1e-5)


def targets(layers: Mapping[str, Layer], asked: tuple[str, ...], where: str) -> list[str]:
    """The names of the layers that `model.lora.targets` chooses, in the order of the layers."""
    if not layers:
        raise RequestError(f"model.lora: {where} has no linear layer and no convolution that could get an adapter")
    chosen: set[str] = set()
    for text in asked:
        held = _held(layers, text)
        if not held:
            some = ", ".join(list(layers)[:4])
            raise RequestError(
                f"model.lora.targets = {text!r} is no layer of {where} that could get an adapter. Accepted: auto, all, "
                f"or the ends of names or regular expressions of some of its {len(layers)} layers, such as {some}"
            )
        chosen |= held
    return [name for name in layers if name in chosen]


def _held(layers: Collection[str], text: str) -> set[str]:
    """The layers that one entry of `model.lora.targets` chooses. `auto`: those of attention, or all if none is."""
    if text == "auto":
        of_attention = {name for name in layers if name.rpartition(".")[2] in ATTENTION}
        return of_attention or set(layers)
    if text == "all":
        return set(layers)
    return {name for name in layers if name == text or name.endswith(f".{text}") or _matches(text, name)}


def _matches(text: str, name: str) -> bool:
    try:
        return re.fullmatch(text, name) is not None
    except re.error as error:
        raise RequestError(f"model.lora.targets = {text!r} is no regular expression: {error}") from None


@torch.no_grad()
def try_once(body: Body, input: Input) -> None:
    """Find out whether one call with one copy of the frozen tensors can compute several clients, and set `body.once`.

    Two clients with a few samples each must get the same features together as each gets alone. A body fails if it mixes
    the samples of a batch or moves them from the first dimension. It also fails if it picks or sorts rows by their
    content, because a layer inside then cannot know which client a row belongs to."""
    names = adapter_parts(body).get("lora", ())
    training = [module.training for module in body.modules()]
    body.eval()
    tensors = dict(body.state_dict())
    generator = torch.Generator().manual_seed(0)
    adapters = {n: tensors[n] + torch.randn(2, *tensors[n].shape, generator=generator) / 8 for n in names}
    x = input.example(2 * _TRIED).view(2, _TRIED, *input.shape)
    body.once = True
    try:
        with PickDetector() as seen:
            together = functional_call(body, {**tensors, **adapters}, (x,), tie_weights=False)
        alone = []
        for client in (0, 1):
            own = {name: stack[client] for name, stack in adapters.items()}
            own_samples = x[client : client + 1]
            alone.append(functional_call(body, {**tensors, **own}, (own_samples,), tie_weights=False))
        same = torch.allclose(together, torch.cat(alone), rtol=1e-3, atol=1e-4 * float(together.abs().max()))
        body.once = same and not seen.picked
    except (RuntimeError, ValueError, IndexError):  # shapes do not fit: the body expects another number of samples
        body.once = False
    finally:
        for module, mode in zip(body.modules(), training, strict=True):
            module.training = mode


_TRIED = 2  # samples of a client in this test; with one, a change of the samples' order would go unnoticed
