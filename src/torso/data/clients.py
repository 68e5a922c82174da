"""`Clients`: clients whose samples a program passes as objects (arrays, tensors, `torch.utils.data.Dataset`s)."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import numpy as np
import torch
from numpy.typing import NDArray

from torso.data.images import Dataset, Ints, Labelled, Samples, checked, none_of_class_0
from torso.data.inputs import Input
from torso.errors import RequestError
from torso.randomness import numpy_generator

SOURCE = "given"
HELD_OUT = 0.2  # share of a client's samples that is held out for testing, if the client has no test part
_EXPECTED = (
    "(samples, labels), a torch.utils.data.Dataset of such pairs, or two of either: one to train on and one to test on"
)
_handed: WeakValueDictionary[str, Clients] = WeakValueDictionary()  # `Clients.key` → the clients


class ClientSamples(NamedTuple):
    """The labelled samples of one client."""

    samples: NDArray[Any]  # [n, …]
    labels: Ints  # [n]

    def at(self, rows: Ints) -> ClientSamples:
        return ClientSamples(self.samples[rows], self.labels[rows])


class Clients:
    """Clients for `torso.run(config, clients=…)`, with options that a plain list or dict does not have.

    `clients` is a list, or a dict from names to clients. A client is `(samples, labels)`, a `torch.utils.data.Dataset`
    of `(sample, label)`, or a pair of either: one to train on and one to test on. If a client has no test part, the
    share `held_out` of its samples becomes one. Samples are uint8 images [n, H, W] or [n, H, W, C], floats of any shape
    [n, …], or of the kind `input`, such as `Tokens`. `classes`: the number of classes, if labels do not show all of
    them. `class_names`: their names."""

    def __init__(
        self,
        clients: Mapping[str, Any] | Sequence[Any],
        *,
        held_out: float = HELD_OUT,
        classes: int | None = None,
        input: Input | None = None,
        name: str = SOURCE,
        class_names: Sequence[str] = (),
    ) -> None:
        if isinstance(clients, Mapping):
            named = {str(key): value for key, value in clients.items()}
        elif isinstance(clients, Sequence) and not isinstance(clients, str | bytes):
            named = {f"client {place}": value for place, value in enumerate(clients)}
        else:
            raise RequestError(
                f"clients is {type(clients).__name__}. Expected: a list, or a dict by name, of {_EXPECTED}"
            )
        if not named:
            raise RequestError(f"clients is empty. Expected: at least one, as {_EXPECTED}")
        if not 0 < held_out < 1:
            raise RequestError(f"held_out = {held_out}. Expected: a share above 0 and below 1")
        self.names = tuple(named) if isinstance(clients, Mapping) else ()
        self.name, self.input, self.class_names = name, input, tuple(class_names)
        self.classes = len(class_names) if class_names and classes is None else classes
        parts = [_parts(f"clients[{key!r}]", value) for key, value in named.items()]
        pairs = [train_and_test_of(key, train, test, held_out) for key, (train, test) in zip(named, parts, strict=True)]
        self.train = [train for train, _ in pairs]
        self.test = [test for _, test in pairs]

    @classmethod
    def of(cls, found: Any) -> Clients:
        return found if isinstance(found, Clients) else cls(found)

    def __len__(self) -> int:
        return len(self.train)

    @cached_property
    def dataset(self) -> Dataset:
        """The samples of all clients as one data set that knows the client of each sample."""
        train, test = (_joined(parts) for parts in (self.train, self.test))
        top = 1 + max(int(part.labels.max()) for part in (train, test) if len(part))
        classes = top if self.classes is None else self.classes
        made = Dataset(self.name, train, test, classes, input=self.input, names=self.names)
        remarks = () if self.class_names or self.classes else none_of_class_0(train, test)
        made = replace(made, class_names=self.class_names, remarks=remarks)
        return checked(made, "clients")

    @cached_property
    def key(self) -> str:
        """A checksum of all samples, labels and options: the value of `data.root` in the run's config."""
        arrays = (array for part in (*self.train, *self.test) for array in (part.samples, part.labels))
        return checksum((self.names, self.classes, self.input), arrays)

    def hand_over(self) -> str:
        """Make the clients available to `data.source = given`, and return the `data.root` that names them. They stay
        available as long as the program holds this object."""
        _handed[self.key] = self
        return self.key


def checksum(about: object, arrays: Iterable[NDArray[Any]]) -> str:
    """A checksum of arrays and of the `repr` of a description of them."""
    digest = hashlib.blake2b(digest_size=12)
    digest.update(repr(about).encode())
    for array in arrays:
        digest.update(f"{array.dtype} {array.shape} ".encode())
        digest.update(np.ascontiguousarray(array).view(np.uint8).reshape(-1).data)
    return digest.hexdigest()


