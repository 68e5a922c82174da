"""Handles state that a module which is not Torso's keeps from call to call.

Torso stores a client's parameters and buffers, and puts them into the module for each call. So forward may only change
the content of a buffer. State in a plain attribute would pass from client to client, so such a module is refused.
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
"""Libraries whose modules keep no state but buffers, and change these in place."""


def replaced_buffers(module: nn.Module, x: Tensor, where: str) -> tuple[str, ...]:
    """The names of the buffers that forward replaces by another tensor, as in `self.mean = 0.9 * self.mean + …`.

    A module whose answers depend on earlier calls in any other way is refused. x: two samples or more."""
    if all(type(layer).__module__.partition(".")[0] in _KNOWN for layer in module.modules()):
        return ()
    tried = copy.deepcopy(module)
    start = {name: tensor.clone() for name, tensor in tried.state_dict().items()}
    owners = dict(_buffer_owners(tried))
    memory = {name: layer._buffers[leaf].data_ptr() for name, (layer, leaf) in owners.items()}  # type: ignore[union-attr]
    first = _answers(tried, x)
    found = tuple(n for n, (layer, leaf) in owners.items() if layer._buffers[leaf].data_ptr() != memory[n])  # type: ignore[union-attr]
    _answers(tried, 1 - 2 * x if x.is_floating_point() else x.flip(0))  # other samples
    for name, tensor in tried.state_dict().items():
        tensor.copy_(start[name])
    pairs = zip(first, _answers(tried, x), strict=True)
    if not all(torch.allclose(*pair, rtol=1e-4, atol=1e-5, equal_nan=True) for pair in pairs):
        raise RequestError(
            f"{where}: what {type(module).__name__} gives depends on its earlier calls, beyond its parameters and "
            "buffers. Make what it keeps a buffer: self.register_buffer('mean', …)"
        )
    return found


def _buffer_owners(module: nn.Module) -> Iterator[tuple[str, tuple[nn.Module, str]]]:
    """The layer of each buffer of the state_dict, and the buffer's name there, by the buffer's name in the module."""
    for prefix, layer in module.named_modules():
        for leaf, buffer in layer._buffers.items():
            if buffer is not None and leaf not in layer._non_persistent_buffers_set:
                yield f"{prefix}.{leaf}".lstrip("."), (layer, leaf)


@torch.no_grad()
def _answers(module: nn.Module, x: Tensor) -> list[Tensor]:
    """A module's answers in train mode and then in eval mode. Anything but a tensor is left out: other checks refuse
    such a module."""
    answers: list[Tensor] = []
    for training in (True, False):
        with Keyed(0):
            answer: Any = module.train(training)(x)
        if isinstance(answer, Tensor):
            answers.append(answer.clone())
    return answers


@contextmanager
def in_place(module: nn.Module, names: Sequence[str]) -> Iterator[None]:
    """A context in which tensors that forward puts in the place of these buffers are copied into the buffers.

    The buffers keep their memory, which the caller of the module also holds."""
    owners = [(module.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2]) for name in names]
    before = [layer._buffers[leaf] for layer, leaf in owners]
    memory = [None if buffer is None else buffer.detach() for buffer in before]
    yield
    for (layer, leaf), buffer, old in zip(owners, before, memory, strict=True):
        new = layer._buffers[leaf]
        if buffer is None or old is None or new is None:
            continue
        if new.data_ptr() != old.data_ptr():
            old.copy_(new.detach())
        buffer.data = old
        layer._buffers[leaf] = buffer
