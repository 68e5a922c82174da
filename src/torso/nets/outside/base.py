"""`Outside`: the base class of image networks of other libraries, with their names, weights and expected input."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from torso.data.inputs import Input, Pixels
from torso.data.wants import Wants
from torso.errors import RequestError, did_you_mean
from torso.nets.body import Body
from torso.nets.split import head_of
from torso.nets.torso_weights import BODY_PREFIX, FINE_TUNING_RATE, MAX_GENERATIONS, wants_of_model, wants_of_run
from torso.nets.weight_files import PICKLED, SAFETENSORS, names_in, read_weights

MODULE_PREFIX = "module."  # prefix of the library's own names in a body


def import_library(name: str, whose: str, extra: str) -> Any:
    """The library of an extra; if it is not installed, an error says how to install it. `whose`: the setting that
    needs it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise RequestError(f"{whose} needs {name} ({error}). Install it: pip install 'torso[{extra}]'") from None
    except (RuntimeError, OSError) as error:  # built for another torch
        reason = " ".join(str(error).split())[:120]
        raise RequestError(
            f"{whose} needs {name}, which does not fit the torch that is installed ({reason}). Install both anew: "
            f"pip install 'torso[{extra}]'"
        ) from None


def unknown(whose: str, name: str, known: Collection[str], library: str) -> RequestError:
    """The error for a name under which a library has no network. `known`: the names that it has."""
    return RequestError(
        f"{whose} is unknown: {library} has no {name!r}{did_you_mean(name, known)} It has {len(known)} networks"
    )


def head_name(make: Callable[[], nn.Module]) -> str:
    """The library's name of the last layer of a network that `make` returns.

    The network is made without weights if that is possible."""
    with torch.random.fork_rng(devices=[]):
        try:
            with torch.device("meta"):
                return head_of(make())[0]
        except (NotImplementedError, RuntimeError):  # the network reads values of its tensors while it is made
            return head_of(make())[0]


@dataclass(frozen=True)
class Outside(ABC):
    """An image network of another library, as a maker of bodies.

    `name`: the whole value of `model.body`, such as `torchvision/resnet18`."""

    name: str
    takes: ClassVar[tuple[type[Input], ...]] = (Pixels,)
    instead: ClassVar[str] = "set data.size, such as 224"  # advice if a network cannot take images of the data's size

    @property
    def key(self) -> str:
        return f"model.body = {self.name!r}"

    @property
    def own_name(self) -> str:
        """The network's name in its library."""
        return self.name.partition("/")[2]

    @abstractmethod
    def __call__(self, input: Pixels) -> Body:
        """The network without its last layer, with weights drawn from torch's generator. Nothing is downloaded."""

    @property
    @abstractmethod
    def words(self) -> tuple[str, ...]:
        """The words for `model.weights` that name weights of the library."""

    @abstractmethod
    def find_old_head(self) -> tuple[str, ...]:
        """Prefixes of the names of tensors that belong to the head of the pre-training."""

    @cached_property
    def old_head(self) -> tuple[str, ...]:
        """What `find_old_head` returns."""
        return self.find_old_head()

    @abstractmethod
    def untrained_wants(self) -> Wants:
        """What the network expects of samples without trained weights."""

    @abstractmethod
    def trained_wants(self, word: str) -> Wants:
        """What the library's weights of a word expect of samples. "": the library's usual weights."""

    @abstractmethod
    def download(self, word: str) -> dict[str, Tensor]:
        """The library's weights of a word, by the library's names."""

    def wants(self, weights: str, generations: int = MAX_GENERATIONS) -> Wants:
        """What `model.weights` expects of samples: a word, a run folder, a file of Torso, or a file of the library.

        `generations`: how many more runs to follow back, if a run began with the weights of another."""
        if not weights:
            return self.untrained_wants()
        path = Path(weights)
        if weights not in self.words and path.is_dir() and generations:
            return wants_of_run(path, lambda word: self.wants(word, generations - 1)) or self.untrained_wants()
        if path.suffix == SAFETENSORS and path.is_file():
            names, metadata = names_in(path)
            if any(name.startswith(BODY_PREFIX) for name in names):
                return wants_of_model(metadata, self.key) or replace(self.untrained_wants(), lr=FINE_TUNING_RATE)
        return replace(self.trained_wants(weights if weights in self.words else ""), lr=FINE_TUNING_RATE)

    def weights(self, word: str) -> dict[str, Tensor] | None:
        """A body's tensors, by their names in the body, for a word of the library or a file with the library's names.

        None: it is a run folder, or a file of Torso."""
        where = f"model.weights = {word!r}"
        if word in self.words:
            return {f"{MODULE_PREFIX}{name}": tensor for name, tensor in self.download(word).items()}
        path = Path(word)
        if path.is_dir():
            return None
        if not path.is_file():
            hint = did_you_mean(word, self.words) if self.words else "."
            raise RequestError(
                f"{where} is neither a file nor a run folder, nor weights of {self.key}{hint} "
                f"Accepted: {', '.join((*self.words, 'a path'))}"
            )
        if path.suffix.lower() not in (SAFETENSORS, *PICKLED):
            raise RequestError(f"{where} is no file of weights. Expected: a {SAFETENSORS}, .pth, .pt or .bin file")
        found = read_weights(path, where)
        if any(name.startswith(BODY_PREFIX) for name in found):
            return None
        return {f"{MODULE_PREFIX}{name}": tensor for name, tensor in found.items()}

    def is_old_head(self, name: str) -> bool:
        """Whether a tensor, by its name in the body, belongs to the head of the pre-training."""
        return name.startswith(tuple(f"{MODULE_PREFIX}{prefix}" for prefix in self.old_head))

    def no_download(self, word: str, error: BaseException, instead: str) -> RequestError:
        """The error for weights that the library cannot download. `instead`: what the user can do."""
        reason = " ".join(str(error).split())[:160].rstrip(".")
        return RequestError(
            f"model.weights = {word!r} of {self.key} cannot be downloaded ({type(error).__name__}: {reason}). {instead}"
        )
