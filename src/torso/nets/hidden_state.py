"""What a module of others keeps from call to call.

Torso keeps a client's parameters and buffers, and puts them into the module for each call. So forward has to change a
buffer's content, and nothing else may last: what lies in a plain attribute would go from client to client.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from torso.errors import RequestError
from torso.nets.draws import Keyed

_KNOWN = frozenset({"torch", "torchvision", "timm", "transformers", "torso"})
"""Libraries whose modules keep nothing but buffers, and change these in place."""


def replaced_buffers(module: nn.Module, x: Tensor, where: str) -> tuple[str, ...]:
    """The buffers in whose place forward puts another tensor, as in `self.mean = 0.9 * self.mean + …`; a module whose
    answers depend on earlier calls in any other way is refused. x: two samples or more."""
    if all(type(layer).__module__.partition(".")[0] in _KNOWN for layer in module.modules()):
        return ()
    tried = copy.deepcopy(module)
    start = {name: tensor.clone() for name, tensor in tried.state_dict().items()}
    places = dict(_places(tried))
    memory = {name: layer._buffers[leaf].data_ptr() for name, (layer, leaf) in places.items()}  # type: ignore[union-attr]
    first = _answers(tried, x)
    found = tuple(n for n, (layer, leaf) in places.items() if layer._buffers[leaf].data_ptr() != memory[n])  # type: ignore[union-attr]
    _answers(tried, x.flip(0) if not x.is_floating_point() else 1 - 2 * x)
    for name, tensor in tried.state_dict().items():
        tensor.copy_(start[name])
    again = zip(first, _answers(tried, x), strict=True)
    if not all(torch.allclose(*pair, rtol=1e-4, atol=1e-5, equal_nan=True) for pair in again):
        raise RequestError(
            f"{where}: what {type(module).__name__} gives depends on its earlier calls, beyond its parameters and "
            "buffers. Make what it keeps a buffer: self.register_buffer('mean', …)"
        )
    return found


def _places(module: nn.Module) -> Iterator[tuple[str, tuple[nn.Module, str]]]:
    for prefix, layer in module.named_modules():
        for leaf, buffer in layer._buffers.items():
            if buffer is not None and leaf not in layer._non_persistent_buffers_set:
                yield f"{prefix}.{leaf}".lstrip("."), (layer, leaf)


@torch.no_grad()
def _answers(module: nn.Module, x: Tensor) -> list[Tensor]:
    """In training, and then in evaluation; nothing where it cannot answer, which is said elsewhere."""
    said: list[Tensor] = []
    for training in (True, False):
        with Keyed(0):
            found: Any = module.train(training)(x)
        said += [found.clone()] if isinstance(found, Tensor) else []
    return said


@contextmanager
def in_place(module: nn.Module, names: Sequence[str]) -> Iterator[None]:
    """What forward puts in the place of these buffers is copied into them: others hold their memory."""
    places = [(module.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2]) for name in names]
    before = [layer._buffers[leaf] for layer, leaf in places]
    memory = [None if buffer is None else buffer.detach() for buffer in before]
    yield
    for (layer, leaf), buffer, old in zip(places, before, memory, strict=True):
        new = layer._buffers[leaf]
        if buffer is None or old is None or new is None:
            continue
        if new.data_ptr() != old.data_ptr():
            old.copy_(new.detach())
        buffer.data = old
        layer._buffers[leaf] = buffer
