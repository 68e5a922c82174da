"""Reading all samples at a path for a survey (`torso data look`). n samples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from torso.data.formats import source_for
from torso.data.image_files import Broken, ImageHeader, digest_of, header_of, in_threads, nothing_left, pixels_of
from torso.data.inputs import Input, Pixels
from torso.data.sources import load
from torso.data.sources.arrays import has_test_part, read_npz
from torso.data.sources.columns import TEST_NAMES
from torso.data.sources.folder import LAYOUTS, list_image_folder
from torso.data.survey import Inventory
from torso.errors import RequestError

if TYPE_CHECKING:
    from torso.config import DataConfig

FORMATS = f"a folder of images ({LAYOUTS}), a .csv, .jsonl, .parquet or .npz file, or a folder that `datasets` saved"
_SIDE = 64  # pixels; images are resized to this side if their source needs one size
Picture = Callable[[int], NDArray[np.uint8] | None]  # see `SurveyData.picture`


@dataclass(frozen=True, eq=False)
class SurveyData:
    """The data found at a path: the samples, a way to show images, and the options with which a run would read them."""

    options: DataConfig
    inventory: Inventory
    picture: Picture  # the pixels uint8 [H, W, C] of a row; None if it is no readable image
    input: Input | None = None  # the kind of sample; None: image files, whose size a run chooses
    remarks: tuple[str, ...] = ()


def read_survey_data(path: Path, options: DataConfig) -> SurveyData:
    """Read everything at the path with the source that fits its format."""
    path = path.expanduser()
    if not path.exists():
        raise RequestError(f"{str(path)!r} does not exist. Expected: {FORMATS}")
    source = source_for(path)
    if not source:
        raise RequestError(f"{str(path)!r} is a file of no known format. Expected: {FORMATS}")
    options = options.model_copy(update={"root": str(path.resolve()), "source": source})
    return _files(path.resolve(), options) if source == "folder" else _loaded(options)


@dataclass(frozen=True)
class _Scan:
    """The header of an image file and the checksum of its pixels."""

    header: ImageHeader
    digest: bytes


def _scan(path: Path) -> _Scan | str:
    """The scan of an image file, or the reason why it cannot be read."""
    header = header_of(path)
    if isinstance(header, str):
        return header
    pixels = pixels_of(path, header.grey, 0)
    return pixels if isinstance(pixels, str) else _Scan(header, digest_of(pixels))


def _files(root: Path, options: DataConfig) -> SurveyData:
    """The samples of a folder of image files."""
    found = list_image_folder(root, options.folder, strict=False)
    names = found.names(root)
    scans = in_threads(_scan, found.files)
    broken = tuple(Broken(name, reason) for name, reason in zip(names, scans, strict=True) if isinstance(reason, str))
    readable = [(row, scan) for row, scan in enumerate(scans) if isinstance(scan, _Scan)]
    if not readable:
        raise nothing_left(broken)
    rows = np.array([row for row, _ in readable])
    inventory = Inventory(
        labels=found.label[rows],
        clients=found.client[rows],
        test=np.array(found.test)[rows],
        digests=[scan.digest for _, scan in readable],
        names=[names[row] for row in rows],
        class_names=found.classes,
        client_names=found.clients,
        parted=found.parted,
        sizes=[(scan.header.height, scan.header.width) for _, scan in readable],
        grey=np.array([scan.header.grey for _, scan in readable]),
        broken=broken,
        noun="images",
    )

    def picture(row: int) -> NDArray[np.uint8] | None:
        pixels = pixels_of(found.files[rows[row]], grey=False, side=0)
        return None if isinstance(pixels, str) else pixels

    return SurveyData(options, inventory, picture, remarks=found.remarks)


def _loaded(options: DataConfig) -> SurveyData:
    """The samples of a source of arrays or of rows of a table."""
    try:
        dataset = load(options, 0)
    except RequestError as error:  # images of several sizes ask for data.size
        if options.size or "or data.size" not in str(error):
            raise
        options = options.model_copy(update={"size": _SIDE})
        dataset = load(options, 0)
    parts = {"train": dataset.train, "test": dataset.test}
    train_samples, test_samples = dataset.train.samples, dataset.test.samples
    kind = dataset.kind
    owners = [np.zeros(len(part), np.int64) if part.writers is None else part.writers for part in parts.values()]
    count = sum(map(len, parts.values()))
    inventory = Inventory(
        labels=np.concatenate([part.labels for part in parts.values()]),
        clients=np.concatenate(owners),
        test=np.repeat([False, True], [len(part) for part in parts.values()]),
        digests=[_digest(sample) for part in parts.values() for sample in part.samples],
        names=[f"{split} row {row}" for split, part in parts.items() for row in range(len(part))],
        class_names=dataset.class_names or tuple(map(str, range(dataset.classes))),
        client_names=dataset.names,
        parted=_has_test_part(Path(options.root), options.source),
        sizes=[(kind.height, kind.width)] * count if isinstance(kind, Pixels) else (),
        grey=np.full(count, kind.channels == 1) if isinstance(kind, Pixels) else None,
        noun=kind.noun,
    )

    def picture(row: int) -> NDArray[np.uint8] | None:
        if not isinstance(kind, Pixels):
            return None
        pixels: NDArray[np.uint8] = (
            train_samples[row] if row < len(train_samples) else test_samples[row - len(train_samples)]
        )
        return pixels

    return SurveyData(options, inventory, picture, kind, dataset.remarks)


def _digest(sample: NDArray[Any]) -> bytes:
    return digest_of(np.ascontiguousarray(sample).view(np.uint8).reshape(-1))


def _has_test_part(root: Path, source: str) -> bool:
    """Whether the data have a test part; if not, their source has held one out."""
    if source == "npz":
        return has_test_part(read_npz(root, FORMATS, parts=()))
    return root.is_dir() and any(path.name.lower().startswith(TEST_NAMES) for path in root.iterdir())