def dataset_of_handed_over(key: str) -> Dataset:
    """The data set of the clients that were handed over under this key."""
    found = _handed.get(key)
    if found is None:
        raise RequestError(
            f"data.source = {SOURCE!r}: the clients of this run were objects of a program, and are not here. Hand them "
            "over again: torso.run(config, clients=…), torso.load(folder, clients=…)"
        )
    return found.dataset


def _parts(where: str, given: Any) -> tuple[ClientSamples, ClientSamples | None]:
    """The training part of one client and its test part, if it has one."""
    if _is_dataset(given):
        return _part(where, given), None
    if not isinstance(given, Sequence) or isinstance(given, str) or len(given) != 2:
        raise RequestError(f"{where} is {_named(given)}. Expected: {_EXPECTED}")
    first, second = given
    two_parts = _is_dataset(first) or (_is_pair(first) and _is_pair(second))
    if two_parts:
        return _part(f"{where}, to train on", first), _part(f"{where}, to test on", second)
    return _part(where, given), None


def _is_pair(value: Any) -> bool:
    return isinstance(value, tuple | list) and len(value) == 2 and np.ndim(_array_like(value[0])) > 0


def _array_like(value: Any) -> Any:
    return value.shape if hasattr(value, "shape") else value


def _is_dataset(value: Any) -> bool:
    return isinstance(value, torch.utils.data.Dataset)


def _part(where: str, given: Any) -> ClientSamples:
    if _is_dataset(given):
        if not hasattr(given, "__len__"):
            raise RequestError(f"{where} is an endless {type(given).__name__}. Expected: a Dataset with a length")
        pairs = [_at(where, given, place) for place in range(len(given))]
        if not pairs:
            raise RequestError(f"{where} has no samples. Expected: at least one")
        if not all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in pairs):
            raise RequestError(f"{where}: {type(given).__name__} gives {_named(pairs[0])}. Expected: (sample, label)")
        given = [np.asarray(_plain(sample)) for sample, _ in pairs], [int(label) for _, label in pairs]
    if not isinstance(given, tuple | list) or len(given) != 2:
        raise RequestError(f"{where} is {_named(given)}. Expected: {_EXPECTED}")
    try:
        samples, labels = (np.asarray(_plain(array)) for array in given)
    except ValueError as error:
        raise RequestError(f"{where}: samples are not of one shape ({error}). Expected: one shape for all") from None
    if samples.dtype == object or labels.ndim != 1 or labels.dtype.kind not in "iu" or len(samples) != len(labels):
        raise RequestError(
            f"{where}: samples are {samples.dtype} {list(samples.shape)}, labels {labels.dtype} {list(labels.shape)}. "
            "Expected: samples [n, …] of one shape, labels integers [n]"
        )
    if not len(labels):
        raise RequestError(f"{where} has no samples. Expected: at least one")
    return ClientSamples(samples, labels.astype(np.int64))


def _at(where: str, given: Any, place: int) -> Any:
    """One sample of the user's Dataset. An exception of the Dataset passes through, with a note of client and place."""
    try:
        return given[place]
    except Exception as error:
        error.add_note(f"{where}: this was sample {place} of {len(given)}")
        raise


def _plain(value: Any) -> Any:
    return value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else value


def _named(value: Any) -> str:
    size = f" of {len(value)}" if isinstance(value, tuple | list) else ""
    return f"{type(value).__name__}{size}"


def train_and_test_of(
    name: str, part: ClientSamples, test: ClientSamples | None, share: float = HELD_OUT
) -> tuple[ClientSamples, ClientSamples]:
    """A client's samples to train on and to test on. If it has no test part, one is drawn, keyed by its name."""
    if test is not None:
        return part, test
    count = len(part.labels)
    order = numpy_generator(0, "held out", name).permutation(count)
    cut = count - math.floor(share * count + 1e-9)
    return part.at(np.sort(order[:cut])), part.at(np.sort(order[cut:]))


def _joined(parts: Sequence[ClientSamples]) -> Labelled:
    shapes = {part.samples.shape[1:] for part in parts}
    if len(shapes) > 1:
        raise RequestError(
            f"clients have samples of shapes {', '.join(map(str, sorted(shapes, key=str)))}. Expected: one for all"
        )
    owner = np.repeat(np.arange(len(parts)), [len(part.labels) for part in parts])
    return Samples(np.concatenate([p.samples for p in parts]), np.concatenate([p.labels for p in parts]), owner)
