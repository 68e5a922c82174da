"""The registry of sources, and what sources share: finding their files and reporting damaged ones."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from torso.data.fetch_catalogue import downloaded
from torso.data.images import Dataset
from torso.errors import MissingData, RequestError
from torso.registry import Registry

if TYPE_CHECKING:
    from torso.config import DataConfig

Source = Callable[["DataConfig", int], Dataset]  # (options, seed) → data set
HF = "hf/"


class Sources(Registry[Source]):
    """The registry of sources. Every name that begins with `hf/` is a data set of the Hugging Face hub."""

    def look_up(self, name: str, key: str) -> Source:
        return super().look_up(HF_NAME if name.startswith(HF) else name, key)


HF_NAME = f"{HF}NAME"  # the registered name that stands for all data sets of the hub
sources = Sources("data.source")

MNIST_LIKE = ((0.1307,), (0.3081,))  # mean, std (spec 10.6)
BLACK_ON_WHITE = ((1 - 0.1307,), (0.3081,))  # the same for dark ink on white paper: FEMNIST


def root_of(options: DataConfig, expected: str, usual: str = "") -> Path:
    """The file or folder `data.root`, which must exist. If the key is empty: what `torso data get` has downloaded,
    otherwise the source's usual place."""
    place = options.root or downloaded(options.source) or usual
    root = Path(place).expanduser()
    if not place:
        raise RequestError(f"data.root is empty: data.source = {options.source!r} needs it. Expected: {expected}")
    if not root.exists():
        searched = "" if root.is_absolute() else f" in {str(Path.cwd())!r}"
        raise MissingData(f"data.root = {str(root)!r} does not exist{searched}. Expected: {expected}")
    return root


@contextmanager
def reading(path: Path | str, expected: str) -> Iterator[None]:
    """Turn any exception from reading a file into a RequestError of one sentence.

    It catches everything, because truncated archives, pickles and images raise a dozen unrelated exceptions.
    """
    try:
        yield
    except RequestError:
        raise
    except FileNotFoundError:
        raise RequestError(f"{path} does not exist. Expected: {expected}") from None
    except UnicodeDecodeError as error:
        byte = f"byte 0x{error.object[error.start]:02x} at place {error.start}"
        raise RequestError(f"{path} is not text in UTF-8 ({byte}). Expected: {expected}, saved as UTF-8") from None
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".removesuffix(": ")
        raise RequestError(f"{path} cannot be read, it may be damaged ({reason}). Expected: {expected}") from None


def read_bytes(path: Path) -> bytes:
    """The content of a file, unpacked if it is gzip'd. It is read to its end, so that gzip's checksum is verified."""
    raw = path.read_bytes()
    return gzip.decompress(raw) if raw.startswith(b"\x1f\x8b") else raw
