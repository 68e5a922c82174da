"""Data as they lie on the disk, sample by sample, for a survey. n samples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from torso.data.formats import source_for
from torso.data.image_files import Broken, Head, digest_of, head_of, in_threads, nothing_left, pixels_of
from torso.data.inputs import Input, Pixels
from torso.data.sources import load
from torso.data.sources.arrays import has_test_part, read_npz
from torso.data.sources.columns import TEST_NAMES
from torso.data.sources.folder import LAYOUTS, arranged
from torso.data.survey import Inventory
from torso.errors import RequestError

if TYPE_CHECKING:
    from torso.config import DataConfig

FORMATS = f"a folder of images ({LAYOUTS}), a .csv, .jsonl, .parquet or .npz file, or a folder that `datasets` saved"
_SIDE = 64  # to which images are resized where a source wants one size
Picture = Callable[[int], NDArray[np.uint8] | None]


@dataclass(frozen=True, eq=False)
class Stock:
    """What was found at a path: the samples, how to show one that is an image, and how a run would read them."""

    options: DataConfig
    inventory: Inventory
    picture: Picture  # of a row, uint8 [H, W, C]; None where it is no image
    input: Input | None = None  # None: image files, whose size a run chooses
    remarks: tuple[str, ...] = ()


def take_stock(path: Path, options: DataConfig) -> Stock:
    """Everything at the path, by the source that reads it."""
    path = path.expanduser()
    if not path.exists():
        raise RequestError(f"{str(path)!r} does not exist. Expected: {FORMATS}")
    source = source_for(path)
    if not source:
        raise RequestError(f"{str(path)!r} is a file of no known format. Expected: {FORMATS}")
    options = options.model_copy(update={"root": str(path.resolve()), "source": source})
    return _files(path.resolve(), options) if source == "folder" else _loaded(options)


@dataclass(frozen=True)
class _Looked:
    head: Head
    digest: bytes


def _look(path: Path) -> _Looked | str:
    head = head_of(path)
    if isinstance(head, str):
        return head
    pixels = pixels_of(path, head.grey, 0)
    return pixels if isinstance(pixels, str) else _Looked(head, digest_of(pixels))


def _files(root: Path, options: DataConfig) -> Stock:
    found = arranged(root, options.folder, strict=False)
    names = found.names(root)
    looked = in_threads(_look, found.files)
    broken = tuple(Broken(name, fault) for name, fault in zip(names, looked, strict=True) if isinstance(fault, str))
    good = [(row, what) for row, what in enumerate(looked) if isinstance(what, _Looked)]
    if not good:
        raise nothing_left(broken)
    rows = np.array([row for row, _ in good])
    inventory = Inventory(
        labels=found.label[rows],
        clients=found.client[rows],
        test=np.array(found.test)[rows],
        digests=[what.digest for _, what in good],
        names=[names[row] for row in rows],
        class_names=found.classes,
        client_names=found.clients,
        parted=found.parted,
        sizes=[(what.head.height, what.head.width) for _, what in good],
        grey=np.array([what.head.grey for _, what in good]),
        broken=broken,
        noun="images",
    )

    def picture(row: int) -> NDArray[np.uint8] | None:
        pixels = pixels_of(found.files[rows[row]], grey=False, side=0)
        return None if isinstance(pixels, str) else pixels

    return Stock(options, inventory, picture, remarks=found.remarks)


def _loaded(options: DataConfig) -> Stock:
    """What a source of arrays or rows gives."""
    try:
        dataset = load(options, 0)
    except RequestError as error:
        if options.size or "or data.size" not in str(error):
            raise
        options = options.model_copy(update={"size": _SIDE})
        dataset = load(options, 0)
    both = (dataset.train, dataset.test)
    samples = [part.samples for part in both]
    kind = dataset.kind
    owners = [np.zeros(len(part), np.int64) if part.writers is None else part.writers for part in both]
    images = isinstance(kind, Pixels)
    count = sum(map(len, both))
    inventory = Inventory(
        labels=np.concatenate([part.labels for part in both]),
        clients=np.concatenate(owners),
        test=np.repeat([False, True], [len(part) for part in both]),
        digests=[_digest(row) for part in samples for row in part],
        names=[
            f"{split} row {row}"
            for split, part in zip(("train", "test"), both, strict=True)
            for row in range(len(part))
        ],
        class_names=dataset.class_names or tuple(map(str, range(dataset.classes))),
        client_names=dataset.names,
        parted=_has_test_part(Path(options.root), options.source),
        sizes=[(kind.height, kind.width)] * count if isinstance(kind, Pixels) else (),
        grey=np.full(count, kind.channels == 1) if isinstance(kind, Pixels) else None,
        noun=kind.noun,
    )

    def picture(row: int) -> NDArray[np.uint8] | None:
        if not images:
            return None
        found: NDArray[np.uint8] = samples[0][row] if row < len(samples[0]) else samples[1][row - len(samples[0])]
        return found

    return Stock(options, inventory, picture, kind, dataset.remarks)


def _digest(row: NDArray[Any]) -> bytes:
    return digest_of(np.ascontiguousarray(row).view(np.uint8).reshape(-1))


def _has_test_part(root: Path, source: str) -> bool:
    """Whether the data say what is for testing; if not, their source has held a part out."""
    if source == "npz":
        return has_test_part(read_npz(root, FORMATS, parts=()))
    return root.is_dir() and any(path.name.lower().startswith(TEST_NAMES) for path in root.iterdir())
