"""Random numbers that a module draws for itself (dropout, drop-path), keyed like everything else that is random.

A module that is not Torso's draws from torch's global random stream, which the threads of an engine share. Under a
`Keyed` mode every random operation of this thread draws from a generator that is seeded with one key instead, also
inside a composite operation such as attention. Modes belong to a thread, so threads do not disturb each other.

A mode sees every operation, which slows down a network of many small ones. On CUDA, where one thread drives the device,
`Seeded` puts the device's own generator at the key instead; a CUDA graph then draws what the eager network draws.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Generator, Tensor
from torch._ops import OpOverload
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

_default = threading.Lock()  # of torch's default generators, for operations that take no other


def is_random(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether this call draws a random number; attention without dropout does not."""
    if torch.Tag.nondeterministic_seeded not in op.tags:
        return False
    wanted = op._schema.arguments
    usual = {argument.name: argument.default_value for argument in wanted if argument.has_default_value()}
    given = {**usual, **dict(zip((argument.name for argument in wanted), args, strict=False)), **kwargs}
    return given.get("dropout_p") != 0 and given.get("train") is not False


class EagerMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode that sees the operations of this thread. Nothing under it is compiled."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """torch asks; to skip the compiler it would have to load it, which takes a second."""
        return False


class Watching(EagerMode):
    """Notes whether anything random is asked for."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.places: set[str] = set()  # kinds of devices that it was asked for on

    @property
    def drew(self) -> bool:
        return bool(self.places)

    def __torch_dispatch__(
        self, op: OpOverload, types: object, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if is_random(op, args, kwargs or {}):
            self.places.add(_device_of(args, kwargs or {}).type)
        return op(*args, **(kwargs or {}))


class Picking(EagerMode):  # type: ignore[no-untyped-call]
    """Notes whether rows are picked or sorted by what they hold, as where experts share the work."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.picked = False

    def __torch_dispatch__(
        self, op: OpOverload, types: object, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        picks = torch.Tag.dynamic_output_shape in op.tags or op.overloadpacket in _SORTS
        by_place = op is torch.ops.aten.index.Tensor and not any(map(_is_mask, args[1]))
        self.picked = self.picked or (picks and not by_place)
        return op(*args, **(kwargs or {}))


_SORTS = (torch.ops.aten.sort, torch.ops.aten.argsort, torch.ops.aten.topk)


def _is_mask(index: Tensor | None) -> bool:
    return index is not None and index.dtype in (torch.bool, torch.uint8)


class LooksAtNumbers(Exception):
    """A body needs the content of its samples to go on."""


@contextmanager
def watching_zeros() -> Iterator[Watching]:
    """As `Watching`, of a body that computes on zeros. It ends where the body looks at the numbers: what it asks for
    may then depend on them."""
    with _Unread(), _Unseeing() as seen:
        yield seen


class _Unseeing(Watching):  # type: ignore[no-untyped-call]
    def __torch_dispatch__(
        self, op: OpOverload, types: object, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if torch.Tag.data_dependent_output in op.tags or torch.Tag.dynamic_output_shape in op.tags:
            raise LooksAtNumbers(str(op))
        return super().__torch_dispatch__(op, types, args, kwargs)


class _Unread(TorchFunctionMode):
    """Nobody takes a tensor's numbers out of torch: that is no operation, and a dispatch mode does not see it."""

    def __torch_function__(self, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if call in _READERS:
            raise LooksAtNumbers(call.__name__)
        return call(*args, **(kwargs or {}))


_READERS = frozenset({Tensor.numpy, Tensor.tolist, Tensor.__array__, Tensor.__dlpack__})


class Keyed(EagerMode):
    """Every random operation inside draws from the key."""

    def __init__(self, key: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.key = key
        self._generators: dict[torch.device, Generator] = {}

    def __torch_dispatch__(
        self, op: OpOverload, types: object, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if not is_random(op, args, kwargs) or kwargs.get("generator") is not None:
            return op(*args, **kwargs)
        device = _device_of(args, kwargs)
        if any(argument.name == "generator" for argument in op._schema.arguments):
            return op(*args, **{**kwargs, "generator": self._generator(device)})
        seed = int(torch.randint(2**62, (), generator=self._generator(torch.device("cpu"))))
        return _seeded(device, seed, lambda: op(*args, **kwargs))

    def _generator(self, device: torch.device) -> Generator:
        if device not in self._generators:
            self._generators[device] = Generator(device).manual_seed(self.key)
        return self._generators[device]


class Seeded:
    """Inside, a CUDA device's own generator draws from the key; afterwards it goes on where it was."""

    _inside = threading.local()

    def __init__(self, device: torch.device, key: int) -> None:
        self.key = key
        self._generator = torch.cuda.default_generators[device.index or 0]

    def __enter__(self) -> None:
        _default.acquire()
        self._before = self._generator.get_state()
        self.restart()
        Seeded._inside.yes = True

    def __exit__(self, *exc: object) -> None:
        Seeded._inside.yes = False
        self._generator.set_state(self._before)
        _default.release()

    def restart(self) -> None:
        """Draw the same again from here on."""
        self._generator.manual_seed(self.key)

    @staticmethod
    def here() -> bool:
        """Whether somebody has seen to it for this thread."""
        return getattr(Seeded._inside, "yes", False)


def _device_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.device:
    tensors = (value.device for value in (*args, *kwargs.values()) if isinstance(value, Tensor))
    return next(tensors, None) or torch.device(kwargs.get("device") or "cpu")


def _seeded(device: torch.device, seed: int, call: Callable[[], Any]) -> Any:
    """The call with torch's default generator of the device at a seed, and back where it was afterwards."""
    with _default:
        default = torch.default_generator
        if device.type == "cuda":
            default = torch.cuda.default_generators[device.index or 0]
        before = default.get_state()
        try:
            default.manual_seed(seed)
            return call()
        finally:
            default.set_state(before)
