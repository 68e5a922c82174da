"""What the bodies of other libraries share: their names, what their weights expect, and where their weights are."""

from __future__ import annotations

import importlib
import json
from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from torso.data.inputs import Input, Pixels
from torso.data.wants import Wants
from torso.errors import RequestError, did_you_mean
from torso.nets.network import Body
from torso.nets.weight_files import PICKLED, SAFETENSORS, names_in, read_weights
from torso.reading import parse_toml

RATE = 0.01
"""Local learning rate with which pre-trained weights are fine-tuned unless somebody sets one."""
INSIDE = "module."  # what stands before the library's own names in a body
_OURS = "body."  # what stands before them in a file or run of Torso
_GENERATIONS = 5  # of runs that began with the weights of others


def import_library(name: str, whose: str, extra: str) -> Any:
    """A library of an extra, or one line that says how to install it. `whose`: the key that needs it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise RequestError(f"{whose} needs {name} ({error}). Install it: pip install 'torso[{extra}]'") from None
    except (RuntimeError, OSError) as error:  # built for another torch
        said = " ".join(str(error).split())[:120]
        raise RequestError(
            f"{whose} needs {name}, which does not fit the torch that is installed ({said}). Install both anew: "
            f"pip install 'torso[{extra}]'"
        ) from None


def unknown(whose: str, name: str, known: Collection[str], library: str) -> RequestError:
    """That a library has no such network."""
    return RequestError(
        f"{whose} is unknown: {library} has no {name!r}{did_you_mean(name, known)} It has {len(known)} networks"
    )


@dataclass(frozen=True)
class Outside(ABC):
    """A network of another library as a body of images. `name` is what `model.body` says: `torchvision/resnet18`."""

    name: str
    takes: ClassVar[tuple[type[Input], ...]] = (Pixels,)
    instead: ClassVar[str] = "set data.size, such as 224"  # where a network cannot take images of a size

    @property
    def key(self) -> str:
        return f"model.body = {self.name!r}"

    @property
    def own_name(self) -> str:
        """In its library."""
        return self.name.partition("/")[2]

    @abstractmethod
    def __call__(self, input: Pixels) -> Body:
        """The network without its last layer, with weights drawn from torch's generator. Nothing is downloaded."""

    @property
    @abstractmethod
    def words(self) -> tuple[str, ...]:
        """What `model.weights` may say for weights that the library knows."""

    @abstractmethod
    def find_old_head(self) -> tuple[str, ...]:
        """What the names of tensors begin with that belong to the classes of the pre-training."""

    @cached_property
    def old_head(self) -> tuple[str, ...]:
        return self.find_old_head()

    @abstractmethod
    def bare(self) -> Wants:
        """What the network itself cannot do without."""

    @abstractmethod
    def trained(self, word: str) -> Wants:
        """What the library's weights under a word expect; "": its usual ones."""

    @abstractmethod
    def fetched(self, word: str) -> dict[str, Tensor]:
        """The library's weights under a word, by the library's names."""

    def wants(self, weights: str, generations: int = _GENERATIONS) -> Wants:
        """What samples must be for `model.weights`: a word, a run folder, a file of Torso, or one of the library."""
        if not weights:
            return self.bare()
        path = Path(weights)
        if weights not in self.words and path.is_dir() and generations:
            return self._wants_of_run(path, generations)
        names, about = names_in(path) if path.suffix == SAFETENSORS and path.is_file() else ((), {})
        if any(name.startswith(_OURS) for name in names):
            return self._wants_of_model(about)
        return replace(self.trained(weights if weights in self.words else ""), lr=RATE)

    def _wants_of_run(self, folder: Path, generations: int) -> Wants:
        """What the weights that the run began with expect, at the size that it has set."""
        try:
            tree = parse_toml((folder / "config.toml").read_text(encoding="utf-8"))
            weights, size = str(tree["model"]["weights"]), int(tree["data"].get("size", 0))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return self.bare()
        found = self.wants(weights, generations - 1)
        return replace(found, size=size or found.size, lr=RATE)

    def _wants_of_model(self, about: dict[str, str]) -> Wants:
        """What the model of a file that Torso wrote was trained with."""
        try:
            channels, height, width = json.loads(about["image"])
            mean, std = (tuple(map(float, json.loads(about[key]))) for key in ("mean", "std"))
        except (KeyError, ValueError, TypeError):
            return replace(self.bare(), lr=RATE)
        return Wants(self.key, height if height == width else 0, channels, mean, std, lr=RATE)

    def weights(self, word: str) -> dict[str, Tensor] | None:
        """The tensors of a body under a word of the library, or in a file of its own names. None: it is a run folder,
        or a file of Torso."""
        where = f"model.weights = {word!r}"
        if word in self.words:
            return {f"{INSIDE}{name}": tensor for name, tensor in self.fetched(word).items()}
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
        if any(name.startswith(_OURS) for name in found):
            return None
        return {f"{INSIDE}{name}": tensor for name, tensor in found.items()}

    def is_old_head(self, name: str) -> bool:
        """Whether a tensor, by its name in the body, belongs to the classes of the pre-training."""
        return name.startswith(tuple(f"{INSIDE}{prefix}" for prefix in self.old_head))

    def no_download(self, word: str, error: BaseException, instead: str) -> RequestError:
        """That the library could not get its weights, in one line."""
        said = " ".join(str(error).split())[:160].rstrip(".")
        return RequestError(
            f"model.weights = {word!r} of {self.key} cannot be downloaded ({type(error).__name__}: {said}). {instead}"
        )
