"""Keys for the random numbers that a module draws by torch's generators (dropout, drop-path), and a check for them.

A module that is not Torso's draws from torch's global generator, which the threads of an engine share. Under a `Keyed`
mode every random operation of this thread draws from a generator seeded with a key instead, also inside a composite
operation such as attention. Modes belong to a thread, so threads do not disturb each other.

A mode intercepts every operation, which slows down a network of many small ones. On CUDA, where one thread uses the
device, `Seeded` seeds the device's own generator with the key instead. A CUDA graph then draws what the eager network
draws.
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

_default = threading.Lock()  # held while torch's default generators are seeded, for operations that take no generator


def is_random(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether this call of an operation draws random numbers. Attention without dropout does not."""
    if torch.Tag.nondeterministic_seeded not in op.tags:
        return False
    arguments = op._schema.arguments
    defaults = {argument.name: argument.default_value for argument in arguments if argument.has_default_value()}
    by_position = dict(zip((argument.name for argument in arguments), args, strict=False))
    values = {**defaults, **by_position, **kwargs}
    return values.get("dropout_p") != 0 and values.get("train") is not False


class EagerMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode that intercepts the operations of this thread. Nothing under it is compiled."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """torch calls this. To skip its compiler it would have to load it, which takes a second."""
        return False


class DrawDetector(EagerMode):
    """A mode that notes whether random numbers are drawn."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.places: set[str] = set()  # types of the devices on which they are drawn

    @property
    def drew(self) -> bool:
        return bool(self.places)

    def __torch_dispatch__(
        self, op: OpOverload, types: object, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if is_random(op, args, kwargs or {}):
            self.places.add(_device_of(args, kwargs or {}).type)
        return op(*args, **(kwargs or {}))


class PickDetector(EagerMode):  # type: ignore[no-untyped-call]
    """A mode that notes whether rows are picked or sorted by their content, as a mixture of experts does."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.picked = False

    def __torch_dispatch__(
        self, op: OpOverload, types: object, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        picks = torch.Tag.dynamic_output_shape in op.tags or op.overloadpacket in _SORTS
        by_position = op is torch.ops.aten.index.Tensor and not any(map(_is_mask, args[1]))
        self.picked = self.picked or (picks and not by_position)
        return op(*args, **(kwargs or {}))


_SORTS = (torch.ops.aten.sort, torch.ops.aten.argsort, torch.ops.aten.topk)


def _is_mask(index: Tensor | None) -> bool:
    return index is not None and index.dtype in (torch.bool, torch.uint8)


class ReadsValues(Exception):
    """Raised if a body reads the values of its samples under `detecting_on_zeros`."""


@contextmanager
def detecting_on_zeros() -> Iterator[DrawDetector]:
    """A context like `DrawDetector` for a body that computes on zeros.

    It raises `ReadsValues` if the body reads values: what the body draws may then depend on them."""
    with _Unread(), _Unseeing() as seen:
        yield seen


class _Unseeing(DrawDetector):  # type: ignore[no-untyped-call]
    """A `DrawDetector` mode that raises if an operation gives a Python number, or a shape that depends on values."""

    def __torch_dispatch__(
        self, op: OpOverload, types: object, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if torch.Tag.data_dependent_output in op.tags or torch.Tag.dynamic_output_shape in op.tags:
            raise ReadsValues(str(op))
        return super().__torch_dispatch__(op, types, args, kwargs)


class _Unread(TorchFunctionMode):
    """A mode that raises if a tensor's values leave torch, for example to NumPy.

    That is not an operation, so a dispatch mode does not intercept it."""

    def __torch_function__(self, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if call in _READERS:
            raise ReadsValues(call.__name__)
        return call(*args, **(kwargs or {}))


_READERS = frozenset({Tensor.numpy, Tensor.tolist, Tensor.__array__, Tensor.__dlpack__})


class Keyed(EagerMode):
    """A mode in which every random operation of this thread draws from a generator seeded with the key."""

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
    """A context in which a CUDA device's own generator is seeded with the key. Afterwards it has its old state."""

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
        """Seed the generator again, so that the same numbers are drawn again."""
        self._generator.manual_seed(self.key)

    @staticmethod
    def here() -> bool:
        """Whether this thread is inside such a context."""
        return getattr(Seeded._inside, "yes", False)


def _device_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.device:
    """The device on which an operation computes: that of its first tensor, else its argument `device`, else the CPU."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, Tensor):
            return value.device
    return torch.device(kwargs.get("device") or "cpu")


def _seeded(device: torch.device, seed: int, call: Callable[[], Any]) -> Any:
    """The result of a call during which torch's default generator of the device is seeded."""
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
